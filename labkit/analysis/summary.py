"""Tables and sentences of a page: trials, predictions, throughput, failures, what was published, limitations.

Every number in a sentence is rendered from records or profiles; nothing is typed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from labkit.analysis import observations
from labkit.analysis.figure import Figure
from labkit.analysis.format import listing, number, percent, quantity, with_interval
from labkit.analysis.quality import pass_time
from labkit.analysis.speed import OF_MODELS, conditions, throughput_table, title, word
from labkit.analysis.table import Table, Text
from labkit.models import MODELS
from labkit.papers import load_papers
from labkit.profile import Profile
from labkit.registry import METRICS
from labkit.results import roofline
from labkit.results.study_records import StudyRecords as Results
from labkit.statistics import Interval
from labkit.trial import NO_DATA, Trial
from labkit.trial_label import trial_label

COMMON_FIELDS = (
    "workload",
    "image_px",
    "precision",
    "engine",
    "memory_format",
    "device",
    "data",
)  # in the caption where all trials agree
# Columns only where some trial leaves the default: of engines, of training runs, of inference, of traces and GANs.
SELDOM_FIELDS = (
    *("optimizer", "epochs", "schedule", "learning_rate"),
    *("copies", "queries", "weights", "scored", "threads"),
    *("traced_iterations", "steps_before", "devices", "parallel"),
    *("constraint", "samples"),
)
# What a trial without network and images has only because every trial has all fields.
OF_NETWORKS = frozenset({"model", "image_px", "batch", "memory_format", "data", *SELDOM_FIELDS} - {"devices"})
SHOWN_FIELDS = ("workload", "model", "image_px", "batch", "precision", "engine", "memory_format", "device", "data")


def trials_table(trials: Sequence[Trial], passes: int) -> Table:
    """The trials of a pass; those that differ in nothing but the batch share a row."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    seldom = [name for name in SELDOM_FIELDS if any(getattr(t, name) != getattr(Trial(), name) for t in trials)]
    for trial in trials:
        about = {name: getattr(trial, name) for name in SHOWN_FIELDS}
        about |= {name: getattr(trial, name) for name in seldom}
        if "threads" in about:
            about["threads"] = trial.threads or "default"
        if trial.data == NO_DATA:  # a ceiling: it has a size, and neither network nor images
            about |= {name: None for name in about if name in OF_NETWORKS}
        about |= {"size": trial.size or None, "energy windows": trial.energy_windows or None}
        batch = about["batch"]
        row = rows.setdefault(tuple(value for name, value in about.items() if name != "batch"), about)
        if row is not about:
            row["batch"] = f"{row['batch']},\N{NO-BREAK SPACE}{batch}"
    # object: a column of 8s stays 8, not 8.0
    frame = pd.DataFrame(list(rows.values()), dtype=object).dropna(axis=1, how="all")
    of = f"{passes} passes, each in another random order" if passes > 1 else "one pass, in a random order"
    alike = [name for name in (*COMMON_FIELDS, *seldom) if name in frame and frame[name].nunique() == 1]
    common = _alike(frame, [name for name in alike if frame[name].notna().all()])
    of_networks = _alike(frame, [name for name in alike if frame[name].isna().any()])
    said = (f" All: {common}." if common else "") + (f" Those of networks: {of_networks}." if of_networks else "")
    return Table(
        frame.where(frame.notna(), None).drop(columns=alike).rename(columns=lambda name: name.replace("_", " ")),
        f"The {len(trials)} trials planned at this scale, in {of}.{said}",
    )


def _alike(frame: pd.DataFrame, names: Sequence[str]) -> str:
    """`precision fp32, engine eager`."""
    return ", ".join(f"{name.replace('_', ' ')} {frame[name].dropna().iloc[0]}" for name in names)


