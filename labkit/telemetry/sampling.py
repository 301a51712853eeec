"""Telemetry of a block of code: a process reads the sensors of the GPUs (NVML) and the host while the block runs."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pandas as pd

from labkit.card import Card, number_text
from labkit.devices import visible_gpus
from labkit.errors import UserError
from labkit.files import temporary_folder
from labkit.sensors import BUSY_GPU, KINDS, THROTTLE_REASONS, rate_name
from labkit.telemetry.process import TelemetryProcess
from labkit.telemetry.summary import Flagged, Metrics, Telemetry
from labkit.telemetry.windows import Marks, Recording

# SI units by the ending of a metric's name. A metric with another ending is a share of 1.
UNITS = {"_per_s": "B/s", "_bytes": "B", "_hz": "Hz", "_w": "W", "_j": "J", "_c": "°C", "throttle": "flags"}
COUNTED = {rate_name(name) for name, kind in KINDS.items() if kind == "counter"}  # rates that differences give
BITS = {reason: bit for bit, reason in THROTTLE_REASONS.items()}
HEADLINES = ("power_w", "energy_j", "utilisation", "cpu_utilisation")


class Sampled(Card):
    """Sensor readings of a block of code. Its tables raise UserError before the block has ended."""

    def __init__(self, *, no_gpu: str = "") -> None:
        self._no_gpu = no_gpu
        self._kept: tuple[float, float, Telemetry, Recording] | None = None

    def _keep(self, start_s: float, end_s: float, telemetry: Telemetry, recording: Recording) -> None:
        """Store the telemetry of the block. `start_s` and `end_s` are on the monotonic clock."""
        self._kept = (start_s, end_s, telemetry, recording)

    def frame(self) -> pd.DataFrame:
        """Return the block's readings by time: `time_s` (0 is its start), `device`, `metric`, `value`, `unit`.

        A device is `gpu0`, `host` or `rapl:package-0`. Shares are fractions of 1. Utilisations and activities
        are means since the previous reading. Energy and byte counters are running totals. A block shorter than a
        sensor's period has one of its readings, or none.
        """
        start_s, end_s, _, recording = self._ended()
        rows = [
            (at_s - start_s, device, metric, value, unit_of(metric))
            for (device, metric), series in recording.series.items()
            for at_s, value in zip(series.times_s.tolist(), series.values.tolist(), strict=True)
            if start_s <= at_s <= end_s
        ]
        readings = pd.DataFrame(rows, columns=["time_s", "device", "metric", "value", "unit"])
        typed = readings.astype({"time_s": float, "value": float})
        return typed.sort_values(["time_s", "device", "metric"], ignore_index=True)

    def summary(self) -> pd.DataFrame:
        """Return a row per device and metric: `mean` over time, `min`, `max`, `total`, `readings`, `unit`, `method`.

        In `energy_j` rows `total` is the block's joules, for devices that report energy or power. Byte counters are
        rates, the growth of the counter over the block's time. `cpu_utilisation` covers all cores. A cell that does not
        apply is missing. A row with 0 `readings` is derived from the readings just before and after the block.
        """
        rows: list[tuple[object, ...]] = [
            (device, metric, value.mean, value.low, value.high, None, value.n, unit_of(metric), _method_of(metric))
            for device, metrics in self._statistics().items()
            for metric, value in metrics.items()
        ]
        rows += [
            (device, "energy_j", None, None, None, energy_j, None, "J", method)
            for device, (energy_j, method) in self._energy().items()
            if energy_j is not None
        ]
        columns = ["device", "metric", "mean", "min", "max", "total", "readings", "unit", "method"]
        table = pd.DataFrame(rows, columns=columns).sort_values(["device", "metric"], ignore_index=True)
        return table.astype(dict.fromkeys(("mean", "min", "max", "total"), "float64") | {"readings": "Int64"})

    def reasons(self) -> pd.DataFrame:
        """Return why metrics were not read: `device`, `metric` (`*` is all of the device's), `reason`."""
        telemetry = self._ended()[2]
        rows = [("gpu", "*", self._no_gpu)] if self._no_gpu else []
        rows += [("sampler", "*", telemetry.reason)] if telemetry.reason else []
        rows += [(device, metric, why) for device, lacks in telemetry.missing.items() for metric, why in lacks.items()]
        rows += [
            (gap.source, metric, f"no reading from {gap.start_s:.1f} s on for {gap.length_s:.1f} s: {gap.reason}")
            for gap in telemetry.gaps
            for metric in gap.metrics
        ]
        rows += [(device, "energy_j", method) for device, (joules, method) in self._energy().items() if joules is None]
        return pd.DataFrame(rows, columns=["device", "metric", "reason"])

    def used_before(self, held_bytes: float = math.inf) -> list[str]:
        """Return the GPUs that computed, or held `held_bytes` of memory, when the block began: `gpu0 for 90% …`."""
        start_s, _, _, recording = self._ended()
        texts = []
        for source in recording.sources():
            metrics = (recording.get(source, metric) for metric in ("utilisation", "memory_bytes"))
            used = [
                0.0 if of is None else float(np.max(of.values[of.times_s <= start_s][-1:], initial=0)) for of in metrics
            ]
            if used[0] >= BUSY_GPU or used[1] >= held_bytes:
                texts.append(f"{source} for {used[0]:.0%} of the time, with {used[1] / 2**30:.1f} GiB of its memory")
        return texts

    def _ended(self) -> tuple[float, float, Telemetry, Recording]:
        if self._kept is None:
            raise UserError("the sampled block has not ended; read its telemetry after the with statement.")
        return self._kept

    def _statistics(self) -> dict[str, Metrics]:
        windows = self._ended()[2].windows
        return windows["timed"].sources if windows else {}

    def _energy(self) -> dict[str, tuple[float | None, str]]:
        """Return by device its joules, None if they cannot be derived, and the method or the reason."""
        telemetry = self._ended()[2]
        joules = telemetry.energy[0].energy_j if telemetry.energy else {}
        return {device: (energy_j, telemetry.energy_method[device]) for device, energy_j in joules.items()}

    def _card(self) -> tuple[str, list[tuple[str, str]]]:
        if self._kept is None:
            return "Sampled: the block has not ended", []
        start_s, end_s, telemetry, _ = self._kept
        summary = self.summary()
        lines = [("gpu", f"none: {self._no_gpu}")] if self._no_gpu else []
        for row in summary[summary["metric"].isin(HEADLINES)].itertuples():
            value = row.total if row.metric == "energy_j" else row.mean
            text = f"{value:.0%}" if row.unit == "1" else number_text(value)
            lines.append((row.device, f"{row.metric} {text} ({row.method})"))
        # A falling clock gives no warning, because a block may contain idle time.
        throttled = [flag for flag in telemetry.flagged if flag.why.startswith("throttled")]
        lines += [("warning", f"{flag.source} {flag.why}{self._how_throttled(flag)}") for flag in throttled]
        lines += [("warning", f"in use before the block: {used}") for used in self.used_before()]
        lines += [("warning", telemetry.reason)] if telemetry.reason else []
        lines += [("not read", f"{missing} metrics; reasons() says why")] if (missing := len(self.reasons())) else []
        return f"Sampled: {end_s - start_s:.2f} s, {len(self.frame())} readings", lines

    def _how_throttled(self, flag: Flagged) -> str:
        """Return the share of the block in which a device throttled for a reason, and its mean clock."""
        start_s, end_s, telemetry, recording = self._ended()
        reasons, bit = recording.get(flag.source, "throttle"), BITS[flag.why.removeprefix("throttled: ")]
        clock = telemetry.statistic("timed", flag.source, "sm_clock_hz")
        share = 0.0 if reasons is None else np.mean(reasons.between(start_s, end_s).values.astype(int) & bit != 0)
        return f" for {share:.0%} of the time" + (f", at {clock.mean / 1e6:,.0f} MHz on average" if clock else "")


@contextmanager
def sample(gpus: Sequence[int] | None = None) -> Iterator[Sampled]:
    """Sample the sensors of the GPUs and of the host while a block of code runs.

    `gpus` are NVML's numbers. None means every GPU that CUDA_VISIBLE_DEVICES leaves, and an empty list the host alone.
    The block starts after the first readings, a fraction of a second later. Afterwards `frame()` returns the readings
    in SI units, `summary()` their means and the energy in joules, and `reasons()` why metrics could not be read.
    The sampling process ends with the block, also when the block raises.

    Raise UserError for a GPU that is not here, and for `gpus` that is no list of whole numbers.

    >>> with labkit.sample() as sampled:
    ...     total = sum(range(10**6))
    >>> list(sampled.frame().columns)
    ['time_s', 'device', 'metric', 'value', 'unit']
    >>> sampled
    Sampled: ... s, ... readings
    ...
    """
    present, why_none = visible_gpus()
    if gpus is not None and not (isinstance(gpus, list | tuple) and all(type(gpu) is int for gpu in gpus)):
        raise UserError(f"gpus is {gpus!r}; use a list of NVML's numbers, such as [0], or leave it out for every GPU.")
    chosen = present if gpus is None else list(gpus)
    if absent := sorted(set(chosen) - set(present)):
        here = f"visible here: {', '.join(map(str, present))}" if present else f"none is visible here: {why_none}"
        raise UserError(f"GPU {absent[0]} was asked for; {here}. Leave gpus out to sample every visible GPU.")
    sampled = Sampled(no_gpu=why_none if gpus is None else "")
    with temporary_folder() as folder:
        log = folder / "sampler.log"
        with TelemetryProcess(chosen, log=log, one_device=len(chosen) < 2) as process:
            process.ready()
            start_s = time.monotonic()
            try:
                yield sampled
            finally:
                end_s = time.monotonic()
                block = (start_s, end_s)
                telemetry, recording = process.cut(Marks({"timed": block}, [block], [(0, 1)], images_per_block=None))
                sampled._keep(start_s, end_s, telemetry, recording)


def _method_of(metric: str) -> str:
    return "growth of the counter" if metric in COUNTED else "time-weighted mean"


def unit_of(metric: str) -> str:
    """Return the SI unit of a metric, by the ending of its name."""
    return next((unit for ending, unit in UNITS.items() if metric.endswith(ending)), "1")
