"""Cut a recording to the windows of a trial: statistics, energy, flagged blocks, gaps. No process, no clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_

import numpy as np

from labkit.records import Blocks, observed, series
from labkit.records.series import Series, Span
from labkit.sensors import CORE, GPU, rate_name, throttle_names

CLOCK_DROP = 0.95  # a block is below clock when the clock fell under this share of the highest of the trial
# Outside the timed part a record keeps what tells a quiet device from a busy one; the series have the rest.
KEPT_OUTSIDE = frozenset(
    {"power_w", "utilisation", "sm_activity", "sm_clock_hz", "temperature_c", "memory_bytes", "cpu_utilisation"}
)


@dataclass(frozen=True)
class Marks:
    """When the parts of a trial were, on the monotonic clock."""

    windows: dict[str, Span]
    blocks: list[Span]
    energy_blocks: list[tuple[int, int]]  # first block and the one after the last of each long energy window
    images_per_block: int | None

    @classmethod
    def of(cls, result: Blocks, others: dict[str, Span]) -> Marks:
        """The marks of a result; `others` are the windows that its blocks do not tell (idle_before, after, …)."""
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
    """Everything sampled around a trial: series by (source, metric), gaps, and what is missing."""

    series: dict[tuple[str, str], Series] = field(default_factory=dict)
    gaps: list[tuple[str, list[str], float, float, str]] = field(default_factory=list)
    missing: dict[str, dict[str, str]] = field(default_factory=dict)
    cpu_share: float | None = None

    def get(self, source: str, metric: str) -> Series | None:
        """One series, None when it was never read."""
        return self.series.get((source, metric))

    def of_gpus(self, gpus: Sequence[str]) -> Recording:
        """The same without the devices that are not among `gpus`."""

        def kept(source: str) -> bool:
            return source in gpus or not source.startswith(GPU)

        return Recording(
            {name: one for name, one in self.series.items() if kept(name[0])},
            [gap for gap in self.gaps if kept(gap[0])],
            {source: reasons for source, reasons in self.missing.items() if kept(source)},
            self.cpu_share,
        )

    def sources(self) -> list[str]:
        """`gpu0`, `host`, …; processor cores stand in the series only."""
        return sorted({source for source, _ in self.series})


def summarise(recording: Recording, marks: Marks) -> observed.Telemetry:
    """The window summaries of a trial."""
    zero = marks.windows["timed"][0]
    windows = {
        name: window_of(recording, marks.windows[name], zero, kept=None if name == "timed" else KEPT_OUTSIDE)
        for name in observed.WINDOWS
        if name in marks.windows
    }
    start, end = marks.windows["timed"]
    energy, methods = _energy(recording, marks, zero)
    first, last = min(a for a, _ in marks.windows.values()), max(b for _, b in marks.windows.values())
    return observed.Telemetry(
        status="ok",
        windows=windows,
        polled=_polled(recording, start, end),
        energy=energy,
        energy_method=methods,
        flagged=flagged_blocks(recording, marks),
        gaps=[
            observed.Gap(source=source, metrics=metrics, start_s=a - zero, length_s=b - a, reason=reason)
            for source, metrics, a, b, reason in recording.gaps
            if b > first and a < last
        ],
        missing=recording.missing,
        sampler_cpu_share=recording.cpu_share,
    )


def _shorten(value: float) -> float:
    """Nine significant digits: beyond any sensor's resolution, and half the bytes."""
    return float(f"{value:.9g}")


def _statistic(found: series.Statistic) -> observed.Statistic:
    return observed.Statistic(mean=_shorten(found.mean), low=_shorten(found.low), high=_shorten(found.high), n=found.n)


def window_of(recording: Recording, span: Span, zero: float, kept: frozenset[str] | None) -> observed.Window:
    """The statistics of one stretch of time, `zero` being the moment that its start counts from; None keeps all."""
    sources: dict[str, dict[str, observed.Statistic]] = {}
    gaps: dict[str, float] = {}
    for (source, metric), one in recording.series.items():
        if kept is not None and (metric not in kept or source.startswith(CORE)):
            continue
        found = one.statistic(*span)
        if one.kind == "counter" and not metric.endswith("energy_j"):
            metric, found = rate_name(metric), _rate(one, span)
        if found is not None:
            sources.setdefault(source, {})[metric] = _statistic(found)
        unknown = one.unknown_s(*span)
        if unknown > 0:
            gaps[source] = max(gaps.get(source, 0.0), unknown)
    return observed.Window(
        start_s=span[0] - zero, length_s=span[1] - span[0], sources=_cores_together(sources), gap_s=gaps
    )