def prediction_table(
    profile: Profile, trials: Sequence[Trial], *, after: str = "Nothing is measured yet."
) -> Table | Text:
    """The bound that the profile's nominal peaks set for each trial of a network, before anything is measured.

    `after` ends the caption; a page that shows the table below its results says something else there.
    """
    rows = []
    for trial in trials:
        if trial.workload not in OF_MODELS or trial.model not in MODELS or trial.epochs:
            continue
        work = roofline.planned_work(trial)
        ceilings = roofline.nominal_of(profile, trial)
        # Memory alone would bound a precision that the device has no arithmetic for far too high.
        limit = roofline.bound(work, ceilings) if ceilings.flop_per_s else None
        rows.append(
            {
                "model": title(trial),
                **{name: word(trial, name) for name in ("workload", "image_px", "precision") if _varies(trials, name)},
                "batch": trial.batch,
                "GFLOP/image": work.flop / work.images / 1e9,
                "unavoidable MB/step": work.unavoidable_bytes / 1e6,
                "images/s at most": limit.images_per_s if limit else None,
                "limited by": limit.limited_by if limit else None,
            }
        )
    # The batches of a network stand together, whatever part of the plan each comes from.
    groups = list(dict.fromkeys(_group(row) for row in rows))
    rows.sort(key=lambda row: (groups.index(_group(row)), row["batch"]))
    frame = pd.DataFrame(rows).drop_duplicates()
    if not len(frame) or frame["images/s at most"].isna().all():
        frame = frame.drop(columns=["images/s at most", "limited by"], errors="ignore")
        return Table(
            frame,
            f"The work of each trial. The profile {profile.name!r} has no nominal peaks, so the bound comes from the "
            f"ceilings that this report measures.",
        )
    lacking = " A dash: no peak of that precision was published." if frame["images/s at most"].isna().any() else ""
    said = f"What the nominal peaks of {profile.title} allow at most, by arithmetic and by moving weights and images; "
    return Table(frame, f"{said}activations are left out. {after}{lacking}")


def _group(row: dict[str, Any]) -> tuple[object, ...]:
    """All that a row of the prediction says of its trial but the batch."""
    return tuple(row.get(name) for name in ("model", "workload", "image_px", "precision"))


def _varies(trials: Sequence[Trial], name: str) -> bool:
    return len({getattr(trial, name) for trial in trials if trial.workload in OF_MODELS}) > 1


def throughput_summary(results: Results, trials: list[Trial]) -> Table | Text:
    """The table of a training study: images/s with interval, bounds, memory."""
    if not trials:
        return Text(f"There are no training records of {results.profile.title} yet: nothing to show here.")
    data = throughput_table(results, trials)
    memory = METRICS["memory_bytes"]
    frame = pd.DataFrame(
        {
            "model": data["model"],
            "batch": data["batch"],
            "images/s": data["images/s"],
            "95 % interval": [_range(results.interval(trial, "images_per_s")) for trial in trials],
            "n": data["n"],
            "step (ms)": data["step (ms)"],
            "memory (GiB)": [
                value * memory.scale if (value := results.fact(trial, "memory_bytes")) else None for trial in trials
            ],
            "of nominal": data["of nominal"],
            "of measured": data["of measured"],
            "limited by": data["limited by"],
        }
    )
    unknown = [name for name in ("of nominal", "of measured", "limited by") if frame[name].isna().all()]
    frame = frame.drop(columns=unknown)
    method = results.fact(trials[0], "memory_method")
    caption = (
        f"{conditions(results, trials)}. Memory: {method or 'not recorded'}. Last columns: share of the nominal and of "
        f"the measured roofline, and what sets the bound."
    )
    return Table(frame, caption)


def _range(interval: Interval | None) -> str | None:
    """`1,200 to 1,270`, or that there is none."""
    if interval is None:
        return None
    if interval.low is None:
        return "none: one pass"
    return f"{number(interval.low, 4)} to {number(interval.high, 4)}"


def headline(results: Results, trials: list[Trial]) -> Text:
    """The answer first: fastest and slowest model, and how much of the measured roofline was reached."""
    known = [(trial, rate) for trial in trials if (rate := results.interval(trial, "images_per_s"))]
    if not known and trials:
        reasons = [record.reason for record in results.failures() if record.reason]
        return Text(f"No training trial gave a result. The first reason: {reasons[0] if reasons else 'not recorded'}.")
    if not known:
        return Text(
            f"Nothing was measured on {results.profile.title} yet: this page shows what the hardware allows and what "
            f"was published of it."
        )
    fastest, slowest = max(known, key=lambda pair: pair[1].point), min(known, key=lambda pair: pair[1].point)
    said = (
        f"{title(fastest[0])} trains fastest here, {with_interval(fastest[1], 'images_per_s')} at batch "
        f"{fastest[0].batch}; {title(slowest[0])} slowest, {with_interval(slowest[1], 'images_per_s')} at batch "
        f"{slowest[0].batch}."
    )
    ceilings = roofline.measured(results)
    fractions = []
    for trial, rate in known:
        work = roofline.work_of(results, trial)
        limit = roofline.bound(work, ceilings) if work else None
        if limit:
            fractions.append((rate.point / limit.images_per_s, trial))
    if fractions:
        least, most = min(fractions, key=lambda pair: pair[0]), max(fractions, key=lambda pair: pair[0])
        said += (
            f" Of what the measured ceilings would allow, {title(least[1])} at batch {least[1].batch} reaches "
            f"{percent(least[0])} and {title(most[1])} at batch {most[1].batch} {percent(most[0])}."
        )
        if most[0] > 1:
            said += (
                f"\n\n{title(most[1])} at batch {most[1].batch} lies above its bound: its convolutions need fewer "
                f"FLOP than direct ones, its weights stay in a cache, or the ceiling was measured too low."
            )
        said += f"\n\n{ceilings_sentence(results)}"
    return Text(said)


