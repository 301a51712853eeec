"""How a page's numbers were made: host, passes, blocks; what was not steady, not measured, or planned otherwise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from labkit.analysis.format import listing, number, percent
from labkit.analysis.quality import pass_parts
from labkit.analysis.table import Text
from labkit.records import Record
from labkit.results.study_records import StudyRecords as Results
from labkit.results.study_records import without_data
from labkit.trial import Trial
from labkit.trial_label import trial_label

MANY_UNSTEADY = 6  # more are counted, not listed


def sentence(results: Results, did: str) -> Text:
    """What the call that measures did just now, and how the numbers shown were made."""
    if not results:
        return Text(did)
    ok = [record for record in results.records if record.status == "ok" and record.result]
    blocks = [len(record.blocks.host_s) for record in ok if record.blocks]
    unsteady = [record for record in ok if record.blocks and not record.blocks.steady]
    trained = sum(record.epochs is not None for record in ok)
    runs = f" Of {trained} whole training runs each epoch is timed, and no block." if trained else ""
    parts = pass_parts(results)
    processes = {record.process.id for record in results.records}
    count, made = len(results.passes()), len(processes)
    said = (
        f"{did}\n\nShown: {results.describe()}.{_processor(results)} {count} {'passes' if count > 1 else 'pass'} in "
        f"{made} worker {'processes' if made > 1 else 'process'}, each pass in a random order of its own; "
        f"{_from_to(blocks)} timed blocks a trial{_timed(ok)}, every one kept.{runs} "
        f"Throughput is images over the whole timed host time; the interval is Student's t over the passes' logarithms."
    )
    if len(parts):
        said += (
            f" {listing([percent(share) for share in parts['share measuring']])} of each pass was warm-up and timing."
        )
    beside = list(results.by_trial)
    lost = [r for r in ok if r.blocks and None in [*r.blocks.warmup_loss, *r.blocks.loss]]
    diverged = sorted({trial_label(record.as_trial, beside=beside) for record in lost})
    if diverged:
        said += f"\n\nThe loss of {listing(diverged)} did not stay finite; what such steps cost is still what it is."
    if other := _other_plan(results):
        said += f"\n\n{other}"
    if cut := _not_measured(results):
        said += f"\n\n{cut}"
    if unsteady:
        said += (
            f"\n\nNot steady when timing began (the last warm-up blocks differed by more than 5 %): "
            f"{_unsteady_names(unsteady, beside)}. Their blocks are kept like all others."
        )
    return Text(said)


def _timed(ok: Sequence[Record]) -> str:
    """`, 0.6 s to 21 s in all`: how long a trial was timed for in a pass."""
    seconds = [sum(record.blocks.host_s) for record in ok if record.blocks]
    if not seconds:
        return ""
    return f", {' to '.join(dict.fromkeys(f'{number(one, 2)} s' for one in (min(seconds), max(seconds))))} in all"


def _processor(results: Results) -> str:
    """Of a GPU's host its processor, which eager steps depend on; "" where the page has named it already."""
    processor, cores = results.host.get("cpu"), results.host.get("cpu_cores")
    if not processor or str(processor) in results.describe():
        return ""
    counted = f", {cores} usable {'core' if cores == 1 else 'cores'}" if cores else ""
    return f" The host's processor: {processor}{counted}."


def _from_to(counts: Sequence[int]) -> str:
    """`5 to 16`, or one number where they are all the same."""
    ends = dict.fromkeys([min(counts, default=0), max(counts, default=0)])
    return " to ".join(map(str, ends))


def _other_plan(results: Results) -> str:
    """That the plan has changed since the records were made, where it has; "" else."""
    planned = {without_data(trial) for trial in results.asked}
    there = {without_data(trial) for trial in results.by_trial}
    new, old = len(planned - there), len(there - planned)
    not_come_to = len(results.records[-1].planned.keys) - len(results.by_trial)  # by their own plan
    if not planned or not (old or new > max(not_come_to, 0)):
        return ""
    said = [f"{new} of its trials {'is' if new == 1 else 'are'} not among them"] if new else []
    said += [f"{old} of theirs {'is' if old == 1 else 'are'} in it no longer"] if old else []
    return f"The plan has changed since these records were made: {listing(said)}."


def _not_measured(results: Results) -> str:
    """Which trials a pass has no record of, as it was cut off; "" where every trial is in every pass."""
    passes = set(results.passes())
    lacking: dict[int, list[str]] = {}
    for trial, records in results.by_trial.items():
        for number_ in passes - {record.pass_number for record in records}:
            lacking.setdefault(number_, []).append(trial_label(trial, beside=list(results.by_trial)))
    return " ".join(
        f"Pass {number_} has no record of {listing(names)}: their numbers are of fewer passes."
        for number_, names in sorted(lacking.items())
    )


def _unsteady_names(unsteady: Sequence[Record], beside: Sequence[Trial]) -> str:
    """Which trials, and in which passes; of many only how often each."""
    passes: dict[str, list[int]] = {}
    for record in sorted(unsteady, key=lambda one: (trial_label(one.as_trial, beside=beside), one.pass_number)):
        passes.setdefault(trial_label(record.as_trial, beside=beside), []).append(record.pass_number)
    if len(unsteady) <= MANY_UNSTEADY:
        return listing([f"{name} (pass {number})" for name, numbers in passes.items() for number in numbers])
    of_model = Counter(trial_label(record.as_trial) for record in unsteady)
    return f"{len(unsteady)} times, {listing([f'{name}: {count}' for name, count in sorted(of_model.items())])}"
