"""CPU against GPU: the same models and batches on both, plain beside the best of each, in words and tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pandas as pd

from labkit.analysis import engines, summary
from labkit.analysis.format import least_to_most, listing, number, percent, with_interval
from labkit.analysis.observations import mean_interval
from labkit.analysis.speed import DEVICES, OF_MODELS, threads_word
from labkit.analysis.studies.cost import COST, joules, per_million_images
from labkit.analysis.studies.sides import (
    SIDES,
    Compared,
    Setting,
    at,
    best_on,
    compared,
    how,
    plain_on,
    published,
    settings,
    swept,
    thread_scaling,
)
from labkit.analysis.table import Table, Text
from labkit.analysis.verdicts.evidence import Side, level
from labkit.analysis.verdicts.words import shown_effect
from labkit.recipes import is_plain
from labkit.registry import METRICS, Metric
from labkit.results import roofline
from labkit.results.from_telemetry import why_not
from labkit.results.study_records import StudyRecords as Results
from labkit.statistics import Interval
from labkit.trial import Trial


def headline(results: Results, trials: Sequence[Trial]) -> Text:
    """The answer first: how many times the CPU's images/s the GPU has, plain and best; joules; what threads gain."""
    if not any(results.ok(trial) for trial in trials):
        return engines.nothing(results)
    said = [*_ratio_sentences(results, trials), _without_best(results, trials), _beside(results, trials)]
    if results.profile.device.kind == "cpu":
        said = [
            "This profile has no GPU, so half of the question is open here: the page shows what the CPU does at its "
            "best, which is what a GPU would have to be held against.",
            _best_of_cpu(results, trials),
        ]
    said += [_energy_sentence(results, trials), _cost_sentence(results, trials), threads_sentence(results, trials)]
    return Text("\n\n".join(part for part in said if part))


def _ratio_sentences(results: Results, trials: Sequence[Trial]) -> list[str]:
    said = []
    for workload, word in OF_MODELS.items():
        rows = [row for row in compared(results, trials) if row.setting.workload == workload]
        parts = [
            f"{words} {ends}"
            for words, form in (("the plain loop on both", _plain), ("each at the best of what was tried here", _best))
            if (ends := _ends(rows, form))
        ]
        if parts:
            said.append(f"The GPU's images/s over the CPU's in {word}: {'; '.join(parts)}.")
    return said


def _without_best(results: Results, trials: Sequence[Trial]) -> str:
    """Settings of which a side's best is not known, because no tuned engine gave a result there, and why."""
    said = []
    for setting in settings(trials):
        for device in SIDES:
            tuned = [trial for trial in at(trials, setting, device) if not is_plain(trial)]
            if not tuned or best_on(results, trials, setting, device):
                continue
            reasons = "; ".join(dict.fromkeys(engines.failure(results, trial) or "" for trial in tuned))
            said.append(f"{setting.name} on the {DEVICES[device]} ({reasons})")
    return f"What tuning gives is not known of {listing(said)}, so there is no ratio of the best." if said else ""


def _plain(row: Compared) -> Interval | None:
    return row.plain


def _best(row: Compared) -> Interval | None:
    return row.best


def _ends(rows: Sequence[Compared], form: Callable[[Compared], Interval | None]) -> str:
    """The smallest and the largest of some ratios, with what they are of."""
    known = [(ratio, row.setting.name) for row in rows if (ratio := form(row))]
    return least_to_most((r.point, f"{shown_effect(r, 'images_per_s', 'ratio')} ({name})") for r, name in known)


def _beside(results: Results, trials: Sequence[Trial]) -> str:
    """What was published, beside what was found of the same model and input."""
    said = []
    for printed in published(results.study.id):
        rows = [row for row in compared(results, trials) if printed.is_of(row.setting) and row.plain]
        here = [f"{shown_effect(row.plain, 'images_per_s', 'ratio')}" for row in rows if row.plain]
        if here:
            said.append(
                f"Published of {rows[0].setting.name.split(', batch')[0]}: {number(printed.value)}x ({printed.of}); "
                f"here, plain: {listing(here)}. Such a ratio is of a CPU as much as of a GPU."
            )
    return " ".join(said)


def _best_of_cpu(results: Results, trials: Sequence[Trial]) -> str:
    found = []
    for setting in settings(trials):
        best, plain = best_on(results, trials, setting, "cpu"), plain_on(trials, setting, "cpu")
        gain = engines.ratio(results, best, plain, "images_per_s") if best and best != plain else None
        if best and gain:
            effect = shown_effect(gain, "images_per_s", "ratio")
            found.append(f"{setting.name}: {how(best)}, {effect} the plain loop's images/s")
    return f"The best of the CPU where that is not the plain loop: {'; '.join(found)}." if found else ""


