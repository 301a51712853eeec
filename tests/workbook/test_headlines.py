"""What every index begins with: each sentence is supported by the committed records of all machines, or left out."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pandas as pd
import pytest
from bs4 import BeautifulSoup

from tests.committed import committed_reports
from tests.workbook.made_telemetry import PAPERS
from tests.workbook.test_site import said_in
from workbook.claims import Finding, Findings
from workbook.report import headlines
from workbook.report.headlines import COMPILED, SENTENCES, findings_of, read_findings, write_findings
from workbook.results import load
from workbook.words import CAREFUL, STRICT

STUDIES = [*((hw, of) for hw in ("h100", "h200") for of in ("training", "power", "precision")), ("h200", "batch_size")]
SEVERAL_GPUS = [(hw, "multi_gpu") for hw in ("h100_x2", "h100_x4", "h200_x2", "h200_x4")]
NAMES = ["graph", "precision", "activity", "energy", "claims"]
UNTESTED = Findings(
    [Finding(paper, claim, "not testable here", "", "", ()) for paper in PAPERS for claim in paper.claims]
)


@cache
def trained() -> pd.DataFrame:
    """Return the committed records of all machines that trained on GPUs, those of one GPU's studies alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABKIT_REPORTS", str(committed_reports()))
        return pd.concat([load(*of).frame(hosts="all") for of in [*STUDIES, *SEVERAL_GPUS]], ignore_index=True)


@cache
def made() -> dict[str, BeautifulSoup]:
    pieces = findings_of(trained(), UNTESTED)
    return {name: BeautifulSoup(piece, "html.parser") for name, piece in pieces.items()}


def title_of(name: str) -> str:
    return said_in(made()[name].select_one(".lk-title"))


def test_the_committed_records_support_every_sentence() -> None:
    assert list(made()) == NAMES
    assert "{" not in "".join(map(title_of, NAMES))


@pytest.mark.parametrize("name", NAMES)
def test_a_finding_is_short_and_its_results_come_from_records(name: str) -> None:
    (entry,) = [of for of in headlines._ENTRY.finditer(SENTENCES.read_text(encoding="utf-8")) if of["name"] == name]
    typed = re.sub(r"\{\w+\}|batch \d+|\d+ px", "", entry["sentence"])
    assert not re.search(r"(?<![\w-])\d", typed), "a result is no typed number"
    assert re.search(r"\d", title_of(name))
    assert all(len(part.split()) < 25 for part in re.split(r"(?<=\.) ", title_of(name)))
    assert len((entry["caption"] or "").split()) <= 30


@pytest.mark.parametrize("name", NAMES[:-1])
def test_a_figure_has_a_dot_per_machine_with_at_least_three_runs(name: str) -> None:
    shown = headlines._MEASURED[name](headlines._trainings(trained()))
    assert {"H100 SXM", "H200 SXM"} == set(shown.data["gpu"])
    assert shown.data["passes"].min() >= 3 and shown.data["low"].notna().all()


def test_no_eager_loop_of_a_machine_is_faster_than_the_one_that_the_graph_is_compared_with() -> None:
    gains = headlines._MEASURED["graph"](headlines._trainings(trained())).data
    rows = headlines._trainings(trained()).query("batch == 256 and host_setting == 'default'")
    place = ["host", "study", "protocol", "image_px", "energy_windows"]
    rates = rows.groupby([*place, "engine", "precision", "optimizer"])["images_per_s"].mean()
    eager = rates.xs("eager", level="engine").groupby(place).max()
    graph = rates.xs("compile+graph", level="engine").groupby(place).max()
    most = (graph / eager).rename("most").reset_index()
    compared = gains.merge(most, on=place)
    assert len(compared) == len(gains) > 2
    assert (compared["value"] < 1.03 * compared["most"]).all()


