"""What a tuned engine removes from a step: in ms, since a share of a shorter step is of something else."""

from __future__ import annotations

from collections.abc import Sequence

from labkit.analysis import engines
from labkit.analysis.format import number
from labkit.analysis.studies.profile import seen
from labkit.analysis.verdicts.words import shown_effect
from labkit.results.study_records import StudyRecords as Results
from labkit.trial import Trial

WORTH = 0.01  # of the step: less waiting explains nothing


def sentence(results: Results, trials: Sequence[Trial]) -> str:
    """Of each network's largest gain by a tuned engine: the part of the step that shrinks most, in ms, and the step."""
    best: dict[str, tuple[float, Trial, str]] = {}
    for trial, before in engines.over_plain(results, trials):
        ratio = engines.ratio(results, trial, before, "images_per_s")
        if ratio and ratio.point > max(1.0, best[trial.model][0] if trial.model in best else 0.0):
            shrunk = _shrunk(results, trial, before)
            gain = shown_effect(ratio, "images_per_s", "ratio")
            if shrunk:
                said = f"{seen.name(trial)}: {shrunk}; {gain} images/s{_by_waiting(results, before)}"
                best[trial.model] = ratio.point, trial, said
    if not best:
        return ""
    narrower = any(trial.precision != "fp32" for _, trial, _ in best.values())
    part_of = " Kernels get shorter by precision, layout and fusing, which are not told apart here." if narrower else ""
    if all(trial.device == "cpu" for _, trial, _ in best.values()):
        part_of += " Parts are shares of a traced step, taken of the timed one."
    several = " (of each network the largest gain)" if len(best) > 1 else ""
    what = f"What a tuned engine gains, and the part of the step that it shortens most{several}"
    return f"{what}: {'. '.join(said for _, _, said in best.values())}.{part_of}"


def _shrunk(results: Results, trial: Trial, before: Trial) -> str:
    """`convolution from 93 to 24 ms, of a step from 154 to 40 ms`; empty without traces of both."""
    first, left = parts_ms(results, before), parts_ms(results, trial)
    if not first or not left:
        return ""
    part = max(first, key=lambda name: first[name] - left.get(name, 0.0))
    steps = f"{number(sum(first.values()))} to {number(sum(left.values()))} ms"
    if first[part] <= left.get(part, 0.0):
        return f"no part shrinks, the step goes from {steps}"
    said = [f"{part} from {number(first[part])} to {number(left.get(part, 0.0))} ms"]
    ran = [sum(ms for name, ms in parts.items() if name not in seen.REST) for parts in (first, left)]
    if part in seen.REST:
        said.append(f"{seen.ran([trial])}s from {number(ran[0])} to {number(ran[1])} ms")
    return f"{', '.join(said)}, of a step from {steps}"


def _by_waiting(results: Results, before: Trial) -> str:
    """`; without any waiting the plain step alone would be 2.1x as fast`: how much of a gain that can be."""
    parts = parts_ms(results, before)
    whole, waiting = sum(parts.values()), parts.get(seen.WAITING, 0.0)
    if not waiting or waiting >= whole or waiting < WORTH * whole:
        return ""
    return f"; without any waiting the plain step alone would be {number(whole / (whole - waiting), 2)}x as fast"


def parts_ms(results: Results, trial: Trial) -> dict[str, float]:
    """Each part of a trial's timed step in ms; they add up to it."""
    step = results.interval(trial, "step_s")
    parts = seen.shares(results, trial, seen.step_parts)
    return {name: share.point * step.point * 1e3 for name, share in parts.items()} if step else {}
