"""What holds a training back, host or device: how busy the device was, and how far a framework's passes lie apart.

Frameworks differ most where the host can't give the device its work in time. Such rates are of the host as much as of
the framework, and move with it from pass to pass.
"""

from __future__ import annotations

from collections.abc import Sequence

from labkit.analysis.format import number, percent
from labkit.analysis.observations import spread
from labkit.analysis.studies.frameworks.compared import how
from labkit.analysis.table import Text
from labkit.results.study_records import StudyRecords as Results
from labkit.trial import Trial

# Shares of time with a kernel on the device: less, and the device mostly waits; more, and it is what the step takes.
WAITING, BUSY = 0.5, 0.9


def by_whom(results: Results, trials: Sequence[Trial]) -> Text | None:
    """Which trainings waited for the host and which filled the device; None where no device told its use."""
    shares = {trial: found.mean for trial in trials if (found := spread(results, trial, "utilisation"))}
    if not shares:
        return None
    waiting = [trial for trial, share in shares.items() if share < WAITING]
    between = [trial for trial, share in shares.items() if WAITING <= share < BUSY]
    busy = [trial for trial, share in shares.items() if share >= BUSY]
    groups = {
        f"less than {percent(WAITING)}": waiting,
        f"{percent(WAITING)} to {percent(BUSY)}": between,
        f"{percent(BUSY)} or more": busy,
    }
    told = [f"in {share} of the time under {_named(of, shares)}" for share, of in groups.items() if of]
    held, filled = _apart(results, [*waiting, *between]), _apart(results, busy)
    said = f"Some kernel ran {'. It did '.join(told)}."
    if waiting or between:
        said += f" Where it is less than {percent(BUSY)} the host holds the step up, and images/s are of this host too"
        said += f": there passes lie apart by up to {held}." if held else "."
    if filled:
        said += f" {'Elsewhere passes' if waiting or between else 'Passes'} lie apart by up to {filled}."
    return Text(said)


def _named(trials: Sequence[Trial], shares: dict[Trial, float]) -> str:
    """`PyTorch, compile in BF16 20 % to 32 %; Keras on JAX, XLA in BF16 79 %`: an engine once, over networks."""
    by_engine: dict[str, list[float]] = {}
    for trial in trials:
        by_engine.setdefault(f"{how(trial)} in {trial.precision.upper()}", []).append(shares[trial])
    told = {name: dict.fromkeys([percent(min(of)), percent(max(of))]) for name, of in by_engine.items()}
    return "; ".join(f"{name} {' to '.join(ends)}" for name, ends in told.items())


def _apart(results: Results, trials: Sequence[Trial]) -> str:
    """`1.9x (PyTorch, compile in BF16)`: the fastest pass over the slowest, the most of these trials."""
    apart = {
        trial: max(values.values()) / min(values.values())
        for trial in trials
        if len(values := results.values(trial, "images_per_s")) > 1
    }
    if not apart:
        return ""
    most = max(apart, key=lambda trial: apart[trial])
    return f"{number(apart[most])}x ({how(most)} in {most.precision.upper()})"
