"""Write constraints-hashed.txt, for `pip install --require-hashes -r constraints-hashed.txt` (`make hashes`).

pip resolves what `make setup` installs on this machine, without installing it, and reports each file that it would take
and the file's SHA-256. So the hashes are those of the index that pip uses here, which may serve builds of its own.
constraints.txt stays without hashes: it serves every platform, CPU and CUDA builds of torch, mirrors, and conda.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.supply import PINS
from workbook.paths import ROOT

HASHED = ROOT / "constraints-hashed.txt"


def main() -> int:
    """Write the file. Return 0, or 1 after pip's message if it cannot resolve the packages."""
    with tempfile.TemporaryDirectory(prefix="labkit-") as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "-qq", "--dry-run", "--ignore-installed"]
        command += ["--report", str(report), "-c", str(PINS)]
        if index := os.environ.get("TORCH_INDEX"):
            command += ["--extra-index-url", index]
        if subprocess.run([*command, "-e", f"{ROOT}[workbook,dev]"]).returncode:
            print("pip could not resolve the packages: see its message above.", file=sys.stderr)
            return 1
        items = json.loads(report.read_text(encoding="utf-8"))["install"]
    entries = lines(items)
    head = f"# Made by `make hashes` on {sys.platform}, Python {sys.version_info[0]}.{sys.version_info[1]}.\n"
    HASHED.write_text(head + "".join(entries), encoding="utf-8")
    print(f"{HASHED.name}: {len(entries)} packages with hashes. `pip install --no-deps -e .` adds labkit itself.")
    return 0


def lines(items: list[dict[str, Any]]) -> list[str]:
    """Return a line with its hash for each file of pip's report; labkit itself is a folder and has none."""
    return sorted(
        f"{item['metadata']['name']}=={item['metadata']['version']} "
        f"--hash=sha256:{item['download_info']['archive_info']['hashes']['sha256']}\n"
        for item in items
        if "archive_info" in item["download_info"]
    )


if __name__ == "__main__":
    raise SystemExit(main())
