"""Reading a real GPU's trace: its kernels are known, each has its launch call, and a step's times add up."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch.profiler import ProfilerActivity, profile, record_function  # noqa: E402

from labkit.data import DataSet, open_data  # noqa: E402
from workbook.records.traced import Traced  # noqa: E402
from workbook.trace import STEP, analyse  # noqa: E402
from workbook.trials.trial import Trial  # noqa: E402
from workbook.workloads import build_workload  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

STEPS = 5


@pytest.fixture(scope="module")
def data() -> DataSet:
    return open_data("synthetic32", train_images=3000, val_images=500)


def traced(trial: Trial, data: DataSet, file: Path) -> Traced:
    """Trace some steps of the trial and return the analysis."""
    workload = build_workload(trial, data)
    for _ in range(STEPS):
        workload.step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as tracer:
        workload.step()  # warms the profiler up
        torch.cuda.synchronize()
        for _ in range(STEPS):
            with record_function(STEP):
                workload.step()
        torch.cuda.synchronize()
    tracer.export_chrome_trace(str(file))
    return analyse(file)


@pytest.mark.parametrize("model", ["alexnet", "resnet18", "vgg16", "googlenet"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_hardly_any_kernel_is_unknown_and_each_has_its_call(
    model: str, precision: str, data: DataSet, tmp_path: Path
) -> None:
    trace = traced(Trial(model=model, batch=16, precision=precision), data, tmp_path / "trace.json")
    assert (trace.of, trace.steps, trace.devices) == ("kernels", STEPS, 1)
    unknown = [kernel.name for kernel in trace.longest if kernel.kind == "other"]
    other_s = trace.kernels["other"].seconds if "other" in trace.kernels else 0.0
    assert other_s <= 0.05 * trace.kernel_s, unknown
    assert not any("no call in the trace" in note for note in trace.notes)
    assert trace.convolution_kernel
    assert trace.launch_gap_s is not None
    assert trace.queue_gap_s is not None
    assert trace.edge_gap_s is not None
    waiting_s = trace.launch_gap_s + trace.queue_gap_s + trace.edge_gap_s
    assert trace.active_s + waiting_s == pytest.approx(trace.elapsed_s)
    assert trace.edge_gap_s < 0.2 * trace.elapsed_s
    assert 0 < trace.busy_s <= trace.active_s < trace.elapsed_s
    assert trace.calls["launch"].count >= STEPS
    assert trace.max_pool_backward_s > 0


def test_tensor_cores_do_the_convolutions_in_half_precision(data: DataSet, tmp_path: Path) -> None:
    if torch.cuda.get_device_capability() < (7, 0):
        pytest.skip("the device has no tensor cores")
    trial = Trial(model="resnet18", batch=64, precision="bf16", memory_format="channels_last")
    trace = traced(trial, data, tmp_path / "trace.json")
    done = {kind: total.seconds for kind, total in trace.algorithms.items() if kind != "helper"}
    assert done["tensor_core"] > 0.8 * sum(done.values()), trace.longest
