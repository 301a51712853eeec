"""CPU against GPU before anything is measured: the trials of both sides, what bounds them, what is left out and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from labkit.analysis import summary
from labkit.analysis.format import listing
from labkit.analysis.speed import DEVICES, OF_MODELS, title
from labkit.analysis.studies.sides import SIDES, how
from labkit.analysis.table import Table, Text
from labkit.profile import Profile
from labkit.recipes import has_bf16
from labkit.trial import Trial


def table(trials: Sequence[Trial], passes: int) -> Table:
    """The trials of a pass; models that are asked the same share a row, and so do the threads of a sweep."""
    rows: dict[tuple[Any, ...], list[Trial]] = {}
    for trial in (one for one in trials if _is_network(one)):
        about = (trial.device, trial.workload, trial.image_px, trial.batch, trial.energy_windows)
        rows.setdefault((*about, how(replace(trial, threads=0)), trial.threads > 0), []).append(trial)
    frame = pd.DataFrame([_plan_row(alike) for alike in rows.values()], dtype=object).dropna(axis=1, how="all")
    of = f"{passes} passes, each in another random order" if passes > 1 else "one pass, in a random order"
    data = listing(sorted({trial.data for trial in trials if _is_network(trial)}))
    networks = sum(map(_is_network, trials))
    return Table(
        frame.where(frame.notna(), None),
        f"The {len(trials)} trials planned at this scale, in {of}: {networks} of networks on {data}, and "
        f"{len(trials) - networks} that measure ceilings (of each device a matrix product and a copy in its memory).",
    )


def _plan_row(alike: Sequence[Trial]) -> dict[str, Any]:
    first = alike[0]
    return {
        "on": DEVICES[first.device],
        "what": OF_MODELS[first.workload],
        "models": ", ".join(dict.fromkeys(title(trial) for trial in alike)),
        "input": f"{first.image_px} px",
        "batch": first.batch,
        "engine": how(replace(first, threads=0)),
        "threads": ", ".join(dict.fromkeys(str(trial.threads or "default") for trial in alike)),
        "energy windows": first.energy_windows or None,
    }


def prediction(profile: Profile, trials: Sequence[Trial]) -> Table | Text:
    """What the nominal peaks of the profile's device allow; the CPU of a GPU's machine has none in the profile."""
    return summary.prediction_table(profile, [trial for trial in trials if trial.device == profile.device.kind])


def left_out(profile: Profile, trials: Sequence[Trial], scale: str, cpu_features: Sequence[str]) -> Text:
    """Which sides and engines this page goes without, and why."""
    said = []
    for device in SIDES:
        names = list(dict.fromkeys(how(replace(t, threads=0)) for t in trials if t.device == device and _is_network(t)))
        said += [f"On the {DEVICES[device]}, at scale {scale}: {'; '.join(names)}."] if names else []
    if profile.device.kind == "cpu":
        said.append(f"The profile {profile.name!r} has no GPU: its trials are left out.")
    if not has_bf16(cpu_features):
        said.append(
            "BF16 is left out on the CPU: this one has no arithmetic of it (AMX or AVX512-BF16), and emulated it would "
            "be slower than FP32."
        )
    return Text(" ".join(said))


def _is_network(trial: Trial) -> bool:
    return trial.workload in OF_MODELS
