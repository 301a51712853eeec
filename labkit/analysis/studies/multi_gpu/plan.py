"""Several devices before anything is measured: the trials, what they stand for, what the links must carry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from labkit.analysis.format import listing, percent
from labkit.analysis.speed import input_words, takes_words, title
from labkit.analysis.studies.multi_gpu.concurrency import WORDS
from labkit.analysis.studies.multi_gpu.links import MESSAGES, size_words, way
from labkit.analysis.studies.multi_gpu.scaling import Setting, counted, is_scaled, is_usual, sent_bytes
from labkit.analysis.studies.multi_gpu.to_target import named
from labkit.analysis.table import Table, Text
from labkit.profile import Profile
from labkit.recipes import engine_name
from labkit.results import roofline
from labkit.trial import Trial

ALONE = "what several would be compared with"  # where there is one device
_PURPOSES = ("scaling", "epochs to a target", "two jobs", "links", "messages")


def table(trials: Sequence[Trial], passes: int) -> Table:
    """The trials of a pass by what they are for; those that differ in a number of devices or in a size share a row."""
    rows: dict[tuple[Any, ...], list[Trial]] = {}
    one = next((trial for trial in trials if trial.epochs and trial.devices == 1), None)
    for trial in trials:
        purpose, what = _about(trial, one)
        network = (trial.model, trial.image_px, trial.precision) if trial.workload == "train" else None
        rows.setdefault((purpose, network, engine_name(trial), what), []).append(trial)
    alone = all(trial.devices_taken == 1 for trial in trials)
    shown = []
    for (purpose, network, engine, what), alike in sorted(rows.items(), key=lambda row: _PURPOSES.index(row[0][0])):
        first = alike[0]
        if alone and purpose == "scaling":
            what = ALONE
        sizes = list(dict.fromkeys(size_words(trial.size) for trial in alike if trial.size))
        shown.append(
            {
                "for": purpose,
                "network": f"{title(first)}, {input_words([first])}" if network else None,
                "engine": f"{engine}, {first.precision.upper()}" if network else "",
                "batch": f"{first.batch:,}" if network else None,
                "devices": listing([str(n) for n in sorted({trial.devices_taken for trial in alike})]),
                "what": f"{what}: {', '.join(sizes)}" if sizes else what,
            }
        )
    frame = pd.DataFrame(shown, dtype=object).dropna(axis=1, how="all")
    engines = list(dict.fromkeys(name for name in frame["engine"] if name))
    if len(engines) == 1:
        frame = frame.drop(columns="engine")
    of = f"{passes} passes, each in another random order" if passes > 1 else "one pass, in a random order"
    data = listing(sorted({trial.data for trial in trials if trial.workload == "train"}))
    threads = sorted({trial.threads for trial in trials if trial.threads})
    each = f"; each process has {listing([str(n) for n in threads])} thread{'s' * (threads != [1])}" if threads else ""
    all_are = f"; all are {engines[0].replace(', ', ' in ')}" if len(engines) == 1 else ""
    return Table(
        frame.where(frame.notna(), None),
        f"The {len(trials)} trials planned at this scale, in {of}, on {data}{all_are}{each}.",
    )


def _about(trial: Trial, one: Trial | None) -> tuple[str, str]:
    """What a trial is for, and as what; `one` is the training run on one device."""
    if trial.workload in MESSAGES:
        return "messages", f"{MESSAGES[trial.workload]}, {way(trial)}"
    if trial.epochs:
        return "epochs to a target", named(trial, one)
    if trial.arrangement != "alone" or takes_words(trial):
        return "two jobs", WORDS[trial.arrangement]
    if not is_usual(trial):
        return "links", f"{way(trial)}, {trial.gradient_precision.upper()} gradients"
    return "scaling", f"{trial.scaling} scaling{f', {trial.nodes} nodes' if trial.nodes > 1 else ''}"


def stands_for(profile: Profile) -> str:
    """What this profile's devices can show of the question; empty where it has several GPUs."""
    if profile.device.kind == "cpu":
        return (
            "This profile has no GPU: a device here is a process with half of the CPU's cores, and gradients go "
            "through the operating system's sockets (Gloo). That shows whether training on several is right, how many "
            "epochs it takes and what is sent; how fast several GPUs are it cannot show, because the two processes "
            "share caches, memory and clock."
        )
    if profile.device.count == 1:
        return (
            "This profile has one GPU. How many epochs several take is learned from processes that share it, each "
            "with the batch and the gradients of a GPU of its own: what they compute is what as many GPUs would. How "
            "fast several are it cannot show; profiles of more GPUs have pages of their own."
        )
    return ""


