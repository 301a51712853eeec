"""How well a WGAN uses the chip: the answer in words, the tables, and what they do not say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

import pandas as pd

from labkit.analysis import engines, roofline, summary, traced
from labkit.analysis.format import listing, number, percent, with_interval
from labkit.analysis.observations import why_not
from labkit.analysis.results import Results
from labkit.analysis.speed import word
from labkit.analysis.table import Table, Text
from labkit.analysis.verdicts.evidence import Side, level
from labkit.analysis.verdicts.words import shown_effect
from labkit.recipes import CRITIC_STEPS, engine_name
from labkit.registry import METRICS
from labkit.statistics import Interval
from labkit.traced import KernelClass
from labkit.trial import PRECISIONS, Trial

ACTIVITIES = ("sm_activity", "fp32_activity", "tensor_activity")
POINTS = 100.0  # of a share
LEAST = 0.001  # smaller shares are noise, and only said to be smaller


def swept(results: Results) -> list[Trial]:
    """The trials over mini-batches, each with its short trace: constraint, engine, precision and batch in order."""
    found = results.trials(workload="gan", samples=0)
    short = [trial for trial in found if trial not in {long for _, long in sampling_pairs(results)}]
    return sorted(short, key=_place)


def _place(trial: Trial) -> tuple[str, str, int, int]:
    return trial.constraint, trial.engine, PRECISIONS.index(trial.precision), trial.batch


def sampling_pairs(results: Results) -> list[tuple[Trial, Trial]]:
    """Trials that differ in nothing but how many iterations were traced: the fewest and the most."""
    alike: dict[Trial, list[Trial]] = {}
    for trial in sorted(results.trials(workload="gan", samples=0), key=lambda one: one.traced_iterations):
        if trial.traced_iterations:
            alike.setdefault(replace(trial, traced_iterations=0, traced_s=0), []).append(trial)
    return [(of[0], of[-1]) for of in alike.values() if len(of) > 1]


def sampled(results: Results) -> list[Trial]:
    """The trials whose generator was asked for images."""
    return [trial for trial in results.trials(workload="gan") if trial.samples]


def plain(trials: Sequence[Trial]) -> list[Trial]:
    """Of these the paper's own: eager, FP32, weights clipped."""
    about = {"engine": "eager", "precision": "fp32", "constraint": "clipping"}
    return [trial for trial in trials if all(getattr(trial, name) == value for name, value in about.items())]


def series_of(trial: Trial, beside: Sequence[Trial]) -> str:
    """What a trial is apart from its mini-batch: `eager, FP32`."""
    said = [engine_name(trial), trial.precision.upper()]
    if len({one.constraint for one in beside}) > 1:
        said.append(word(trial, "constraint"))
    return ", ".join(said)


def named(trial: Trial, beside: Sequence[Trial]) -> str:
    """A trial in a few words: `mini-batch 64, eager, FP32`."""
    return f"mini-batch {trial.batch:,}, {series_of(trial, beside)}"


def of(results: Results, trial: Trial, metric: str) -> Interval | None:
    """A metric of a trial over its passes, also of its trace or telemetry."""
    return level(Side(results, trial), metric)


def headline(results: Results, trials: Sequence[Trial]) -> Text:
    """The answer first: how busy the device is over mini-batches, plain and captured, and what five iterations say."""
    known = [trial for trial in trials if results.ok(trial)]
    if not known:
        return engines.nothing(results)
    said = [_busy(results, known), _arithmetic(results, known), _captured(results, known), _five(results)]
    lost = [named(trial, trials) for trial in trials if not results.ok(trial)]
    said.append(f"Without a result: {'; '.join(lost)}." if lost else "")
    return Text("\n\n".join(part for part in said if part))


def _ends(results: Results, trials: Sequence[Trial], metric: str) -> list[tuple[Trial, Interval]]:
    """Of the smallest and the largest mini-batch that have the metric."""
    known = [(trial, found) for trial in trials if (found := of(results, trial, metric))]
    known.sort(key=lambda pair: pair[0].batch)
    return known if len(known) < 2 else [known[0], known[-1]]


def _from_to(results: Results, trials: Sequence[Trial], metric: str) -> str:
    """`12 % [11, 13] at mini-batch 8 and 60 % [58, 62] at 512`; empty where nothing is known."""
    ends = [f"{with_interval(found, metric)} at mini-batch {t.batch:,}" for t, found in _ends(results, trials, metric)]
    return listing(ends) if ends else ""


