"""What every index begins with: findings over all machines, each a sentence of `docs/findings.md` and its figure.

`make compare` writes them to `FILE`, and the index of each site shows what that file holds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from markupsafe import Markup

from labkit.files import replacing
from workbook.claims import GROUPS, Findings
from workbook.claims.evidence import FEWEST_RUNS
from workbook.claims.papers import load_papers
from workbook.claims.verdict import TESTED
from workbook.hardware.profile import load_profile
from workbook.paths import ROOT
from workbook.results import as_in_report, estimate, ratio
from workbook.results.columns import QUANTITY, RECORDS
from workbook.show import plots
from workbook.show.frames import INTERVAL
from workbook.show.templates import drawn
from workbook.studies.sweeps import ORDINARY, beside_references
from workbook.studies.values import told_span
from workbook.words import EAGER_LOOPS, STRICT, label, listing

SENTENCES = ROOT / "docs" / "findings.md"
FILE = Path("comparison/findings.json")  # in the folder of reports
WIDTH_IN = 4.9  # a third of a wide page, where texts have 12 pixels too
COMPILED = "compiled + CUDA graph"
_ENTRY = re.compile(r"- \*\*(?P<name>.+?)\*\*: (?P<sentence>.+)(?:\n  (?P<caption>.+))?")
_OF_RECORDS = [*RECORDS, "protocol", "newest"]  # `newest` is the newest protocol of the study's records of the GPU
_KEYS = [*_OF_RECORDS, "gpu", "image_px", "batch", "precision", "mode"]
_GAIN = ("dell_v100", "dell_v100-fp16")  # the paper and claim with the gain that a V100 had in FP16


class Shown(NamedTuple):
    """What records give for a finding: the words of its sentence, whether they support it, and what its figure shows.

    `data` has a value of the metric `x` per machine and `y`.
    """

    words: Mapping[str, str]
    holds: bool
    data: pd.DataFrame
    y: str
    x: str
    hue: str = "gpu"
    ticks: pd.DataFrame | None = None

    @property
    def older(self) -> str:
        """Of which GPUs older records are shown than on their pages, and why; empty if of none."""
        gpus = sorted(set(self.data.loc[self.data["protocol"] < self.data["newest"], "gpu"]))
        if not gpus:
            return ""
        return f" Older records stand for {listing(gpus)}: pages show newer ones of fewer than {FEWEST_RUNS} runs."


def findings_of(frame: pd.DataFrame, findings: Findings) -> dict[str, str]:
    """Return name -> sentence with figure, as HTML, of the findings that records support, in the order of the file.

    `frame` has a row per trial, machine and run, and `findings` are the verdicts over all devices.
    """
    measured = {name: of(_trainings(frame)) for name, of in _MEASURED.items()}
    pieces = {}
    for entry in _ENTRY.finditer(SENTENCES.read_text(encoding="utf-8")):
        name, sentence = entry["name"], entry["sentence"]
        if name == "claims":
            pieces[name] = _claims(sentence, findings)
        elif measured[name].holds:
            shown = measured[name]
            columns = dict.fromkeys([shown.y, shown.hue, "gpu", "study", "host", *INTERVAL, "passes"])
            figure = plots.dots(
                shown.data[list(columns)],
                y=shown.y,
                x=shown.x,
                hue=shown.hue,
                pair=False,
                numbers=False,
                ticks=shown.ticks,
                title=sentence.format_map(shown.words),
                caption=entry["caption"].format_map(shown.words) + shown.older,
                name=f"finding-{name}",
            )
            figure.drawing.set_figwidth(WIDTH_IN)
            pieces[name] = figure._repr_mimebundle_()["text/html"]
    return pieces


def write_findings(reports: Path, frame: pd.DataFrame, findings: Findings) -> None:
    """Write `FILE` for the indexes of all sites."""
    with as_in_report(), replacing(reports / FILE) as new:
        new.write_text(json.dumps(findings_of(frame, findings), indent=1, ensure_ascii=False), encoding="utf-8")


def read_findings(reports: Path) -> list[Markup]:
    """Return the findings that `write_findings` has written; [] without a file."""
    try:
        pieces = json.loads((reports / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return [Markup(piece) for piece in pieces.values()]  # noqa: S704 - figures and macros have escaped it


def _trainings(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the timed trainings of ResNet-50 on one GPU, with the GPU's name as `gpu`."""
    timed = frame.query(
        "workload == 'train' and model == 'resnet50' and device == 'cuda' and devices == 1 and epochs == 0"
        " and framework == 'torch' and status == 'ok'"
    )
    profiles = map(load_profile, timed["profile"].unique())
    names = {profile.name: profile.title.removeprefix(f"{profile.device.count}x ") for profile in profiles}
    return timed.drop_duplicates("record").assign(
        gpu=lambda rows: rows["profile"].map(names).astype(object),
        newest=lambda rows: rows.groupby(["gpu", "study"])["protocol"].transform("max"),
    )


