"""Frameworks before anything is measured: the trials, what this scale leaves out, what the hardware allows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from labkit.analysis import summary
from labkit.analysis.format import listing
from labkit.analysis.studies.frameworks.compared import Setting, engine, framework, is_mastered, is_own
from labkit.analysis.table import Table, Text
from labkit.models import MODELS
from labkit.profile import Profile
from labkit.recipes import FRAMEWORK_ENGINES, engine_class
from labkit.registry import FRAMEWORK_TITLES
from labkit.trial import PRECISIONS, Trial

ON_A_GPU_ONLY = "This profile has no GPU: which framework feeds one best it cannot show, only how they train on a CPU."

BOUND_OF_ALL = "No framework has another bound: what they differ in is how near they come."
BOUND_OF_MASTERED = " PyTorch's tuned engines have one of their own, as BF16 weights are fewer bytes to move."


def table(trials: Sequence[Trial], passes: int) -> Table:
    """The trials of a pass: a row a network, number of devices and precision, with every framework's engines."""
    rows: dict[tuple[Setting, int, str], dict[str, Any]] = {}
    by: dict[tuple[Setting, int, str], dict[str, list[str]]] = {}
    for trial in trials:
        place = (Setting.of(trial), trial.devices, trial.precision)
        by.setdefault(place, {}).setdefault(framework(trial), []).append(engine(trial))
        rows[place] = {
            "network": Setting.of(trial).network,
            "batch": f"{trial.batch:,}",
            "devices": trial.devices,
            "precision": trial.precision.upper(),
            "by": "; ".join(f"{name}: {', '.join(names)}" for name, names in by[place].items()),
            "energy windows": trial.energy_windows or None,
        }
    order = list(dict.fromkeys(place[0] for place in rows))
    ordered = sorted(rows, key=lambda place: (order.index(place[0]), place[1], PRECISIONS.index(place[2])))
    frame = pd.DataFrame([rows[place] for place in ordered], dtype=object).dropna(axis=1, how="all")
    if all(trial.devices == 1 for trial in trials):
        frame = frame.drop(columns="devices")
    of = f"{passes} passes, each in another random order" if passes > 1 else "one pass, in a random order"
    data = listing(sorted({trial.data for trial in trials}))
    return Table(
        frame.where(frame.notna(), None),
        f"The {len(trials)} trials planned at this scale, in {of}, on {data}. Each framework has processes of its own; "
        "the batch is a device's.",
    )


def extent(profile: Profile, trials: Sequence[Trial], scale: str) -> Text:
    """Which engines and precisions this scale has, and which are left for a larger one."""
    alike = [trial for trial in trials if not is_own(trial)]
    there = {(trial.framework, trial.engine) for trial in alike}
    said = []
    absent = [
        f"{FRAMEWORK_TITLES[name]} by {engine_}"
        for name, engines in FRAMEWORK_ENGINES.items()
        for engine_ in engines
        if (name, engine_) not in there
    ]
    if absent:
        said.append(f"Left out at scale {scale}: {listing(absent)}.")
    if unseen := _without_large(alike):
        said.append(f"{listing(unseen)} train{'s' if len(unseen) == 1 else ''} no network at its own size here.")
    waiting: dict[str, list[str]] = {}
    for kind in ("eager", "compiled"):
        of_kind = {trial.precision for trial in alike if engine_class(trial.engine) == kind}
        missing = [name.upper() for name in ("fp32", "bf16") if name not in of_kind] if of_kind else []
        if missing:
            waiting.setdefault(listing(missing), []).append(kind)
    said += [f"{what} of {listing(kinds)} engines waits for a larger scale." for what, kinds in waiting.items()]
    if profile.device.kind == "cpu":
        said.append(ON_A_GPU_ONLY)
    return Text(" ".join(said) or f"Scale {scale} has every engine of every framework, in FP32 and BF16.")


def _without_large(alike: Sequence[Trial]) -> list[str]:
    """Frameworks whose trials are all of small images, where others have larger ones."""
    large = {trial.framework for trial in alike if trial.image_px == MODELS[trial.model].native_px}
    small = dict.fromkeys(trial.framework for trial in alike if trial.framework not in large)
    return [FRAMEWORK_TITLES[name] for name in small] if large else []


def prediction(profile: Profile, trials: Sequence[Trial]) -> Table | Text:
    """What the hardware allows at most: it knows no framework, so the bound is the same for all of them."""
    alike = [trial for trial in trials if trial.devices == 1 and not is_own(trial)]
    mastered = BOUND_OF_MASTERED if any(is_mastered(trial) for trial in trials) else ""
    found = summary.prediction_table(profile, alike)
    if isinstance(found, Table):
        return Table(found.frame, f"{found.caption} {BOUND_OF_ALL}{mastered}")
    return found