def _busy(results: Results, known: Sequence[Trial]) -> str:
    of_plain = plain(known)
    told = _from_to(results, of_plain, "compute_utilisation")
    if not told:
        reason = _why_untraced(results, of_plain)
        how = "Trained as the paper trained it (eager, FP32)"
        return f"{how}, the share of the time in which the device computed can't be said: {reason}."
    what = "an operator ran" if results.profile.device.kind == "cpu" else "a kernel ran"
    said = f"Trained as the paper trained it (eager, FP32), the share of the time in which {what} is {told}."
    sensors = _from_to(results, of_plain, "sm_activity")
    return said + (f" The device's own SM activity is {sensors}." if sensors else "")


def _why_untraced(results: Results, trials: Sequence[Trial]) -> str:
    reasons = [traced.why_no_trace(record) for trial in trials for record in results.ok(trial)]
    return reasons[0] if reasons else "no eager FP32 trial has a result"


def _arithmetic(results: Results, known: Sequence[Trial]) -> str:
    told = _from_to(results, plain(known), "fp32_utilisation")
    if not told:
        return ""
    return (
        f"FP32 utilisation by the paper's formula, FLOP over peak and elapsed time, is {told}; {peak_words(results)}."
    )


def peak_words(results: Results) -> str:
    """Which FP32 peak the formula takes."""
    kind = results.profile.device.kind
    peak, source = roofline.fp32_peak(results, Trial(device=kind))
    if peak is None:
        return "no FP32 peak is known"
    own = "the vendor's" if source == "nominal" else "the largest that a matrix product reached here:"
    return f"the peak is {own} {with_interval(Interval(peak, peak, peak, 1), 'flop_per_s').split(' [')[0]}"


def gains(results: Results, trials: Sequence[Trial]) -> list[tuple[Interval, Trial]]:
    """What capturing does for images/s: a ratio for each captured trial that has an eager one like it."""
    pairs = [(one, engines.like(results, one, engine="eager")) for one in trials if one.engine == "graph"]
    found = [(engines.ratio(results, one, eager, "images_per_s"), one) for one, eager in pairs]
    return [(ratio, one) for ratio, one in found if ratio]


def _captured(results: Results, known: Sequence[Trial]) -> str:
    graphs = [one for one in known if one.engine == "graph" and one.precision == "fp32"]
    told, gained = _from_to(results, graphs, "compute_utilisation"), gains(results, known)
    said = [f"The share of the time in which a kernel ran is then, in FP32, {told}."] if told else []
    if gained:
        most, trial = max(gained, key=lambda pair: pair[0].point)
        times = f"{number(most.point)} times the eager loop's images/s"
        said.append(f"Capturing gains most at {named(trial, known)}, {times}.")
    if not said:
        return ""
    return " ".join(["Captured in one CUDA graph, an iteration waits for no launch within it.", *said])


def _five(results: Results) -> str:
    found = []
    for short, long in sampling_pairs(results):
        few, many = (of(results, one, "compute_utilisation") for one in (short, long))
        if few and many:
            said = [
                f"at mini-batch {short.batch:,} the share is {percent(few.point)} by {short.traced_iterations} and "
                f"{percent(many.point)} by {long.traced_iterations}"
            ]
            if shares := class_shares(results, short, long):
                apart = max(abs(a - b) for a, b in shares.values())
                said.append(f"classes of {_ran(results)} differ by {_points(apart)} at most")
            steps = [of(results, one, "traced_step_s") for one in (short, long)]
            if steps[0] and steps[1]:
                said.append(_longer(steps[0], steps[1]))
            found.append("; ".join(said))
    return f"A few iterations beside many: {'. '.join(found)}." if found else ""


def _ran(results: Results) -> str:
    return "operators" if results.profile.device.kind == "cpu" else "kernels"


def _points(apart: float) -> str:
    """A difference of shares: `0.9 points`."""
    shown = f"{apart * POINTS:.1f}"
    return f"{'0.0' if shown == '-0.0' else shown} points"


def _longer(few: Interval, many: Interval) -> str:
    """`a traced step takes 14.5 % longer in the few`."""
    shown = _relative(few, many)
    if shown == "0.0 %":
        return "a traced step takes as long in either"
    which = "shorter" if shown.startswith("-") else "longer"
    return f"a traced step takes {shown.removeprefix('-')} {which} in the few"


def _relative(few: Interval, many: Interval) -> str:
    shown = f"{(few.point / many.point - 1) * 100:.1f} %"
    return "0.0 %" if shown == "-0.0 %" else shown


