"""The study of data pipelines: its trials, what a step needs, which loader delivers it, and what an epoch reads.

A loader is a pair of words in the sweep: a reader, and the form of the files that it reads (`torch_pil jpeg`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from workbook.registry import METRICS
from workbook.results import estimate, ratio
from workbook.show.frames import phrases
from workbook.studies.planner import Planner
from workbook.studies.values import text_of, told, value_of
from workbook.trials import recipes
from workbook.trials.trial import Trial
from workbook.words import NOT_MEASURED, phrase

BOUND = "resident"  # the reader of images in memory: the same step without any waiting


def named(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that read files, with three more columns of texts: `loader`, `setting` and `task`.

    `loader` is the reader with its form, `setting` the network with its precision and engine, and `task` the setting of
    a training, or the loader alone.
    """
    rows = frame[frame["form"] != "embedded"]
    loaders = phrases(rows, ["reader"]) + " (" + phrases(rows, ["form"]) + ")"
    settings = phrases(rows, ["model", "precision", "engine"])
    tasks = settings.where(rows["workload"] == "train", loaders + " alone")
    return rows.assign(loader=loaders, setting=settings, task=tasks)


def losses(fed_rows: pd.DataFrame) -> pd.DataFrame:
    """Return the share of throughput that each loader's training loses against images in memory (0 if none is lost).

    A training loses it by waiting or, on a CPU, by sharing the cores with the loader. The rows are by `setting` and
    `loader`.
    """
    (bound,) = set(fed_rows.loc[fed_rows["reader"] == BOUND, "loader"]) or {BOUND}
    ratios = ratio(fed_rows, "images_per_s", over={"loader": bound}, by=["setting", "loader"])
    ends = {"value": "value", "low": "high", "high": "low"}
    return ratios.assign(**{end: (1 - ratios[other]).clip(lower=0.0) for end, other in ends.items()})


def waited(fed_rows: pd.DataFrame) -> pd.DataFrame:
    """Return the share of the time that steps wait for images, as a table of `estimate` by `setting` and `loader`.

    On a GPU it is the time of a step without any kernel in the trace, less that of the same step on images in memory.
    On a CPU the loop itself waits, and counts the seconds.

    >>> rows = pd.DataFrame({"setting": "AlexNet", "loader": ["memory", "files"], "reader": ["resident", "torch_pil"],
    ...     "device": "cuda", "step_s": [0.010, 0.020], "busy_step_s": 0.009, "pass_number": 1, "host": "a"})
    >>> round(float(waited(rows)["value"].iloc[0]), 3)  # 11 - 1 of 20 ms
    0.5
    """
    idle_s = fed_rows["step_s"] - fed_rows["busy_step_s"]
    in_memory = fed_rows["reader"] == BOUND
    usual_s = fed_rows["setting"].map(idle_s[in_memory].groupby(fed_rows["setting"]).mean())
    of_trace = ((idle_s - usual_s) / fed_rows["step_s"]).clip(lower=0.0)
    on_gpu = fed_rows["device"] == "cuda"
    rows = fed_rows.assign(stall_share=of_trace.where(on_gpu, fed_rows.get("stall_share")))
    return estimate(rows[~in_memory], "stall_share", by=["setting", "loader"])


def share_of(shares: pd.DataFrame, setting: str) -> str:
    """Return the share of a setting for a sentence. `shares` has a row per setting, of `losses` or `waited`.

    >>> shares = pd.DataFrame({"setting": ["a", "b"], "value": [0.4, 0.0], "low": [0.39, 0.0], "high": [0.41, 0.2]})
    >>> share_of(shares, "a"), share_of(shares, "b"), share_of(shares, "c")
    ('40.0 %', 'at most 20 %', 'not measured')
    """
    if any(low == 0 for low in shares.loc[shares["setting"] == setting, "low"]):
        most = value_of(shares.assign(value=shares["high"]), setting=setting)
        return f"at most {text_of(100 * most, '%', 2)}"
    return told(shares, "%", scale=100, setting=setting)


def bytes_per_image(loads: pd.DataFrame) -> float:
    """Return the mean bytes of an image's JPEG file; NaN if no loader read such files.

    >>> loads = pd.DataFrame({"form": ["jpeg"], "bytes_per_s": [11e6], "images_per_s": [100.0]})
    >>> bytes_per_image(loads)
    110000.0
    """
    rows = loads[loads["form"] == "jpeg"]
    return float((rows["bytes_per_s"] / rows["images_per_s"]).median())


