"""How well a WGAN uses the chip: the answer in words, its key numbers, and what they do not say."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from labkit.analysis import engines, summary
from labkit.analysis.format import listing, percent, quantity, with_interval
from labkit.analysis.studies import host_time
from labkit.analysis.studies.gan import sampling
from labkit.analysis.studies.gan.seen import named, of, plain
from labkit.analysis.studies.gan.utilisations import launches_a_step, peak_words
from labkit.analysis.table import Text
from labkit.analysis.verdicts.words import shown_effect
from labkit.results import from_trace as traced
from labkit.results import roofline
from labkit.results.study_records import StudyRecords as Results
from labkit.statistics import Interval
from labkit.traced import Traced
from labkit.trial import Trial

WORTH = 0.1  # of the kernels' time: less is not worth a sentence


def headline(results: Results, trials: Sequence[Trial]) -> Text:
    """The answer first: how busy the device is over mini-batches, plain and captured, and what five iterations say."""
    known = [trial for trial in trials if results.ok(trial)]
    if not known:
        return engines.nothing(results)
    waits = host_time.sentence(results, plain(known), lambda trial: named(trial, known))
    said = [_busy(results, known), _arithmetic(results, known), _captured(results, known)]
    said += [_narrower_is_slower(results, known), waits]
    said.append(sampling.sentence(results))
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
    ends = _ends(results, trials, metric)
    told = [f"{with_interval(found, metric, 3)} at mini-batch {trial.batch:,}" for trial, found in ends]
    return listing(told) if told else ""


def _busy(results: Results, known: Sequence[Trial]) -> str:
    of_plain = plain(known)
    told = _from_to(results, of_plain, "compute_utilisation")
    if not told:
        reason = _why_untraced(results, of_plain)
        how = "Trained plainly (eager, FP32)"
        return f"{how}, the share of the time in which the device computed can't be said: {reason}."
    what = "an operator ran" if results.profile.device.kind == "cpu" else "a kernel ran"
    said = f"Trained plainly (eager, FP32), the share of the time in which {what} is {told}."
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
        f"FP32 utilisation by the paper's formula, FLOP over peak and elapsed time, is {told}; {peak_words(results)}"
        f"{_of_a_product(results, plain(known))}.{_what_takes_it(results, plain(known))}"
    )


def _of_a_product(results: Results, trials: Sequence[Trial]) -> str:
    """`, and the last is 50 % of what a large matrix product reached here`: beside what is printed what can be had."""
    reached, ceiling = _ends(results, trials, "flop_per_s"), results.ceiling("matmul", "flop_per_s", device="cuda")
    if not reached or not ceiling:
        return ""
    share = percent(reached[-1][1].point / ceiling.point)
    return f", and the {'last' if len(reached) > 1 else 'one'} is {share} of what a large matrix product reached here"


def _what_takes_it(results: Results, trials: Sequence[Trial]) -> str:
    """Why the peak stays away at the largest mini-batch though kernels run: what convolutions do, and the longest."""
    trial = max(trials, key=lambda one: one.batch)
    found = [(record, trace) for record in results.ok(trial) if (trace := traced.trace_of(record))]
    peak, _ = roofline.fp32_peak(results, trial)
    complete = all("convolution" in trace.kernels and trace.longest for _, trace in found)
    if not found or not complete or not peak or trial.device == "cpu":
        return ""
    convolving = [trace.kernels["convolution"].seconds / trace.steps for _, trace in found]
    shares = [traced.class_shares(trace)["convolution"] for _, trace in found]
    work = [float(flop) for record, _ in found if record.blocks and (flop := record.blocks.flop_per_step)]
    if not work:
        return ""
    reached = fmean(work) / fmean(convolving)
    longest = found[0][1].longest[0]
    of_longest = longest.seconds / found[0][1].kernel_s
    return (
        f" At mini-batch {trial.batch:,} convolutions take {percent(fmean(shares))} of the kernels' time and reach "
        f"{quantity(reached, 'flop_per_s')} in it, {percent(reached / peak)} of that peak; the longest kernel is "
        f"`{longest.name}` with {percent(of_longest)} of the kernels' time."
    )


def gains(results: Results, trials: Sequence[Trial]) -> list[tuple[Interval, Trial]]:
    """What capturing does for images/s: a ratio for each captured trial that has an eager one like it."""
    pairs = [(one, engines.like(results, one, engine="eager")) for one in trials if one.engine == "graph"]
    found = [(engines.ratio(results, one, eager, "images_per_s"), one) for one, eager in pairs]
    return [(ratio, one) for ratio, one in found if ratio]


def _captured(results: Results, known: Sequence[Trial]) -> str:
    graphs = [one for one in known if one.engine == "graph" and one.precision == "fp32"]
    told, gained = _from_to(results, graphs, "compute_utilisation"), gains(results, known)
    said = [f"The share of the time in which a kernel ran is then, in FP32, {told}."] if told else []
    of_precisions = []
    for precision in dict.fromkeys(one.precision for _, one in gained):
        alike = [pair for pair in gained if pair[1].precision == precision]
        ends = [pick(alike, key=lambda pair: pair[0].point) for pick in (min, max)]
        shown = [f"{shown_effect(ratio, 'images_per_s', 'ratio')} ({named(one, known)})" for ratio, one in ends]
        of_precisions.append(f"in {precision.upper()} {' to '.join(dict.fromkeys(shown))}")
    if of_precisions:
        said.append(f"Captured over eager of the same precision in images/s: {'; '.join(of_precisions)}.")
    if not said:
        return ""
    said.append(_how_little(results, graphs))
    begun = "Captured in one CUDA graph, an iteration waits for launches only before its first kernel."
    return " ".join(part for part in (begun, *said) if part)


def _narrower_is_slower(results: Results, known: Sequence[Trial]) -> str:
    """Eager trainings that a narrower precision makes slower for certain, with the launches that each needs."""
    said = []
    for trial in known:
        usual = engines.like(results, trial, precision="fp32") if trial.engine == "eager" else None
        if trial.precision == "fp32" or usual is None:
            continue
        ratio = engines.ratio(results, trial, usual, "images_per_s")
        more, usually = launches_a_step(results, trial), launches_a_step(results, usual)
        if ratio and ratio.high is not None and ratio.high < 1 and more and usually and more > usually:
            counts = f"{more:,.0f} against {usually:,.0f}"
            said.append(
                f"{shown_effect(ratio, 'images_per_s', 'ratio')} the images/s of FP32 ({named(trial, known)}; {counts} "
                "launches an iteration)"
            )
    return f"Eager, a narrower precision needs more launches and can be slower: {listing(said)}." if said else ""


def _how_little(results: Results, graphs: Sequence[Trial]) -> str:
    """Time in which a kernel runs beside what the chip then does: at the smallest captured mini-batch."""
    if not graphs:
        return ""
    smallest = min(graphs, key=lambda one: one.batch)
    busy, active = of(results, smallest, "compute_utilisation"), of(results, smallest, "sm_activity")
    reached = of(results, smallest, "fp32_utilisation")
    if not busy or not active or not reached:
        return ""
    return (
        f"That share does not tell how well the chip is used: at mini-batch {smallest.batch:,} a kernel runs for "
        f"{percent(busy.point)} of the time, with work for {percent(active.point)} of the multiprocessors and "
        f"{percent(reached.point)} of the FP32 peak."
    )


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
            "smaller mini-batch. FLOP are those of convolutions, as the networks have them; batch norm, activations "
            "and updates take time without any."
        )
        if earlier := traced.earlier_rules(results.records):
            said.append(earlier)
        if results.profile.device.kind == "cpu":
            said.append(
                "The profiler adds a fixed cost to each operator, which weighs less the larger the mini-batch: where "
                "the share of the time in which operators ran rises with it, that may be the profiler's doing alone."
            )
        said.append(_layouts(results, trials))
        if any(trial.engine == "graph" for trial in trials):
            said.append(
                "A captured iteration is one call: its trace has no sections, and what the host does between launches "
                "is not in it. What clips the weights counts as element-wise there, and as the optimiser's where there "
                "are sections."
            )
    rest = summary.limitations(results, list(trials)).body
    return Text("\n\n".join(part for part in (*said, rest) if part))


def _layouts(results: Results, trials: Sequence[Trial]) -> str:
    """How much of the kernels' time goes to bringing tensors into the form that others want, where it is most."""
    moved = {
        trial: fmean(shares)
        for trial in trials
        if (shares := [_moving(trace) for record in results.ok(trial) if (trace := traced.trace_of(record))])
    }
    most = max(moved, key=lambda trial: moved[trial], default=None)
    if most is None or moved[most] < WORTH:
        return ""
    return (
        f"The memory format is {most.memory_format.replace('_', ' ')}: of {named(most, trials)} "
        f"{percent(moved[most])} of the kernels' time goes to other layouts and precisions, and to what convolutions "
        "need done before and after them."
    )


def _moving(trace: Traced) -> float:
    helpers = trace.algorithms.get("helper")
    return traced.class_shares(trace).get("layout", 0.0) + (helpers.seconds / trace.kernel_s if helpers else 0.0)


def key_numbers(results: Results, trials: Sequence[Trial]) -> list[list[str]]:
    """For the index: how busy at both ends, how much of the FP32 peak, what capturing gains."""
    found = []
    for metric, what in (
        ("compute_utilisation", "of the time computing, eager FP32"),
        ("fp32_utilisation", "of the FP32 peak, eager"),
    ):
        for trial, value in _ends(results, plain(trials), metric):
            found.append([with_interval(value, metric, 3), f"{what}, mini-batch {trial.batch:,}"])
    if gained := gains(results, trials):
        most, trial = max(gained, key=lambda pair: pair[0].point)
        what = f"the eager loop's images/s by capturing, {named(trial, trials)}"
        found.append([shown_effect(most, "images_per_s", "ratio"), what])
    return found
