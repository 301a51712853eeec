"""Windows of a measurement, cut from a recording: statistics, energy, flagged blocks, gaps. Has no process or clock."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import combinations
from operator import or_

import numpy as np

from labkit.sensors import GPU, RAPL, THROTTLE_REASONS, rate_name
from labkit.telemetry import series
from labkit.telemetry.series import Series, Span
from labkit.telemetry.summary import WINDOWS, EnergyWindow, Flagged, Gap, Statistic, Telemetry, Window
from labkit.timing.blocks import Blocks

SAME_J, SAME_GROWTH = 1.0, 0.01  # within these, two counters are one register, which renews each millisecond
CLOCK_DROP = 0.95  # a block is below clock if its clock fell below this share of the measurement's highest
# Metrics that are kept outside the timed part: they tell a quiet device from a busy one. Series hold the rest.
KEPT_OUTSIDE = frozenset(
    {"power_w", "utilisation", "sm_activity", "sm_clock_hz", "temperature_c", "memory_bytes", "cpu_utilisation"}
)


@dataclass(frozen=True)
class Marks:
    """Start and end of the parts of a measurement, in seconds on the monotonic clock."""

    windows: dict[str, Span]
    blocks: list[Span]
    energy_blocks: list[tuple[int, int]]  # of each long energy window: its first block, and the block after its last
    images_per_block: int | None

    @classmethod
    def of(cls, result: Blocks, others: dict[str, Span]) -> Marks:
        """Return the marks of a result. `others` are windows that its blocks do not hold (idle_before, after, …)."""
        assert result.began_s is not None
        blocks = [
            (result.began_s + at, result.began_s + at + length)
            for at, length in zip(result.at_s, result.host_s, strict=True)
        ]
        windows = {**others, "timed": (blocks[0][0], blocks[-1][1])}
        if result.warmup_at_s is not None:
            end = result.began_s + result.warmup_end_s if result.warmup_end_s is not None else result.began_s
            windows["warmup"] = (result.began_s + result.warmup_at_s, end)
        images = result.images_per_step * result.steps_per_block if result.images_per_step else None
        return cls(windows, blocks, result.energy_blocks, images)


@dataclass
class Recording:
    """Everything sampled around a measurement: series by (source, metric), gaps, and missing metrics with reasons."""

    series: dict[tuple[str, str], Series] = field(default_factory=dict)
    gaps: list[tuple[str, list[str], float, float, str]] = field(default_factory=list)
    missing: dict[str, dict[str, str]] = field(default_factory=dict)
    cpu_share: float | None = None

    def get(self, source: str, metric: str) -> Series | None:
        """Return one series, None if it was never read."""
        return self.series.get((source, metric))

    def of_gpus(self, gpus: Sequence[str]) -> Recording:
        """Return the recording without the devices that are not in `gpus`."""

        def kept(source: str) -> bool:
            return source in gpus or not source.startswith(GPU)

        return Recording(
            {name: readings for name, readings in self.series.items() if kept(name[0])},
            [gap for gap in self.gaps if kept(gap[0])],
            {source: reasons for source, reasons in self.missing.items() if kept(source)},
            self.cpu_share,
        )

    def sources(self) -> list[str]:
        """Return the sorted sources of the series: `gpu0`, `host`, …, and processor cores."""
        return sorted({source for source, _ in self.series})


def summarise(recording: Recording, marks: Marks) -> Telemetry:
    """Return the telemetry of a measurement: window summaries, energy, flagged blocks and gaps."""
    zero = marks.windows["timed"][0]
    windows = {
        name: window_of(recording, marks.windows[name], zero, kept=None if name == "timed" else KEPT_OUTSIDE)
        for name in WINDOWS
        if name in marks.windows
    }
    start, end = marks.windows["timed"]
    mirrors = _mirrors(recording)
    energy, methods = _energy(recording, marks, zero, mirrors)
    first, last = min(a for a, _ in marks.windows.values()), max(b for _, b in marks.windows.values())
    return Telemetry(
        status="ok",
        windows=windows,
        polled=_polled(recording, start, end),
        energy=energy,
        energy_method=methods,
        flagged=flagged_blocks(recording, marks),
        gaps=[
            Gap(source=source, metrics=metrics, start_s=a - zero, length_s=b - a, reason=reason)
            for source, metrics, a, b, reason in recording.gaps
            if b > first and a < last
        ],
        missing=recording.missing | {source: {"energy_j": f"it shows {of} again"} for source, of in mirrors.items()},
        sampler_cpu_share=recording.cpu_share,
    )


def _shorten(value: float) -> float:
    """Return nine significant digits: beyond any sensor's resolution, in half the bytes."""
    return float(f"{value:.9g}")


def _shortened(of: Statistic) -> Statistic:
    return Statistic(mean=_shorten(of.mean), low=_shorten(of.low), high=_shorten(of.high), n=of.n)


