"""Interpreters with pretended frameworks: a Python with only a worker's needs and the given packages."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Mapping
from pathlib import Path

from workbook.bootstrap import WORKER_NEEDS
from workbook.paths import ROOT

# The dependencies of WORKER_NEEDS.
BELOW = (
    "annotated-types",
    "pydantic-core",
    "typing-extensions",
    "typing-inspection",
    "cloudpickle",
    "joblib",
    "scipy",
    "threadpoolctl",
)

KERAS = """
import os
backend = os.environ["KERAS_BACKEND"]
__import__({"torch": "torch"}.get(backend, backend))
__version__ = "3.15.1"
class utils:
    clear_session = staticmethod(lambda free_memory=True: None)
"""
JAX = """
__version__ = "0.10.2"
clear_caches = lambda: None
def devices(kind=None):
    raise RuntimeError("no GPU")
"""


def interpreter(
    folder: Path, *, packages: Mapping[str, str], code: Mapping[str, str] | None = None, needs: bool = True
) -> Path:
    """Write and return a Python in `folder` that has `packages` (name -> version).

    `code` holds their source by name; other modules hold a `__version__`. `needs` adds what labkit's workers import.
    """
    site = folder / "site"
    site.mkdir(parents=True)
    for name, version in packages.items():
        module = site / name.removesuffix("-cpu")
        module.mkdir()
        (module / "__init__.py").write_text((code or {}).get(name, f"__version__ = {version!r}\n"))
        about = site / f"{name.replace('-', '_')}-{version}.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    for name in (*WORKER_NEEDS, *BELOW) if needs else ():
        _link(name, site)
    python = folder / "python"
    # -S hides the packages of this environment, among them the real frameworks.
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{site}:{ROOT}" exec "{sys.executable}" -S "$@"\n')
    python.chmod(0o755)
    return python


def _link(name: str, site: Path) -> None:
    """Link the files of an installed package into `site`."""
    distribution = importlib.metadata.distribution(name)
    tops = {path.parts[0] for path in distribution.files or () if path.parts[0] not in ("..", "__pycache__")}
    for top in tops:
        link = site / top
        if not link.exists():
            link.symlink_to(Path(str(distribution.locate_file(top))))
