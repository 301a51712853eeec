"""The roofline: the bound on the throughput of training or inference from arithmetic and from memory bandwidth.

    images/s <= min( peak FLOP/s / FLOP per image,  bandwidth / bytes per image )

The bytes are only those that no cache can save. SGD with momentum passes over the weights, gradients and momenta eight
times a step at any batch (`recipes.weight_passes` has all optimisers). Inference passes once over the weights. The
images are read once. Activations are left out because they may stay in a cache, so the bound is loose on purpose. It
does not predict a good implementation. (Williams et al., CACM 2009.) By convention, FLOP are those of direct
convolutions. Winograd and FFT need fewer FLOP, and weights in a large cache are not read from memory, so a fraction
above 1 is possible; the page says so when it happens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from labkit.models import count
from labkit.models.catalogue import CRITIC_STEPS
from workbook.hardware.profile import Peaks, Profile
from workbook.results.study_records import StudyRecords
from workbook.trials.inputs import input_bytes
from workbook.trials.recipes import weight_passes
from workbook.trials.trial import Trial


@dataclass(frozen=True)
class Ceilings:
    """FLOP/s and bytes/s that a device reaches; None where unknown."""

    flop_per_s: float | None
    bytes_per_s: float | None


@dataclass(frozen=True)
class Work:
    """The work of a step of `images` images; if several devices share no ceiling, FLOP and bytes are those of one."""

    images: int
    flop: int
    unavoidable_bytes: int


@dataclass(frozen=True)
class Bound:
    """The largest possible images/s, and the ceiling that sets it (`arithmetic` or `memory`)."""

    images_per_s: float
    limited_by: str


def nominal_of(profile: Profile, trial: Trial) -> Ceilings:
    """Return the vendor's ceilings for a trial; unknown for a trial on the CPU beside a GPU's profile."""
    peaks = profile.peaks if trial.device == profile.device.kind else Peaks()
    peak, memory = peaks.flop_per_s.get(trial.precision), peaks.memory_bytes_per_s  # type: ignore[call-overload]
    return Ceilings(peak.value if peak else None, memory.value if memory else None)


def measured(results: StudyRecords, trial: Trial, pass_number: int | None = None) -> Ceilings:
    """Return the ceilings that this host reached: a large matrix product in the trial's precision, a copy in memory.

    They are those of a pass, or the means of all passes: short passes measure no ceilings.
    """

    def ceiling(workload: str, metric: str, precision: str = "fp32") -> float | None:
        values = (
            results.ceiling(workload, metric, device=trial.device, precision=precision, pass_number=number)
            for number in (pass_number, None)
        )
        return next((value for value in values if value is not None), None)

    return Ceilings(ceiling("matmul", "flop_per_s", trial.precision), ceiling("memory_copy", "bytes_per_s"))


def fp32_peak(results: StudyRecords, trial: Trial, pass_number: int | None = None) -> float | None:
    """Return the FP32 FLOP/s of one device of a trial: the vendor's peak, else the one measured in a pass."""
    plain = replace(trial, precision="fp32")
    return nominal_of(results.profile, plain).flop_per_s or measured(results, plain, pass_number).flop_per_s


def work_of(results: StudyRecords, trial: Trial) -> Work | None:
    """Return the work of a recorded trial of a network; None if no pass of it has a result."""
    flop = results.number(trial, "flop_forward" if trial.workload == "infer" else "flop_training")
    weights = results.number(trial, "weight_traffic_bytes_per_step")
    sample_bytes = results.number(trial, "image_bytes") or results.number(trial, "document_bytes")
    if flop is None or weights is None or sample_bytes is None:
        return None
    images = _images_of_step(trial)
    return _on_devices(trial, Work(images, int(flop * images), int(weights + sample_bytes * images)))


def _images_of_step(trial: Trial) -> int:
    """Return the real images per device; in a step of a WGAN, each of the critic's steps takes a batch of them."""
    return trial.batch_of_device * (CRITIC_STEPS if trial.workload == "gan" else 1)


def _on_devices(trial: Trial, work: Work) -> Work:
    """Return the work of a step of all devices; the work of processes that share a CPU or a device adds up."""
    shared = trial.devices if trial.device == "cpu" or trial.placement == "together" else 1
    return Work(work.images * trial.devices, work.flop * shared, work.unavoidable_bytes * shared)


def bound(work: Work, ceilings: Ceilings) -> Bound | None:
    """Return the bound on images/s; None if neither ceiling is known."""
    times = {}
    if ceilings.flop_per_s:
        times["arithmetic"] = work.flop / ceilings.flop_per_s
    if ceilings.bytes_per_s:
        times["memory"] = work.unavoidable_bytes / ceilings.bytes_per_s
    if not times:
        return None
    limit = max(times, key=lambda name: times[name])
    return Bound(work.images / times[limit], limit)


WEIGHT_BYTES = {"fp32": 4, "default": 4, "tf32": 4, "fp16": 2, "bf16": 2, "int8": 1}


def planned_work(trial: Trial) -> Work:
    """Return the work of a step of a network's trial, before anything is measured."""
    images = _images_of_step(trial)
    if trial.workload == "gan":
        work = count(trial.model, image_px=trial.image_px)
        assert work.weight_traffic_bytes is not None
        read = work.weight_traffic_bytes + input_bytes(trial.model, trial.image_px) * images
        return Work(images, work.flop_training * images, read)
    facts = count(trial.model, image_px=trial.image_px)
    if trial.workload == "train":
        weights = int(weight_passes(trial.optimizer, trial.devices) * facts.parameter_bytes)
        read = weights + input_bytes(trial.model, trial.image_px) * images
        return _on_devices(trial, Work(images, facts.flop_training * images, read))
    size = WEIGHT_BYTES[trial.precision]
    return Work(
        trial.batch, facts.flop_forward * trial.batch, size * (facts.parameters + 3 * trial.image_px**2 * trial.batch)
    )
