"""A project whose records, host, profile and paper hold hostile text in every string that a stranger could write."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.committed import committed_reports
from workbook.paths import ROOT
from workbook.trials.trial import NO_DATA

HW, STUDIES = "h200", ("01_training", "09_profile", "10_gan")
HOST = "<img src=x onerror=hit()>"  # the name of a folder of records
NOWHERE = "evil.invalid"
ATTACKS = (
    "<script>hit()</script>",
    "</script><script src=//evil.invalid/a.js></script>",
    f"</style><style>@import url(//{NOWHERE}/a.css); * {{ background: url(https://{NOWHERE}/b.png) }}</style>",
    f'"><img src="https://{NOWHERE}/c.png" onerror="hit()">',
    "' onmouseover='hit()' onfocus='hit()' autofocus x='",
    "</title></textarea></svg></table><svg onload=hit()><animate onbegin=hit() attributeName=x dur=1s />",
    f'<iframe src="https://{NOWHERE}/"></iframe><object data=//{NOWHERE}/d></object><embed src=//{NOWHERE}/e>',
    f'<meta http-equiv=refresh content="0;url=https://{NOWHERE}/f"><base href="https://{NOWHERE}/">',
    f"<link rel=stylesheet href=//{NOWHERE}/g.css><form action=//{NOWHERE}/h><input autofocus onfocus=hit()></form>",
    f"[link](javascript:hit()) ![picture](https://{NOWHERE}/i.png) javascript:hit()",
    f"url(https://{NOWHERE}/j) @import '//{NOWHERE}/k' expression(hit()) {{{{ 7 * 7 }}}} {{% raise %}} $x^2$",
    "\x00\x07\x1b]8;;https://evil.invalid\x07link\x1b]8;;\x07\x1b[2J",
    "W" * 3000,
    "-->]]><!--<![CDATA[&lt;script&gt;hit()&#60;/script&#62; &amp;&quot;",
)


class Attacks:
    """Gives one attack after the other, each with a number, so that equal texts do not hide each other."""

    def __init__(self) -> None:
        self.number = 0

    def __call__(self, text: object = "") -> str:
        self.number += 1
        return f"{text} {ATTACKS[self.number % len(ATTACKS)]} #{self.number}"


# Fields whose values labkit checks; a record with another value is refused as a whole.
_CHECKED = {
    *("schema", "protocol", "study", "scale", "key", "trial", "pass", "planned", "host", "status", "kind", "of"),
    *("started_at", "stopped_by", "top1_bits", "top5_bits", "latency_ns", "algorithm"),
}
# Keys that are data of a stranger too: names of packages, calls, sections and facts.
_NAMES = ("versions", "calls_by_name", "facts", "missing", "phases_s")


def attacked(value: Any, attack: Callable[[object], str], place: tuple[str, ...] = ()) -> Any:
    """Return a value of a record or host with an attack behind every string that is not checked."""
    if isinstance(value, str):
        is_picture = place[-1:] and place[-1].endswith("_png")
        return value if is_picture or set(place) & {*_CHECKED, "torch"} else attack(value)
    if isinstance(value, list):
        return [attacked(item, attack, place) for item in value]
    if isinstance(value, Mapping):
        made = {name: attacked(item, attack, (*place, str(name))) for name, item in value.items()}
        if place[-1:] and place[-1] in _NAMES:
            made[attack("name")] = (
                attack("value") if place[-1] in ("versions", "facts") else next(iter(made.values()), 0)
            )
        return made
    return value


def make_project(folder: Path) -> Path:
    """Write a copy of the project with hostile data into `folder`, and return the folder of its reports."""
    for name in ("labkit", "workbook", "notebooks", "params", "papers", "docs"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    attack = Attacks()
    _spoil_yaml(folder / "params" / f"{HW}.yaml", attack, ("title", "description", "reason", "architecture", "source"))
    _spoil_yaml(folder / "params" / f"{HW}.yaml", attack, ("interconnect",))
    texts = ("name", "title", "authors", "institution", "published", "framework", "printed", "where", "note")
    _spoil_yaml(folder / "papers" / "wisconsin.yaml", attack, (*texts, "missing", "statement", "because"))
    reports, given = folder / "reports", committed_reports() / HW
    host = max((given / "records").iterdir(), key=lambda path: len(list(path.glob("*"))))
    records = reports / HW / "records" / HOST
    records.mkdir(parents=True)
    for study in STUDIES:
        source = next((given / "records").glob(f"*/{study}.jsonl.gz"))
        lines = [json.loads(line) for line in gzip.decompress(source.read_bytes()).splitlines()]
        lines = [line for line in lines if line["pass"] == 1]  # further passes have the same texts
        spoilt = [{**attacked(line, attack), "host": HOST, "trial": _of_other_data(line["trial"])} for line in lines]
        spoilt[-1] |= {"status": "crashed", "reason": attack("it failed"), "result": None}
        (records / f"{study}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in spoilt), encoding="utf-8")
    about = json.loads((given / "hosts" / f"{host.name}.json").read_text(encoding="utf-8"))
    spoilt_host = {**attacked(about, attack), "id": HOST}
    spoilt_host["gpus"] = [{**gpu, "name": attack("NVIDIA H200")} for gpu in about["gpus"]]
    path = reports / HW / "hosts" / f"{HOST}.json"
    path.parent.mkdir()
    path.write_text(json.dumps(spoilt_host), encoding="utf-8")
    return reports


def _of_other_data(trial: dict[str, Any]) -> dict[str, Any]:
    """Return a trial whose data has a hostile name and checksum, the same in every record of the trial."""
    return trial if trial["data"] == NO_DATA else {**trial, "data": ATTACKS[3], "data_checksum": ATTACKS[0]}


def _spoil_yaml(path: Path, attack: Callable[[object], str], fields: tuple[str, ...]) -> None:
    """Add an attack to every text of the given fields of a YAML file."""

    def of(value: Any, name: str = "") -> Any:
        if isinstance(value, dict):
            return {key: of(item, key) for key, item in value.items()}
        if isinstance(value, list):
            return [of(item, name) for item in value]
        if name == "why":  # of at most eight words
            return ATTACKS[0]
        return attack(value) if isinstance(value, str) and name in fields else value

    spoilt = of(yaml.safe_load(path.read_text(encoding="utf-8")))
    path.write_text(yaml.safe_dump(spoilt, sort_keys=False, allow_unicode=True), encoding="utf-8")


def render(folder: Path, environment: Mapping[str, str]) -> str:
    """Render the project's site by its own command and return what the command said."""
    own = {**environment, "PYTHONPATH": str(folder), "LABKIT_REPORTS": str(folder / "reports")}
    command = [sys.executable, "-m", "workbook.cli", "render", "--hw", HW, "--study", ",".join(STUDIES)]
    done = subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True, timeout=600)
    return f"exit code {done.returncode}\n{done.stdout}{done.stderr}"


def control_characters(text: str) -> list[str]:
    """Return the control characters that a terminal or a page should not get."""
    return re.findall(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]", text)
