"""What holds a training back, host or device: how busy the device was, and how far a framework's passes lie apart.

Frameworks differ most where the host can't give the device its work in time. Such rates are of the host as much as of
the framework, and move with it from pass to pass.
"""

from __future__ import annotations

from collections.abc import Sequence

from labkit.analysis.format import number, percent
from labkit.analysis.observations import spread
from labkit.analysis.results import Results
from labkit.analysis.studies.frameworks.compared import how
from labkit.analysis.table import Text
from labkit.trial import Trial

# Shares of time with a kernel on the device: less, and the device mostly waits; more, and it is what the step takes.
WAITING, BUSY = 0.5, 0.9


def by_whom(results: Results, trials: Sequence[Trial]) -> Text | None:
    """Which trainings waited for the host and which filled the device; None where no device told its use."""
    shares = {trial: found.mean for trial in trials if (found := spread(results, trial, "utilisation"))}
    if not shares:
        return None
    waiting, busy = [t for t, s in shares.items() if s < WAITING], [t for t, s in shares.items() if s >= BUSY]
    said = []
    if waiting:
        said.append(
            f"The device ran a kernel in less than {percent(WAITING)} of the time where the host could not give "
            f"it more ({_named(waiting, shares)}): such images/s are of this host as much as of the framework."
            f"{_between_passes(results, waiting)}"
        )
    if busy:
        said.append(
            f"{'It' if waiting else 'The device'} was busy in {percent(BUSY)} or more of the time where nothing held "
            f"it back ({_named(busy, shares)}).{_between_passes(results, busy)}"
        )
    return Text(" ".join(said)) if said else None


def _named(trials: Sequence[Trial], shares: dict[Trial, float]) -> str:
    """`PyTorch, compile in BF16 20 % to 32 %; Keras on JAX, XLA in BF16 79 %`: an engine once, over networks."""
    by_engine: dict[str, list[float]] = {}
    for trial in trials:
        by_engine.setdefault(f"{how(trial)} in {trial.precision.upper()}", []).append(shares[trial])
    told = {name: dict.fromkeys([percent(min(of)), percent(max(of))]) for name, of in by_engine.items()}
    return "; ".join(f"{name} {' to '.join(ends)}" for name, ends in told.items())


def _between_passes(results: Results, trials: Sequence[Trial]) -> str:
    """` Their passes lie apart by up to 1.9x.`: the fastest pass over the slowest, the most of these trials."""
    apart = [
        max(values.values()) / min(values.values())
        for trial in trials
        if len(values := results.values(trial, "images_per_s")) > 1
    ]
    return f" Their passes lie apart by up to {number(max(apart))}x." if apart else ""
