"""The studies and the metrics: their ids, questions, units and directions. Every other package looks names up here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from labkit.errors import one_of, unknown

Better = Literal["more", "less", "neither"]


@dataclass(frozen=True)
class Study:
    """A study: one notebook that answers one question."""

    id: str
    title: str
    question: str

    @property
    def name(self) -> str:
        """The id without its number, the form that claims use (`01_training` -> `training`)."""
        return self.id.split("_", 1)[1]


@dataclass(frozen=True)
class Metric:
    """A number in records: its field name (unit last), how to print it, and which direction is better."""

    name: str
    label: str
    unit: str
    better: Better
    scale: float = 1.0  # printed value = stored SI value * scale
    share: bool = False  # a part of a whole: the value and its interval lie between 0 and 1

    @property
    def si_unit(self) -> str:
        """The unit of the stored value; 1 for shares and ratios."""
        return _SI_UNITS.get(self.unit, self.unit) or "1"


COMPARISON, WHICH_DEVICE = "20_comparison", "21_which_device"
OF_ALL = {COMPARISON: "index.html", WHICH_DEVICE: "which_device.html"}  # pages that measure nothing: of all profiles
YOUR_NETWORK = "13_your_network"  # part of a report only with NETWORK=

_SI_UNITS = {
    **{"%": "1", "x": "1", "ms": "s", "days": "s", "mJ": "J", "MHz": "Hz", "TFLOP/s": "FLOP/s", "GFLOP": "FLOP"},
    **dict.fromkeys(("KiB", "MB", "GiB"), "B"),
    **dict.fromkeys(("MB/s", "GB/s"), "B/s"),
}

STUDIES: dict[str, Study] = {
    study.id: study
    for study in (
        Study("01_training", "Training", "How fast does each model train here, and how much of the chip is used?"),
        Study("02_batch_size", "Batch size", "What does the batch size buy?"),
        Study("03_multi_gpu", "Several GPUs", "What do more GPUs buy?"),
        Study("04_power", "Power and energy", "What does a training image cost in energy?"),
        Study("05_inference", "Inference", "How fast does it predict?"),
        Study("06_cpu_vs_gpu", "CPU against GPU", "Is the GPU worth it?"),
        Study("07_precision", "Precision", "What does lower precision buy in training?"),
        Study("08_quantization", "Quantization", "What does INT8 buy in inference, and what does it lose?"),
        Study("09_profile", "Step time", "Where does the time go?"),
        Study("10_gan", "WGAN", "How well does a WGAN use the chip?"),
        Study("11_frameworks", "Frameworks", "Does the framework matter?"),
        Study("12_data_pipeline", "Data pipeline", "Does training wait for its data, and what would help?"),
        Study(YOUR_NETWORK, "Your network", "How fast is your network here, and what bounds it?"),
        Study("14_today", "Networks of today", "Do the papers' findings hold for today's networks?"),
        Study(COMPARISON, "Comparison", "How do the devices compare, with each other and with the papers?"),
        Study(WHICH_DEVICE, "Which device", "Which device is fast enough, and what does it cost?"),
    )
}

METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("images_per_s", "Throughput", "images/s", "more"),
        Metric("images_per_s_per_device", "Throughput per device", "images/s/device", "more"),
        Metric("samples_per_s", "Throughput in samples", "samples/s", "more"),
        Metric("tokens_per_s", "Throughput in tokens", "tokens/s", "more"),
        Metric("step_s", "Step time", "ms", "less", 1e3),
        Metric("epoch_s", "Time per epoch", "s", "less"),
        Metric("time_to_first_step_s", "Time to the first step", "s", "less"),
        Metric("cached_time_to_first_step_s", "Time to the first step, compiled before", "s", "less"),
        Metric("trace_s", "Time to trace", "s", "less"),
        Metric("compile_s", "Compile time", "s", "less"),
        Metric("cached_compile_s", "Compile time, compiled before", "s", "less"),
        Metric("capture_s", "Capture time", "s", "less"),
        Metric("latency_s", "Latency, median", "ms", "less", 1e3),
        Metric("latency_p90_s", "Latency, 90th percentile", "ms", "less", 1e3),
        Metric("latency_p99_s", "Latency, 99th percentile", "ms", "less", 1e3),
        Metric("latency_p999_s", "Latency, 99.9th percentile", "ms", "less", 1e3),
        Metric("first_prediction_s", "Time to the first prediction", "s", "less"),
        Metric("cached_first_prediction_s", "Time to the first prediction, compiled before", "s", "less"),
        Metric("flop_per_s", "Arithmetic rate", "TFLOP/s", "more", 1e-12),
        Metric("bytes_per_s", "Transfer rate", "GB/s", "more", 1e-9),
        Metric("launches_per_s", "Launch rate", "launches/s", "more"),
        Metric("launch_rate_beside", "Launch rate beside the blocks", "launches/s", "more"),
        Metric("roofline_fraction", "Fraction of the roofline", "%", "more", 1e2),
        Metric("weight_read_share", "Rate of reading weights over a copy's", "%", "more", 1e2),
        Metric("speedup", "Speed-up", "x", "more"),
        Metric("scaling_efficiency", "Scaling efficiency", "%", "more", 1e2),
        Metric("memory_bytes", "Memory used", "GiB", "less", 2.0**-30),
        Metric("framework_peak_bytes", "Peak memory by the framework's own counter", "GiB", "less", 2.0**-30),
        Metric("power_w", "Board power", "W", "less"),
        Metric("power_readings", "Readings behind the board power", "readings", "neither"),
        Metric("energy_per_image_j", "Energy per image", "mJ", "less", 1e3),
        Metric("net_energy_per_image_j", "Energy per image above idle", "mJ", "less", 1e3),
        Metric("energy_per_sample_j", "Energy per sample", "mJ", "less", 1e3),
        Metric("energy_per_token_j", "Energy per token", "mJ", "less", 1e3),
        Metric("images_per_s_per_w", "Efficiency", "images/J", "more"),
        Metric("utilisation", "Utilisation (any kernel active)", "%", "neither", 1e2, share=True),
        Metric("sm_activity", "SM activity", "%", "neither", 1e2, share=True),
        Metric("tensor_activity", "Tensor-core activity", "%", "neither", 1e2, share=True),
        Metric("dram_activity", "DRAM activity", "%", "neither", 1e2, share=True),
        Metric("occupancy", "Occupancy", "%", "neither", 1e2, share=True),
        Metric("fp32_activity", "FP32 pipe activity", "%", "neither", 1e2, share=True),
        Metric("fp16_activity", "FP16 pipe activity", "%", "neither", 1e2, share=True),
        Metric("sm_clock_hz", "SM clock", "MHz", "more", 1e-6),
        Metric("memory_clock_hz", "Memory clock", "MHz", "more", 1e-6),
        Metric("cpu_utilisation", "CPU utilisation (all cores)", "%", "neither", 1e2, share=True),
        Metric("cpu_clock_hz", "CPU clock", "MHz", "more", 1e-6),
        Metric("cpu_temperature_c", "CPU temperature", "°C", "less"),
        Metric("cpu_cores_used", "Cores the process kept busy", "cores", "neither"),
        Metric("temperature_c", "Temperature", "°C", "less"),
        Metric("loss", "Loss", "", "less"),
        Metric("top1", "Top-1 accuracy", "%", "more", 1e2, share=True),
        Metric("top5", "Top-5 accuracy", "%", "more", 1e2, share=True),
        Metric("cost_per_million_images", "Cost per million images", "currency", "less"),
        Metric("cost_of_90_epochs", "Cost of 90 epochs of 1.2 million images", "currency", "less"),
        Metric("power_fraction", "Power over the board's limit", "%", "neither", 1e2),
        Metric("between_blocks_share", "Time between timed blocks", "%", "less", 1e2, share=True),
        Metric("late_over_early", "Throughput of the second half of the timed part over the first", "x", "neither"),
        Metric("training_90_epochs_s", "90 epochs of 1.2 million images", "days", "less", 1 / 86400),
        Metric("run_s", "Time of the whole run", "s", "less"),
        Metric("epochs_to_target", "Epochs to the target accuracy", "epochs", "less"),
        Metric("first_device_utilisation_ratio", "Utilisation of the first device over the others'", "x", "neither"),
        Metric("flop_per_step", "Arithmetic of a step", "GFLOP", "neither", 1e-9),
        Metric("compute_utilisation", "Time in which any kernel ran (trace)", "%", "neither", 1e2, share=True),
        Metric("fp32_utilisation", "FP32 FLOP over peak and elapsed time", "%", "neither", 1e2),
        Metric("launch_gap_share", "Time in which the device waited for a launch", "%", "less", 1e2, share=True),
        Metric("waiting_share", "Waiting (share of a step)", "%", "less", 1e2, share=True),
        Metric("host_copy_share", "Time of a prediction in copies from and to the host", "%", "less", 1e2, share=True),
        Metric("copy_share", "Kernel and copy time in copies", "%", "less", 1e2, share=True),
        Metric("broadcast_share", "Kernel and copy time in broadcasts", "%", "less", 1e2, share=True),
        Metric("winograd_share", "Kernel and copy time in Winograd kernels", "%", "neither", 1e2, share=True),
        Metric("maxpool_backward_share", "Kernel time in max-pool's backward", "%", "neither", 1e2, share=True),
        Metric("launch_api_share", "API time in kernel launches", "%", "neither", 1e2, share=True),
        Metric("cleanup_api_share", "API time in clean-up (events, frees)", "%", "neither", 1e2, share=True),
        Metric("memory_api_share", "API time in memory and device calls", "%", "neither", 1e2, share=True),
        Metric("backward_launch_api_share", "Backward pass: API time in launches", "%", "neither", 1e2, share=True),
        Metric("backward_cleanup_api_share", "Backward pass: API time in clean-up", "%", "neither", 1e2, share=True),
        Metric("backward_memory_api_share", "Backward pass: API time in memory", "%", "neither", 1e2, share=True),
        Metric("profiled_utilisation", "Time in which any kernel ran, profiled", "%", "neither", 1e2, share=True),
        Metric("busy_step_s", "Time of a step in which any kernel ran (trace)", "ms", "less", 1e3),
        Metric("device_images_per_s", "Throughput by the device's time alone (trace)", "images/s", "more"),
        Metric(
            "host_share", "Time of a step in which the device waits for the host (trace)", "%", "less", 1e2, share=True
        ),
        Metric("kernels_per_step", "Kernels of a step (trace)", "kernels", "neither"),
        Metric("traced_step_s", "Time of a step under the profiler", "ms", "less", 1e3),
        Metric("piece_busy_deviation", "Deviation of 95 % of a trace's pieces, busy time", "%", "less", 1e2),
        Metric("piece_step_deviation", "Deviation of 95 % of a trace's pieces, step time", "%", "less", 1e2),
        Metric("trace_slowdown", "Time of a traced step over a timed one", "x", "neither"),
        Metric("exchange_s", "Time of a step in which gradients are exchanged (trace)", "ms", "less", 1e3),
        Metric("exposed_exchange_s", "Of it, time in which nothing computes (trace)", "ms", "less", 1e3),
        Metric("hidden_exchange_share", "Exchange behind computation (trace)", "%", "more", 1e2, share=True),
        Metric("kernel_overlap_share", "Busy time in which kernels overlap", "%", "neither", 1e2, share=True),
        Metric("copy_overlap_share", "Copy time that overlaps with kernels", "%", "more", 1e2, share=True),
        Metric("copy_bytes", "Size of a copy, median", "KiB", "neither", 2.0**-10),
        Metric("copy_bytes_per_s", "Copy throughput", "GB/s", "more", 1e-9),
        Metric("read_bytes", "Bytes read from storage", "MB", "less", 1e-6),
        Metric("read_bytes_per_s", "Storage read throughput", "MB/s", "more", 1e-6),
        Metric("read_rate_late_over_early", "Read rate of the first epoch, second half over first", "x", "neither"),
        Metric("written_bytes", "Bytes written to storage", "MB", "less", 1e-6),
        Metric("later_read_share", "Reads of later epochs over the first's", "%", "less", 1e2),
        Metric("first_epoch_ratio", "Time of the first epoch over that of later ones", "x", "less"),
        Metric("throughput_variation", "Coefficient of variation of throughput", "%", "less", 1e2),
        Metric("reread_share", "Reads of files that another process had read", "%", "less", 1e2, share=True),
        Metric("stall_share", "Waiting for images (share of the time)", "%", "less", 1e2, share=True),
        Metric("first_batch_s", "Time to the first batch", "s", "less"),
        Metric("cpu_per_image_s", "Processor time of an image", "ms", "less", 1e3),
        Metric("loader_memory_bytes", "Peak memory of all processes", "GiB", "less", 2.0**-30),
        Metric("received_bytes", "Network bytes received", "MB", "neither", 1e-6),
        Metric("sent_bytes", "Network bytes sent", "MB", "neither", 1e-6),
        Metric("received_minus_sent_bytes", "Network bytes received minus sent", "MB", "neither", 1e-6),
        Metric("gradient_bytes", "Bytes that a device sends in a step", "MB", "less", 1e-6),
    )
}

# Metrics that the host's speed does not change: counts, sizes, accuracies, and times and shares of the device alone.
INDEPENDENT_OF_HOST = frozenset(
    {
        *("memory_bytes", "framework_peak_bytes", "power_readings", "flop_per_step", "gradient_bytes", "copy_bytes"),
        *("loss", "top1", "top5", "epochs_to_target", "busy_step_s", "copy_bytes_per_s", "kernel_overlap_share"),
        *("copy_share", "broadcast_share", "winograd_share", "maxpool_backward_share", "copy_overlap_share"),
        *("read_bytes", "written_bytes", "received_bytes", "sent_bytes", "received_minus_sent_bytes"),
        *("later_read_share", "reread_share", "piece_busy_deviation"),
    }
)

# Fields of records with words as values. A claim may test whether such a value changes.
LABELS: dict[str, str] = {"convolution_kernel": "The kernel that most convolution time is spent in"}

# Names of the frameworks for readers, by the trial's field `framework`.
FRAMEWORK_TITLES: dict[str, str] = {
    "torch": "PyTorch",
    "keras-torch": "Keras on PyTorch",
    "keras-tensorflow": "Keras on TensorFlow",
    "keras-jax": "Keras on JAX",
}

SCALES: tuple[str, ...] = ("smoke", "quick", "full")
PASSES: dict[str, int] = {"smoke": 1, "quick": 3, "full": 6}
SMALL = "smoke"  # the scale of round 0: its records fill pages, and nothing else
# Short passes of trials that the host delays, by device; at other scales as many as full passes. On recorded runs an
# interval of four runs is half as wide again as one of six. A GPU's launch rate is compared between two short passes.
SHORT_PASSES: dict[str, dict[str, int]] = {"quick": {"cuda": 2, "cpu": 1}}


def find_study(name: str) -> Study:
    """Return the study named `01_training`, `training`, `01` or `1`. Raise UserError for another name."""
    for study in STUDIES.values():
        if name in (study.id, study.name) or name.zfill(2) == study.id.split("_", 1)[0]:
            return study
    raise unknown("study", name, STUDIES)


def find_metric(name: str) -> Metric:
    """Return the metric of that name. Raise UserError with the valid names for another name."""
    return METRICS[one_of("metric", name, METRICS)]


def check_scale(name: str) -> str:
    """Return `name` if it is a scale. Raise UserError with the valid scales otherwise."""
    return one_of("scale", name, SCALES)
