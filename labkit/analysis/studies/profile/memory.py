"""What a step keeps in memory, how often it asks the allocator, and what is copied: sizes, rate, overlap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

import pandas as pd

from labkit.analysis import engines
from labkit.analysis.figure import Figure
from labkit.analysis.format import counted, listing, number, percent, quantity
from labkit.analysis.speed import title
from labkit.analysis.studies.profile import seen
from labkit.analysis.studies.profile.bars import Bars, Look
from labkit.analysis.table import Table, Text
from labkit.recipes import engine_name
from labkit.registry import METRICS
from labkit.results.study_records import StudyRecords as Results
from labkit.traced import Direction, Memory
from labkit.trial import Trial

LOOKS = {
    "weights": Look(0),
    "gradients": Look(1),
    "optimiser": Look(3),
    "activations": Look(2),
    "inputs": Look(5),
    "workspace": Look(shade=0.4),
}
GIB = METRICS["memory_bytes"].scale
KIB = 2.0**-10
LEAST_APART = 0.01  # GiB: less than that between passes is not seen in the picture
LOADER = (
    "The data set lies in the device's memory; only the numbers of a batch's samples are copied. What loading images "
    "from host or disk would cost is not measured here."
)
DIRECTIONS: dict[Direction, str] = {
    "host_to_device": "to the device",
    "device_to_host": "to the host",
    "device_to_device": "within the device",
    "peer_to_peer": "between devices",
}


UNTOLD = (
    "workspace and peak are unknown: earlier trials of the process had left memory on the device, or may have, which "
    "is counted in them"
)


def memory_of(results: Results, trial: Trial) -> Memory | None:
    """A step's memory, each size the mean of the passes that say it; None where none does.

    Workspaces differ between passes, each of which chooses its algorithms anew.
    """
    found = _by_pass(results, trial)
    if not found:
        return None
    sizes = {name: _known(found, name) for name in Memory.model_fields if name != "method"}
    means = {name: round(fmean(values)) if values else None for name, values in sizes.items()}
    methods = dict.fromkeys(part for one in found for part in one.method.split("; "))
    return Memory(**means, method="; ".join(methods))


def _known(found: Sequence[Memory], name: str) -> list[int]:
    return [value for one in found if (value := getattr(one, name)) is not None]


def _by_pass(results: Results, trial: Trial) -> list[Memory]:
    """Of each pass; without what has other trials' memory in it, or may have, where the record does not say."""
    found = []
    for record, trace in seen.traces(results, trial):
        if trace.memory is None:
            continue
        alone = trial.device == "cpu" or record.facts.get("memory_left_bytes") == 0
        lost = {"workspace": None, "peak": None, "method": f"{trace.memory.method}; {UNTOLD}"}
        found.append(trace.memory if alone else trace.memory.model_copy(update=lost))
    return found


def _apart(results: Results, trials: Sequence[Trial]) -> str:
    """`Means of passes, which lie apart by 0.9 GiB at most (AlexNet, …)`, in all that every pass of a trial says."""
    sums = {}
    for trial in trials:
        found = _by_pass(results, trial)
        names = [name for name in LOOKS if len(_known(found, name)) == len(found)]
        sums[trial] = [sum(getattr(one, name) for name in names) for one in found]
    if all(len(found) < 2 for found in sums.values()):
        return "Of one pass."
    widest = max(sums, key=lambda trial: max(sums[trial]) - min(sums[trial]))
    apart = (max(sums[widest]) - min(sums[widest])) * GIB
    if apart < LEAST_APART:
        return f"Means of passes, which lie apart by less than {LEAST_APART:g} GiB."
    return f"Means of passes, which lie apart by {number(apart, 2)} GiB at most ({seen.name(widest)})."


def _parts(memory: Memory) -> dict[str, float]:
    """GiB by what they hold, as far as it is known."""
    found = {name: getattr(memory, name) for name in LOOKS}
    return {name: held * GIB for name, held in found.items() if held}