def window_of(recording: Recording, span: Span, zero: float, kept: frozenset[str] | None) -> Window:
    """Return the statistics of a span, whose start counts from `zero`. `kept` limits the metrics; None keeps all."""
    sources: dict[str, dict[str, Statistic]] = {}
    gaps: dict[str, float] = {}
    for (source, metric), readings in recording.series.items():
        if kept is not None and metric not in kept:
            continue
        statistic = readings.statistic(*span)
        if readings.kind == "counter" and not metric.endswith("energy_j"):
            metric, statistic = rate_name(metric), _rate(readings, span)
        if statistic is not None:
            sources.setdefault(source, {})[metric] = _shortened(statistic)
        unknown = readings.unknown_s(*span)
        if unknown > 0:
            gaps[source] = max(gaps.get(source, 0.0), unknown)
    return Window(start_s=span[0] - zero, length_s=span[1] - span[0], sources=sources, gap_s=gaps)


def _rate(counter: Series, span: Span) -> Statistic | None:
    """Return the growth of a counter per second, None if it is unknown."""
    grown = counter.growth(*span)
    if grown is None:
        return None
    rate = grown / (span[1] - span[0])
    inside = (counter.times_s >= span[0]) & (counter.times_s <= span[1])
    return Statistic(mean=rate, low=rate, high=rate, n=int(np.sum(inside)))


def _polled(recording: Recording, start: float, end: float) -> dict[str, dict[str, Statistic]]:
    """Return what polling nvidia-smi once a second would have seen of the timed part."""
    sources: dict[str, dict[str, Statistic]] = {}
    for (source, metric), readings in recording.series.items():
        if source.startswith(GPU) and metric in ("power_smi_w", "utilisation", "temperature_c", "memory_bytes"):
            polled = readings.polled(start, end)
            if polled is not None:
                sources.setdefault(source, {})[metric] = _shortened(polled)
    return sources


def _mirrors(recording: Recording) -> dict[str, str]:
    """Return the RAPL sources that show another source's counter: some kernels show a socket's at each of its dies."""
    counters = {
        source: of
        for (source, metric), of in recording.series.items()
        if metric == "energy_j" and source.startswith(RAPL) and len(of)
    }
    mirrors: dict[str, str] = {}
    for (name, counter), (copy_name, copy) in combinations(counters.items(), 2):
        apart_j = np.abs(np.interp(counter.times_s, copy.times_s, copy.values) - counter.values)
        growths = np.ptp(counter.values), np.ptp(copy.values)
        if np.median(apart_j) < SAME_J and abs(growths[0] - growths[1]) <= SAME_GROWTH * max(growths):
            mirrors.setdefault(copy_name, name)
    return mirrors


def _energy(
    recording: Recording, marks: Marks, zero: float, mirrors: Collection[str]
) -> tuple[list[EnergyWindow], dict[str, str]]:
    """Return the joules of each long energy window, by source without `mirrors`, and the method of each source."""
    meters = [source for source in recording.sources() if source.startswith(GPU)]
    meters += [source for source, metric in recording.series if metric == "energy_j" and source.startswith(RAPL)]
    meters = [source for source in meters if source not in mirrors]
    rows: list[EnergyWindow] = []
    methods: dict[str, str] = {}
    for first, after in marks.energy_blocks:
        start, end = marks.blocks[first][0], marks.blocks[after - 1][1]
        joules: dict[str, float | None] = {}
        for source in meters:
            energy = series.energy(recording.get(source, "energy_j"), recording.get(source, "power_w"), start, end)
            joules[source] = None if energy.energy_j is None else _shorten(energy.energy_j)
            methods[source] = min(methods.get(source, energy.method), energy.method, key=_strength)
        images = None if marks.images_per_block is None else marks.images_per_block * (after - first)
        rows.append(EnergyWindow(start_s=start - zero, length_s=end - start, images=images, energy_j=joules))
    return rows, methods


def _strength(method: str) -> int:
    """Return the rank of an energy method. Telemetry names the weakest method of its windows."""
    return 0 if method.startswith("none") else 1 if method.startswith("trapezoid") else 2


def flagged_blocks(recording: Recording, marks: Marks) -> list[Flagged]:
    """Return the timed blocks in which a device throttled, by reason, or its SM clock dropped."""
    flagged: dict[tuple[str, str], list[int]] = {}
    for source in recording.sources():
        reasons, clock = recording.get(source, "throttle"), recording.get(source, "sm_clock_hz")
        highest = _highest(clock, marks)
        for index, block in enumerate(marks.blocks):
            for name in _reasons(reasons, block):
                flagged.setdefault((f"throttled: {name}", source), []).append(index)
            lowest = clock.statistic(*block) if clock is not None else None
            if lowest is not None and highest is not None and lowest.low < CLOCK_DROP * highest:
                flagged.setdefault(("below clock", source), []).append(index)
    return [Flagged(why=why, source=source, blocks=blocks) for (why, source), blocks in flagged.items()]


def _highest(clock: Series | None, marks: Marks) -> float | None:
    """Return the highest SM clock while the step ran (warm-up and timed), None if it is unknown."""
    if clock is None:
        return None
    spans = [marks.windows[name] for name in ("warmup", "timed") if name in marks.windows]
    highs = [statistic.high for span in spans if (statistic := clock.statistic(*span))]
    return max(highs, default=None)


def _reasons(throttle: Series | None, block: Span) -> list[str]:
    """Return the throttle reasons of a block, from every reading in it and the last reading before it."""
    if throttle is None or not len(throttle):
        return []
    set_bits = reduce(or_, (int(bits) for bits in throttle.between(*block).values), 0)
    return [name for bit, name in THROTTLE_REASONS.items() if set_bits & bit]
