"""Tests of the classes of kernels, operators and calls, with names from real programs on Kepler to Blackwell GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.traces import ADDITION
from workbook.trace.classes import LONGEST_NAME, class_of_call, of_kernel, of_operator, short_name

NAMES = [
    line.split("|", 2)
    for line in (Path(__file__).parents[1] / "kernel_names.txt").read_text().splitlines()
    if not line.startswith("#")
]


@pytest.mark.parametrize(("kind", "algorithm", "name"), NAMES, ids=[short_name(name) for _, _, name in NAMES])
def test_the_name_of_a_kernel_gives_its_class_and_algorithm(kind: str, algorithm: str, name: str) -> None:
    kernel = of_kernel(name)
    assert (kernel.kind, kernel.algorithm) == (kind, algorithm or None)


@pytest.mark.parametrize(
    "name", ["triton__0d1d2d3d", "at::cuda::(anonymous namespace)::spin_kernel(long)", "my_kernel"]
)
def test_an_unknown_kernel_name_has_no_class(name: str) -> None:
    assert of_kernel(name).kind is None


def test_max_pooling_backward_and_broadcasts_are_recognised() -> None:
    backwards = [name for _, _, name in NAMES if of_kernel(name).max_pool_backward]
    assert [short_name(name).split("<")[0] for name in backwards] == [
        "max_pool_backward_nhwc",
        "cudnn::ops::pooling_bw_kernel_max",
        "triton_poi_fused_max_pool2d_with_indices_backward_0",
    ]
    assert {name[:20] for _, _, name in NAMES if of_kernel(name).broadcast} == {
        "ncclDevKernel_Broadc",
        "ncclBroadcastKernel_",
    }
    assert of_operator("aten::max_pool2d_with_indices_backward").max_pool_backward
    assert not of_operator("aten::max_pool2d_with_indices").max_pool_backward


OPERATORS: dict[str | None, str] = {
    "convolution": "aten::mkldnn_convolution aten::convolution_backward aten::_conv_depthwise2d",
    "matrix_product": "aten::addmm aten::mkldnn_linear",
    "batch_norm": "aten::native_batch_norm_backward",
    "layer_norm": "aten::native_layer_norm_backward aten::native_group_norm aten::_fused_rms_norm",
    "pooling": "aten::max_pool2d_with_indices_backward aten::_adaptive_avg_pool2d",
    "element_wise": (
        "aten::threshold_backward aten::clamp_min aten::add_ aten::zeros_like "
        "aten::native_dropout_backward aten::bernoulli_"
    ),
    "loss": "aten::nll_loss_forward aten::_log_softmax_backward_data",
    "optimiser": "aten::_fused_sgd_ aten::_foreach_mul_",
    "layout": "aten::copy_ aten::empty_strided aten::index_select",
    "reduction": "aten::sum aten::mean",
    None: "aten::cholesky",
}


@pytest.mark.parametrize(
    ("name", "kind"), [(name, kind) for kind, names in OPERATORS.items() for name in names.split()]
)
def test_the_name_of_an_operator_gives_its_class(name: str, kind: str | None) -> None:
    assert of_operator(name).kind == kind
    assert of_operator(name).algorithm == ("library" if kind == "convolution" else None)


CALLS: dict[str | None, str] = {
    "launch": (
        "cudaLaunchKernel cudaLaunchKernelExC cudaLaunchCooperativeKernel cuLaunchKernelEx "
        "cudaGraphLaunch hipExtModuleLaunchKernel"
    ),
    "clean_up": (
        "cudaEventDestroy cudaFree cudaFreeHost cuModuleUnload cudaStreamDestroy cudaGraphExecDestroy cuMemRelease"
    ),
    "memory": (
        "cudaMemcpyAsync cudaMemsetAsync cudaMalloc cudaHostAlloc cuDeviceGetAttribute "
        "cuDeviceTotalMem_v2 cudaDeviceGetAttribute cudaGetDeviceProperties_v2"
    ),
    "wait": "cudaDeviceSynchronize cudaStreamSynchronize cudaEventSynchronize",
    "other": (
        "cudaStreamWaitEvent cudaEventRecord cudaStreamIsCapturing cudaFuncSetAttribute "
        "cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags"
    ),
}


@pytest.mark.parametrize(("name", "kind"), [(name, kind) for kind, names in CALLS.items() for name in names.split()])
def test_the_name_of_a_call_gives_its_class(name: str, kind: str) -> None:
    assert class_of_call(name) == kind


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (ADDITION, "vectorized_elementwise_kernel<CUDAFunctor_add>"),
        (
            "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl<at::native::BinaryFunctor<float, "
            "float, float, at::native::binary_internal::MulFunctor<float> > >(int)",
            "elementwise_kernel<MulFunctor>",
        ),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::threshold_kernel_impl"
            "<float>(at::TensorIteratorBase&, float)::{lambda(float, float)#1}, at::detail::Array<char*, 3> >(int)",
            "vectorized_elementwise_kernel<threshold_kernel_impl>",
        ),
        (
            "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x64_32x6_nn_align4>(cutlass_80::Params)",
            "cutlass_80_tensorop_s1688gemm_64x64_32x6_nn_align4",
        ),
        (
            "void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 128, true, 1>(float, float, cudnnTensorStruct)",
            "cudnn::bn_bw_1C11_kernel_new<float, float, float2, 128, true, 1>",
        ),
        (
            "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long)",
            "ncclKernel_AllReduce_RING_LL_Sum_float",
        ),
        ("at::cuda::(anonymous namespace)::spin_kernel(long)", "spin_kernel"),
        ("sm90_xmma_dgrad_f32_g1_execute_segment_k_on_kernel__5x_cudnn", "sm90_xmma_dgrad_f32_g1"),
        ("_update", "_update"),
    ],
)
def test_a_short_name_keeps_what_distinguishes_kernels(name: str, short: str) -> None:
    assert short_name(name) == short


def test_short_names_fit_a_table_and_stay_distinct() -> None:
    names = [name for _, _, name in NAMES]
    assert max(len(short_name(name)) for name in names) <= LONGEST_NAME
    assert len({short_name(name) for name in names}) == len(names)
