"""The study of today's networks: their trials, and each finding of the papers as a number per network."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import pandas as pd

from workbook.results import estimate, ratio
from workbook.studies import machines, sweeps
from workbook.studies.planner import Planner, Sweep
from workbook.studies.your_network import axes_of, modes_of
from workbook.trials import recipes
from workbook.trials.own_module import source_hash_of_file
from workbook.trials.recipes import Recipe
from workbook.trials.today import TODAY
from workbook.trials.trial import NO_DATA, OWN, Trial
from workbook.words import CAREFUL, QUANTISED, STRICT, label

KINDS = ("vision", "text", "decode", "large")  # the keys of a sweep: networks, and with `_batch` their batch sizes


def trials(lab: Planner) -> list[Trial]:
    """Return each network's modes at its batch sizes in training, or in prediction if it is not trained.

    The largest batch is traced, and on a GPU its energy is measured. Unless a sweep has `every_mode`, the smaller
    batches run in strict FP32 alone. A trained network that also predicts does so at its largest batch.
    """
    sweep = lab.sweep
    asked = [_of_network(lab, kind, name) for kind in KINDS for name in sweep[kind]]
    return [*chain.from_iterable(asked), *lab.ceilings()]


def _of_network(lab: Planner, kind: str, name: str) -> list[Trial]:
    sweep, network, device = lab.sweep, TODAY[name], lab.profile.device.kind
    source = source_hash_of_file(network.path) if network.path else ""
    about: Recipe = {"model": name, "workload_source": source, "device": device, "data": NO_DATA}
    modes = modes_of(network.tasks, device, lab.cpu.features)
    if kind in ("decode", "large"):  # a decode step waits for its weights
        modes += [{**recipes.PREDICTED_COMPILED, "precision": of, "workload": OWN[1]} for of in sweep["quantised"]]
    tasks = [*OWN] if name in sweep["predicted"] else [mode["workload"] for mode in modes[:1]]
    asked = [
        lab.trials(**about, **mode, **axes)
        for mode in modes
        if mode["workload"] in tasks and mode.get("engine", "eager") in sweep["engines"]
        if kind != "large" or mode.get("precision", "fp32") not in ("fp32", "default")
        for axes in _axes(mode, sweep[f"{kind}_batch"], sweep, is_first=mode["workload"] == modes[0]["workload"])
    ]
    return [*chain.from_iterable(asked)]


def _axes(mode: Recipe, batches: Sequence[int], sweep: Sweep, *, is_first: bool) -> list[Recipe]:
    is_strict = is_first and mode.get("precision", "fp32") == "fp32" and mode.get("engine", "eager") == "eager"
    return axes_of(batches if sweep["every_mode"] or is_strict else sorted(batches)[-1:], sweep)


def rated(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of networks in samples, with `task`, and `rate`: tokens/s of texts, samples/s of images."""
    rows = frame[frame["workload"].isin(OWN)]
    tasks = rows["workload"].map({name: label("workload", name) for name in OWN})
    return rows.assign(task=tasks, rate=rows["tokens_per_s"].fillna(rows["samples_per_s"]))


def largest_batches(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of each network's largest batch."""
    return rows[rows["batch"] == rows.groupby(["task", "model"])["batch"].transform("max")]


def findings(rows: pd.DataFrame, here: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return a table per finding of the papers, with a row per task and network: `value` and its interval.

    `idle` is the share of a strict FP32 step in which the device waits. `batch` is the rate of the largest batch over
    the smallest one, in strict FP32. `precision` is tuned eager in BF16 over strict FP32. `tuned` is the fastest other
    mode over ordinary PyTorch, and `weights` what INT8 and FP8 weights give over BF16.

    `here` are the rows of the page's machine, and `rows` those of its equals too (`machines.of_equals`), both of
    `rated`. A value is over three or more machines that ran both sides, else it is that of the page's machine.
    """
    by = ["task", "model"]
    wide = largest_batches(rows[~rows["precision"].isin(QUANTISED)])
    strict = rows[rows["mode"] == STRICT]

    def gain(rows: pd.DataFrame, name: str, over: str, of: str, by: Sequence[str] = by) -> pd.DataFrame:
        pair = rows[rows[name].isin([over, of])]
        pooled = machines.pool(pair, "rate", by, here=here, sides=name)
        return ratio(pooled, "rate", over={name: over}, by=[*by, name])

    ends = strict.assign(end=strict["batch"].eq(strict.groupby(by)["batch"].transform("max")).map(END))
    ends = ends[(ends["end"] == LARGEST) | (ends["batch"] == ends.groupby(by)["batch"].transform("min"))]
    means = machines.pool(wide, "rate", [*by, "mode"], here=here)
    modes = sweeps.beside_references(means.assign(images_per_s=means["rate"]), by)
    sides = wide.merge(modes[[*by, "mode", "side"]].drop_duplicates())
    lighter = sorted(mode for mode in {*rows["mode"]} if mode.startswith(COMPILED) and mode.endswith(" weights"))
    waits = machines.pool(wide[wide["mode"] == STRICT], "waiting_share", by, here=here)
    return {
        "idle": estimate(waits, "waiting_share", by),
        "batch": gain(ends, "end", SMALLEST, LARGEST),
        "precision": gain(wide, "mode", STRICT, CAREFUL),
        "tuned": gain(sides, "side", sweeps.ORDINARY, sweeps.OPTIMISED),
        "weights": pd.concat([gain(rows, "mode", COMPILED, mode, [*by, "batch"]) for mode in lighter or [COMPILED]]),
    }


COMPILED = label("engine", "compile+graph")
LARGEST, SMALLEST = "largest batch", "smallest batch"
END = {True: LARGEST, False: SMALLEST}