def extent(profile: Profile, trials: Sequence[Trial], scale: str) -> Text:
    """Which engines and numbers of devices this page has."""
    timed = [trial for trial in trials if trial.workload == "train" and not trial.epochs]
    names = list(dict.fromkeys(engine_name(trial) for trial in timed))
    counts = sorted({trial.devices_taken for trial in trials})
    word = "GPU" if profile.device.kind == "cuda" else "process"
    said = f"Engines at scale {scale}: {listing(names)}. Numbers of {word}{'s' if word == 'GPU' else 'es'}: "
    said += f"{listing([str(count) for count in counts])}."
    asked = profile.sweep("03_multi_gpu", scale)["runs"]
    return Text(" ".join([said, *left_out(trials, list(asked) if isinstance(asked, list) else [])]))


def left_out(trials: Sequence[Trial], runs: Sequence[object] = ()) -> list[str]:
    """What numbers of devices cannot have: a batch that they share evenly, or halves.

    `runs` are the training runs that the sweep asks for, by the names of `recipes.runs_on`.
    """
    batches = {trial.batch for trial in trials if trial.scaling == "strong" and not trial.epochs}
    counts = sorted({trial.devices_taken for trial in trials})
    uneven = [n for n in counts if any(batch % n for batch in batches)]
    odd = [n for n in counts if n > 1 and n % 2]
    said = [f"{listing(list(map(str, uneven)))} devices can't share the total batch evenly"] if uneven else []
    said += [f"{listing(list(map(str, odd)))} can't be halved for two jobs"] if odd else []
    uneven_runs = [one for one in trials if one.epochs and one.batch % one.devices and "same batch" in runs]
    said += [
        f"{devices} devices can't share a training run's batch of {batch} evenly"
        for devices, batch in sorted({(trial.devices, trial.batch) for trial in uneven_runs})
    ]
    return [f"Left out: {'; '.join(said)}."] if said else []


def prediction(profile: Profile, trials: Sequence[Trial]) -> Table | Text:
    """What the exchange of gradients costs at the least, beside the least time of the arithmetic, from data sheets."""
    link = profile.peaks.link_bytes_per_s
    shown: dict[tuple[Setting, int, str], dict[str, Any]] = {}
    for trial in trials:
        if trial.devices == 1 or trial.nodes > 1 or not is_scaled(trial):
            continue
        sent = sent_bytes(trial)
        work, ceilings = roofline.planned_work(trial), roofline.nominal_of(profile, trial)
        limit = roofline.bound(work, ceilings) if ceilings.flop_per_s else None
        step_s = work.images / limit.images_per_s if limit else None
        shown[Setting.of(trial), trial.devices, trial.scaling] = {
            "network": Setting.of(trial).name,
            "on": f"{counted(trial)}, {trial.scaling}",
            "sent by each a step (MB)": sent / 1e6,
            "at the links' rate (ms)": sent / link.value * 1e3 if link else None,
            "a step at its bound (ms)": step_s * 1e3 if step_s else None,
            "exchange over step": percent(sent / link.value / step_s) if link and step_s else None,
        }
    if not shown:
        return Text("One device exchanges nothing, so there is nothing to predict of the exchange.")
    frame = pd.DataFrame(list(shown.values()), dtype=object).dropna(axis=1, how="all")
    rate = (
        f"the links of {profile.title} at their nominal rate"
        if link
        else f"no nominal rate (the profile {profile.name!r} states none for its links)"
    )
    return Table(
        frame.where(frame.notna(), None),
        f"Before anything is measured: what each device has to send in a step (a ring's 2 (n - 1) / n of the "
        f"gradients), and {rate}. What is above a small share of the step must hide behind the backward pass, or it "
        f"costs efficiency.",
    )
