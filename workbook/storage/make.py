"""Make the forms of a stored set: from images that the project draws, or from a user's folder of JPEG files.

A form that was interrupted is continued: packed files and JPEG files that are whole stay. The form of decoded pixels is
made anew. One process at a time makes the forms of a folder, and others that ask for them wait.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from labkit.data.cache import cache_dir, writing
from labkit.data.random_bits import check_seed, permutation
from labkit.errors import LabkitError, UserError, one_of
from labkit.files import replacing, users_path
from workbook.hardware.limits import usable_threads
from workbook.lifetime import end_with_parent
from workbook.storage import images as drawn
from workbook.storage.forms import (
    FORMS,
    INDEX,
    Index,
    Sample,
    StoredSet,
    changed_files,
    changed_ns,
    checksum_of,
    open_stored,
    read_index,
    scan,
    write_index,
)
from workbook.storage.pack import EDGE_PX, IMAGES_FILE, LABELS_FILE, pack_file, why_not_made, write_cache
from workbook.storage.page_cache import file_system

BYTES_PER_PROCESS = 32_000_000  # a process takes a second to start, and drawing this many bytes takes two


def in_processes(function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], *, work_bytes: int) -> Iterator[Any]:
    """Yield the results of `function` for each task as they come, from several processes if there is enough work."""
    processes = min(usable_threads(), len(tasks), 1 + work_bytes // BYTES_PER_PROCESS)
    if processes < 2:
        yield from (function(*task) for task in tasks)
        return
    # This process may have threads and a GPU, which a forked process can't use.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context, initializer=end_with_parent) as pool:
        futures: list[Future[Any]] = [pool.submit(function, *task) for task in tasks]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)


Progress = Callable[[str, int, int], None]  # form, images done, images in all

PACK_VERSION = 1  # raise it with any change to what the packed forms hold
FILE_BYTES = 100_000_000  # of a packed file
FEWEST_FILES = 16  # of a packed form, so that as many workers of a reader have a file each
FILE_NAMES = {
    "shards": "{0:06d}.tar",
    "tfrecord": "train-{0:05d}-of-{1:05d}",
}

_BEGUN = "begun.json"  # what a form is made of, written first: half-written files of something else are of no use
_AT_ONCE = 64  # images that a process draws before it reports


def make_set(
    folder: str | Path,
    *,
    images: int,
    classes: int,
    seed: int = 0,
    forms: Sequence[str] = FORMS,
    progress: Progress | None = None,
) -> dict[str, StoredSet]:
    """Return the asked forms of a set of drawn images in `folder`. Make those that are not whole, the JPEG files first.

    Raise UserError for counts, a seed or a form that are not valid, if the folder holds another set, and if it has no
    room or can't be written.
    """
    check_seed("a stored set", seed)
    if images < 1 or not 1 <= classes <= images:
        raise UserError(f"{images} images of {classes} classes were asked for; each class needs an image.")
    of = {"version": drawn.VERSION, "images": images, "classes": classes, "seed": seed}
    here = users_path(folder).absolute()
    with _making(here, forms):
        _require_same(here, of)
        jpegs = _whole(here, "jpeg")
        _check_possible(here, forms, jpegs, images)
        if not jpegs:
            _begin(here, "jpeg", of)
            jpegs = _draw_all(here, images=images, classes=classes, seed=seed, progress=progress)
        return _pack_all(here, jpegs, forms, progress)


def make_from_folder(
    source: str | Path,
    *,
    images: int | None = None,
    folder: str | Path | None = None,
    forms: Sequence[str] = FORMS,
    progress: Progress | None = None,
) -> dict[str, StoredSet]:
    """Return the asked forms of a user's images, `source`/train/<class>/*.JPEG, which are used as they stand.

    With `images`, so many of them are taken, evenly over the sorted files; all if there are fewer. The index and the
    other forms lie in `folder`, by default in the project's cache. Nothing is written to `source`.
    Raise DataError for a folder of another layout, and the errors of `make_set`.
    """
    root = users_path(source).resolve()
    here = users_path(folder).absolute() if folder else cache_folder(root, images)
    of: dict[str, Any] = {"root": str(root)} | ({"images": images} if images else {})
    if here.is_relative_to(root):
        raise UserError(f"{here} is in the images' own folder, which is not written to; name another folder.")
    with _making(here, forms):
        _require_same(here, of)
        jpegs = _whole(here, "jpeg")
        if not jpegs:
            _begin(here, "jpeg", of)
            write_index(here, scan(root, images))
            jpegs = open_stored(here, "jpeg")
        _check_possible(here, forms, jpegs, jpegs.images)
        return _pack_all(here, jpegs, forms, progress)


def cache_folder(source: Path, images: int | None = None) -> Path:
    """Return the folder in the project's cache for the forms made from a user's folder, or from `images` of it."""
    name = f"stored-{source.name}-{hashlib.sha256(str(source).encode()).hexdigest()[:12]}"
    return cache_dir() / (f"{name}-{images}" if images else name)


def _require_same(folder: Path, of: dict[str, Any]) -> None:
    """Raise UserError if a folder holds the JPEG files of another set."""
    if (begun := _read_json(folder / "jpeg" / _BEGUN)) not in (None, of):
        raise UserError(f"{folder} holds the set {begun}, and {of} was asked for; remove it or name another folder.")


def _read_json(file: Path) -> Any:
    try:
        return json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None


@contextmanager
def _making(folder: Path, forms: Sequence[str]) -> Iterator[None]:
    """Hold the lock of a folder. Raise UserError for an unknown form, and for an error of writing within the block."""
    for form in forms:
        one_of("form", form, FORMS)
    try:
        with writing(folder):
            yield
    except BrokenProcessPool as error:
        raise LabkitError(
            f"a process that wrote {folder} was killed, perhaps for memory; make the set again (whole files stay)."
        ) from error


def _gb(count: float) -> str:
    return f"{count / 1e9:.3g}"


def _whole(folder: Path, form: str) -> StoredSet | None:
    try:
        return open_stored(folder, form)
    except UserError:
        return None  # missing, half-written or damaged


def _check_possible(folder: Path, forms: Sequence[str], jpegs: StoredSet | None, images: int) -> None:
    """Raise UserError if a form that is not whole can't be made here, or if there is no room for all of them.

    Files of theirs that are there need no more room.
    """
    of_jpegs = jpegs.file_bytes if jpegs else images * drawn.MEAN_FILE_BYTES * 1.05  # the last block of each file
    missing = [form for form in FORMS if (form in forms or form == "jpeg") and not _current(folder, form, jpegs)]
    for reason in filter(None, map(why_not_made, missing)):
        raise UserError(f"{reason}, or ask for other forms.")
    needed = sum(images * 3 * EDGE_PX**2 if form == "cache" else of_jpegs * 1.02 for form in missing)
    there = (path for form in missing if form != "cache" for path in (folder / form).rglob("*"))
    needed -= sum(path.stat().st_size for path in there if path.is_file())
    if needed > (free := shutil.disk_usage(folder).free):
        raise UserError(
            f"the set in {folder} needs {_gb(needed)} GB more, and {_gb(free)} GB are free on {file_system(folder)}; "
            f"free some, set LABKIT_CACHE to a folder with room, or ask for fewer forms than {', '.join(missing)}."
        )


def _current(folder: Path, form: str, jpegs: StoredSet | None) -> StoredSet | None:
    """Return a form if it is whole and of these JPEG files."""
    stored = _whole(folder, form)
    return stored if stored and jpegs and stored.checksum == jpegs.checksum else None


def _begin(folder: Path, form: str, of: dict[str, Any]) -> None:
    """Make a form's folder ready to be continued. Remove files that are not of the same set, and those cut short.

    Raise UserError for a folder that was not begun here: its files are somebody's.
    """
    home = folder / form
    if home.exists() and not (home / _BEGUN).exists() and any(home.iterdir()):
        raise UserError(f"{home} holds other files than a stored set; name a folder without it.")
    if form != "jpeg" and (home / INDEX).exists():
        try:
            for file in changed_files(home, read_index(folder, form).files):
                file.unlink(missing_ok=True)
        except UserError:
            shutil.rmtree(home)  # without the sizes in the index, a file cut short can't be told from a whole one
    if home.exists() and _read_json(home / _BEGUN) != of:
        shutil.rmtree(home)
    home.mkdir(exist_ok=True)
    (home / INDEX).unlink(missing_ok=True)
    for leftover in home.glob(".*"):  # of a process that was killed
        leftover.unlink()
    with replacing(home / _BEGUN) as new:
        new.write_text(json.dumps(of), encoding="utf-8")


def _draw_all(folder: Path, *, images: int, classes: int, seed: int, progress: Progress | None) -> StoredSet:
    root = folder / "jpeg"
    folders = ["train", *(str(Path(_path(label, classes)).parent) for label in range(classes))]
    for name in folders:
        (root / name).mkdir(exist_ok=True)
    sizes: dict[int, int] = {}
    tasks = [(root, classes, seed, start, min(start + _AT_ONCE, images)) for start in range(0, images, _AT_ONCE)]
    for part in in_processes(_draw_some, tasks, work_bytes=images * drawn.MEAN_FILE_BYTES):
        sizes |= part
        _report(progress, "jpeg", len(sizes), images)
    samples = [Sample(_path(i, classes), drawn.label_of(i, classes), sizes[i]) for i in range(images)]
    index = Index(form="jpeg", classes=classes, images=images, checksum=checksum_of(samples), samples=samples)
    write_index(folder, index.model_copy(update={"changed_ns": changed_ns(root, folders)}))
    return open_stored(folder, "jpeg")


def _path(index: int, classes: int) -> str:
    """Return the path of an image. No class is named like ImageNet's (n and eight digits), whose labels differ."""
    name = f"c{drawn.label_of(index, classes):04d}"
    return f"train/{name}/{name}_{index}.JPEG"


