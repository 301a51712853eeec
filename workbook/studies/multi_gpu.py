"""Rules of the study of several GPUs: scaling efficiency, epochs to a target, two jobs, rates between GPUs."""

from __future__ import annotations

from typing import Any

import pandas as pd

from labkit.models import MODELS
from workbook.hardware.profile import Profile, load_profile
from workbook.results import ratio
from workbook.results.columns import copy_reason
from workbook.results.load import profiles_with_records
from workbook.show.frames import phrases
from workbook.studies.planner import Planner
from workbook.studies.values import times
from workbook.trials.recipes import on_devices
from workbook.trials.trial import MESSAGES
from workbook.words import devices_name, label

ONE, EACH, TOTAL, STALE = "one worker", "fixed batch per GPU", "fixed total batch", "asynchronous SGD"
SHOWN = (EACH, TOTAL, STALE)  # recipes that the study's answer reports
LINEAR = pd.DataFrame({"value": [1.0], "label": ["linear"]})
_SETTING = ["framework", "model", "image_px", "mode", "precision", "batch"]
_SIZES = {30: "GiB", 20: "MiB", 10: "KiB", 0: "B"}


def on_several(profile: Profile) -> str:
    """Return `; 2x H200 SXM and 4x H200 SXM have it`, the recorded devices with several of a profile's GPU, or ""."""
    recorded = map(load_profile, profiles_with_records(["03_multi_gpu"]))
    several = [other.title for other in recorded if other.title.endswith(f"x {profile.title}")]
    return f"; {' and '.join(several)} have it" if several else ""