def ceilings_sentence(results: Results) -> str:
    """The measured ceilings beside the nominal ones."""
    measured, nominal = roofline.measured(results), roofline.nominal(results.profile.peaks, "fp32")
    parts = []
    for name, here, there, metric in (
        ("FP32 matrix product", measured.flop_per_s, nominal.flop_per_s, "flop_per_s"),
        (
            "copy in the device's own memory (read plus written)",
            measured.bytes_per_s,
            nominal.bytes_per_s,
            "bytes_per_s",
        ),
    ):
        if here is None:
            continue
        said = f"{name} {quantity(here, metric)}"
        if there is not None:
            said += f", which is {percent(here / there)} of the nominal {quantity(there, metric)}"
        parts.append(said)
    return f"Measured ceilings: {'; '.join(parts)}." if parts else "No ceilings were measured."


def failures_table(results: Results) -> Table | Text:
    """The trials without a result, with their reasons: a row a trial and reason, with the passes that it was so in."""
    failed = results.failures()
    if not failed:
        return Text("No trial failed." if results else "Nothing was tried.")
    passes: dict[tuple[str, str, str | None], list[int]] = {}
    for record in failed:
        what = (trial_label(record.as_trial, beside=results.by_trial), record.status, record.reason)
        passes.setdefault(what, []).append(record.pass_number)
    rows = [
        {"trial": trial, "passes": ", ".join(map(str, sorted(of))), "status": status, "reason": reason}
        for (trial, status, reason), of in passes.items()
    ]
    return Table(pd.DataFrame(rows), "Trials without a result. A failure is a row, never a number.")


def trust(results: Results, trials: Sequence[Trial]) -> list[Figure | Table | Text]:
    """Whether the numbers can be trusted: throttled blocks, where the time of a pass went, what gave no result."""
    return [observations.flags(results, list(trials)), pass_time(results), failures_table(results)]


def telemetry_limits(results: Results) -> list[str]:
    """What the sensors do not say."""
    if not results:
        return []
    said = [observations.sampler_sentence(results)]
    if results.profile.device.kind == "cuda":
        said.append(
            "Board power is what the device's own sensor reports, not what the wall socket delivers. On A100 and H100 "
            "it looks at a quarter of the time only (Yang et al., SC'24), so short or rhythmic loads may be misjudged; "
            "whether that holds for this board nobody here has checked with a meter."
        )
    return said


def _memory_left(results: Results) -> str:
    """Said where peaks of memory hold what earlier trials of a process had left, or may: the record does not say."""
    peaks = [one.facts for one in results.records if one.status == "ok" and "memory_reserved_bytes" in one.facts]
    left = [facts.get("memory_left_bytes") for facts in peaks]
    if any(left):
        most = max(some for some in left if some)
        return (
            f"Peaks of memory are up to {quantity(most, 'memory_bytes')} too high: earlier trials of the same process "
            "had left as much on the device."
        )
    if None in left:
        return (
            "Peaks of memory may be too high: workspaces of cuBLAS that earlier trials of the same process had left on "
            "the device are counted in them, and these records do not say how large those were."
        )
    return ""


def limitations(results: Results, trials: list[Trial], *, memory: bool = True) -> Text:
    """What these numbers do not say, as far as the records know; `memory` says whether the page shows any of it."""
    said: list[str] = []
    if trials:
        described = [results.fact(trial, "data_description") for trial in trials]
        said += dict.fromkeys(str(description) for description in described if description)
        here = f"{listing(sorted({t.framework for t in trials}))} on {listing(sorted({t.data for t in trials}))}"
        for paper in load_papers():
            studies = {table.study for table in paper.tables} | {order.study for order in paper.orders}
            if results.study.id in studies:
                setup = f"{paper.setup.framework} on {paper.setup.data}"
                said.append(f"'{paper.citation.title}' trained with {setup}; this page has {here}.")
        threads = results.fact(trials[0], "threads")
        if trials[0].device == "cpu" and threads:
            said.append(f"The CPU worked with {threads} threads.")
    if results and not results.measured_here:
        said.append(f"These records are of host {results.host_id}, not of the machine that rendered this page.")
    if results and len(results.passes()) < 2:
        said.append("With one pass there are no intervals: use SCALE=quick or full before quoting a number.")
    if memory and (left := _memory_left(results)):
        said.append(left)
    said += telemetry_limits(results)
    return Text("\n\n".join(said))