def _several(estimates: pd.DataFrame) -> pd.DataFrame:
    """Return the estimates of enough runs for a verdict, of each GPU and configuration those of the newest protocol."""
    enough = estimates[estimates["passes"] >= FEWEST_RUNS]
    alike = [name for name in _KEYS if name in enough and name not in _OF_RECORDS]
    return enough[enough["protocol"] == enough.groupby(alike)["protocol"].transform("max")]


def _graph(trained: pd.DataFrame) -> Shown:
    rows = trained.query("batch == 256")
    is_graph = (rows["precision"] == "bf16") & (rows["mode"] == COMPILED)
    rows = rows[is_graph | rows["mode"].isin(EAGER_LOOPS)]
    by = [*_OF_RECORDS, "gpu", "image_px", "energy_windows"]
    sides = beside_references(rows, by).query("side != @STRICT")
    gains = _several(ratio(sides, "images_per_s", over={"side": ORDINARY}, by=[*by, "side"]))
    words = {name: told_span(gains[gains["image_px"] == px], "times") for name, px in (("small", 32), ("large", 224))}
    is_whole = {32, 224} <= set(gains["image_px"])
    return Shown(words, is_whole and bool((gains["low"] > 1).all()), gains, "image_px", "speedup")


def _precision(trained: pd.DataFrame) -> Shown:
    loops = trained.query("engine == 'eager' and host_setting == 'default' and precision != 'default'")
    rows = loops.query("energy_windows == 0 and batch == 256 and image_px == 224")
    by = [*_OF_RECORDS, "gpu", "image_px", "precision", "optimizer"]
    gains = _several(ratio(rows, "images_per_s", over={"precision": "fp32"}, by=by))
    fp16, then = gains[gains["precision"] == "fp16"], _printed()
    words = {"now": told_span(fp16, "times"), "then": told_span(then, "times")}
    of_loop = fp16.groupby("optimizer")["gpu"].unique()
    words["loops"] = listing(
        [f"with {label('optimizer', of)} on {listing(sorted(gpus))}" for of, gpus in of_loop.items()]
    )
    holds = len(fp16) > 0 and bool(fp16["low"].min() > then["value"].max())
    return Shown(words, holds, gains, "precision", "speedup", ticks=then)


def _printed() -> pd.DataFrame:
    """Return the ends of the gain that the Dell paper printed for FP16."""
    (paper,) = [paper for paper in load_papers() if paper.id == _GAIN[0]]
    (claim,) = [claim for claim in paper.claims if claim.id == _GAIN[1]]
    ends = [end for test in claim.tests for one in test.published for end in one.ends]
    return pd.DataFrame({"precision": "fp16", "value": ends, "label": "V100"})


def _activity(trained: pd.DataFrame) -> Shown:
    rows = trained[(trained["mode"] == "CUDA graph") & (trained["energy_windows"] == 0) & (trained["image_px"] == 32)]
    read = rows.dropna(subset=["utilisation", "sm_activity"])
    counters = {"utilisation": "nvidia-smi", "sm_activity": "SMs with work"}
    parts = [_several(estimate(read, of, by=_KEYS)).assign(counter=name) for of, name in counters.items()]
    driver, active = (part[part["batch"] == 256] for part in parts)
    words = {"utilisation": told_span(driver, "%", 100), "activity": told_span(active, "%", 100)}
    words["gpus"] = listing(sorted(active["gpu"].unique()))
    both = pd.concat(parts).drop(columns=QUANTITY)  # of two metrics, and in percent
    both[["value", "low", "high"]] *= 100
    holds = len(active) > 0 and bool(active["high"].max() < driver["low"].min())
    return Shown(words, holds, both, "batch", "share, %", hue="counter")


def _energy(trained: pd.DataFrame) -> Shown:
    rows = trained.query("energy_windows > 0 and batch == 256 and image_px == 32").dropna(subset=["energy_per_image_j"])
    spent = _several(estimate(rows, "energy_per_image_j", by=_KEYS))
    papers, best = (spent[spent["mode"] == mode] for mode in (STRICT, COMPILED))
    words = {"papers": told_span(papers, "mJ", 1e3), "best": told_span(best, "mJ", 1e3)}
    holds = len(best) > 0 and bool(best["high"].max() < papers["low"].min())
    return Shown(words, holds, spent, "mode", "energy_per_image_j")


def _claims(sentence: str, findings: Findings) -> str:
    """Return the sentence on the claims of the five papers, with a square per claim."""
    five = findings.of_papers()
    counts = five.counts()
    words = {
        "tested": sum(counts[group] for group in TESTED),
        "replicated": counts["replicated"],
        "direction": counts["direction replicated"],
        "failed": counts["not replicated"],
        "open": counts["inconclusive"],
    }
    papers = [(of_paper.findings[0].paper.name, of_paper.counts()) for of_paper in five.by_paper()]
    return str(drawn("squares", sentence.format_map(words), papers, GROUPS, "../comparison/claims.html"))


_MEASURED = {"graph": _graph, "precision": _precision, "activity": _activity, "energy": _energy}
