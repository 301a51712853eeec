"""What kernels, operators and calls do, by names that real programs on GPUs from Kepler to Blackwell had."""

from __future__ import annotations

from pathlib import Path

import pytest

from labkit.measure.trace.calls import class_of_call
from labkit.measure.trace.classes import of_kernel, of_operator
from labkit.measure.trace.names import LONGEST, short_name
from tests.traces import ADDITION

NAMES = [
    line.split("|", 2)
    for line in (Path(__file__).parents[1] / "kernel_names.txt").read_text().splitlines()
    if not line.startswith("#")
]


@pytest.mark.parametrize(("kind", "algorithm", "name"), NAMES, ids=[short_name(name) for _, _, name in NAMES])
def test_a_kernel_is_known_by_its_name_and_a_convolution_by_how_it_is_done(
    kind: str, algorithm: str, name: str
) -> None:
    known = of_kernel(name)
    assert (known.kind, known.algorithm) == (kind, algorithm or None)


@pytest.mark.parametrize(
    "name", ["triton__0d1d2d3d", "at::cuda::(anonymous namespace)::spin_kernel(long)", "my_kernel"]
)
def test_of_a_name_that_says_nothing_nothing_is_known(name: str) -> None:
    assert of_kernel(name).kind is None


def test_a_kernel_of_pooling_backwards_and_a_broadcast_are_told_apart_from_others() -> None:
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


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::mkldnn_convolution", "convolution"),
        ("aten::convolution_backward", "convolution"),
        ("aten::_conv_depthwise2d", "convolution"),
        ("aten::addmm", "matrix_product"),
        ("aten::mkldnn_linear", "matrix_product"),
        ("aten::native_batch_norm_backward", "batch_norm"),
        ("aten::max_pool2d_with_indices_backward", "pooling"),
        ("aten::_adaptive_avg_pool2d", "pooling"),
        ("aten::threshold_backward", "element_wise"),
        ("aten::clamp_min", "element_wise"),
        ("aten::add_", "element_wise"),
        ("aten::zeros_like", "element_wise"),
        ("aten::native_dropout_backward", "element_wise"),
        ("aten::bernoulli_", "element_wise"),
        ("aten::nll_loss_forward", "loss"),
        ("aten::_log_softmax_backward_data", "loss"),
        ("aten::_fused_sgd_", "optimiser"),
        ("aten::_foreach_mul_", "optimiser"),
        ("aten::copy_", "layout"),
        ("aten::empty_strided", "layout"),
        ("aten::index_select", "layout"),
        ("aten::sum", "reduction"),
        ("aten::mean", "reduction"),
        ("aten::cholesky", None),
    ],
)
def test_an_operator_is_known_by_its_name(name: str, kind: str | None) -> None:
    assert of_operator(name).kind == kind
    assert of_operator(name).algorithm == ("library" if kind == "convolution" else None)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cudaLaunchKernel", "launch"),
        ("cudaLaunchKernelExC", "launch"),
        ("cudaLaunchCooperativeKernel", "launch"),
        ("cuLaunchKernelEx", "launch"),
        ("cudaGraphLaunch", "launch"),
        ("hipExtModuleLaunchKernel", "launch"),
        ("cudaEventDestroy", "clean_up"),
        ("cudaFree", "clean_up"),
        ("cudaFreeHost", "clean_up"),
        ("cuModuleUnload", "clean_up"),
        ("cudaStreamDestroy", "clean_up"),
        ("cudaGraphExecDestroy", "clean_up"),
        ("cuMemRelease", "clean_up"),
        ("cudaMemcpyAsync", "memory"),
        ("cudaMemsetAsync", "memory"),
        ("cudaMalloc", "memory"),
        ("cudaHostAlloc", "memory"),
        ("cuDeviceGetAttribute", "memory"),
        ("cuDeviceTotalMem_v2", "memory"),
        ("cudaDeviceGetAttribute", "memory"),
        ("cudaGetDeviceProperties_v2", "memory"),
        ("cudaDeviceSynchronize", "wait"),
        ("cudaStreamSynchronize", "wait"),
        ("cudaEventSynchronize", "wait"),
        ("cudaStreamWaitEvent", "other"),
        ("cudaEventRecord", "other"),
        ("cudaStreamIsCapturing", "other"),
        ("cudaFuncSetAttribute", "other"),
        ("cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", "other"),
    ],
)
def test_a_call_is_known_by_its_name(name: str, kind: str) -> None:
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
def test_a_name_is_cut_to_what_tells_kernels_apart(name: str, short: str) -> None:
    assert short_name(name) == short


def test_no_name_is_longer_than_a_table_bears_and_different_kernels_keep_different_names() -> None:
    names = [name for _, _, name in NAMES]
    assert max(len(short_name(name)) for name in names) <= LONGEST
    assert len({short_name(name) for name in names}) == len(names)
