"""The study of a network that the user brings: its trials, and its steps beside those of recorded networks."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from functools import partial
from itertools import chain

import pandas as pd

from labkit.errors import UserError
from labkit.models import open_network
from labkit.models.networks import TASKS
from workbook.records import Record
from workbook.results import load
from workbook.results.load import profiles_with_records
from workbook.studies import sweeps
from workbook.studies.planner import Planner, Sweep
from workbook.studies.values import if_measured, told, value_of
from workbook.trials import recipes
from workbook.trials.own_module import source_hash_of_file
from workbook.trials.recipes import Recipe
from workbook.trials.trial import NO_DATA, OWN, Trial
from workbook.words import STRICT, label

TRAINING = OWN[0]
RECORDED = {"training": ("train", "training"), "inference": ("infer", "prediction")}  # study -> workload, task


def sizes(text: str | None, usual: Sequence[int]) -> list[int]:
    """Return the batch sizes that BATCH= names, each once; the usual ones without it. Raise UserError for other text.

    >>> sizes("32, 256", [8]), sizes(None, [8])
    ([32, 256], [8])
    """
    parts = [part.strip() for part in (text or "").split(",") if part.strip()]
    if (text or "").strip() and not (parts and all(re.fullmatch("0*[1-9][0-9]{0,8}", part) for part in parts)):
        valid = "whole numbers from 1, of up to nine digits, with commas between them, such as 32,256"
        raise UserError(f"BATCH={text!s:.40} is no list of batch sizes; valid: {valid}.")
    return list(dict.fromkeys(map(int, parts))) or list(usual)


def trials(lab: Planner) -> list[Trial]:
    """Return each mode at each batch size, in training and prediction as the network allows, and the device's ceilings.

    The largest batch is traced, and on a GPU its energy is measured. Without NETWORK= the trials are those recorded for
    the network that was measured last. Raise UserError as `labkit.models.open_network` does, and without a network and
    records.
    """
    name, sweep, kind = lab.network, lab.sweep, lab.profile.device.kind
    if name is None:
        return [*_newest(lab.recorded()), *lab.ceilings()]
    network, batches = open_network(name), sizes(lab.batches, sweep["batch"])
    about = {
        **{"model": network.name, "workload_source": source_hash_of_file(network.path) if network.path else ""},
        **{"device": kind, "data": NO_DATA},
    }
    modes = modes_of([task for task in TASKS if getattr(network, task)], kind, lab.cpu.features)
    asked = [lab.trials(**about, **mode, **axes) for mode in modes for axes in axes_of(batches, sweep)]
    return [*chain.from_iterable(asked), *lab.ceilings()]


def axes_of(batches: Sequence[int], sweep: Sweep) -> list[Recipe]:
    """Return the axes of a network's trials: the largest batch with its trace and its energy, and the other batches."""
    ordered = sorted(set(batches))
    return [
        {"batch": ordered[-1:], **{name: sweep[name] for name in ("traced_iterations", "energy_windows")}},
        {"batch": ordered[:-1]},
    ]


def modes_of(given: Collection[str], kind: str, cpu_features: Sequence[str]) -> list[Recipe]:
    """Return the recipes of a network's training and prediction of those of `TASKS` that it has, on a device."""
    half: Recipe = {"precision": "bf16", "memory_format": "channels_last"}
    modes: list[Recipe] = [dict(recipes.PLAIN)]
    if kind == "cuda":
        modes += [dict(recipes.INSTALLED), half, {**half, "engine": "graph"}, {**half, "engine": "compile+graph"}]
    else:
        modes += [{"engine": "compile"}, *([half] if recipes.has_bf16(cpu_features) else [])]
    tasks = [workload for workload, task in zip(OWN, TASKS, strict=True) if task in given]
    return [{"workload": task, **mode, **fused_in(task, mode)} for task in tasks for mode in modes]


def fused_in(task: str, mode: Recipe) -> Recipe:
    """Return the fused optimiser of a tuned training."""
    return {"optimizer": "sgd_fused"} if task == TRAINING and mode.get("precision") == "bf16" else {}