def placed(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with a column `on`, the devices of each: `2 GPUs`, `2 processes`, `8 GPUs of 2 nodes`."""
    rows = frame[["device", "devices", "nodes"]].itertuples(index=False)
    on = [devices_name(device, devices, nodes) for device, devices, nodes in rows]
    return frame.assign(on=pd.Series(on, index=frame.index, dtype=object))


def scaled(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that show scaling: timed trainings of one job of images on GPUs with the usual exchange.

    Two processes on a CPU share its cores, caches and clock, so their speed says nothing about several devices.
    """
    timed = frame[(frame["workload"] == "train") & (frame["device"] == "cuda") & (frame["epochs"] == 0)]
    timed = timed[(timed["arrangement"] == "alone") & (timed["updates"] == "synchronous")]
    usual = (timed["interconnect"] == "direct") & (timed["network"] == "any")
    sent = timed["optimizer"].map(lambda name: on_devices({"optimizer": name}, 2).get("gradient_precision", "fp32"))
    usual &= (timed["devices"] == 1) | (timed["gradient_precision"] == sent)
    return timed[usual & ~takes_words(timed)]


def takes_words(frame: pd.DataFrame) -> pd.Series:
    """Return whether the network of each row takes bags of words instead of images."""
    return frame["model"].isin([name for name, entry in MODELS.items() if entry.words > 0])


def efficiency(timed: pd.DataFrame) -> pd.DataFrame:
    """Return the speed-up of several devices over one, divided by their number: a row per setting, scaling and devices.

    `timed` is from `scaled`. A configuration without a ratio keeps the status and reason of its first run.
    """
    by = [*_SETTING, "scaling", "devices"]
    one = timed[timed["devices"] == 1]  # the base of strong scaling too
    speedup = ratio(pd.concat([timed, one.assign(scaling="strong")]), "images_per_s", over={"devices": 1}, by=by)
    ends = {end: speedup[end] / speedup["devices"].astype(float) for end in ("value", "low", "high")}
    asked = timed[timed["devices"] > 1].drop_duplicates(by)[[*by, "status", "reason"]]
    return asked.merge(speedup.assign(**ends).astype({name: asked[name].dtype for name in by}), on=by, how="left")


def runs(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the training runs to a target, with the columns `recipe`, `workers`, `reached`, `target` and `target_s`.

    `recipe` says what several workers change. A run that did not reach its target counts as all of its epochs in
    `epochs_to_target`, which is a lower bound (a restricted mean in survival analysis). `reached` says how many runs of
    the recipe reached it (`3 of 3`), and `target` is "reached" or "lower bound". `target_s` is the training time of
    `epochs_to_target`.
    """
    rows = frame[(frame["epochs"] > 0) & (frame["target_top1"] > 0)]
    rows = rows.sort_values(["devices", "updates", "learning_rate", "scaling", "schedule"], kind="stable")
    rows = rows.sort_values("updates", ascending=False, kind="stable")
    slowest = rows["learning_rate"].min()
    rows = rows.assign(
        workers=rows["devices"],
        recipe=pd.Series([_recipe(row, slowest) for row in rows.to_dict("records")], rows.index, dtype=object),
        is_there=rows["epochs_to_target"].notna(),
        epochs_to_target=rows["epochs_to_target"].fillna(rows["epochs"].where(rows["status"] == "ok")),
    )
    rows = copy_reason(rows.assign(target_s=rows["epochs_to_target"] * rows["epoch_s"]), "epoch_s", "target_s")
    of_recipe = rows[rows["status"] == "ok"].groupby("recipe", sort=False)["is_there"]
    summary = of_recipe.agg(reached=lambda there: f"{there.sum()} of {len(there)}", all_there="all").reset_index()
    summary["target"] = summary.pop("all_there").map({True: "reached", False: "lower bound"})
    return rows.drop(columns="is_there").merge(summary, on="recipe", how="left")


def _recipe(row: dict[str, Any], slowest: float) -> str:
    if row["devices"] == 1:
        return ONE
    if row["updates"] == "asynchronous":
        return STALE
    if row["scaling"] == "strong":
        return TOTAL
    if row["learning_rate"] == slowest:
        return EACH
    warm_up = ", warm-up" if row["schedule"] == "warm_up" else ""
    return f"learning rate x{row['learning_rate'] / slowest:g}{warm_up}"


def over_one(found: pd.DataFrame) -> pd.DataFrame:
    """Return epochs to the target over those of one worker, per `recipe`; `bound` is "at least ", "at most " or "".

    `found` is from `runs`. If neither side reached the target in all its runs, the ratio says nothing and is left out.
    """
    ratios = ratio(found, "epochs_to_target", over={"recipe": ONE}, by=["recipe"])
    short = set(found.loc[found["target"] == "lower bound", "recipe"])
    bound = ratios["recipe"].map(lambda recipe: "at least " if recipe in short else "at most " if ONE in short else "")
    return ratios.assign(bound=bound)[~(ratios["recipe"].isin(short) & (ONE in short))]


def more_epochs(ratios: pd.DataFrame, recipe: str) -> str:
    """Return the ratio of a recipe in `over_one` for a sentence: `about 2.2 times`, `at least 6.45 times`."""
    bound = ratios.loc[ratios["recipe"] == recipe, "bound"].sum() if len(ratios) else ""
    text = times(ratios, recipe=recipe)
    return bound + text.removeprefix("about ") if bound else text


def jobs(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the trainings that ran as two concurrent jobs, as two sequential jobs and alone, with the column `on`."""
    timed = frame[(frame["workload"] == "train") & (frame["epochs"] == 0) & (frame["scaling"] == "weak")]
    timed = timed[(timed["interconnect"] == "direct") & (timed["gradient_precision"] == "fp32")]
    return placed(timed.merge(timed[timed["arrangement"] == "at_once"][[*_SETTING, "devices"]].drop_duplicates()))


def messages(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the trials that only send, smallest first: `message`, `way`, `bytes` as text, and the rate on the wire.

    In an all-reduce over a ring of n devices, each sends 2 (n - 1) / n of the data (busbw in nccl-tests).
    """
    sent = ways(placed(frame[frame["workload"].isin(MESSAGES)].sort_values("size", kind="stable")))
    ring = (2 * (sent["devices"] - 1) / sent["devices"]).where(sent["workload"] == "all_reduce", 1.0)
    return sent.assign(
        message=phrases(sent, ["workload"]),
        bytes=sent["size"].map(_size),
        bytes_per_s=sent["bytes_per_s"] * ring,
    )


def exchanging(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the timed trainings of one job on the most devices, by every `way` between them and gradient precision."""
    timed = frame[(frame["workload"] == "train") & (frame["epochs"] == 0) & (frame["arrangement"] == "alone")]
    timed = timed.assign(image_px=timed["image_px"].mask(takes_words(timed)))
    return ways(timed[(timed["devices"] > 1) & (timed["devices"] == timed["devices"].max())])


def needed(timed: pd.DataFrame, must: pd.DataFrame) -> pd.DataFrame:
    """Return the bytes/s that each GPU must send for its exchange to take no longer than a step of one GPU, as `value`.

    `timed` is from `scaled`. `must` holds the bytes that a GPU must send per step, by `record`. A link that carries
    fewer bytes/s slows the step, even if the whole exchange runs beside the computation.
    """
    alone = timed[timed["devices"] == 1].groupby(_SETTING)["step_s"].mean().rename("alone_s").reset_index()
    sent = timed[(timed["devices"] > 1) & (timed["scaling"] == "weak")].merge(alone, on=_SETTING)
    sent = sent[sent["devices"] == sent["devices"].max()].merge(must[["record", "value"]], on="record")
    by_setting = sent.assign(value=sent["value"] / sent["alone_s"]).groupby(_SETTING, sort=False)
    return by_setting["value"].mean().reset_index()


def carried(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rate at which each GPU sends the largest all-reduce, as `value`, with the way as `label`."""
    reduced = messages(frame[(frame["workload"] == "all_reduce") & (frame["status"] == "ok")])
    largest = reduced[reduced["size"] == reduced["size"].max()]
    rates = largest.groupby("way", sort=False)["bytes_per_s"].mean()
    return rates.rename_axis("label").rename("value").reset_index()


def nominal(lab: Planner) -> pd.DataFrame:
    """Return the nominal rate of a device's links to the others of its host, as `value`; no row if it is unknown."""
    link = lab.profile.peaks.link_bytes_per_s
    return pd.DataFrame({"label": ["nominal"], "value": [link.value]} if link else {"label": [], "value": []})


def ways(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with a column `way`, the connection between the devices; processes on a CPU use sockets."""
    names = [
        label("network", network) if nodes > 1 else label("interconnect", way if device == "cuda" else "sockets")
        for device, nodes, way, network in frame[["device", "nodes", "interconnect", "network"]].itertuples(index=False)
    ]
    return frame.assign(way=pd.Series(names, index=frame.index, dtype=object))


def _size(count: int) -> str:
    power = next(power for power in _SIZES if count >= 2**power or not power)
    return f"{count / 2**power:.4g} {_SIZES[power]}"
