"""How far passes lie apart in the time of a step, and how little in that of its kernels: the rest is the host's."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from labkit.analysis.format import number
from labkit.analysis.recorded import value_of
from labkit.analysis.results import Results
from labkit.analysis.studies.profile import seen
from labkit.trial import Trial

APART = 1.1  # the slowest pass over the fastest: less is not worth a sentence


class Spread(NamedTuple):
    """The least and the most of all passes, in seconds a step: of the step, and of its kernels."""

    step_s: tuple[float, float]
    kernels_s: tuple[float, float]

    @property
    def ratio(self) -> float:
        """The slowest pass over the fastest."""
        return self.step_s[1] / self.step_s[0]


def spread(results: Results, trial: Trial) -> Spread | None:
    """Over the passes of a trial on a GPU; None with fewer than two, or without traces."""
    steps, kernels = [], []
    for record, trace in seen.traces(results, trial):
        step_s = value_of(record, "step_s")
        if step_s is not None and trace.of == "kernels":
            steps.append(step_s)
            kernels.append(trace.busy_s / trace.steps)
    if len(steps) < 2 or min(steps) <= 0 or min(kernels) <= 0:
        return None
    return Spread((min(steps), max(steps)), (min(kernels), max(kernels)))


def sentence(results: Results, trials: Iterable[Trial], name: Callable[[Trial], str] = seen.name) -> str:
    """Where steps differ most between passes, and that their kernels do not: waiting is of the host that launches."""
    found = {trial: one for trial in trials if (one := spread(results, trial))}
    if not found:
        return ""
    most = max(found, key=lambda trial: found[trial].ratio)
    one = found[most]
    if one.ratio < APART:
        return ""
    step, kernels = (" to ".join(dict.fromkeys(number(1e3 * end) for end in ends)) for ends in one)
    return (
        f"How long the device waits is the host's doing, and other hosts differ: over the passes a step of "
        f"{name(most)} takes {step} ms, in which kernels run for {kernels} ms."
    )