def _energy_sentence(results: Results, trials: Sequence[Trial]) -> str:
    """Joules an image on each side, or why there are none."""
    said = [_least("Energy of an image, the least", results, trials, joules, METRICS["energy_per_image_j"])]
    for device in SIDES:
        metered = [trial for trial in trials if trial.device == device and trial.energy_windows]
        if metered and not any(joules(results, trial) for trial in metered):
            said.append(f"Of the {DEVICES[device]} it can't be read: {why_not(results, 'energy_j', device)}.")
    return " ".join(part for part in said if part)


def _cost_sentence(results: Results, trials: Sequence[Trial]) -> str:
    """What a million images cost on each side, where the profile gives a price."""
    currency = results.profile.cost.currency if results.profile.cost else ""
    metric = replace(COST, unit=currency)
    return _least("A million images, the cheapest", results, trials, per_million_images, metric)


def _least(
    what: str,
    results: Results,
    trials: Sequence[Trial],
    form: Callable[[Results, Trial], Interval | None],
    metric: Metric,
) -> str:
    """The trial of each setting and side that has least of something."""
    said = []
    for setting in settings(trials):
        for device in SIDES:
            known = [(found.point, found, t) for t in at(trials, setting, device) if (found := form(results, t))]
            if known:
                _, found, trial = min(known, key=lambda one: one[0])
                where = f"{DEVICES[device]}, {setting.name}, {how(trial)}"
                said.append(f"{with_interval(found, metric)} ({where})")
    return f"{what}: {'; '.join(said)}." if said else ""


def threads_sentence(results: Results, trials: Sequence[Trial]) -> str:
    """What the most threads gain over the fewest."""
    said = []
    for sweep in swept(trials):
        known = [trial for trial in sweep if results.ok(trial)]
        if len(known) > 1:
            gain = engines.ratio(results, known[-1], known[0], "images_per_s")
            more = known[-1].threads / known[0].threads
            if gain:
                said.append(
                    f"{Setting.of(known[0]).name}, {how(replace(known[0], threads=0))}: {known[-1].threads} threads "
                    f"have {shown_effect(gain, 'images_per_s', 'ratio')} the images/s of "
                    f"{threads_word(known[0].threads)}, a parallel efficiency of {percent(gain.point / more)}"
                )
    return f"Threads of the CPU: {'; '.join(said)}." if said else ""


def answer_table(results: Results, trials: Sequence[Trial]) -> Table | Text:
    """Each setting: the best of both sides, the two ratios, what measured ceilings would allow, what was printed."""
    if not trials:
        return Text(f"There are no records of {results.profile.title} yet: nothing to compare.")
    printed = published(results.study.id)
    rows = []
    for row in compared(results, trials):
        setting = row.setting
        best = {device: best_on(results, trials, setting, device) for device in SIDES}
        of_it = [f"{number(one.value)}x" for one in printed if one.is_of(setting)]
        rows.append(
            {
                "": setting.name,
                "CPU's best": how(best["cpu"]) if best["cpu"] else None,
                "CPU's best over its plain": _gain(results, best["cpu"], plain_on(trials, setting, "cpu")),
                "GPU's best": how(best["cuda"]) if best["cuda"] else None,
                "GPU over CPU, plain": _ratio_words(row.plain),
                "GPU over CPU, best": _ratio_words(row.best),
                "ceilings": _ceilings_ratio(results, trials, setting),
                "published": listing(of_it) if of_it else None,
            }
        )
    frame = pd.DataFrame(rows, dtype=object)
    allowed = ""
    if frame["ceilings"].nunique() == 1:
        allowed = (
            f" The measured FP32 ceilings of both would allow the plain loop {frame['ceilings'].dropna().iloc[0]}."
        )
        frame["ceilings"] = None
    elif frame["ceilings"].notna().any():
        allowed = (
            " Ceilings: the ratio that the measured FP32 arithmetic and memory of both would allow the plain loop."
        )
    empty = [name for name in frame if frame[name].isna().all()]
    of = "; ".join(f"{number(one.value)}x: {one.of}" for one in printed)
    return Table(
        frame.drop(columns=empty),
        "The same model, input and batch on both sides. Plain: the papers' loop, the same code on both. Best: the most "
        "images/s of all that was tried on that side, in whatever precision the column names; a dash where nothing but "
        "the plain loop gave a result. Ratios of images/s are formed within each pass first, with 95 % intervals."
        f"{allowed} Published, of "
        f"GPU over CPU: {of or 'nothing'}. {results.describe()}.",
    )


def _gain(results: Results, best: Trial | None, plain: Trial | None) -> str | None:
    return _ratio_words(engines.ratio(results, best, plain, "images_per_s")) if best and best != plain else None


def _ratio_words(ratio: Interval | None) -> str | None:
    return shown_effect(ratio, "images_per_s", "ratio") if ratio else None


