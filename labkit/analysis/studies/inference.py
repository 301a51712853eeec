"""How fast a model predicts: the answer in words, the tables, and what they do not say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from labkit.analysis import engines, summary
from labkit.analysis.format import MISSING, least_to_most, listing, number, percent, with_interval
from labkit.analysis.speed import name_of, title
from labkit.analysis.table import Table, Text
from labkit.analysis.verdicts.words import shown_effect
from labkit.recipes import engine_name, is_plain
from labkit.registry import METRICS
from labkit.results.from_result import PERCENTILES
from labkit.results.study_records import StudyRecords as Results
from labkit.statistics import Interval
from labkit.trial import Trial

SATURATED = 0.9  # of the largest throughput in the sweep
PERCENTILE_NAMES = {"latency_s": "p50", "latency_p90_s": "p90", "latency_p99_s": "p99", "latency_p999_s": "p99.9"}
assert list(PERCENTILE_NAMES) == list(PERCENTILES)


COPIES = {
    "cuda": "Excluded: normalised images lie on the device, logits stay there. Included: bytes come from the host's "
    "memory, are normalised on the device (small kernels, which are counted with the copies), and the "
    "predicted classes go back; a step's copies wait for the step before.",
    "cpu": "A CPU copies nothing to itself. Excluded: images are normalised already. Included: they are normalised in "
    "each step, and the predicted classes are found.",
}


def predicted(results: Results) -> list[Trial]:
    """The inference trials whose images lie on the device, in order; `with_copies` are the others."""
    return engines.in_order(results.trials(workload="infer", copies="excluded"))


def with_copies(results: Results) -> list[Trial]:
    """The inference trials whose images come from the host's memory."""
    return engines.in_order(results.trials(workload="infer", copies="included"))


def percentile(results: Results, trial: Trial, metric: str) -> Interval | None:
    """A latency over passes; None where a pass asked too few queries for it: of other passes it were another mean."""
    values = results.values(trial, metric)
    return results.interval(trial, metric) if len(values) == len(results.ok(trial)) else None


def headline(results: Results, trials: Sequence[Trial]) -> Text:
    """The answer first: latency at batch 1, throughput at the largest batch, where it saturates."""
    known = [trial for trial in trials if results.ok(trial)]
    if not known:
        return engines.nothing(results)
    said = [_single(results, known), _most(results, known), saturation(results, known), _split(results, known)]
    lost = [name_of(trial, trials) for trial in trials if not results.ok(trial)]
    said.append(f"Without a result: {'; '.join(lost)}." if lost else "")
    return Text("\n\n".join(part for part in said if part))


def _single(results: Results, known: Sequence[Trial]) -> str:
    """A single image: how long it takes, plain and tuned."""
    single = [trial for trial in known if trial.batch == 1]
    times = [(median, trial) for trial in single if (median := percentile(results, trial, "latency_s"))]
    plain = [(t.point, f"{with_interval(t, 'latency_s')} ({title(trial)})") for t, trial in times if is_plain(trial)]
    said = [f"the plain loop {least_to_most(plain)}"] if plain else []
    tuned: dict[str, tuple[Interval, Trial]] = {}
    for time, trial in sorted(times, key=lambda pair: -pair[0].point):
        if not is_plain(trial):
            tuned[trial.model] = time, trial  # the last is the fastest
    fastest = [f"{with_interval(time, 'latency_s')} ({title(of)}, {engine_name(of)})" for time, of in tuned.values()]
    said += [f"the fastest tuned engine {listing(fastest)}"] if fastest else []
    return f"One image at a time, median latency: {'; '.join(said)}." if said else ""


def _most(results: Results, known: Sequence[Trial]) -> str:
    rates = [(rate, trial) for trial in known if (rate := results.interval(trial, "images_per_s"))]
    if not rates:
        return ""
    best, trial = max(rates, key=lambda pair: pair[0].point)
    said = f"The most is {with_interval(best, 'images_per_s')}: {name_of(trial, known)}."
    return f"{said} {engines.tuned_sentence(results, known)}".strip()


def saturation(results: Results, known: Sequence[Trial]) -> str:
    """The smallest batch of each sweep that reaches most of the largest throughput in it."""
    sweeps: dict[Trial, list[tuple[int, float]]] = {}
    for trial in known:
        rate = results.interval(trial, "images_per_s")
        if rate:
            sweeps.setdefault(replace(trial, batch=1, queries=0), []).append((trial.batch, rate.point))
    found = []
    for trial, points in sweeps.items():
        if len(points) < 3:  # two batches are no sweep
            continue
        most = max(rate for _, rate in points)
        batch = min(batch for batch, rate in points if rate >= SATURATED * most)
        where = f"only at the largest, {batch:,}" if batch == max(points)[0] else f"at {batch:,}"
        found.append(f"{title(trial)}, {engine_name(trial)}, {where}")
    if not found:
        return ""
    return f"Batch at which {percent(SATURATED)} of the sweep's largest throughput are reached: {'; '.join(found)}."


