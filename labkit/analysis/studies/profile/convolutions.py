"""How convolutions are done: which algorithm at which batch, and the kernel that takes most of their time."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from labkit.analysis import engines
from labkit.analysis.figure import Figure
from labkit.analysis.format import listing, number, percent
from labkit.analysis.speed import title
from labkit.analysis.studies.profile import seen
from labkit.analysis.studies.profile.bars import Bars, Look
from labkit.analysis.studies.profile.figures import frame_of
from labkit.analysis.table import Table, Text
from labkit.records import Record
from labkit.results import from_trace as traced
from labkit.results.from_trace import trace_of
from labkit.results.study_records import StudyRecords as Results
from labkit.statistics import Interval
from labkit.traced import ALGORITHMS_HOLD_SINCE, Algorithm, Traced
from labkit.trial import Trial

NAMES: dict[Algorithm, str] = {
    "implicit_gemm": "implicit matrix product",
    "winograd": "Winograd",
    "fft": "FFT",
    "direct": "direct",
    "tensor_core": "on tensor cores",
    "helper": "helpers",
    "library": "the library's own",
}
LOOKS = {
    "implicit matrix product": Look(0),
    "Winograd": Look(1),
    "FFT": Look(2),
    "direct": Look(5),
    "on tensor cores": Look(3),
    "helpers": Look(shade=0.35),
    "the library's own": Look(shade=0.6),
}
assert set(NAMES.values()) == set(LOOKS)
FEWEST_BATCHES = 3  # of which a course is told: of two the table says as much


def _shares(_: Record, trace: Traced) -> seen.Shares:
    """Of the convolutions' time, by algorithm; nothing by rules that are known to have sorted it wrongly."""
    whole = sum(one.seconds for one in trace.algorithms.values())
    if not whole or (trace.of == "kernels" and trace.rules < ALGORITHMS_HOLD_SINCE):
        return {}
    return {NAMES[name]: one.seconds / whole for name, one in trace.algorithms.items()}


def picture(results: Results, trials: Sequence[Trial]) -> Figure | Text:
    """The algorithms of the convolutions against the batch, as shares of their time."""
    shares = {trial: found for trial in trials if (found := seen.shares(results, trial, _shares))}
    if not shares:
        if not traced.algorithms_hold(results.records):
            return Text(f"How convolutions were done can't be said here. {traced.earlier_rules(results.records)}")
        return Text(f"No trace tells how convolutions were done: {seen.why_none(results, trials)}.")
    if {part for found in shares.values() for part in found} == {NAMES["library"]}:
        return Text(
            "How convolutions are done can't be seen on a CPU: one operator of the library does each, by whatever "
            "algorithm it chooses, and its name does not say which."
        )

    def over(trial: Trial) -> str:
        """The share of the convolutions in all kernels."""
        parts = seen.shares(results, trial, lambda _, trace: seen.groups(trace))
        return number(parts["convolution"].point * 100, 2) if "convolution" in parts else ""

    bars = Bars(
        trials=trials,
        parts={trial: {part: one.point * 100 for part, one in found.items()} for trial, found in shares.items()},
        looks=LOOKS,
        along="batch; over each bar what the convolutions are of all kernel time, in %",
        label="share of the convolutions' time (%)",
        over=over,
        highest=100.0,
    )
    return Figure(
        name="profile-convolutions",
        draw=bars.draw,
        again=results.again,
        caption="How the convolutions of a step were done, forward and back, by the names of their kernels. cuDNN "
        "times its algorithms before the first step and takes the fastest (PyTorch's benchmark mode), so a choice can "
        "differ between passes. Helpers bring operands into an algorithm's form and back, but for FFT's and "
        "Winograd's transforms, which count as theirs; of the library's own only the operator is known, which is a "
        "convolution. "
        f"{seen.steps_words(results, list(shares)).capitalize()}, means of passes; "
        f"{seen.spread_words(results, list(shares), _shares)}. {engines.conditions(results, list(trials))}.",
        alt=f"Stacked bars, a panel a network and input size, a bar a batch: shares of the convolutions' time by "
        f"{listing(bars.shown)}. {_winograd(shares)}",
        data=frame_of(shares),
        size_in=bars.size_in,
    )


def _winograd(shares: dict[Trial, dict[str, Interval]]) -> str:
    of_winograd = {
        trial: found[NAMES["winograd"]].point for trial, found in shares.items() if NAMES["winograd"] in found
    }
    if not of_winograd:
        return "No kernel of these is a Winograd convolution."
    most = max(of_winograd, key=lambda trial: of_winograd[trial])
    return f"The most Winograd: {percent(of_winograd[most])} of the convolutions' time ({seen.name(most)})."


def course(results: Results, trials: Sequence[Trial]) -> Text:
    """Over the batch, of each network: which algorithm has most of the convolutions' time, and Winograd's share."""
    said = [_leading(results, trials), _winograds_course(results, trials)]
    return Text("\n\n".join(one for one in said if one))