def _rate(counter: Series, span: Span) -> series.Statistic | None:
    """What a counter grew by, a second."""
    grown = counter.growth(*span)
    if grown is None:
        return None
    rate = grown / (span[1] - span[0])
    return series.Statistic(rate, rate, rate, int(np.sum((counter.times_s >= span[0]) & (counter.times_s <= span[1]))))


def _cores_together(sources: dict[str, dict[str, observed.Statistic]]) -> dict[str, dict[str, observed.Statistic]]:
    """The cores' means as one distribution of the host: a record needs no row a core, the series have them."""
    cores = [sources.pop(name) for name in list(sources) if name.startswith(CORE)]
    means = [core["cpu_utilisation"].mean for core in cores if "cpu_utilisation" in core]
    if means:
        sources.setdefault("host", {})["cpu_core_utilisation"] = observed.Statistic(
            mean=_shorten(float(np.mean(means))), low=min(means), high=max(means), n=len(means)
        )
    return sources


def _polled(recording: Recording, start: float, end: float) -> dict[str, dict[str, observed.Statistic]]:
    """What once-a-second polling of nvidia-smi, as the papers did it, would have seen of the timed part."""
    found: dict[str, dict[str, observed.Statistic]] = {}
    for (source, metric), one in recording.series.items():
        if source.startswith(GPU) and metric in ("power_smi_w", "utilisation", "temperature_c", "memory_bytes"):
            polled = one.polled(start, end)
            if polled is not None:
                found.setdefault(source, {})[metric] = _statistic(polled)
    return found


def _energy(recording: Recording, marks: Marks, zero: float) -> tuple[list[observed.EnergyWindow], dict[str, str]]:
    """Joules of each long energy window, by source, and the method of each source."""
    meters = [source for source in recording.sources() if source.startswith(GPU)]
    meters += [source for source, metric in recording.series if metric == "energy_j" and not source.startswith(GPU)]
    found: list[observed.EnergyWindow] = []
    methods: dict[str, str] = {}
    for first, after in marks.energy_blocks:
        start, end = marks.blocks[first][0], marks.blocks[after - 1][1]
        joules: dict[str, float | None] = {}
        for source in meters:
            one = series.energy(recording.get(source, "energy_j"), recording.get(source, "power_w"), start, end)
            joules[source] = None if one.energy_j is None else _shorten(one.energy_j)
            methods[source] = min(methods.get(source, one.method), one.method, key=_strength)
        images = None if marks.images_per_block is None else marks.images_per_block * (after - first)
        found.append(observed.EnergyWindow(start_s=start - zero, length_s=end - start, images=images, energy_j=joules))
    return found, methods


def _strength(method: str) -> int:
    """How good a way to energy is: the weakest one of the windows is the one to name."""
    return 0 if method.startswith("none") else 1 if method.startswith("trapezoid") else 2


def flagged_blocks(recording: Recording, marks: Marks) -> list[observed.Flagged]:
    """Timed blocks during which a device throttled, by reason, or its SM clock dropped."""
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
    return [observed.Flagged(why=why, source=source, blocks=blocks) for (why, source), blocks in flagged.items()]


def _highest(clock: Series | None, marks: Marks) -> float | None:
    """The highest SM clock while the trial worked (warm-up and timed)."""
    if clock is None:
        return None
    spans = [marks.windows[name] for name in ("warmup", "timed") if name in marks.windows]
    found = [one.high for span in spans if (one := clock.statistic(*span))]
    return max(found, default=None)


def _reasons(throttle: Series | None, block: Span) -> list[str]:
    """What throttled in a block: every reading in it, and the one that stood when it began."""
    if throttle is None or not len(throttle):
        return []
    return throttle_names(reduce(or_, (int(bits) for bits in throttle.between(*block).values), 0))