def enough(rates: pd.DataFrame, needed: pd.DataFrame) -> pd.DataFrame:
    """Return, for each `setting` of `needed`, the loader that delivers enough images with the fewest workers.

    Both tables are of `estimate` for images/s: `rates` by `loader` and `workers`, `needed` by `setting`. `delivered` is
    the loader's rate, and `share` the part of the need that it covers, at most 1. If no loader delivers enough, the
    fastest is named.

    >>> rates = pd.DataFrame({"loader": "tf.data", "workers": [1, 4, 8], "value": [400.0, 1500.0, 2800.0]})
    >>> needed = pd.DataFrame({"setting": ["ResNet-50", "AlexNet"], "value": [1000.0, 5600.0]})
    >>> enough(rates, needed)[["workers", "share"]].values.tolist()
    [[4.0, 1.0], [8.0, 0.5]]
    """
    rows = []
    for setting, need in zip(needed["setting"], needed["value"], strict=True):
        ranked = rates.sort_values("value", ascending=False)
        able = ranked[ranked["value"] >= need].sort_values("workers", kind="stable")
        for row in (able if len(able) else ranked).head(1).to_dict("records"):
            share = min(1.0, row["value"] / need) if need else 1.0
            found = {"loader": row["loader"], "workers": row["workers"], "delivered": row["value"], "share": share}
            rows.append({"setting": setting, "value": need, **found})
    columns = ["setting", "value", "loader", "workers", "delivered", "share"]
    return pd.DataFrame(rows, columns=columns)


def of_setting(found: pd.DataFrame, setting: str) -> str:
    """Return who delivers how much of a setting's need, from its row of `enough`.

    >>> found = pd.DataFrame({"setting": ["ResNet-50"], "loader": ["tf.data"], "workers": [4.0], "share": [0.5]})
    >>> of_setting(found, "ResNet-50"), of_setting(found, "AlexNet")
    ('tf.data with 4 workers delivers 50 % of what the step needs', 'not measured')
    """
    for row in found[found["setting"] == setting].to_dict("records"):
        who = f"{row['loader']} with {phrase('workers', row['workers'])}"
        part = "what" if row["share"] >= 1 else f"{100 * row['share']:.0f} % of what"
        return f"{who} delivers {part} the step needs"
    return NOT_MEASURED


def title_of(rates: pd.DataFrame, needed: pd.DataFrame, setting: str) -> str:
    """Return a figure's title: which loaders deliver what a setting needs; empty if either was not measured.

    The tables are those of `enough`.

    >>> rates = pd.DataFrame({"loader": ["tf.data", "tf.data", "DALI"], "value": [400.0, 900.0, 2800.0]})
    >>> needs = pd.DataFrame({"setting": list("abc"), "value": [800.0, 1000.0, 5600.0]})
    >>> [title_of(rates, needs, setting) for setting in "abcd"]
    ['Every loader feeds a fast enough', '1 of 2 loaders feeds b fast enough', 'No loader feeds c fast enough', '']
    """
    fastest, need = rates.groupby("loader")["value"].max().dropna(), value_of(needed, setting=setting)
    if fastest.empty or pd.isna(need):
        return ""
    able = fastest[fastest >= need]
    count = {0: "No loader feeds", 1: f"1 of {len(fastest)} loaders feeds", len(fastest): "Every loader feeds"}
    return f"{count.get(len(able), f'{len(able)} of {len(fastest)} loaders feed')} {setting} fast enough"


def as_ticks(needed: pd.DataFrame, loads: pd.DataFrame) -> pd.DataFrame:
    """Return marks at the smallest and the largest need, beside each loader of `loads` that ran."""
    ends = needed.sort_values("value").iloc[[0, -1]] if len(needed) else needed
    marks = ends.drop_duplicates("setting").rename(columns={"setting": "label"})[["label", "value"]]
    return loads.dropna(subset=["images_per_s"])[["reader", "form"]].drop_duplicates().merge(marks, how="cross")


def largest_cold(epochs: pd.DataFrame) -> float:
    """Return the largest rate of reads of a loader alone, in bytes/s, in an epoch from an empty page cache.

    It is the mean over runs, and a lower bound of what the storage can read. It is NaN without such an epoch, and if
    the machine counted no byte: then its counter does not see this file system.
    """
    cold = epochs[(epochs["workload"] == "load") & (epochs["cache"] == "cold") & (epochs["epoch"] == 1)]
    rates = cold.groupby(["loader", "readers", "reader_order"])["read_bytes_per_s"].mean()
    return float(rates[rates > 0].max())


def roof(storage_rate: float, read: pd.DataFrame, points: int = 200) -> pd.DataFrame:
    """Return the most MB/s that steps get, `value`, against what they need, `needed_mb_per_s`, on a fine grid.

    `storage_rate` is in bytes/s; `read` holds the needs, in bytes/s, in its column `value`.
    """
    ends = pd.Series([*read["value"], storage_rate]).dropna()
    needed = np.geomspace(ends.min() / 2, ends.max() * 2, points) if len(ends) else np.array([])
    return pd.DataFrame({"needed_mb_per_s": needed / 1e6, "value": np.fmin(needed, storage_rate) / 1e6})


