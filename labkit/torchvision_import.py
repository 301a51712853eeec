"""Import torchvision. No other module of labkit imports torchvision directly.

torchvision's wheel from the public index is compiled against a CUDA build of torch. With a CPU build of torch, its
compiled operators don't load, and `import torchvision` fails with "operator torchvision::nms does not exist". Models
and transforms need none of these operators. Declaring the two missing schemas makes the import succeed, after
torchvision has tried to load its operators and before it registers how they behave.

`python -m labkit.torchvision_import` repairs an environment in which the import fails for this reason. It copies this
module there, and writes a `.pth` file, whose line every Python of the environment runs as it starts. So nothing that
takes time is imported at the top. The line does not import labkit, of which the current folder may hold another copy.
"""

from __future__ import annotations

import importlib
import sys

TYPE_CHECKING = False  # importing typing would delay the start of every Python of the environment
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

COPY = "labkit_torchvision_import"
HOOK = f"import {COPY}; {COPY}.repair_import()\n"
_SCHEMAS = {
    "nms": "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}
_REGISTERING = ("torchvision._autograd_registrations", "torchvision._meta_registrations")
_declared: list[Any] = []  # keeps the Library alive, because its garbage collection removes the operators


class _BeforeRegistrations:
    """A finder that finds nothing. It declares the missing operators before torchvision registers anything for them."""

    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> None:
        if name in _REGISTERING and not _declared:
            _declare_missing()


def repair_import() -> None:
    """Let every later `import torchvision` of this process succeed, whether its operators load or not."""
    if _BeforeRegistrations not in sys.meta_path:
        sys.meta_path.insert(0, _BeforeRegistrations)


def _declare_missing() -> None:
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")
    for name, schema in _SCHEMAS.items():
        if not hasattr(torch.ops.torchvision, name):
            library.define(schema)
    _declared.append(library)


def import_torchvision() -> ModuleType:
    """Return the torchvision module, with its models and transforms."""
    repair_import()
    return importlib.import_module("torchvision")


def repair_environment(folder: str) -> None:
    """Make `import torchvision` work with the packages in `folder`, if it fails there for want of operators."""
    import shutil
    import subprocess
    from pathlib import Path

    copy, hook = Path(folder, f"{COPY}.py"), Path(folder, f"{COPY}.pth")
    hook.unlink(missing_ok=True)
    tried = subprocess.run([sys.executable, "-c", "import torchvision"], capture_output=True, text=True, check=False)
    if "operator torchvision::" in tried.stderr:
        shutil.copyfile(__file__, copy)
        hook.write_text(HOOK, encoding="utf-8")


if __name__ == "__main__":
    import sysconfig

    repair_environment(sysconfig.get_path("purelib"))