def _ceilings_ratio(results: Results, trials: Sequence[Trial], setting: Setting) -> str | None:
    """GPU over CPU of the images/s that the measured ceilings allow."""
    bounds = []
    for device in ("cuda", "cpu"):
        trial = plain_on(trials, setting, device)
        work = roofline.work_of(results, trial) if trial else None
        bounds.append(roofline.bound(work, roofline.measured(results, device)) if work else None)
    gpu, cpu = bounds
    return f"{number(gpu.images_per_s / cpu.images_per_s)}x" if gpu and cpu else None


def table(results: Results, trials: Sequence[Trial]) -> Table | Text:
    """Images/s of every trial, its gain over the plain loop of its side, cores and threads, share of the roofline."""
    if not trials:
        return Text("No trial of a network was measured.")
    pairs = dict(engines.over_plain(results, trials))
    rows = []
    for trial in trials:
        gain = engines.ratio(results, trial, pairs.get(trial), "images_per_s")
        rows.append(
            {
                "": Setting.of(trial).name,
                "on": DEVICES[trial.device],
                "engine": how(replace(trial, threads=0)),
                "images/s": engines.status_without_result(results, trial)
                or with_interval(results.interval(trial, "images_per_s"), "images_per_s", unit=False),
                "over plain": _ratio_words(gain),
                "cores busy": _cores(results, trial),
                "of bound": percent(found.point) if (found := _of_roofline(results, trial)) else None,
                "n": len(results.ok(trial)),
            }
        )
    frame = engines.concise(pd.DataFrame(rows, dtype=object), ("over plain", "of bound"))
    return Table(
        frame,
        f"Every trial. {engines.conditions(results, list(trials))}. Over plain: the plain loop of the same side and "
        "threads. Cores busy: processor time of the process over time, and of how many threads the CPU's work took, "
        "`set` where the trial asks for them. Of bound: of what the device's own measured ceilings in FP32 allow, FP32 "
        "trials only. A word instead of images/s: no result; its reason stands at the end of the page.",
    )


def _cores(results: Results, trial: Trial) -> str | None:
    """Cores that the process kept busy; on the CPU also the threads: `15.6 of 16`."""
    cores, threads = mean_interval(results, trial, "cpu_cores_used"), results.fact(trial, "threads")
    said = [number(cores.point)] if cores else []
    if threads and trial.device == "cpu":
        said.append(f"of {threads}{' set' if trial.threads else ''}")
    return " ".join(said) or None


def _of_roofline(results: Results, trial: Trial) -> Interval | None:
    return level(Side(results, trial), "roofline_fraction") if trial.precision == "fp32" else None


def limitations(results: Results, trials: Sequence[Trial]) -> Text:
    """What these numbers do not say."""
    said = []
    measured = {trial.device for trial in trials if results.ok(trial)}
    if measured == set(SIDES):
        said.append(
            "A ratio of GPU over CPU is of these two chips. The CPU here is the one that happens to stand beside the "
            "GPU, with the cores that this process may use; another CPU has another ratio, as the papers' had."
        )
        said.append("The GPU's energy leaves out its host, which it needs and which works too while it trains.")
    if measured:
        said.append(
            "The best of a side is the fastest of what was tried, by the same numbers that are shown: with many tries "
            "it flatters a little. In precisions lower than FP32 it is not the same computation any more; what "
            "training loses by that is asked in 07_precision. A CPU with many cores may serve several streams at once, "
            "which gives more images/s than one batch after the other; that was not tried."
        )
    rest = summary.limitations(results, list(trials), memory=False).body
    return Text("\n\n".join([*said, *([rest] if rest else [])]))


def key_numbers(results: Results, trials: Sequence[Trial]) -> list[list[str]]:
    """For the index: the largest plain and the smallest best ratio; of a CPU alone what tuning and threads gain."""
    found = []
    rows = compared(results, trials)
    for word, form, which in (("plain, the most", _plain, max), ("best, the least", _best, min)):
        known = [(ratio.point, ratio, row) for row in rows if (ratio := form(row))]
        if known:
            _, ratio, row = which(known, key=lambda one: one[0])
            found.append([shown_effect(ratio, "images_per_s", "ratio"), f"GPU over CPU, {word}: {row.setting.name}"])
    if not found:
        gains = [
            (gain.point, gain, setting, best)
            for setting in settings(trials)
            if (best := best_on(results, trials, setting, "cpu"))
            and (plain := plain_on(trials, setting, "cpu"))
            and best != plain
            and (gain := engines.ratio(results, best, plain, "images_per_s"))
        ]
        if gains:
            _, gain, setting, best = max(gains, key=lambda one: one[0])
            what = f"best of the CPU over plain, the most: {setting.name}, {how(best)}"
            found.append([shown_effect(gain, "images_per_s", "ratio"), what])
    scaling = thread_scaling(results, trials)
    known_scaling = scaling.dropna(subset=["efficiency"]) if len(scaling) else scaling
    if len(known_scaling):
        last = known_scaling.loc[known_scaling["threads"].idxmax()]
        found.append([percent(last["efficiency"]), f"parallel efficiency of {last['threads']} threads: {last['what']}"])
    return found