def test_the_newest_protocol_with_enough_runs_is_shown_and_an_older_one_says_so() -> None:
    gains = pd.DataFrame(
        {
            **{"gpu": ["A", "A", "B", "B"], "precision": "fp16", "protocol": [2, 3, 2, 3], "newest": 3},
            **{"passes": [3, 3, 5, 2], "value": [1.0, 2.0, 3.0, 4.0]},
        }
    )
    kept = headlines._several(gains)
    assert list(zip(kept["gpu"], kept["value"], strict=True)) == [("A", 2.0), ("B", 3.0)]
    said = headlines.Shown({}, True, kept, "precision", "speedup").older
    assert said == " Older records stand for B: pages show newer ones of fewer than 3 runs."
    assert headlines.Shown({}, True, kept[:1], "precision", "speedup").older == ""


def test_a_caption_names_the_gpu_whose_page_shows_newer_records() -> None:
    """Two runs by a newer protocol take the H100's page 07 and have no interval: its older records stand."""
    begun = trained().query("profile == 'h100' and study == '07_precision' and pass_number <= 2")
    begun = begun.assign(protocol=begun["protocol"] + 1, record=begun["record"] + " again")
    piece = findings_of(pd.concat([trained(), begun], ignore_index=True), UNTESTED)["precision"]
    assert "Older records stand for H100 SXM: pages show newer ones" in piece
    assert "Older records" not in said_in(made()["precision"])


def test_retired_host_settings_change_no_finding_on_precisions() -> None:
    halves = trained().query("study == '07_precision' and precision == 'fp16' and engine == 'eager'")
    retired = halves.assign(
        host_setting="foreach", images_per_s=9 * halves["images_per_s"], record=halves["record"] + "b"
    )
    frame = pd.concat([trained(), retired], ignore_index=True)
    shown = headlines._precision(headlines._trainings(frame))
    assert shown.words == headlines._precision(headlines._trainings(trained())).words


def test_the_finding_on_precisions_says_which_loop_each_gpu_ran() -> None:
    caption = said_in(made()["precision"].figcaption)
    assert "with SGD on H200 SXM and with fused SGD on H100 SXM" in caption


def swapped(metric: str, first: str, second: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """Return what swaps the execution modes of two sides, for rows with a metric."""

    def of(frame: pd.DataFrame) -> pd.DataFrame:
        modes = frame["mode"].replace({first: second, second: first})
        return frame.assign(mode=frame["mode"].where(frame[metric].isna(), modes))

    return of


CONTRADICTIONS = {
    "graph": swapped("images_per_s", CAREFUL, COMPILED),
    "precision": lambda frame: frame.assign(precision=frame["precision"].replace({"fp16": "bf16", "bf16": "int8"})),
    "activity": lambda frame: frame.assign(sm_activity=frame["utilisation"]),
    "energy": swapped("energy_per_image_j", STRICT, COMPILED),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_finding_that_records_do_not_support_is_left_out(name: str) -> None:
    assert name not in findings_of(CONTRADICTIONS[name](trained()), UNTESTED)


def test_without_records_only_the_claims_are_left() -> None:
    assert list(findings_of(trained().iloc[:0], UNTESTED)) == ["claims"]


def test_the_claims_have_a_square_each_and_their_counts_in_the_sentence() -> None:
    squares = [len(said_in(row.td).replace(" ", "")) for row in made()["claims"].select("tr")]
    assert squares == [len(paper.claims) for paper in PAPERS if not paper.later]
    assert title_of("claims").startswith("Of 0 published claims that could be tested, 0 are replicated, ")


def test_a_file_that_is_missing_or_damaged_gives_no_findings(tmp_path: Path) -> None:
    assert read_findings(tmp_path) == []
    (tmp_path / "comparison").mkdir()
    write_findings(tmp_path, trained().iloc[:0], UNTESTED)
    assert len(read_findings(tmp_path)) == 1
    (tmp_path / headlines.FILE).write_text("{")
    assert read_findings(tmp_path) == []
