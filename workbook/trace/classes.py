"""Classes of kernels, operators and calls by their names, algorithms of convolutions, and short names for tables.

The names are those of cuDNN, cuBLAS, CUTLASS, PyTorch, Inductor and NCCL from Kepler to Blackwell, and of labkit's own
Triton kernels. The first rule that matches counts. Algorithms of convolutions have NVIDIA's names: `dgrad_engine` and
`wgrad_alg0_engine` are sums of matrix products whose matrices are never stored (implicit, in cuDNN's guide). Names of
kernels on tensor cores say so (`s1688`, `tensor16x8x8`, `warpgroup`, `hmma`).

Classes of CUDA's runtime and driver calls follow the NYU paper: launching, cleaning up (the paper's cudaEventDestroy),
and memory and device calls (it names cudaGetDeviceProperties, cuDeviceGetAttribute, cuDeviceTotalMem and cudaSetDevice;
copies count too). Here, waiting is a separate class: the host's waiting time shows how long the device works, and
nothing about the call. cudaStreamWaitEvent makes only the stream wait, not the host, so its class is not `wait`. HIP
uses the same words, so its calls get the same classes.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from workbook.records.traced import Algorithm, CallClass, KernelClass


class Class(NamedTuple):
    """Class and algorithm of a kernel or operator by its name. `kind` is None where no rule matches the name."""

    kind: KernelClass | None
    algorithm: Algorithm | None = None
    max_pool_backward: bool = False
    broadcast: bool = False


# Rules for names in lower case, in this order.
_KERNELS: tuple[tuple[str, KernelClass, Algorithm | None], ...] = (
    (r"^(nccl|rccl|msccl)|all_?reduce_kernel|(one|two)_shot_all|multimem_all|nvshmem", "collective", None),
    (r"^make_batch$", "loader", None),
    (r"multi_tensor_apply|fused_?(sgd|adam)|^_update$|adam\w*functor|sgd\w*functor", "optimiser", None),
    (r"batch_?norm|(?<![a-z0-9])bn_(fw|bw|add|finalize)|spatialbn|syncbn", "batch_norm", None),
    (r"(layer|group|rms|instance)_?norm|gammabeta|rowwisemoments", "layer_norm", None),
    (r"pool(?!ed)|^mean$", "pooling", None),
    (r"soft_?max|nll_?loss|cross_?entropy|mse_(kernel|backward)|smooth_l1|huber|kl_div|_loss", "loss", None),
    (r"sdpa|flash_|flashattn|fmha|attention", "matrix_product", None),
    (r"^convolve$", "convolution", "tensor_core"),
    (r"winograd", "convolution", "winograd"),
    # In these networks, only cuDNN's FFT and cuBLAS calls for it multiply or move complex numbers.
    (
        r"(^|::)fft[12]d_|cgemm|_cf32|flip_filter|(vector|regular|composite)\w*_fft|_complex<"
        r"|(gemm|gemv|dot|region_transform|splitk)\w*<.*float2",
        "convolution",
        "fft",
    ),
    (
        r"n[cd]?hwton\w*c\w*w?kernel|nhwc?ton?chw|nchwton?hwc|offsetskernel|im2col|col2im|vol2col|col2vol"
        r"|scale(packed)?tensor|addpadding|wgrad\w*_(helper|reduce)|precompute_indices|cubetranspose|compute_gemm_point"
        r"|cudnn.*(reducesplitk|splitkreduce|settensor|transpose|convert)|transpose_readwrite|tensortransform"
        r"|foldednhwc|nhwc2nchw_kernel|^to_squares$",
        "convolution",
        "helper",
    ),
    (r"grouped_direct|depthwise|_c1_k1_|conv\w*direct|direct\w*conv", "convolution", "direct"),
    (
        r"[fd]prop|[dw]grad|implicit_?gemm|(implicit|explicit|precomputed)_convolve|convolve|conv(fwd|\dd|nd|olution)"
        r"|first_layer_\w*kernel|[shi]cudnn|\d\d(16|32)?cudnn|kernel\w*conv|^conv_",
        "convolution",
        "implicit_gemm",
    ),
    (
        r"(?<!fb)gemm|gemv|cutlass|nvjet|splitk|cublas|xmma|^cijk_|dot_kernel|matmul|attn|^_?b?mm_|^magma_"
        r"|^scal_kernel|epilogue::impl|reduce_1block|trsm|syrk|wmma",
        "matrix_product",
        None,
    ),
    (
        r"_copy|copy_|catarray|batchedcopy|transpose|permute|(?<!with_)index|gather|scatter|embedding"
        r"|::flip|::roll|(reflection|replication|constant)_pad|unfold|repeat_inter|_to_dense|nonzero",
        "layout",
        None,
    ),
    (
        r"elementwise|element_wise|pointwise|op_tensor|generic_tensor|add_tensor|activation_[fb]w|dropout|distribution"
        r"|upsample|^loop_|cudafunctor|fillfunctor|lerp",
        "element_wise",
        None,
    ),
    (
        r"reduce|cub::|scan|sort|topk|argm(ax|in)|unique|histogram|calc_bias_diff",
        "reduction",
        None,
    ),
)
_KERNEL_RULES = [(re.compile(pattern), kind, algorithm) for pattern, kind, algorithm in _KERNELS]
_TENSOR_CORE = re.compile(
    r"tensor_?op|tensor\d|[hi]mma|wgmma|warpgroup|umma|(884|1688|168(08|16|32)|8816|88128)(cudnn|[fdw])|_tf32|tf32f32"
    r"|sm(9|10|11|12)\d_xmma|sm1\d\d|cudnn_generated"
)
_NO_TENSOR_CORE = re.compile(r"ffma|simt|_scudnn|_icudnn|dffma")

# The name of an Inductor kernel holds the fused operators, joined by underscores.
_TRITON = re.compile(r"^triton_(poi|red|per|for|tem|mm|bmm|addmm|convolution\w*?|flex\w*?)?_*(?:fused_+)?(.*)$")
_ONLY_LAYOUT = re.compile(
    r"^(?=.*[a-z])(_to_copy|to_copy|clone|permute|transpose|view|cat|constant_pad_nd|convert_element_type|expand|slice|stack"
    r"|copy_?|t|_unsafe_view|unsqueeze|squeeze|flip|index|gather|embedding|lift_fresh|\d|_)+$"
)

# Rules for names of operators, without their namespace, in lower case.
_OPERATORS: tuple[tuple[str, KernelClass], ...] = (
    (r"allreduce|all_?gather|broadcast_$|reduce_scatter|barrier|^(send|recv)", "collective"),
    (r"^_?fused_(sgd|adam|adagrad)|^_foreach|^_amp_foreach|^_amp_update", "optimiser"),
    (r"batch_?norm", "batch_norm"),
    (r"(layer|group|rms|instance)_?norm", "layer_norm"),
    (r"pool", "pooling"),
    (r"loss|softmax|cross_entropy|kl_div|mse_", "loss"),
    (r"conv(?!ert)|^_?thnn_conv|^_?slow_conv|im2col|col2im", "convolution"),
    (
        r"^(_?addmm\w*|mm|bmm|baddbmm_?|_?addm?v\w*|matmul|linear\w*|_mkldnn_linear|mkldnn_linear\w*|mv|dot|vdot|einsum"
        r"|inner|outer|_linear_pointwise|_scaled\w*|scaled_dot\w*|_int_mm|linear_?backward|lstm\w*|mkldnn_rnn\w*)$"
        r"|attention|qlinear|mmbackward|linearbackward",
        "matrix_product",
    ),
    (
        r"^(_?to|_to_copy|copy_?|_copy_from|contiguous|clone|cat|_cat|stack|concat\w*|transpose_?|permute|t|numpy_t|view"
        r"|_unsafe_view|_reshape\w*|reshape\w*|as_strided_?|expand\w*|slice|select|flatten|unflatten|empty\w*|resize\w*"
        r"|detach_?|alias|unsqueeze_?|squeeze_?|narrow|flip|roll|pad|\w+_pad\w*|index\w*|_index\w*|gather|scatter\w*"
        r"|repeat\w*|tile|unfold\w*|mkldnn_reorder\w*|to_\w+|_to_\w+|reorder\w*|take\w*|embedding\w*|set_|split\w*|chunk"
        r"|unbind|movedim|swapaxes|new_\w+|lift_fresh\w*|resolve_\w+|pin_memory|_pin_memory|is_pinned|result_type"
        r"|promote_types|nonzero\w*|masked_select|(un)?flatten_dense_tensors|broadcast_tensors"
        r"|scalar_tensor|expand_as|view_as\w*|type_as|unsafe_\w+|_reinterpret\w*|real|imag)(_backward\w*|_scatter)?$",
        "layout",
    ),
    (
        r"^(sum\w*|mean|max|min|amax|amin|aminmax|argmax|argmin|norm|linalg\w*norm|var\w*|std\w*|topk|sort|argsort|cum\w+"
        r"|any|all|prod|median|item|_local_scalar_dense|equal|is_nonzero|count_nonzero|unique\w*|_unique\w*|bincount"
        r"|histc|\w*_norm\w*|logsumexp|allclose|isclose|isfinite)$",
        "reduction",
    ),
    (
        r"^_*(add|sub|rsub|mul|div|neg|abs|exp\d?|expm1|log\w*|sqrt|rsqrt|pow|sin|cos|tan|tanh|atan\w*|erf\w*|sigmoid|relu6?"
        r"|\w*relu|gelu|silu|mish|elu|hard\w+|softplus|threshold|clamp\w*|where|lerp|addc\w+|eq|ne|lt|le|gt|ge|floor\w*"
        r"|ceil|round|trunc|reciprocal|sign|fill|zero|zeros|ones|full|rand\w*|bernoulli|normal|uniform|exponential"
        r"|native_dropout|dropout|arange|linspace|maximum|minimum|masked_fill|nan_to_num|isnan|remainder|fmod|square"
        r"|bitwise\w+|logical\w+|upsample\w*|prelu\w*|copysign|angle|complex)(_like|_scalar|_outf|_mode)?(_backward\w*)?_?$",
        "element_wise",
    ),
)
_OPERATOR_RULES = [(re.compile(pattern), kind) for pattern, kind in _OPERATORS]
# Namespaces whose operators compute. Autograd's only call operators, and `c10d`'s hand gradients to other threads.
COMPUTING = ("aten::", "mkldnn::", "mkldnn_prepacked::", "onednn::", "quantized::", "torchvision::", "prepacked::")

_MAX_POOL_BACKWARD = re.compile(r"max_?pool\w*backward|pooling_bw\w*max|max_?pool\w*_(bw|grad)|maxpool\w*bwd")

# Patterns of the name after `cuda`, `cu` or `hip`; the first match counts.
_CALLS: tuple[tuple[str, CallClass], ...] = (
    (r"(graph|module|extmodule)?launch", "launch"),
    (r".*(destroy|unload|unregister|release|free)|devicereset", "clean_up"),
    (r".*synchronize", "wait"),
    (r".*(mem|alloc)|pointergetattribute|(get)?device(get|can|total|compute)|getdevice", "memory"),
)
_CALL_RULES = [(re.compile(pattern), kind) for pattern, kind in _CALLS]
_PREFIX = re.compile(r"^(cuda|cu|hip)")

LONGEST_NAME = 240  # characters of a shortened name: names of different kernels may differ only at their ends
# Names of wrappers around the function that a PyTorch element-wise kernel or reduction is made for.
_AROUND = re.compile(
    r"^(A|B)?(Unary|Binary)Functor$|^gpu_kernel_impl(_nocast)?$|^func_wrapper_t$|^ReduceOp$|^OpaqueType$|^Array$|^detail$"
    r"|^memory$|^(Trivial)?OffsetCalculator$|^TensorIterator(Base)?$|^Load\w*|^Store\w*|^BinaryFunctor$|^templates$"
    r"|^TensorListMetadata$|^FusedOptimizerTensorListMetadata$|^binary_internal$|^cuda$|^CUDAGeneratorImpl$"
)
_WORDS = re.compile(r"at::native::(?:\w+::)*(\w+)")
_MADE_FOR = re.compile(r"elementwise|reduce_kernel|multi_tensor_apply|index_elementwise|distribution")
_ANONYMOUS = ("(anonymous namespace)::", "<unnamed>::", "_GLOBAL__N_")
_TAIL = re.compile(r"_execute_(\w+_)?kernel_\w*$")  # names the library that an xmma kernel was compiled into
_CASTS = re.compile(r"\((?:int|bool|unsigned int|[\w:]+_t)\)")


@lru_cache(maxsize=8192)
def of_kernel(name: str) -> Class:
    """Return the class of a kernel by its name, and the algorithm of a convolution."""
    bare = without_arguments(name).lower()
    if bare.startswith("triton_"):
        kernel = _triton(bare)
    else:
        fitting = (Class(kind, algorithm) for pattern, kind, algorithm in _KERNEL_RULES if pattern.search(bare))
        kernel = next(fitting, Class(None))
    if kernel.kind == "convolution" and kernel.algorithm == "implicit_gemm" and _on_tensor_cores(bare):
        kernel = kernel._replace(algorithm="tensor_core")
    return kernel._replace(
        max_pool_backward=_MAX_POOL_BACKWARD.search(bare) is not None,
        broadcast=kernel.kind == "collective" and "broadcast" in bare,
    )


@lru_cache(maxsize=4096)
def of_operator(name: str) -> Class:
    """Return the class of a PyTorch operator by its name. A convolution's library chooses its algorithm."""
    bare = name.rpartition("::")[2].lower()
    kind = next((kind for pattern, kind in _OPERATOR_RULES if pattern.search(bare)), None)
    backward = _MAX_POOL_BACKWARD.search(bare) is not None or "maxpool2dwithindicesbackward" in bare
    return Class(kind, "library" if kind == "convolution" else None, max_pool_backward=backward)