def table(results: Results, trials: Sequence[Trial]) -> Table | Text:
    """Step time, images/s and every utilisation of each trial; a failure is a row."""
    if not trials:
        return Text(f"There are no trials of a WGAN on {results.profile.title} yet: nothing to show here.")
    shares = ("compute_utilisation", "launch_gap_share", "fp32_utilisation", *ACTIVITIES)
    columns = dict(zip(shares, ("computing", "waiting", "FP32 utilisation", "SM", "FP32 pipe", "tensor"), strict=True))
    rows = []
    for trial in trials:
        row = {
            "training": series_of(trial, trials),
            "mini-batch": trial.batch,
            "step (ms)": _point(results.interval(trial, "step_s"), "step_s"),
            "images/s": with_interval(results.interval(trial, "images_per_s"), "images_per_s", unit=False),
        }
        for metric, name in columns.items():
            found = of(results, trial, metric)
            row[name] = share_words(found.point) if found else None
        memory = results.fact(trial, "memory_bytes")
        row["memory (GiB)"] = memory * METRICS["memory_bytes"].scale if memory is not None else None
        row["n"] = len(results.ok(trial))
        row["no result"] = engines.status_without_result(results, trial)
        rows.append(row)
    frame = pd.DataFrame(rows, dtype=object)
    return Table(
        engines.concise(frame, (*columns.values(), "memory (GiB)", "no result")),
        f"A step is an iteration: {CRITIC_STEPS} steps of the critic, each on a fresh mini-batch of real images and as "
        f"many generated ones, then one of the generator. Images/s are real images, {CRITIC_STEPS} mini-batches a "
        f"step. {meanings(results, trials, shares)} {engines.conditions(results, list(trials))}. Intervals: 95 %.",
    )


def _point(found: Interval | None, metric: str) -> str | None:
    return number(found.point * METRICS[metric].scale, 4) if found else None


def share_words(share: float) -> str:
    """A share of a table; one of less than a thousandth is noise."""
    return f"< {percent(LEAST)}" if 0 < share < LEAST else percent(share)


def meanings(results: Results, trials: Sequence[Trial], metrics: Sequence[str]) -> str:
    """What metrics of a table or picture mean, and why some have no values."""
    on_cpu, said = results.profile.device.kind == "cpu", []
    if "compute_utilisation" in metrics:
        said.append(
            "Computing: share of the time in which an operator of PyTorch ran, within the traced iterations."
            if on_cpu
            else "Computing: time of traced iterations in which a kernel ran, over the time of as many timed ones."
        )
    if "launch_gap_share" in metrics and not on_cpu:
        said.append("Waiting: for the host to launch a kernel.")
    if "fp32_utilisation" in metrics:
        said.append(f"FP32 utilisation: FLOP over peak and elapsed time, of FP32 trials; {peak_words(results)}.")
    sensed = [name for name in ACTIVITIES if name in metrics]
    missing = [name for name in sensed if all(of(results, trial, name) is None for trial in trials)]
    if sensed and on_cpu:
        said.append("SM activity and the activity of pipes are of GPUs (GPM): a CPU has no such counters here.")
    elif missing:
        labels = listing([METRICS[name].label for name in missing])
        said.append(f"Not readable here: {labels} ({why_not(results, missing[0])}).")
    if sensed and len(missing) < len(sensed) and not on_cpu:
        said.append("Activities are the device's own counters (GPM) over the timed part.")
    return " ".join(said)


def class_shares(results: Results, short: Trial, long: Trial) -> dict[KernelClass, tuple[float, float]]:
    """Of each class its share of the kernels' time by either trace, means over passes, the largest first."""
    found = [_mean_shares(results, one) for one in (short, long)]
    if not all(found):
        return {}
    few, many = found
    names = sorted({*few, *many}, key=lambda name: -many.get(name, 0.0))
    return {name: (few.get(name, 0.0), many.get(name, 0.0)) for name in names}


def _mean_shares(results: Results, trial: Trial) -> dict[KernelClass, float]:
    passes = [traced.class_shares(one) for record in results.ok(trial) if (one := traced.trace_of(record))]
    names = dict.fromkeys(name for shares in passes for name in shares)
    return {name: fmean(shares.get(name, 0.0) for shares in passes) for name in names}


