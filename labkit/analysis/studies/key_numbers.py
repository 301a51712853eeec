"""A study's few numbers for the index: each a value with its unit and interval, and what it is of."""

from __future__ import annotations

from dataclasses import replace

from labkit.analysis import engines
from labkit.analysis.format import number, percent, with_interval
from labkit.analysis.observations import mean_interval, spread
from labkit.analysis.speed import name_of, title
from labkit.analysis.studies import convergence
from labkit.analysis.studies.batch_size import LARGE, SMALL, large_over_small
from labkit.analysis.verdicts.words import shown_effect
from labkit.recipes import engine_name
from labkit.results import roofline
from labkit.results.study_records import StudyRecords as Results
from labkit.statistics import Interval
from labkit.trial import Trial

KeyNumbers = list[list[str]]  # [value, what it is of]: lists, since they are kept as JSON


def training(results: Results, trials: list[Trial]) -> KeyNumbers:
    """The fastest training, the smallest share of the roofline, and what was busy there."""
    rates = [(rate, trial) for trial in trials if (rate := results.interval(trial, "images_per_s"))]
    if not rates:
        return []
    rate, trial = max(rates, key=lambda pair: pair[0].point)
    found = [[with_interval(rate, "images_per_s"), f"fastest: {name_of(trial)}"]]
    shares = []
    for rate, trial in rates:
        work = roofline.work_of(results, trial)
        bound = roofline.bound(work, roofline.measured(results)) if work else None
        if bound:
            shares.append((rate.point / bound.images_per_s, trial))
    if shares:
        share, trial = min(shares, key=lambda pair: pair[0])
        found.append([percent(share), f"of the measured roofline, the least: {name_of(trial)}"])
    said = [(busy.mean, trial) for trial in trials if (busy := spread(results, trial, "sm_activity"))]
    if said:
        least, trial = min(said, key=lambda pair: pair[0])
        driver = spread(results, trial, "utilisation")
        also = f" (the driver's utilisation says {percent(driver.mean)})" if driver else ""
        found.append([percent(least), f"SM activity, the least: {name_of(trial)}{also}"])
    return found


def power(results: Results, trials: list[Trial]) -> KeyNumbers:
    """The highest draw, beside the limit, and the cheapest and the dearest image."""
    found = []
    trainings = [trial for trial in trials if trial.workload == "train"]
    draws = [(draw, trial) for trial in trainings if (draw := mean_interval(results, trial, "power_w"))]
    if draws:
        draw, trial = max(draws, key=lambda pair: pair[0].point)
        limit = results.power_limit_w
        of_limit = f", {percent(draw.point / limit)} of the {number(limit)} W limit" if limit else ""
        found.append(
            [with_interval(draw, "power_w"), f"most of these trainings: {name_of(trial, trainings)}{of_limit}"]
        )
    costs = [(cost, trial) for trial in trainings if (cost := mean_interval(results, trial, "energy_per_image_j"))]
    for which, word in ((min, "cheapest"), (max, "dearest")):
        if len(costs) > 1 or (costs and which is min):
            cost, trial = which(costs, key=_point)
            paid = with_interval(cost, "energy_per_image_j")
            found.append([f"{paid} an image", f"{word}: {name_of(trial, trainings)}"])
    return found


def _point(pair: tuple[Interval, Trial]) -> float:
    return pair[0].point


def batch_size(results: Results, timed: list[Trial], runs: list[Trial]) -> KeyNumbers:
    """What the larger batch buys, what a tuned engine buys, and the difference in accuracy."""
    found: KeyNumbers = []
    gains = large_over_small(results, timed)
    for which, word in ((max, "most"), (min, "least")):
        if len(gains) > 1 or (gains and which is max):
            trial, ratio = which(gains, key=lambda pair: pair[1].point)
            what = f"images/s at batch {LARGE} over {SMALL}, the {word}: {title(trial)}, {engine_name(trial)}"
            found.append([shown_effect(ratio, "images_per_s", "ratio"), what])
    found += _best_ratio(results, engines.over_plain(results, timed), "over the plain loop, the most")
    small, large = (next((run for run in runs if run.batch == batch), None) for batch in (SMALL, LARGE))
    both = convergence.final_difference(results, large, small, "top1") if small and large else None
    if small and both:
        what = f"top-1 at batch {LARGE} minus {SMALL}, {title(small)} on {small.data}, {small.epochs} epochs"
        found.append([shown_effect(both, "top1", "difference"), what])
    return found


def precision(results: Results, timed: list[Trial], runs: list[Trial]) -> KeyNumbers:
    """The largest gain of a lower precision, plain and tuned, and how far the loss ends from FP32's."""
    found: KeyNumbers = []
    for engine in dict.fromkeys(engine_name(trial) for trial in timed):
        pairs = engines.over_fp32(results, [trial for trial in timed if engine_name(trial) == engine])
        found += _best_ratio(results, pairs, f"over FP32, {engine}, the most")
    for run in runs:
        single = replace(run, precision="fp32")
        parity = convergence.final_difference(results, run, single, "loss") if run != single else None
        if parity:
            what = f"final loss of {run.precision.upper()} minus FP32's, {title(run)}, {run.epochs} epochs"
            found.append([shown_effect(parity, "loss", "difference"), what])
    return found


def _best_ratio(results: Results, pairs: list[tuple[Trial, Trial]], what: str) -> KeyNumbers:
    """The largest ratio of images/s, within passes."""
    known = [(ratio, over) for over, under in pairs if (ratio := engines.ratio(results, over, under, "images_per_s"))]
    if not known:
        return []
    ratio, trial = max(known, key=_point)
    beside = [over for over, _ in pairs]
    return [[shown_effect(ratio, "images_per_s", "ratio"), f"{what}: {name_of(trial, beside)}"]]
