"""How far passes lie apart in what is no kernel of a step, which is the host's, and how little in its kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from labkit.analysis.format import number
from labkit.results.from_result import value_of
from labkit.results.from_trace import trace_of
from labkit.results.study_records import StudyRecords as Results
from labkit.trial import Trial

WORTH = 0.1  # of the fastest step: less that passes lie apart is not worth a sentence
KERNELS_SHARE = 0.2  # of what a step lies apart: where kernels have more, it is not the host's


class Spread(NamedTuple):
    """The least and the most of all passes, in seconds a step: of the step, and of its kernels."""

    step_s: tuple[float, float]
    kernels_s: tuple[float, float]

    @property
    def is_the_hosts(self) -> bool:
        """Whether steps lie apart, and their kernels do not."""
        apart_s, kernels_s = (most - least for least, most in self)
        return apart_s >= WORTH * self.step_s[0] and kernels_s <= KERNELS_SHARE * apart_s

    @property
    def ratio(self) -> float:
        """The slowest pass over the fastest."""
        return self.step_s[1] / self.step_s[0]


def spread(results: Results, trial: Trial) -> Spread | None:
    """Over the passes of a trial on a GPU that were steady when timing began; None with fewer than two, or untraced."""
    steps, kernels = [], []
    for record in results.ok(trial):
        if record.blocks and not record.blocks.steady:
            continue
        step_s, trace = value_of(record, "step_s"), trace_of(record)
        if step_s and trace and trace.of == "kernels" and trace.busy_s:
            steps.append(step_s)
            kernels.append(trace.busy_s / trace.steps)
    return Spread((min(steps), max(steps)), (min(kernels), max(kernels))) if len(steps) > 1 else None


def sentence(results: Results, trials: Iterable[Trial], name: Callable[[Trial], str]) -> str:
    """Where steps differ most between passes while their kernels do not: waiting is of the host that launches."""
    found = {trial: one for trial in trials if (one := spread(results, trial)) and one.is_the_hosts}
    if not found:
        return ""
    most = max(found, key=lambda trial: found[trial].ratio)
    step, kernels = (" to ".join(dict.fromkeys(number(1e3 * end) for end in ends)) for ends in found[most])
    return (
        f"How long the device waits is the host's doing, and other hosts differ: over the passes that were steady a "
        f"step of {name(most)} takes {step} ms, in which kernels run for {kernels} ms."
    )