def _leading(results: Results, trials: Sequence[Trial]) -> str:
    """Which algorithm has most of the convolutions' time, of networks with several batches; helpers are none."""
    by_setting: dict[str, dict[int, tuple[str, float]]] = {}
    for trial in trials:
        shares = {name: one.point for name, one in seen.shares(results, trial, _shares).items()}
        if algorithms := {name: share for name, share in shares.items() if name != NAMES["helper"]}:
            name = max(algorithms, key=lambda one: algorithms[one])
            by_setting.setdefault(_named(trial), {})[trial.batch] = name, algorithms[name]
    by_setting = {setting: led for setting, led in by_setting.items() if len(led) > 1}
    kinds = {setting: {name for name, _ in led.values()} for setting, led in by_setting.items()}
    if not kinds or set.union(*kinds.values()) == {NAMES["library"]}:
        return ""
    said = []
    for algorithm in NAMES.values():
        if alone := [setting for setting, names in kinds.items() if names == {algorithm}]:
            said.append(f"{algorithm} at every batch of {listing(alone)}")
    said += [f"of {setting} {_led(led)}" for setting, led in by_setting.items() if len(kinds[setting]) > 1]
    return f"How most of the convolutions' time is spent (means of passes): {'; '.join(said)}."


def _named(trial: Trial) -> str:
    """`VGG-16 (224 px)`: in a list of several a comma would part the two."""
    return f"{title(trial)} ({trial.image_px} px)"


def _led(led: dict[int, tuple[str, float]]) -> str:
    """`implicit matrix product at 4, 8 and 16 (81 %, 77 % and 44 %) and FFT at 32 and 64 (52 % and 54 %)`."""
    batches: dict[str, list[int]] = {}
    for batch in sorted(led):
        batches.setdefault(led[batch][0], []).append(batch)
    return listing(
        [
            f"{name} at {listing([f'{batch:,}' for batch in mine])} ({listing([percent(led[one][1]) for one in mine])})"
            for name, mine in batches.items()
        ]
    )


def _winograds_course(results: Results, trials: Sequence[Trial]) -> str:
    """Winograd's share: at the smallest batch, where it is largest, and at the largest."""
    shares: dict[str, dict[int, float]] = {}
    for trial in trials:
        if found := seen.metric(results, trial, "winograd_share"):
            shares.setdefault(_named(trial), {})[trial.batch] = found.point
    told = [f"{setting} {_course(found)}" for setting, found in shares.items() if len(found) >= FEWEST_BATCHES]
    if not told:
        return ""
    return (
        "Winograd's kernels over the batch, of the time of all kernels and copies (means of passes): "
        f"{'; '.join(told)}."
    )


def _course(shares: dict[int, float]) -> str:
    """`3.2 % at batch 4, most at 64 (11 %), 2.4 % at 256`."""
    if not any(shares.values()):
        return f"none at any of {len(shares)} batches"
    smallest, largest = min(shares), max(shares)
    most = max(shares, key=lambda batch: shares[batch])
    said = {
        smallest: f"{percent(shares[smallest])} at batch {smallest:,}",
        most: f"most at {'batch ' if most == smallest else ''}{most:,} ({percent(shares[most])})",
    }
    return ", ".join([*said.values(), *([] if largest in said else [f"{percent(shares[largest])} at {largest:,}"])])


def table(results: Results, trials: Sequence[Trial]) -> Table | Text:
    """The kernel that most convolution time is spent in: a row for each that a network has, with its batches."""
    chosen: dict[tuple[str, str, str], list[Trial]] = {}
    engine = seen.engine_words(trials)
    for trial in trials:
        traces = [found for record in results.ok(trial) if (found := trace_of(record))]
        kernels = sorted({found.convolution_kernel for found in traces if found.convolution_kernel})
        if kernels:
            chosen.setdefault((seen.setting(trial), engine[trial], "; or ".join(kernels)), []).append(trial)
    if not chosen:
        return Text(f"No trace names a kernel of convolutions: {seen.why_none(results, trials)}.")
    rows = [
        {
            "": setting,
            "engine": name,
            "at batch": listing([f"{trial.batch:,}" for trial in alike]),
            "Winograd": _listed([seen.metric(results, trial, "winograd_share") for trial in alike]),
            "most convolution time": kernel,
        }
        for (setting, name, kernel), alike in chosen.items()
    ]
    # The batches of an engine stand together: what changes along them is the question.
    order = list(dict.fromkeys((row[""], row["engine"]) for row in rows))
    rows.sort(key=lambda row: order.index((row[""], row["engine"])))
    told = any(row["Winograd"] for row in rows)
    also = " Winograd: of the time of all kernels and copies together, at each batch." if told else ""
    return Table(
        engines.concise(pd.DataFrame(rows, dtype=object), ("Winograd",)),
        f"The {seen.ran(trials)} in which most of the convolutions' time was spent, its name shortened; where passes "
        f"chose different ones, each of them.{also} {engines.conditions(results, list(trials))}.",
    )


def _listed(shares: Sequence[Interval | None]) -> str | None:
    """`3.0 %, 7.5 %`; None where none is known."""
    return ", ".join(percent(one.point if one else None) for one in shares) if any(shares) else None