def _newest(recorded: Sequence[Record]) -> list[Trial]:
    """Return the trials of the network whose record is the newest. Raise UserError without a record of a network."""
    own = [record for record in recorded if record.trial["workload"] in OWN]
    if not own:
        raise UserError(
            'no network was given, and none is recorded here: give `network="mine.py"` in the notebook, or '
            "`make report STUDY=your_network NETWORK=mine.py`."
        )
    newest = max(own, key=lambda record: record.started_at).as_trial
    same = (newest.model, newest.workload_source)
    of_network = (record.as_trial for record in own)
    return list(dict.fromkeys(trial for trial in of_network if (trial.model, trial.workload_source) == same))


def steps(frame: pd.DataFrame, trials: Sequence[Trial]) -> pd.DataFrame:
    """Return the rows of the trials' network, with `task`: training or prediction."""
    asked = next(trial for trial in trials if trial.workload in OWN)
    is_asked = (frame["model"] == asked.model) & (frame["workload_source"] == asked.workload_source)
    rows = frame[frame["workload"].isin(OWN) & is_asked]
    rows = rows.assign(task=rows["workload"].map(partial(label, "workload")))
    return rows.sort_values("workload", key=lambda names: names.map(OWN.index), kind="stable")


def traced(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with a trace. Compiled steps of a CPU are left out: their kernels are no operators of PyTorch."""
    is_seen = (rows["device"] == "cuda") | (rows["engine"] == "eager")
    return rows[(rows["traced_iterations"] > 0) & is_seen]


def over_ordinary(gains: pd.DataFrame, task: str) -> str:
    """Return `, 4.0 times ordinary PyTorch` for a sentence, or that no other mode is faster.

    `gains` are ratios over ordinary PyTorch by `task` and `side`.

    >>> gains = pd.DataFrame({"task": "training", "side": ["optimised"], "value": [0.5], "low": [0.4], "high": [0.6]})
    >>> over_ordinary(gains, "training"), over_ordinary(gains, "prediction")
    (', and no other mode is faster', '')
    """
    if value_of(gains, task=task, side=sweeps.OPTIMISED) <= 1:
        return ", and no other mode is faster"
    return if_measured(f", {told(gains, 'times', task=task, side=sweeps.OPTIMISED)} ordinary PyTorch")


def cannot_run(rows: pd.DataFrame) -> str:
    """Return a sentence: the modes that gave no result in any run, each with its first reason; empty without any.

    >>> rows = pd.DataFrame({"mode": ["compiled"], "task": "training", "status": "unsupported", "reason": "a loop"})
    >>> cannot_run(rows), cannot_run(rows.assign(status="ok"))
    (' **It cannot run** compiled (a loop).', '')
    """
    failed = rows[~rows["mode"].isin(rows.loc[rows["status"] == "ok", "mode"])].dropna(subset=["reason"])
    reasons = failed.groupby("mode", sort=False)["reason"].first()
    named = "; ".join(f"{mode} ({reason})" for mode, reason in reasons.items())
    return f" **It cannot run** {named}." if named else ""


def unit(rows: pd.DataFrame) -> str:
    """Return the metric of the network's rate: tokens/s where its file says how many tokens a sample has.

    >>> unit(pd.DataFrame({"tokens_per_s": [float("nan")]}))
    'samples_per_s'
    """
    return "tokens_per_s" if rows["tokens_per_s"].notna().any() else "samples_per_s"


def beside(lab: Planner, own: pd.DataFrame) -> pd.DataFrame:
    """Return rows of this network and of those that other studies recorded on this device, with `samples_per_s`.

    An image is a sample. Of each network, task, batch and size of images, the reference and the fastest mode are kept.
    """
    recorded = []
    for study, (workload, task) in RECORDED.items():
        if lab.profile.name in profiles_with_records([study]):
            frame = load(lab.profile.name, study).frame()
            alone = (
                (frame["workload"] == workload) & (frame["devices"] == 1) & (frame["device"] == own["device"].iloc[0])
            )
            recorded.append(frame[alone].assign(task=task, samples_per_s=frame["images_per_s"]))
    rows = pd.concat([own, *recorded], ignore_index=True)
    rows = sweeps.timed(rows).dropna(subset=["samples_per_s"])
    by = ["model", "image_px", "task", "batch"]
    means = rows.groupby([*by, "mode"])["samples_per_s"].mean().reset_index()
    is_fastest = means["samples_per_s"] == means.groupby(by)["samples_per_s"].transform("max")
    return rows.merge(means.loc[is_fastest | (means["mode"] == STRICT), [*by, "mode"]])
