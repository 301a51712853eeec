"""What the runner and the processes that it starts agree on."""

from __future__ import annotations

import sys
from pathlib import Path

from labkit.host import ROOT

# In the environment of a rank: where the runner listens, and what shows the rank to be one of its own.
ADDRESS, TOKEN = "LABKIT_RUNNER", "LABKIT_TOKEN"


def without_paths(text: str) -> str:
    """A traceback without the folders of this machine: records are shown to others."""
    for folder, name in ((str(ROOT), "."), (sys.prefix, "(environment)"), (str(Path.home()), "~")):
        text = text.replace(folder, name)
    return text.encode(errors="replace").decode()  # a file name in it may hold what is no text