def of_convolutions_matrix_product(kernel: str, before: str) -> Algorithm:
    """Return the algorithm of a convolution whose operator launched the product `kernel` after `before` ("" for none).

    cuDNN's Winograd in several kernels multiplies with cuBLAS, right after the kernel that transforms the operands.
    Other kernels of the operator do not count: a backward pass is two convolutions, each with its own algorithm, and
    `before` may be the end of the first (`Output`). FFT products are of complex numbers, which their names show.
    """
    if "winograd_nonfused" in before and "Output" not in before:
        return "winograd"
    return "tensor_core" if _on_tensor_cores(without_arguments(kernel).lower()) else "implicit_gemm"


def _on_tensor_cores(bare: str) -> bool:
    return _TENSOR_CORE.search(bare) is not None and _NO_TENSOR_CORE.search(bare) is None


def _triton(bare: str) -> Class:
    match = _TRITON.match(bare)
    assert match is not None
    form, fused = match[1] or "", match[2]
    if form.startswith("convolution") or (form == "tem" and "conv" in fused):
        return Class("convolution", "tensor_core")
    if form in ("tem", "mm", "bmm", "addmm") or form.startswith("flex"):
        return Class("matrix_product")
    if form == "for":  # one kernel for many tensors: Inductor compiles an optimiser to that
        return Class("optimiser")
    if re.search(r"(layer|group|rms|instance)_norm|mean_mul_pow_rsqrt", fused):
        return Class("layer_norm")
    if re.search(r"batch_norm|var_mean", fused):
        return Class("batch_norm")
    if "pool" in fused:
        return Class("pooling")
    if re.search(r"nll_loss|softmax|cross_entropy|mse_loss", fused):
        return Class("loss")
    if not form:
        return Class(None)
    if _ONLY_LAYOUT.match(fused):
        return Class("layout")
    return Class("element_wise" if form == "poi" else "reduction")