def _draw_some(root: Path, classes: int, seed: int, start: int, stop: int) -> dict[int, int]:
    """Write the files of images `start` .. `stop` - 1 that are not there whole, and return all their sizes."""
    sizes = {}
    for index in range(start, stop):
        path = root / _path(index, classes)
        if not _is_whole_jpeg(path):
            try:
                path.write_bytes(drawn.jpeg(seed, index))
            except OSError:
                path.unlink(missing_ok=True)
                raise
        sizes[index] = path.stat().st_size
    return sizes


def _is_whole_jpeg(path: Path) -> bool:
    """Return whether a file begins and ends as a JPEG file does: one that was cut short ends otherwise."""
    try:
        with path.open("rb") as file:
            begins = file.read(2) == b"\xff\xd8"
            file.seek(-2, os.SEEK_END)
            return begins and file.read(2) == b"\xff\xd9"
    except OSError:
        return False


def _pack_all(folder: Path, jpegs: StoredSet, forms: Sequence[str], progress: Progress | None) -> dict[str, StoredSet]:
    """Return the asked forms. Make those that are not whole, or of other JPEG files."""
    order = permutation(jpegs.images, key=(0, PACK_VERSION))
    samples = [jpegs.samples[i] for i in order]
    made = {"jpeg": jpegs}
    for form in (each for each in FORMS if each in forms and each != "jpeg"):
        if not _current(folder, form, jpegs):
            _begin(folder, form, {"version": PACK_VERSION, "checksum": jpegs.checksum})
            of_set = Index(form=form, classes=jpegs.classes, images=jpegs.images, checksum=jpegs.checksum)
            pack = _decode if form == "cache" else _pack
            write_index(folder, pack(folder / form, jpegs, samples, of_set, progress))
        made[form] = open_stored(folder, form)
    return {form: made[form] for form in forms}