def sampling_table(results: Results) -> Table | Text:
    """What few and many iterations say of the same training, side by side."""
    rows = []
    pairs = sampling_pairs(results)
    few_head, many_head = (_head([pair[at] for pair in pairs], of) for at, of in enumerate(("few", "many")))
    for short, long in pairs:
        for metric in ("compute_utilisation", "traced_step_s"):
            few, many = (of(results, one, metric) for one in (short, long))
            if few and many:
                about = METRICS[metric]
                rows.append(
                    {
                        "mini-batch": short.batch,
                        "what": "computing" if about.share else "step under the profiler",
                        few_head: with_interval(few, metric),
                        many_head: with_interval(many, metric),
                        "difference": _points(few.point - many.point) if about.share else _relative(few, many),
                    }
                )
        for name, (one, other) in class_shares(results, short, long).items():
            rows.append(
                {
                    "mini-batch": short.batch,
                    "what": name.replace("_", " "),
                    few_head: share_words(one),
                    many_head: share_words(other),
                    "difference": _points(one - other),
                }
            )
    if not rows:
        return Text("No training was traced twice, so what a few iterations stand for can't be said here.")
    before = listing([f"{count:,}" for count in sorted({short.steps_before for short, _ in pairs})])
    counts = listing(list(dict.fromkeys(f"{a.traced_iterations} and {b.traced_iterations}" for a, b in pairs)))
    return Table(
        pd.DataFrame(rows, dtype=object),
        f"The same training traced for few and for many iterations ({counts}), after "
        f"{before} or more. Classes: shares of the {_ran(results)}' time, means over passes. "
        f"{engines.conditions(results, [short for short, _ in pairs])}.",
    )


def _head(trials: Sequence[Trial], otherwise: str) -> str:
    """`2 traced`, where all were asked for as many iterations."""
    counts = {trial.traced_iterations for trial in trials}
    return f"{counts.pop():,} traced" if len(counts) == 1 else otherwise


def gate_table(results: Results, trials: Sequence[Trial]) -> Table | Text:
    """How far captured iterations lay from eager ones, of what is tolerated."""
    rows = []
    for trial in trials:
        gates = [record.facts["gate"] for record in results.ok(trial) if "gate" in record.facts]
        if gates:
            rows.append(
                {
                    "training": named(trial, trials),
                    "estimates": _of_tolerated(gates, "loss"),
                    "squares of gradients": _of_tolerated(gates, "squares"),
                    "movement of the weights": _of_tolerated(gates, "change"),
                }
            )
    if not rows:
        return Text("Nothing was captured here, so there is no gate to report: the eager loop is its own reference.")
    return Table(
        pd.DataFrame(rows, dtype=object),
        "Captured iterations against eager ones from the same weights, images and noise: the largest difference of the "
        "critic's estimates, of the mean squares of gradients that the optimisers keep, and of how far the weights "
        "moved, relative to the eager ones; most of all passes, of what is tolerated.",
    )


def _of_tolerated(gates: Sequence[dict[str, float]], what: str) -> str:
    most = max(gate[f"{what}_difference"] for gate in gates)
    return f"{most:.2g} of {gates[0][f'{what}_tolerance']:.2g}"


def limitations(results: Results, trials: Sequence[Trial]) -> Text:
    """What these numbers do not say."""
    said = []
    if any(results.ok(trial) for trial in trials):
        said.append(
            "The paper names neither its WGAN's layers nor its images, and gives its utilisation in figures that its "
            "text does not hold: what can be tested is the direction, and two numbers of the devices it had."
        )
        said.append(
            "The network is the one of the WGAN paper at 32x32; a larger image or a wider network fills a device at a "
            "smaller mini-batch. FLOP are those of convolutions; batch norm, activations and updates take time without "
            "any, so FP32 utilisation stays under the time in which kernels ran."
        )
        if results.profile.device.kind == "cpu":
            said.append(
                "The profiler adds a fixed cost to each operator, which weighs less the larger the mini-batch: where "
                "the share of the time in which operators ran rises with it, that may be the profiler's doing alone."
            )
        if any(trial.engine == "graph" for trial in trials):
            said.append(
                "A captured iteration is one call: its trace has no sections, and what the host does between launches "
                "is not in it."
            )
    rest = summary.limitations(results, list(trials)).body
    return Text("\n\n".join([*said, *([rest] if rest else [])]))


def key_numbers(results: Results, trials: Sequence[Trial]) -> list[list[str]]:
    """For the index: how busy at both ends, how much of the FP32 peak, what capturing gains."""
    found = []
    for metric, what in (
        ("compute_utilisation", "of the time computing, eager FP32"),
        ("fp32_utilisation", "of the FP32 peak, eager"),
    ):
        for trial, value in _ends(results, plain(trials), metric):
            found.append([with_interval(value, metric), f"{what}, mini-batch {trial.batch:,}"])
    if gained := gains(results, trials):
        most, trial = max(gained, key=lambda pair: pair[0].point)
        what = f"the eager loop's images/s by capturing, {named(trial, trials)}"
        found.append([shown_effect(most, "images_per_s", "ratio"), what])
    return found
