"""torchvision's own weights as files: `<model>-<8 hex>.pth`, a plain state dict as its model pages offer it.

The hexadecimal digits are the first of the file's SHA-256, so the name reveals a damaged or renamed file. The weights
are for ImageNet at 224 pixels, and torchvision says which images they want. Weights for other images than
`labkit.data.ilsvrc2012` makes are refused, rather than scored below what they can do.
"""

from __future__ import annotations

import hashlib
import pickle
import re
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from labkit.data import Levels
from labkit.data.content import what_is
from labkit.data.ilsvrc2012 import EDGE_PX, RESIZED_PX
from labkit.errors import LabkitError, UserError
from labkit.models import MODELS, build
from labkit.torchvision_import import import_torchvision

PATTERN = "<model>-<8 hexadecimal digits>.pth"
# AlexNet's file is called alexnet-owt-…, for "one weird trick" (Krizhevsky 2014).
_NAME = re.compile(r"(?P<model>[a-z0-9_]+?)(-owt)?-(?P<sha256>[0-9a-f]{8})\.pth")

# Mean and standard deviation, in units of 0..255, where they are not those of torchvision's other weights. GoogLeNet's
# weights were trained by others on images of -1 to 1. torchvision undoes its usual normalisation inside the network
# (`transform_input`); without the detour, the result is exactly this normalisation.
ANOTHER_NORMALISATION: dict[str, tuple[Levels, Levels]] = {"googlenet": ((127.5, 127.5, 127.5), (127.5, 127.5, 127.5))}
_AUXILIARY = {"googlenet": ("aux1.", "aux2.")}  # heads that exist in training only
_COUNTER = ".num_batches_tracked"  # of batch norm; older files lack it, and predicting does not read it
_KINDS = ("a file of torch.save", "a zip archive without its end")  # the last is cut short
_WRAPPED = "module."  # DataParallel puts it before each name
_SAVE_ANEW = "save the plain state dict by torch.save as <model>-<first 8 digits of the file's SHA-256>.pth"
_SHOWN = 3  # names in a message, at most


def model_of(name: str) -> str | None:
    """Return the model that a file's name begins with; None for a name of another form."""
    match = _NAME.fullmatch(name)
    return match["model"] if match else None


def find_file(model: str, folder: Path) -> Path | None:
    """Return the file of a model in a folder, or None. Raise UserError as `check_names`."""
    files = [path for path in folder.glob(f"{model}-*.pth") if model_of(path.name) == model and path.is_file()]
    chosen = check_names(path.name for path in files)
    return folder / chosen[model] if files else None


def check_names(names: Iterable[str]) -> dict[str, str]:
    """Return the file of each model: of several, the published one of weights V1, which alone fit the images here.

    Raise UserError for several files of one model without that one, since either could be meant.
    """
    of_model: dict[str, list[str]] = {}
    for name in sorted(names):
        if model := model_of(name):
            of_model.setdefault(model, []).append(name)
    for model, files in of_model.items():
        if len(files) > 1 and model in MODELS:
            published = published_name(model) if model in import_torchvision().models.list_models() else ""
            if published not in files:
                raise UserError(f"WEIGHTS= holds {' and '.join(files)}, and one file of {model} is wanted: keep one.")
            of_model[model] = [published]
    return {model: files[0] for model, files in of_model.items()}


def check_file(path: Path) -> None:
    """Raise UserError for a file that does not hold its model's weights, by their names and shapes alone.

    The values, which may take seconds to read, are checked by `read_state`.
    """
    model = model_of(path.name) or ""
    try:
        with reading(path, "fetch it again"):
            _state(path, model, _content(path), classes=1000)
    except LabkitError as error:
        raise UserError(str(error)) from error


def published_name(model: str) -> str:
    """Return torchvision's name for its file of a model (weights IMAGENET1K_V1)."""
    weights = import_torchvision().models.get_model_weights(model).IMAGENET1K_V1
    return str(weights.url).rsplit("/", 1)[-1]