def picture(results: Results, trials: Sequence[Trial]) -> Figure | Text:
    """The memory of a step by what it holds, against the batch."""
    held = {trial: found for trial in trials if (found := memory_of(results, trial))}
    if not held:
        why = "their traces hold none" if seen.any_trace(results, trials) else seen.why_none(results, trials)
        return Text(f"What a step keeps in memory can't be said here: {why}.")
    data = pd.DataFrame(
        [
            {
                "network": seen.setting(trial),
                "batch": trial.batch,
                "engine": engine_name(trial),
                **{f"{name} (GiB)": _scaled(getattr(memory, name)) for name in (*LOOKS, "peak")},
                "allocator calls a step": memory.allocations,
                "asked for in a step (GiB)": _scaled(memory.allocated_bytes),
            }
            for trial, memory in held.items()
        ]
    )
    bars = Bars(
        trials=list(held),
        parts={trial: _parts(memory) for trial, memory in held.items()},
        looks=LOOKS,
        along="batch; over each bar how often a step asks the allocator",
        label="GiB",
        over=lambda trial: f"{held[trial].allocations:,}" if held[trial].allocations is not None else "",
    )
    unknown = {
        name: sum(getattr(one, name) is None for one in held.values()) for name in ("activations", "workspace", "peak")
    }
    of_none = [name for name, count in unknown.items() if count == len(held)]
    of_some = [name for name, count in unknown.items() if 0 < count < len(held)]
    lacking = f" Not known of any: {listing(of_none)}." if of_none else ""
    lacking += f" Not known of all of them: {listing(of_some)}." if of_some else ""
    most = max(held, key=lambda trial: sum(_parts(held[trial]).values()))
    return Figure(
        name="profile-memory",
        draw=bars.draw,
        again=results.again,
        caption="Memory of one step by what it holds: weights, gradients and the optimiser's momenta do not depend on "
        "the batch; activations that the forward pass keeps for the way back do. Gradients come as activations "
        "go, so that the step's peak can be less than all parts together; workspace is what it has beyond the most "
        "that is held at once: what a library's algorithms need, whichever it chooses, and what the update has for a "
        "moment (PyTorch's SGD copies gradients to add weight decay). Each panel has its own scale. "
        f"{_methods(held)}{lacking} {_apart(results, list(held))} "
        f"{engines.conditions(results, list(held))}.",
        alt=f"Stacked bars, a panel a network and input size, a bar a batch, of gibibytes of {listing(bars.shown)}. "
        f"The most: {number(sum(_parts(held[most]).values()))} GiB ({seen.name(most)}).",
        data=data.dropna(axis=1, how="all"),
        size_in=bars.size_in,
    )


def _methods(held: Mapping[Trial, Memory]) -> str:
    """What sizes are from, which is alike for all trials; then what is said of some of them alone."""
    by_trial = {trial: memory.method.split("; ") for trial, memory in held.items()}
    parts: dict[str, list[Trial]] = {}
    for trial, said in by_trial.items():
        for part in said:
            parts.setdefault(part, []).append(trial)
    common = [part for part, trials in parts.items() if len(trials) == len(held)]
    notes = {part: trials for part, trials in parts.items() if part not in common}
    unknown = [part for part in common if " unknown: " in part]
    sources = [part for part in common if part not in unknown]
    told = [f"Sizes are from: {listing(sources)}."] if sources else []
    told += [f"{part[:1].upper()}{part[1:]}." for part in unknown]
    told += [
        f"{part[:1].upper()}{part[1:]} ({seen.few([seen.name(trial) for trial in trials])})."
        for part, trials in notes.items()
    ]
    return " ".join(told)


def _scaled(held: int | None) -> float | None:
    return None if held is None else held * GIB


def copies(results: Results, trials: Sequence[Trial]) -> Table | Text:
    """Copies by direction, their sizes and rate, and what ran at the same time, at the smallest and largest batch."""
    known = seen.ends([trial for trial in trials if seen.traces(results, trial)])
    if not known:
        return Text(f"Of copies and concurrency nothing can be said here: {seen.why_none(results, trials)}.")
    if all(trace.of == "operators" for trial in known for _, trace in seen.traces(results, trial)):
        return Text(
            "A CPU copies nothing to itself and has no kernels that could run at the same time: copies, their overlap "
            "and concurrency are questions of a GPU."
        )
    frame = pd.DataFrame([row for trial in known for row in _copy_rows(results, trial)], dtype=object)
    return Table(
        engines.concise(frame.where(frame.notna(), None), ("copies", "copies beside kernels", "kernels overlap")),
        "Copies in a step by direction: how many, their median size, their bytes together, and bytes over the time of "
        "the copies themselves. Copies beside kernels: of the time in which anything was copied, with a kernel running "
        "too. Kernels overlap: of the time in which kernels ran, with two or more. No direction: nothing was copied. "
        f"A copy of a few bytes shows how long any copy takes, and no rate. {LOADER} "
        f"{seen.steps_words(results, known).capitalize()}, means of passes. {engines.conditions(results, known)}.",
    )


def _copy_rows(results: Results, trial: Trial) -> list[dict[str, object]]:
    beside, overlap = (seen.metric(results, trial, name) for name in ("copy_overlap_share", "kernel_overlap_share"))
    about: dict[str, object] = {
        "": f"{title(trial)}, {trial.image_px} px",
        "batch": trial.batch,
        "engine": engine_name(trial),
    }
    at_once: dict[str, object] = {
        "copies beside kernels": percent(beside.point) if beside else None,
        "kernels overlap": percent(overlap.point) if overlap else None,
    }
    found = seen.traces(results, trial)
    there = [way for way in DIRECTIONS if any(way in trace.copies for _, trace in found)]
    rows = []
    for way in there:
        mine = [(trace.copies[way], trace.steps) for _, trace in found if way in trace.copies]
        moved, seconds = sum(one.bytes for one, _ in mine), sum(one.seconds for one, _ in mine)
        steps = sum(count for _, count in mine)
        rows.append(
            {
                **about,
                "copies": DIRECTIONS[way],
                "a step": counted(sum(one.count for one, _ in mine) / steps),
                "median (KiB)": sum(one.median_bytes for one, _ in mine) / len(mine) * KIB,
                "KiB a step": moved / steps * KIB,
                "rate": quantity(moved / seconds, "copy_bytes_per_s") if seconds else None,
                **at_once,
            }
        )
    return rows or [{**about, "copies": None, **at_once}]