def _split(results: Results, known: Sequence[Trial]) -> str:
    found = [
        f"{name_of(trial, known)} in parts of {parts:,}"
        for trial in known
        if (parts := results.fact(trial, "predicted_in_parts_of"))
    ]
    return f"Out of memory, so predicted in parts that fit: {'; '.join(found)}." if found else ""


def table(results: Results, trials: Sequence[Trial]) -> Table | Text:
    """Images/s, latency and memory of every inference trial; a failure is a row."""
    if not trials:
        return Text(f"There are no inference trials of {results.profile.title} yet: nothing to show here.")
    pairs = dict(engines.over_plain(results, trials))
    memory = METRICS["memory_bytes"]
    rows = []
    for trial in trials:
        ratio = engines.ratio(results, trial, pairs.get(trial), "images_per_s")
        used, parts = results.fact(trial, "memory_bytes"), results.fact(trial, "predicted_in_parts_of")
        rows.append(
            {
                "model": title(trial),
                "batch": trial.batch,
                "engine": f"{engine_name(trial)}, {trial.precision.upper()}",
                "images/s": with_interval(results.interval(trial, "images_per_s"), "images_per_s", unit=False),
                "over plain": shown_effect(ratio, "images_per_s", "ratio") if ratio else None,
                "memory (GiB)": used * memory.scale if used is not None else None,
                "in parts of": parts,
                "n": len(results.ok(trial)),
                "no result": engines.status_without_result(results, trial),
            }
        )
    frame = pd.DataFrame(rows, dtype=object)
    methods = list(dict.fromkeys(said for trial in trials if (said := results.fact(trial, "memory_method"))))
    return Table(
        engines.concise(frame, ("over plain", "in parts of", "no result")),
        f"Offline, in MLPerf's word: batches are queued one behind the other. "
        f"{engines.conditions(results, list(trials))}. 95 % intervals over passes; ratios are formed within each pass "
        f"first. Memory, with the batches that lie on the device: {'; or '.join(methods) or 'not recorded'}.",
    )


def latency_table(results: Results, trials: Sequence[Trial]) -> Table | Text:
    """Percentiles of the latency of every trial that answered queries, and how many it answered."""
    asked = [trial for trial in trials if trial.queries and results.ok(trial)]
    if not asked:
        return Text("No trial here answered queries, so there are no latencies.")
    rows = []
    for trial in asked:
        counts = [len(r.blocks.queries.latency_ns) for r in results.ok(trial) if r.blocks and r.blocks.queries]
        row: dict[str, Any] = {"trial": name_of(trial, asked)}
        for metric, name in PERCENTILE_NAMES.items():
            row[f"{name} (ms)"] = with_interval(percentile(results, trial, metric), metric, unit=False)
        tail, middle = (percentile(results, trial, metric) for metric in ("latency_p99_s", "latency_s"))
        row["p99 over p50"] = f"{tail.point / middle.point:.3g}x" if tail and middle else None
        row["queries a pass"] = _range(counts)
        rows.append(row)
    wanted = max(trial.queries for trial in asked)
    frame = pd.DataFrame(rows, dtype=object)
    columns = [f"{name} (ms)" for name in PERCENTILE_NAMES.values()]
    absent = [name for name in columns if (frame[name] == MISSING).all()]
    frame = frame.drop(columns=[*absent, *(["p99 over p50"] if frame["p99 over p50"].isna().all() else [])])
    short = f"No trial answered enough for {listing([name.split()[0] for name in absent])}. " if absent else ""
    return Table(
        frame,
        f"SingleStream: the next query begins when the last is answered (MLPerf's term). Percentiles of every query of "
        f"a pass (nearest rank), then 95 % intervals over passes; a dash: too few queries beyond it. "
        f"{wanted:,} queries were planned, fewer were asked where their time was up. {short}"
        f"{engines.conditions(results, asked)}.",
    )


def _range(counts: list[int]) -> str | None:
    if not counts:
        return None
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def copies_table(results: Results) -> Table | Text:
    """The same trials with the images on the device and with the copies from and to the host."""
    pairs = [(one, replace(one, copies="excluded")) for one in with_copies(results)]
    pairs = [(one, same) for one, same in pairs if same in results.by_trial]
    if not pairs:
        return Text("No trial was measured both with and without the copies from the host.")
    rows = []
    for one, same in pairs:
        ratio = engines.ratio(results, one, same, "images_per_s")
        rows.append(
            {
                "model": title(one),
                "batch": one.batch,
                "engine": f"{engine_name(one)}, {one.precision.upper()}",
                "images/s, excluded": _rate(results, same),
                "images/s, included": _rate(results, one),
                "included over excluded": shown_effect(ratio, "images_per_s", "ratio") if ratio else None,
                "p50, excluded (ms)": _median(results, same),
                "p50, included (ms)": _median(results, one),
            }
        )
    return Table(
        pd.DataFrame(rows, dtype=object),
        f"{COPIES[results.profile.device.kind]} {results.describe()}.",
    )


