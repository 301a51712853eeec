"""Folders that libraries write to in the user's home, where that home is missing, unknown or cannot be written.

A container may set no HOME, mount the home read-only, or run as a user whom the system does not know. Jupyter, IPython,
Matplotlib, Triton, Keras, CUDA and labkit then fail, each in its own way. So the command line moves the folders that
cannot be written to one private place. All processes that it starts inherit the variables.
"""

from __future__ import annotations

import os
import stat
import tempfile
from functools import cache
from pathlib import Path

from labkit.errors import UserError

# Variable -> its default below the home folder.
FOLDERS = {
    "XDG_CACHE_HOME": ".cache",
    "XDG_CONFIG_HOME": ".config",
    "XDG_DATA_HOME": ".local/share",
    "XDG_STATE_HOME": ".local/state",
    "JUPYTER_CONFIG_DIR": ".jupyter",
    "IPYTHONDIR": ".ipython",
    "KERAS_HOME": ".keras",
    "TRITON_HOME": "",
    "CUDA_CACHE_PATH": ".nv/ComputeCache",
}


def replace_unwritable_folders() -> str | None:
    """Set the variables of the folders that cannot be written. Return a sentence that says so; None if all can be.

    The folders are in the system's folder for temporary files, under a name that the user's next process finds again.
    Raise UserError if that name belongs to somebody else.
    """
    home = os.path.expanduser("~")  # noqa: PTH111 - of an unknown user it is `~`, where pathlib raises
    known = os.path.isabs(home)  # noqa: PTH117
    named = {name: os.environ.get(name) or (str(Path(home, below)) if known else "") for name, below in FOLDERS.items()}
    replaced = [name for name, path in named.items() if not (path and _can_be_written(Path(path)))]
    if not replaced:
        return None
    private = _private_folder()
    if not known:
        os.environ["HOME"] = str(private)
    for name in replaced:
        os.environ[name] = str(private / FOLDERS[name])
    first = named[replaced[0]] or "the home folder of this user"
    others = f" (and {len(replaced) - 1} like it)" if replaced[1:] else ""
    return (
        f"{first}{others} can't be written. Caches, settings and this machine's number are kept in {private} instead, "
        f"maybe until the next restart. Set HOME to a folder that you can write to keep them longer."
    )


def _can_be_written(folder: Path) -> bool:
    """Return whether files can be made in a folder, or in the nearest folder above it that exists."""
    return _takes_files(next(above for above in (folder, *folder.parents) if above.exists()))


@cache
def _takes_files(folder: Path) -> bool:
    try:
        with tempfile.TemporaryFile(dir=folder):  # root may write by its permissions, and can't on a read-only disk
            return True
    except OSError:
        return False


def _private_folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"labkit-home-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise UserError(f"{folder} is not a private folder of yours. Set HOME to a folder that you can write.")
    return folder