def got(fed_rows: pd.DataFrame, need_rows: pd.DataFrame, image_bytes: float) -> pd.DataFrame:
    """Return the trainings that a DataLoader feeds, with the JPEG data that they consume as `consumed_mb_per_s`.

    `needed_mb_per_s` is the mean need of the setting, of the steps that never wait in `need_rows`. `image_bytes` are
    the mean bytes of a file.
    """
    logarithms = np.log(need_rows["read_bytes_per_s"]).groupby(need_rows["setting"]).mean()  # as `estimate` does
    needed = np.exp(logarithms).rename("needed_mb_per_s") / 1e6
    rows = fed_rows[fed_rows["reader"] == "torch_pil"]
    consumed = rows["images_per_s"] * image_bytes / 1e6
    return rows.assign(consumed_mb_per_s=consumed).merge(needed.reset_index(), on="setting")


def of_epochs(epochs: pd.DataFrame, frame: pd.DataFrame) -> pd.DataFrame:
    """Return the table of `Results.read_epochs` with the columns of `named`, and rates and shares of each epoch.

    `read_share` is the bytes read over the size of the set. Other columns are named like the metrics. A configuration
    that failed has a row with its reason.
    """
    rows = _with_texts(epochs, frame).merge(frame[["record", "loader_memory_bytes"]], on="record")
    rows = rows.assign(
        images_per_s=rows["images"] / rows["seconds"],
        cpu_per_image_s=rows["cpu_s"] / rows["images"],
        read_bytes_per_s=rows["timed_read_bytes"].where(rows["devices"] == 1, rows["read_bytes"]) / rows["seconds"],
        read_share=rows["read_bytes"] / rows["file_bytes"],
        faults_per_image=(rows["minor_faults"] + rows["major_faults"]) / rows["images"],
        major_faults_per_image=rows["major_faults"] / rows["images"],
    )
    failed = frame[(frame["epochs"] > 0) & (frame["status"] != "ok")].assign(epoch=1)
    return pd.concat([rows, failed.drop(columns=list(METRICS))], ignore_index=True) if len(failed) else rows