def _pack(home: Path, jpegs: StoredSet, samples: list[Sample], of_set: Index, progress: Progress | None) -> Index:
    """Write the files of a packed form, in several processes, and return its index."""
    count = max(-(-jpegs.file_bytes // FILE_BYTES), min(FEWEST_FILES, len(samples)))
    bounds = np.linspace(0, len(samples), count + 1).astype(int).tolist()
    names = [FILE_NAMES[of_set.form].format(number, count) for number in range(count)]
    tasks = [
        (jpegs.folder, home / name, of_set.form, samples[first:stop], first)
        for name, first, stop in zip(names, bounds, bounds[1:], strict=False)
    ]
    done = 0
    for written in in_processes(pack_file, tasks, work_bytes=jpegs.file_bytes // 4):  # copying is faster than drawing
        done += written
        _report(progress, of_set.form, done, len(samples))
    return of_set.model_copy(update={"files": [(name, (home / name).stat().st_size) for name in names]})


def _decode(home: Path, jpegs: StoredSet, samples: list[Sample], of_set: Index, progress: Progress | None) -> Index:
    """Write the decoded pixels of a set and return their index."""
    images = write_cache(home, jpegs.folder, samples, lambda done: _report(progress, "cache", done, len(samples)))
    files = [(name, (home / name).stat().st_size) for name in (IMAGES_FILE, LABELS_FILE)]
    return of_set.model_copy(update={"files": files, "images": images})


def _report(progress: Progress | None, form: str, done: int, images: int) -> None:
    if progress:
        progress(form, done, images)
