"""The source of a workload that is a module of the user: a changed network is another configuration.

The module's text names the modules that it imports, and those name others. All that the user wrote counts: files
outside the interpreter's own folders, its packages, labkit and the workbook. They are read from the disk, because a
notebook's kernel may have imported an older text. A module whose name is only computed when the code runs is not found.
`modulefinder` of the standard library fails on folders without an `__init__.py`, so the imports are read here.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import pkgutil
import sys
import sysconfig
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from workbook.paths import ROOT

_NOT_THE_USERS = ("site-packages", "dist-packages")  # names of folders of installed packages


def source_hash_of_file(file: Path) -> str:
    """Return a hash of a file and of the user's modules that it imports, those beside it included."""
    source = file.read_bytes()
    return _hash({file.name: source}, list(_imports(source, package="")), folder=file.parent)


def source_hash_of(module: str) -> str:
    """Return a hash of a module's source and of the user's modules that it imports; empty if no file of it is found."""
    return _hash({}, [module])


def _hash(sources: dict[str, bytes], left: list[str], folder: Path | None = None) -> str:
    importlib.invalidate_caches()  # a file may be newer than the kernel's list of its folder
    module = left[0] if left else ""
    while left:
        for name, spec in _found(left.pop(), folder):
            origin = Path(spec.origin or "")
            of_package = not folder and name.partition(".")[0] == module.partition(".")[0]  # which may be installed
            if name in sources or not spec.has_location or not (of_package or _is_the_users(origin)):
                continue
            sources[name] = origin.read_bytes()
            left += _imports(sources[name], package=name if spec.submodule_search_locations else spec.parent or "")
    if not sources:
        return ""
    digest = hashlib.sha256()
    for name, source in sorted(sources.items()):
        digest.update(name.encode() + b"\0" + source + b"\0")
    return digest.hexdigest()[:12]


def _found(module: str, folder: Path | None) -> Iterator[tuple[str, ModuleSpec]]:
    """Yield name and place of each package around a module and of the module, without importing any of them."""
    # Worker processes start in this folder, with the project's before the interpreter's own.
    path = [*([str(folder)] if folder else []), str(Path.cwd()), str(ROOT), *sys.path]
    name = ""
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        specs = [spec for entry in path if (finder := pkgutil.get_importer(entry)) and (spec := finder.find_spec(name))]
        # Folders without an `__init__.py` count only where no module has the name, and then all of them do.
        spec = next((spec for spec in specs if spec.loader), None) or (_found_by_others(name) if name == part else None)
        if spec is not None:
            yield name, spec
        path = [place for of in ([spec] if spec else specs) for place in of.submodule_search_locations or []]


def _found_by_others(name: str) -> ModuleSpec | None:
    """Return the place that another finder knows, such as that of a package which is installed to be edited."""
    others = (finder for finder in sys.meta_path if finder is not PathFinder)
    return next(filter(None, (finder.find_spec(name, None) for finder in others)), None)


def _is_the_users(file: Path) -> bool:
    own = [ROOT / "labkit", ROOT / "workbook", *(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))]
    return not set(_NOT_THE_USERS) & set(file.parts) and not any(file.is_relative_to(folder) for folder in own)


def _imports(source: bytes, package: str) -> Iterator[str]:
    """Yield the names that a source may import as modules, within its package also. Nothing for one with a mistake."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # the worker reports it, and an extension module has no text
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            base = parents[: len(parents) - node.level + 1] if node.level else []
            full = ".".join([*base, *([node.module] if node.module else [])])
            yield from filter(None, [full, *(f"{full}.{alias.name}" for alias in node.names)])