@lru_cache(maxsize=1024)
def class_of_call(name: str) -> CallClass:
    """Return the class of a call, `other` if no pattern matches its name."""
    bare = _PREFIX.sub("", name.lower())
    return next((kind for pattern, kind in _CALL_RULES if pattern.match(bare)), "other")


@lru_cache(maxsize=4096)
def without_arguments(name: str) -> str:
    """Return a demangled name without result type, arguments and anonymous namespaces, any other name unchanged."""
    for anonymous in _ANONYMOUS:
        name = name.replace(anonymous, "")
    name = name.removeprefix("void ").replace("operator()()", "operator_call")
    return _before(name, "(")


@lru_cache(maxsize=4096)
def short_name(name: str) -> str:
    """Return a name as a table shows it, with only those template arguments that tell kernels apart."""
    bare = without_arguments(name)
    head, opened, arguments = bare.partition("<")
    head = head.removeprefix("at::native::").removeprefix("at::cuda::")
    if not opened:
        return _cut(_TAIL.sub("", head))
    first = _before(arguments, ",>")
    if head.endswith("::Kernel") and re.fullmatch(r"\w+", first):  # CUTLASS: the only argument's name says all
        return _cut(first)
    if _MADE_FOR.search(head):
        words = [word for word in _WORDS.findall(arguments) if not _AROUND.match(word)]
        return _cut(f"{head}<{words[0]}>" if words else head)
    return _cut(f"{head}<{_CASTS.sub('', arguments).replace('at::native::', '')}")


def _before(text: str, stops: str) -> str:
    """Return the text before the first of the characters `stops` outside template brackets."""
    depth = 0
    for at, character in enumerate(text):
        if at and depth == 0 and character in stops:
            return text[:at].strip()
        depth += (character == "<") - (character == ">")
    return text.strip()


def _cut(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"
