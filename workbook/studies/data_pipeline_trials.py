"""The trials of the study of data pipelines, from the sizes of its sweep: one function per question.

A loader is a pair of words in the sweep: a reader, and the form of the files that it reads (`torch_pil jpeg`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from workbook.studies.planner import Planner
from workbook.trials import recipes
from workbook.trials.trial import Trial

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