def read_state(path: Path, model: str, *, classes: int) -> tuple[dict[str, Any], str]:
    """Return the state in a file (FP32 tensors by the model's names, on the host) and the file's SHA-256.

    Auxiliary heads are left out. Nothing in the file is executed. Raise LabkitError for a file that is damaged, holds
    another network or no weights, or is for other images than this workbook's.
    """
    _check_images(path, model)
    with reading(path, "fetch it again"):
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        if not sha256.startswith(path.stem.rsplit("-", 1)[-1]):
            raise LabkitError(
                f"{path} is damaged or renamed: the digits in its name are not the first of its SHA-256, {sha256[:8]}. "
                "Fetch it again."
            )
        content = _content(path)
    state = _state(path, model, content, classes=classes)
    exact = {name: value.float() if value.is_floating_point() else value for name, value in state.items()}
    return exact, sha256


def _content(path: Path) -> Any:
    """Return what a file of torch.save holds; its tensors are read once they are used."""
    import torch

    return torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))


def _state(path: Path, model: str, content: Any, *, classes: int) -> dict[str, Any]:
    """Return the tensors of a model from a file's content, by the model's names. Raise LabkitError for others."""
    import torch

    if not isinstance(content, dict):
        raise LabkitError(f"{path} holds a {type(content).__name__}, where a state dict of {model} is wanted.")
    if nested := next((str(name) for name, value in content.items() if isinstance(value, dict)), ""):
        raise LabkitError(
            f"{path} holds a training's checkpoint with the weights of {model} under {nested!r}: {_SAVE_ANEW}."
        )
    if content and all(str(name).startswith(_WRAPPED) for name in content):
        raise LabkitError(f"{path} has weights whose names begin with `{_WRAPPED}`: without it, {_SAVE_ANEW}.")
    with torch.device("meta"):
        expected = build(model, image_px=EDGE_PX, classes=classes).state_dict()
    auxiliary = _AUXILIARY.get(model, ())
    state = {name: value for name, value in content.items() if not (auxiliary and str(name).startswith(auxiliary))}
    for name in expected:
        if name.endswith(_COUNTER):
            state.setdefault(name, torch.zeros_like(expected[name], device="cpu"))
    _check_state(path, model, state, expected)
    return {name: state[name].detach() for name in expected}


@contextmanager
def reading(path: Path, instead: str) -> Iterator[None]:
    """Raise LabkitError, with what to do instead, if a file cannot be read as weights within this context."""
    if path.is_file() and not (kind := what_is(path)).startswith(_KINDS):
        raise LabkitError(f"{path} is {kind}, and no file of weights; nothing of it was executed.")
    try:
        yield
    except pickle.UnpicklingError as error:
        raise LabkitError(f"{path} holds something else than weights; nothing of it was executed.") from error
    except LabkitError:
        raise
    except Exception as error:  # torch raises nearly anything for a damaged file
        cause = (str(error).splitlines() or [type(error).__name__])[0][:120]
        raise LabkitError(f"{path} can't be read as weights ({cause}); {instead}.") from error


def _check_state(path: Path, model: str, state: dict[str, Any], expected: dict[str, Any]) -> None:
    shapes = {name: getattr(value, "shape", None) for name, value in state.items()}
    problems = {
        "it lacks": [name for name in expected if name not in shapes],
        "it has": [name for name in shapes if name not in expected],
        "of another shape are": [n for n, tensor in expected.items() if n in shapes and shapes[n] != tensor.shape],
    }
    wrong = [
        f"{what} {', '.join(map(str, names[:_SHOWN]))}{' and more' if len(names) > _SHOWN else ''}"
        for what, names in problems.items()
        if names
    ]
    if wrong:
        raise LabkitError(f"{path} does not hold the weights of torchvision's {model}: {'; '.join(wrong)}.")


def _check_images(path: Path, model: str) -> None:
    """Raise LabkitError for weights that torchvision lists with other images than the workbook makes."""
    for weights in import_torchvision().models.get_model_weights(model):
        images = weights.transforms()
        wanted = (images.resize_size, images.crop_size, images.interpolation.value)
        if weights.url.rsplit("/", 1)[-1] == path.name and wanted != ([RESIZED_PX], [EDGE_PX], "bilinear"):
            raise LabkitError(
                f"{path.name} ({weights.name}) is for images of {images.resize_size[0]} px cut to "
                f"{images.crop_size[0]} px, and here they are of {RESIZED_PX} px cut to {EDGE_PX} px: give "
                f"{published_name(model)} instead."
            )
