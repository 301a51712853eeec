"""Trained weights as files: `<model>-<px>px-<hash>.pt`, one for each network, training set and way of training.

They lie in the user's folder (WEIGHTS=), so that a CPU can score what a GPU has trained, or in the
cache. The hash is of everything that the weights follow from, so a file with the right name is the right file. Its
content is checked against the SHA-256 that it was written with.

For ImageNet's own validation images nothing is trained: the networks take torchvision's files from the same folder
(`torchvision_files`).
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from labkit.data import ILSVRC2012, DataSet, Levels, cache_dir
from labkit.errors import LabkitError, UserError
from labkit.files import rewriting, users_path
from labkit.models.catalogue import MODELS
from workbook.engines import torchvision_files
from workbook.trials.trial import Trial

RECIPE_VERSION = 1  # raised with any change to how weights are trained
FORMAT = 1
_NAME = re.compile(r"(?P<model>[a-z0-9_]+)-\d+px-[0-9a-f]{16}\.pt")


@dataclass(frozen=True)
class Weights:
    """A network's state (FP32 tensors by name, on the host), its SHA-256, and facts on its training.

    `normalisation` is the mean and standard deviation that the network expects if they are not the data's.
    """

    state: dict[str, Any]
    sha256: str
    facts: dict[str, Any]
    normalisation: tuple[Levels, Levels] | None = None

    def normalise(self, data: DataSet) -> DataSet:
        """Return the data with the normalisation that the network expects."""
        mean, std = self.normalisation or (data.mean, data.std)
        return replace(data, mean=mean, std=std)


def _in_cache() -> Path:
    return cache_dir() / "weights"


def check_folder(given: str) -> Path:
    """Return the absolute path of the folder that WEIGHTS= names.

    Raise UserError if it is no readable folder, holds no weights, holds two files of torchvision's for one model that
    may both be meant, or a file of torchvision's name that does not hold its model's weights.
    """
    folder = users_path(given)
    wanted = (
        "files called <model>-<px>px-<16 hexadecimal digits>.pt, as a GPU's report leaves them in its cache, or "
        f"torchvision's own, {torchvision_files.PATTERN}"
    )
    try:
        if not folder.is_dir():
            raise UserError(f"WEIGHTS={given} is not a folder; name one that holds {wanted}.")
        names = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        raise UserError(f"WEIGHTS={given} can't be read: {error}. Name a folder that you can read.") from error
    if not any(is_name(name) for name in names):
        there = f"; there is {', '.join(names[:5])}{' and more' if len(names) > 5 else ''}" if names else ""
        raise UserError(f"WEIGHTS={given} holds no weights: wanted are {wanted}{there}.")
    for model, name in torchvision_files.check_names(names).items():
        if model in MODELS:
            torchvision_files.check_file(folder / name)
    return folder.absolute()


def is_name(name: str) -> bool:
    """Return whether a file of this name could hold weights: its model must be in the catalogue."""
    match = _NAME.fullmatch(name)
    return (match["model"] if match else torchvision_files.model_of(name)) in MODELS


def file_name(trial: Trial) -> str:
    """Return the name of a trial's weights file, by the network, the training set and the way of training."""
    names = ("model", "image_px", "classes", "head", "data", "data_checksum", "seed")
    identity = {name: getattr(trial, name) for name in names} | {"recipe": RECIPE_VERSION}
    identity["stem"] = "imagenet"  # a former field, which is part of the names of files that exist
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    return f"{trial.model}-{trial.image_px}px-{digest[:16]}.pt"


def find_weights(trial: Trial, folder: Path | None = None) -> Path | None:
    """Return the file with a trial's weights in a folder (by default the cache's), or None.

    Raise UserError if two of torchvision's files fit.
    """
    folder = folder or _in_cache()
    if of_torchvision(trial):
        return torchvision_files.find_file(trial.model, folder)
    path = folder / file_name(trial)
    return path if path.is_file() else None


def of_torchvision(trial: Trial) -> bool:
    """Return whether a trial's weights are torchvision's: labkit trains none for ImageNet's own images."""
    return trial.data == ILSVRC2012


def can_train(trial: Trial) -> bool:
    """Return whether the trial's device trains the weights itself; on a CPU this would take hours."""
    return trial.device == "cuda" and not of_torchvision(trial)


def why_none(trial: Trial) -> str:
    """Return that the trial has no weights, and what to do, as a sentence without a full stop."""
    none = f"no trained weights for {trial.model} at {trial.image_px} px on {trial.data}"
    if of_torchvision(trial):
        name = torchvision_files.published_name(trial.model)
        return f"{none}: give a folder with WEIGHTS=… that holds torchvision's {name}"
    return f"{none}: a GPU trains them, or give a folder with WEIGHTS=… that holds {file_name(trial)}"


def state_sha256(state: dict[str, Any]) -> str:
    """Return the SHA-256 over names, types, shapes and values, independent of their order and file."""
    digest = hashlib.sha256()
    for name in sorted(state):
        values = state[name].detach().cpu().contiguous().numpy()
        digest.update(f"{name} {values.dtype} {values.shape}\n".encode())
        digest.update(values.tobytes())
    return digest.hexdigest()


def write_weights(trial: Trial, state: dict[str, Any], facts: dict[str, Any], folder: Path | None = None) -> Path:
    """Write a trial's weights into a folder, by default the cache's, and return the file.

    The file appears whole or not at all. Raise UserError on failure.
    """
    import torch

    path = (folder or _in_cache()) / file_name(trial)
    content = {"format": FORMAT, "sha256": state_sha256(state), "facts": facts, "state": state}
    try:
        with rewriting(path) as file:
            torch.save(content, file)
    except OSError as error:
        raise UserError(
            f"trained weights can't be written to {path.parent} ({error}); set LABKIT_CACHE or WEIGHTS= to a folder "
            "with room for them."
        ) from error
    return path


def read_weights(path: Path) -> Weights:
    """Return the weights in a file, of which nothing is executed. Raise LabkitError if it is damaged or no weights."""
    import torch

    with torchvision_files.reading(path, "remove it"):
        content = torch.load(path, map_location="cpu", weights_only=True)
        state, sha256, facts = content["state"], str(content["sha256"]), dict(content["facts"])
        whole = content["format"] == FORMAT and state_sha256(state) == sha256
    if not whole:
        raise LabkitError(f"{path} is damaged: its weights are not those it was written with. Remove it.")
    return Weights(state, sha256, facts)


def read_torchvision(trial: Trial, path: Path) -> Weights:
    """Return torchvision's weights of a trial's network; LabkitError as from `torchvision_files.read_state`."""
    state, file_sha256 = torchvision_files.read_state(path, trial.model, classes=trial.classes)
    facts: dict[str, Any] = {"file": path.name, "file_sha256": file_sha256}
    normalisation = torchvision_files.ANOTHER_NORMALISATION.get(trial.model)
    if normalisation:
        facts["normalisation"] = dict(zip(("mean", "std"), map(list, normalisation), strict=True))
    return Weights(state, state_sha256(state), facts, normalisation)