def _rate(results: Results, trial: Trial) -> str:
    return with_interval(results.interval(trial, "images_per_s"), "images_per_s", unit=False)


def _median(results: Results, trial: Trial) -> str:
    return with_interval(percentile(results, trial, "latency_s"), "latency_s", unit=False)


def first_table(results: Results, trials: Sequence[Trial]) -> Table | Text:
    """How long it takes from nothing to the first prediction, and what of it; how far the logits are from FP32's."""
    rows = []
    for trial in trials:
        if not results.values(trial, "first_prediction_s"):
            continue
        gates = [record.facts["gate"] for record in results.ok(trial) if "gate" in record.facts]
        differences = [gate["logits_difference"] for gate in gates]
        tolerated = gates[0]["logits_tolerance"] if gates else None
        rows.append(
            {
                "trial": name_of(trial, trials),
                "first prediction (s)": _from_to(results, trial, "first_prediction_s"),
                "of it compiling (s)": _from_to(results, trial, "compile_s"),
                "capturing (s)": _from_to(results, trial, "capture_s"),
                "logits": f"{max(differences):.2g} of {tolerated:.2g}" if differences else None,
            }
        )
    if not rows:
        return Text("No trial says how long its first prediction took.")
    return Table(
        pd.DataFrame(rows, dtype=object),
        "From building the model to its first answer, in a process that has used the framework and the device before "
        "(the images and what the gate needs are not counted); shortest and longest of the passes, of which the "
        "first compiles what later ones find in the cache. Last column, the gate: the largest distance of the logits "
        "from the plain FP32 network's on the same images, of what is tolerated; 1 is what two batches differ by.",
    )


def _from_to(results: Results, trial: Trial, metric: str) -> str | None:
    """Shortest and longest of the passes: no mean, since the first compiles and the others find it done."""
    values = sorted(results.values(trial, metric).values())
    ends = list(dict.fromkeys(number(value) for value in (values[0], values[-1]))) if values else []
    return " to ".join(ends) or None


def compared_with_training(results: Results) -> list[Trial]:
    """The plain trials whose device activity is compared: inference at its smallest and largest batch, and training."""
    plain = [trial for trial in predicted(results) if is_plain(trial) and results.ok(trial)]
    found = []
    for model in dict.fromkeys(trial.model for trial in plain):
        batches = sorted({trial.batch for trial in plain if trial.model == model})
        for batch in dict.fromkeys((batches[0], batches[-1])):
            found += [trial for trial in plain if trial.model == model and trial.batch == batch][:1]
        found += [t for t in results.trials(workload="train", model=model) if is_plain(t) and results.ok(t)]
    return found


def limitations(results: Results, trials: Sequence[Trial]) -> Text:
    """What these numbers do not say."""
    said = []
    if any(results.ok(trial) for trial in trials):
        said.append(
            "The weights are initial ones: what a prediction costs does not depend on them, but power does a little, "
            "and no accuracy is claimed here (08_quantization trains its networks)."
        )
        if any(not is_plain(trial) for trial in trials):
            said.append(
                "The tuned engines differ from the plain loop in what the captions name, precision and memory format, "
                "and they fold batch norm into the convolutions."
            )
        said.append(
            "A few batches are predicted in turn; small ones may be read from the device's cache, and a batch of all "
            "validation images is the same images in another order."
        )
        small = min(number_ for trial in trials for number_ in (trial.batch,))
        if small == 1:
            said.append(
                "Queries come one after the other from one process on the same machine: no network, no queue, no "
                "second client. What a service adds to that is not in these latencies."
            )
    rest = summary.limitations(results, list(trials)).body
    return Text("\n\n".join([*said, *([rest] if rest else [])]))


def key_numbers(results: Results, trials: Sequence[Trial]) -> list[list[str]]:
    """For the index: the shortest latency, the largest throughput, the tail."""
    found = []
    times = [(t, trial) for trial in trials if trial.batch == 1 and (t := percentile(results, trial, "latency_s"))]
    if times:
        best, trial = min(times, key=lambda pair: pair[0].point)
        found.append(
            [with_interval(best, "latency_s"), f"shortest median latency of one image: {name_of(trial, trials)}"]
        )
    rates = [(rate, trial) for trial in trials if (rate := results.interval(trial, "images_per_s"))]
    if rates:
        rate, trial = max(rates, key=lambda pair: pair[0].point)
        found.append([with_interval(rate, "images_per_s"), f"fastest: {name_of(trial, trials)}"])
    tails = [
        (tail.point / middle.point, trial)
        for trial in trials
        if trial.batch == 1
        and (tail := percentile(results, trial, "latency_p99_s"))
        and (middle := percentile(results, trial, "latency_s"))
    ]
    if tails:
        share, trial = max(tails, key=lambda pair: pair[0])
        found.append([f"{number(share)}x", f"p99 over p50 at batch 1, the most: {name_of(trial, trials)}"])
    return found
