"""How a page's numbers were made: host, passes, blocks; what was not steady, not measured, or planned otherwise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from labkit.analysis.format import listing, percent
from labkit.analysis.quality import pass_parts
from labkit.analysis.results import Results, without_data
from labkit.analysis.table import Text
from labkit.records import Record
from labkit.trial import Trial

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
    processor = results.host.get("cpu") if results.profile.device.kind == "cuda" else None
    cores = f", {results.host['cpu_cores']} cores" if results.host.get("cpu_cores") else ""
    of_host = f" The host's processor: {processor}{cores}." if processor else ""
    said = (
        f"{did}\n\nShown: {results.describe()}.{of_host} {count} {'passes' if count > 1 else 'pass'} in {made} worker "
        f"{'processes' if made > 1 else 'process'}, each pass in a random order of its own; "
        f"{_from_to(blocks)} timed blocks a trial, every one kept.{runs} "
        f"Throughput is images over the whole timed host time; the interval is Student's t over the passes' logarithms."
    )
    if len(parts):
        said += (
            f" {listing([percent(share) for share in parts['share measuring']])} of each pass was warm-up and timing."
        )
    beside = list(results.by_trial)
    lost = [r for r in ok if r.blocks and None in [*r.blocks.warmup_loss, *r.blocks.loss]]
    diverged = sorted({record.as_trial.label(beside=beside) for record in lost})
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


def _from_to(counts: Sequence[int]) -> str:
    """`5 to 16`, or one number where they are all the same."""
    ends = dict.fromkeys([min(counts, default=0), max(counts, default=0)])
    return " to ".join(map(str, ends))


def _other_plan(results: Results) -> str:
    """That the plan has changed since the records were made, where it has; "" else."""
    planned = {without_data(trial) for trial in results.asked}
    there = {without_data(trial) for trial in results.by_trial}
    if not planned or planned == there:
        return ""
    said = [f"{len(new)} of its trials are not among them" for new in [planned - there] if new]
    said += [f"{len(old)} of theirs are in it no longer" for old in [there - planned] if old]
    return f"The plan has changed since these records were made: {listing(said)}."


def _not_measured(results: Results) -> str:
    """Which trials a pass that was cut off did not come to; "" where every trial is in every pass."""
    passes = set(results.passes())
    lacking: dict[int, list[str]] = {}
    for trial, records in results.by_trial.items():
        for number_ in passes - {record.pass_number for record in records}:
            lacking.setdefault(number_, []).append(trial.label(beside=list(results.by_trial)))
    return " ".join(
        f"Pass {number_} was cut off and has no record of {listing(names)}: their rows say so by their n."
        for number_, names in sorted(lacking.items())
    )


def _unsteady_names(unsteady: Sequence[Record], beside: Sequence[Trial]) -> str:
    """Which trials, and in which passes; of many only how often each."""
    passes: dict[str, list[int]] = {}
    for record in sorted(unsteady, key=lambda one: (one.as_trial.label(beside=beside), one.pass_number)):
        passes.setdefault(record.as_trial.label(beside=beside), []).append(record.pass_number)
    if len(unsteady) <= MANY_UNSTEADY:
        return listing([f"{name} (pass {number})" for name, numbers in passes.items() for number in numbers])
    of_model = Counter(record.as_trial.label() for record in unsteady)
    return f"{len(unsteady)} times, {listing([f'{name}: {count}' for name, count in sorted(of_model.items())])}"
