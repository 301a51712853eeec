"""The trial grids of the study of several GPUs, from the sizes of its sweep: one function per question."""

from __future__ import annotations

from typing import Any

from labkit.errors import UserError
from labkit.models import MODELS
from workbook.studies.planner import Planner
from workbook.trials import recipes
from workbook.trials.trial import NO_DATA, WORDS, Trial

MOST_WORKERS = 16  # each worker is a process with its own context on the device


def scaling(lab: Planner) -> list[Trial]:
    """Return trials of every engine on every number of devices: batch per device held, and total held if divisible."""
    trials: list[Trial] = []
    for n in lab.device_counts:
        shared = n > 1 and lab.sweep["scaled_batch"] % n == 0
        for recipe in _by_engines(lab, "engines", n):
            trials += _small(lab, lab.sweep["scaled"], **recipe)
            trials += _small(lab, lab.sweep["strong"], scaling="strong", **recipe) if shared else []
        for recipe in _by_engines(lab, "large_engines", n):
            trials += _large(lab, lab.sweep["large"], **recipe)
        trials += _large(lab, _on_several(lab), **recipes.on_devices(_plain(lab), n))
    return trials


def runs(lab: Planner) -> list[Trial]:
    """Return training runs to an accuracy that is fixed in advance, on one device and on all.

    A single device is shared by the profile's number of workers: the place of workers does not affect their learning.
    Workers on one device take turns, so they have data and epochs of their own.
    """
    sweep, most = lab.sweep, _most(lab)
    if most > 1:
        about = {name: sweep[name] for name in ("epochs", "target_top1")}
        return _runs(lab, most, **about, data=sweep["run_data"])
    if (workers := _sharing(lab)) == 1:
        return []
    about = {name: sweep[f"learners_{name}"] for name in ("epochs", "target_top1", "data")}
    return _runs(lab, workers, placement="together", **about)


def _runs(lab: Planner, several: int, *, placement: str = "apart", **about: Any) -> list[Trial]:
    """Return runs on one device, and on several devices with every recipe that fits them."""
    sweep = lab.sweep
    about |= {name: sweep[f"run_{name}"] for name in ("model", "batch")} | _each(lab)
    names = [name for name in sweep["runs"] if name != "same batch" or sweep["run_batch"] % several == 0]
    if not names:
        return []
    alone = lab.trials(**about, learning_rate=sweep["learning_rate"])
    on_several = [
        lab.trials(**about, **recipe, placement=placement)
        for recipe in recipes.runs_on(several, sweep["learning_rate"], names)
    ]
    return [*alone, *(trial for trials in on_several for trial in trials)]


def _sharing(lab: Planner) -> int:
    """Return how many workers share one device, 1 for no sharing. Raise UserError for an invalid number."""
    asked, batch = lab.sweep["learners"], lab.sweep["run_batch"]
    is_count = isinstance(asked, int) and not isinstance(asked, bool) and 1 <= asked <= MOST_WORKERS
    if not is_count or batch % asked:
        raise UserError(
            f"learners is {asked!r} in the sweep of 03_multi_gpu in the profile {lab.profile.name!r}; it is how many "
            f"processes share the one device for training runs: a whole number from 1 (none) to {MOST_WORKERS} that "
            f"divides run_batch ({batch})."
        )
    return int(asked)


def jobs(lab: Planner) -> list[Trial]:
    """Return two concurrent jobs, two sequential jobs and one job: on all devices if they are even, and on one.

    A CPU has no jobs on one device: its processes share the CPU, whatever their number of devices.
    """
    most = _most(lab)
    on = [1] if lab.profile.device.kind == "cuda" else []
    on += [most] if most > 1 and most % 2 == 0 else []
    about: dict[str, Any] = {"arrangement": list(WORDS["arrangement"]), "devices": on, **_each(lab)}
    sweep = lab.sweep
    images = lab.trials(model=sweep["paired"], batch=sweep["paired_batch"], **_plain(lab), **about)
    return images + lab.trials(model=sweep["paired_words"], batch=sweep["words_batch"], data="reuters", **about)


def links(lab: Planner) -> list[Trial]:
    """Return messages and trainings on all devices by every interconnect, and in lower precisions on all and on one."""
    sweep, most = lab.sweep, _most(lab)
    if most == 1:
        return []
    # Processes on a CPU have only one interconnect.
    interconnects = WORDS["interconnect"][: None if lab.profile.device.kind == "cuda" else 1]
    ways = {"devices": most, "interconnect": interconnects}
    grid = lab.trials(workload=["all_reduce", "peer_copy"], size=sweep["message_bytes"], data=NO_DATA, **ways)
    grid += _small(lab, sweep["sent"], **_plain(lab), **ways) + _large(lab, sweep["sent_large"], **_plain(lab), **ways)
    for n in (1, most):
        gradients = {"gradient_precision": sweep["gradients"] if n > 1 else "fp32"}
        for precision in sweep["sent_precisions"]:
            narrow = {**recipes.in_precision("eager", precision), "devices": n, **gradients}
            grid += _small(lab, sweep["sent"][:1], **narrow) + _large(lab, sweep["sent_large"], **narrow)
    return grid


def over_nodes(lab: Planner) -> list[Trial]:
    """Return scaling and message trials on all devices of each number of nodes; [] unless the job has several nodes."""
    trials: list[Trial] = []
    for nodes in range(2, lab.nodes + 1):
        n = nodes * _most(lab)
        for recipe in _by_engines(lab, "engines", n):
            trials += _small(lab, lab.sweep["scaled"], nodes=nodes, **recipe)
        over = {"devices": n, "nodes": nodes}
        networks = ["any", "ethernet", "infiniband"]
        models = [*lab.sweep["large"], *_on_several(lab)]
        trials += _large(lab, models, network=networks, **_plain(lab), **over)
        trials += lab.trials(workload="all_reduce", size=lab.sweep["message_bytes"], data=NO_DATA, **over)
    return trials


def _most(lab: Planner) -> int:
    return lab.device_counts[-1]


def _on_several(lab: Planner) -> list[str]:
    """Return the networks at native size that only machines with several devices train."""
    return list(lab.sweep["large_on_several"]) if _most(lab) > 1 else []


def _each(lab: Planner) -> dict[str, int]:
    return {"threads": lab.threads_of_each}


def _plain(lab: Planner) -> recipes.Recipe:
    return recipes.recipes(lab.profile.device.kind)["plain"]


def _by_engines(lab: Planner, names: str, devices: int) -> list[recipes.Recipe]:
    by_name = recipes.recipes(lab.profile.device.kind)
    return [recipes.on_devices(by_name[name], devices) for name in lab.sweep[names]]


def _small(lab: Planner, models: list[str], **about: Any) -> list[Trial]:
    return lab.trials(model=models, batch=lab.sweep["scaled_batch"], **_each(lab), **about)


def _large(lab: Planner, models: list[str], **about: Any) -> list[Trial]:
    """Return trials with images of each network's native size."""
    sizes = {"batch": lab.sweep["large_batch"], **_each(lab), **about}
    return [trial for model in models for trial in lab.trials(model=model, image_px=MODELS[model].native_px, **sizes)]