def course(reads: pd.DataFrame, frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rate of reads over time, of the first run of each task: `run`, `time_s`, `metric`, `value` (bytes/s).

    `reads` is `Results.reads()`. `frame` is of `named`, with the page cache in one state. Each rate holds from its time
    to the next.
    """
    rows = _with_texts(reads, frame)
    first = rows[(rows["pass_number"] == rows["pass_number"].min()) & (rows["readers"] == 1)]
    runs = []
    for task, of_run in first.groupby("task", sort=False):
        began_s = 0.0
        for _, of_epoch in of_run.groupby("epoch"):
            times = np.concatenate([[0.0], of_epoch["time_s"]])
            counts = np.concatenate([[0.0], of_epoch["read_until_bytes"]])
            rates = np.diff(counts) / np.diff(times)
            runs.append(pd.DataFrame({"time_s": began_s + times[:-1], "value": rates, "run": task}))
            began_s += times[-1]
        runs.append(pd.DataFrame({"time_s": [began_s], "value": [0.0], "run": task}))
    whole = (pd.concat(runs) if runs else pd.DataFrame(columns=["time_s", "value", "run"])).assign(
        metric="read_bytes_per_s"
    )
    whole.attrs["reason"] = "; ".join(dict.fromkeys(frame.loc[frame["status"] != "ok", "reason"]))
    return whole


def _with_texts(long: pd.DataFrame, frame: pd.DataFrame) -> pd.DataFrame:
    """Return a long table with all columns of its records that are no metrics."""
    about = frame.drop(columns=list(METRICS))
    return long[["record", *(name for name in long if name not in about)]].merge(about, on="record")


# ---- the trials, from the sizes of the sweep -------------------------------------------------------------------------

IMAGE_PX = 224
EPOCHS = 2  # the first may read from storage, the second from the page cache
TRAINED = "resnet50"  # for whole epochs, as in Dell's paper
PLAINEST = "torch_pil jpeg"  # the loader of most training scripts
IN_MEMORY = "resident cache"
ALL_CORES = 0  # workers in a sweep: as many as usable cores

Fields = dict[str, Any]


class Sets(NamedTuple):
    """The fields of trials on two sets of images in files. `few` is small enough for whole epochs of training."""

    many: Fields
    few: Fields


def sets(lab: Planner) -> Sets:
    """Return the sets of images in files, which are made if they are missing."""
    sweep = lab.sweep
    loaders = {*sweep["loaders"], *sweep["swept"], *sweep["fed"], *sweep["epoch_loaders"], PLAINEST}
    forms = sorted({loader.split()[1] for loader in loaders})
    many = lab.stored(sweep["images"], forms)
    return Sets(many, lab.stored(sweep["epoch_images"], [PLAINEST.split()[1]]))


def alone(lab: Planner, images: Fields) -> list[Trial]:
    """Return each loader alone with a worker per core, and the `swept` ones with fewer workers too."""
    trials = [trial for loader in lab.sweep["loaders"] for trial in _load(lab, images, loader)]
    for loader in lab.sweep["swept"]:
        for workers in lab.thread_counts(lab.sweep["workers"]):
            trials += _load(lab, images, loader, workers=workers)
    return list(dict.fromkeys(trials))


def fed(lab: Planner, of: Sets) -> list[Trial]:
    """Return trainings that loaders feed, each beside the same training on decoded images in memory."""
    by_name = recipes.recipes(lab.profile.device.kind)
    about = {"image_px": IMAGE_PX, "batch": lab.sweep["fed_batch"]}
    trials: list[Trial] = []
    for name in lab.sweep["fed_engines"]:
        recipe = {field: value for field, value in by_name[name].items() if field != "loader"}
        for loader in (*lab.sweep["fed"], IN_MEMORY):
            feeding = _reading(lab, loader, workers=lab.sweep["fed_workers"])
            trials += lab.trials(model=lab.sweep["fed_models"], **about, **of.many, **feeding, **recipe)
    return trials


def epochs(lab: Planner, of: Sets) -> list[Trial]:
    """Return whole epochs from an empty page cache and a full one: loaders alone, and a training in each precision."""
    sweep = lab.sweep
    trials = [
        trial
        for loader in sweep["epoch_loaders"]
        for trial in _load(lab, of.many, loader, epochs=EPOCHS, cache=["cold", "warm"])
    ]
    return trials + _trained(lab, of.few, precision=sweep["epoch_precisions"], cache=sweep["epoch_caches"])


def several(lab: Planner, of: Sets) -> list[Trial]:
    """Return epochs in which several processes read the same cold files.

    Four readers deliver images without a network, each in an order of its own, or all in one order. The processes of a
    training on several devices have orders of their own.
    """
    count = lab.sweep["readers"]
    about = {"epochs": EPOCHS, "cache": "cold", "readers": count, "reader_order": ["own", "shared"]}
    trials = _load(lab, of.many, PLAINEST, workers=max(1, lab.cpu.cores // count), **about)
    if lab.sweep["epoch_ranks"]:
        for devices in lab.device_counts[1:]:
            trials += _trained(lab, of.few, cache="cold", devices=devices, threads=lab.threads_of_each)
    return trials


def over_nodes(lab: Planner, images: Fields) -> list[Trial]:
    """Return epochs of training on all devices of each number of nodes; [] unless the job has several nodes."""
    trials: list[Trial] = []
    for nodes in range(2, lab.nodes + 1):
        devices = nodes * lab.device_counts[-1]
        caches, networks = ["cold", "warm"], ["any", "ethernet", "infiniband"]
        trials += _trained(lab, images, cache=caches, nodes=nodes, devices=devices, network=networks)
    return trials


def _trained(lab: Planner, images: Fields, *, devices: int = 1, nodes: int = 1, **about: Any) -> list[Trial]:
    """Return epochs of training on devices that each have a reader. Readers of a node share its cores."""
    workers = lab.sweep["fed_workers"] or max(1, lab.cpu.cores * nodes // devices)
    reading = {**_reading(lab, PLAINEST, workers=workers), "devices": devices, "nodes": nodes, "readers": devices}
    of_all = {"model": TRAINED, "image_px": IMAGE_PX, "batch": lab.sweep["epoch_batch"], "epochs": EPOCHS}
    return lab.trials(**of_all, **images, **reading, **about)


def _load(lab: Planner, images: Fields, loader: str, workers: int = ALL_CORES, **about: Any) -> list[Trial]:
    reading = _reading(lab, loader, workers=workers)
    sizes = {"workload": "load", "image_px": IMAGE_PX, "batch": lab.sweep["load_batch"]}
    return lab.trials(**sizes, **images, **reading, **about)


def _reading(lab: Planner, loader: str, *, workers: int) -> Fields:
    """Return the fields of a loader. Images in memory need no workers."""
    reader, form = loader.split()
    return {"reader": reader, "form": form, "workers": 0 if reader == "resident" else workers or lab.cpu.cores}
