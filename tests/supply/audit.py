"""Look up known vulnerabilities of the pinned versions with pip-audit (`make audit`).

pip-audit gets a virtual environment of its own, because it is no part of labkit. Two services are asked. A version that
neither service could look up is listed as such, and never counts as free of vulnerabilities.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

from tests.supply import pinned, plain

SERVICES = {"pypi": "pypi.org", "osv": "api.osv.dev"}
LIMIT_S = 600


def main() -> int:
    """Print what was found. Return 0 if every version was looked up and has none, 1 if one has, 3 if any is unknown."""
    with tempfile.TemporaryDirectory(prefix="labkit-audit-") as folder:
        program, why_not = installed(Path(folder))
        if why_not:
            print(f"pip-audit could not be installed ({why_not}), so no version was looked up.")
            return 3
        pins = Path(folder) / "pins.txt"
        pins.write_text("".join(f"{name}=={version}\n" for name, version in pinned().items()), encoding="utf-8")
        answers = {service: asked(program, service, pins) for service in SERVICES}
    vulnerable: dict[str, set[str]] = {}
    known: set[str] = set()
    for service, answer in answers.items():
        if isinstance(answer, str):
            print(f"{SERVICES[service]} could not be reached: {answer}")
            continue
        looked_up = {item["name"]: item for item in answer if "skip_reason" not in item}
        known |= looked_up.keys()
        print(f"{SERVICES[service]}: {len(looked_up)} of {len(answer)} versions were looked up.")
        for name, item in looked_up.items():
            found = {entry["id"] for entry in item["vulns"]}
            if found:
                vulnerable.setdefault(f"{name} {item['version']}", set()).update(found)
    for version, found in sorted(vulnerable.items()):
        print(f"{version}: {', '.join(sorted(found))}")
    unknown = sorted({plain(name) for name in pinned()} - {plain(name) for name in known})
    if unknown:
        which = ", ".join(unknown) if len(unknown) < len(pinned()) else "all"
        print(f"Not looked up by any service: {len(unknown)} of {len(pinned())} versions ({which}).")
    return 1 if vulnerable else 3 if unknown else 0


def installed(folder: Path) -> tuple[str, str | None]:
    """Install pip-audit into a new environment in `folder`. Return its path, and why it failed or None."""
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    ended = subprocess.run([str(python), "-m", "pip", "install", "-qq", "pip-audit"], capture_output=True, text=True)
    return str(folder / "venv" / "bin" / "pip-audit"), last_line(ended.stderr) if ended.returncode else None


def asked(program: str, service: str, pins: Path) -> list[dict[str, Any]] | str:
    """Return a service's answer for each pinned version, or why there is none."""
    command = [program, "-r", str(pins), "--no-deps", "--disable-pip", "--progress-spinner", "off", "-f", "json"]
    try:
        ended = subprocess.run([*command, "-s", service], capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return f"no answer within {LIMIT_S} s"
    try:
        return list(json.loads(ended.stdout)["dependencies"])
    except ValueError:
        return last_line(ended.stderr)


def last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:300] if lines else "no message"


if __name__ == "__main__":
    sys.exit(main())
