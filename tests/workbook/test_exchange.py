"""Files for other programs have the pages' numbers, unrounded, in SI units, with failures, complete or not at all."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pandas as pd
import pytest

from tests.workbook.made_telemetry import PAPERS
from tests.workbook.test_site import (
    COPY,
    MATMUL,
    POWER,
    POWERED,
    R50,
    TRAINING,
    VGG_LARGE,
    B,
    C,
    failed,
    images_per_s,
    passes_of,
    put,
    reporting,
    texts,
)
from workbook.claims.findings import Findings
from workbook.claims.judge import judge_all
from workbook.claims.reports import evidence
from workbook.claims.verdict import group_of
from workbook.records import parse_line
from workbook.registry import STUDIES
from workbook.report.claims_pages import write_claims
from workbook.report.exchange import FILES, groups_of, write_exchange
from workbook.results import Results
from workbook.results.columns import WHAT_RAN
from workbook.results.exchange import COLUMNS
from workbook.trials.trial import NO_DATA

LACKING = ("model", "image_px", "classes", "head", "batch", "optimizer", "learning_rate", "augment")
ODD = 'CUDA out of memory: "tried", to allocate\n2.00 GiB;\r\n<b>here</b>, né 日本 \U0001f600'


def make_records(reports: Path) -> None:
    """Write records of two profiles. The h200 has two hosts, a network without memory and one that crashed once."""
    records = []
    for record in passes_of():
        if record.as_trial == VGG_LARGE:
            record = failed(VGG_LARGE, record.pass_number, ODD)
        elif record.as_trial == R50 and record.pass_number == 2:
            record = failed(R50, 2, "worker died").model_copy(update={"status": "crashed"})
        records.append(record)
    put(reports, "h200", records)
    put(reports, "h200", passes_of(POWERED, host=B, study=POWER))
    put(reports, "h100", passes_of(host=C, speed=0.8))


# Verdict, mark and whether it is on the direction -> the group.
GROUPED = {
    ("not testable here", "other hardware or data", False): "not testable here",
    ("replicated", "other hardware or data", True): "not counted",
    ("replicated", None, True): "direction replicated",
    ("not replicated", "", "the numbers"): "not replicated",
}


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reports")
    make_records(folder)
    return folder


def results_in(reports: Path, hw: str = "h200") -> Results:
    with reporting(reports):
        records_shown = evidence(hw)
        return Results([records for study in STUDIES if (records := records_shown.results(hw, study))])


@pytest.fixture(scope="module")
def shown(reports: Path) -> Results:
    return results_in(reports)


@pytest.fixture(scope="module")
def findings(reports: Path) -> Findings:
    with reporting(reports):
        return Findings(judge_all(PAPERS, evidence("h200")))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, shown: Results, findings: Findings) -> Path:
    """Return a folder with the three files."""
    written = tmp_path_factory.mktemp("written")
    write_exchange(written, shown, findings)
    return written


@pytest.fixture(scope="module")
def frame(folder: Path) -> pd.DataFrame:
    """Return numbers.parquet as another program reads it."""
    return pd.read_parquet(folder / "numbers.parquet")


def text_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file as texts, read without pandas."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def row_of(frame: pd.DataFrame, metric: str, **trial: object) -> pd.Series:
    """Return the only row of a metric and a trial. The trial trains unless `trial` has another workload."""
    chosen = frame[frame["metric"] == metric]
    for name, value in ({"workload": "train"} | trial).items():
        chosen = chosen[chosen[name] == value]
    assert len(chosen) == 1
    return chosen.iloc[0]


def test_the_file_of_claims_gives_back_the_group_of_each_verdict(folder: Path, findings: Findings) -> None:
    papers = {finding.paper.id for finding in findings.of_papers().findings}
    groups = [finding.group for finding in findings.of_papers().findings]
    assert groups_of(folder, papers) == groups and len(set(groups)) > 2
    assert [group_of(*row) for row in GROUPED] == list(GROUPED.values())


# ---- the same numbers everywhere ------------------------------------------------------------------------------------


def test_the_csv_and_the_parquet_file_hold_the_same_to_the_last_digit(folder: Path, frame: pd.DataFrame) -> None:
    rows = text_rows(folder / "numbers.csv")
    assert len(rows) == len(frame) > 100
    assert list(rows[0]) == list(frame.columns) == COLUMNS
    for row, (_, kept) in zip(rows, frame.iterrows(), strict=True):
        for name, text in row.items():
            value = kept[name]
            if pd.isna(value):
                assert text == ""
            elif isinstance(value, float):
                assert float(text) == value
            else:
                assert text == str(value)


def test_values_are_those_of_the_blocks(frame: pd.DataFrame) -> None:
    """A value is the geometric mean of the passes' rates, from the times in the records."""
    rates = [images_per_s(R50, number) for number in (1, 3)]
    row = row_of(frame, "images_per_s", study=TRAINING, model="resnet50", batch=64)
    assert row["value"] == pytest.approx(math.exp(sum(map(math.log, rates)) / 2), rel=1e-12)
    step = row_of(frame, "step_s", study=TRAINING, model="resnet50", batch=64)
    assert step["value"] == pytest.approx(64 / row["value"], rel=1e-12)
    assert row["low"] < min(rates) < row["value"] < max(rates) < row["high"]
    assert row["confidence"] == 0.95


# ---- units ----------------------------------------------------------------------------------------------------------


def test_values_are_in_si_units(frame: pd.DataFrame) -> None:
    for metric, unit, value in (
        ("power_w", "W", 400.0),
        ("utilisation", "1", 0.9),
        ("memory_bytes", "B", 2.0**30),
        ("sm_clock_hz", "Hz", 1.5e9),
        ("energy_per_image_j", "J", 2.0),
        ("power_fraction", "1", 400 / 700),
    ):
        row = row_of(frame, metric, study=POWER, model="resnet50")
        assert (row["unit"], row["value"]) == (unit, pytest.approx(value, rel=1e-9))
    flop, copied = row_of(frame, "flop_per_s", workload="matmul"), row_of(frame, "bytes_per_s", workload="memory_copy")
    assert (flop["unit"], copied["unit"]) == ("FLOP/s", "B/s")
    assert (flop["value"], copied["value"]) == pytest.approx((10 * 10**12 / 0.5, 10 * 10**9 / 0.5), rel=0.02)


# ---- the trial and the records of each row --------------------------------------------------------------------------


def test_each_row_names_its_trial_and_the_lines_of_its_records(reports: Path, frame: pd.DataFrame) -> None:
    passes = {(TRAINING, 3), (POWER, 3)}
    for _, row in frame.iterrows():
        file, _, lines = row["records"].rpartition(":")
        assert file == f"h200/records/{row['host']}/{row['study']}.jsonl"
        there = (reports / file).read_text(encoding="utf-8").split("\n")
        records = [parse_line(there[int(line) - 1]) for line in lines.split(",")]
        assert (row["study"], len(records)) in passes
        for record in records:
            assert record.host == row["host"] and record.scale == row["scale"]
            assert record.protocol == row["protocol"] and record.versions["commit"] == row["commit"]
            for name, value in record.as_trial.as_dict().items():
                assert pd.isna(row[name]) if name in LACKING and record.as_trial.data == NO_DATA else row[name] == value
    assert set(frame["device_name"]) == {"NVIDIA H200"} and set(frame["profile"]) == {"h200"}


def test_every_trial_has_each_metric_once(frame: pd.DataFrame) -> None:
    assert not frame.duplicated(["host", "study", "metric", *WHAT_RAN]).any()
    assert set(frame[frame["study"] == TRAINING]["workload"]) == {"train", MATMUL.workload, COPY.workload}


def test_a_ceiling_has_no_network(frame: pd.DataFrame) -> None:
    """The files, like the pages, omit its default resnet50 and batch 64: its step time is not a network's."""
    for workload in ("matmul", "memory_copy", "idle"):
        rows = frame[frame["workload"] == workload]
        assert len(rows) and rows["model"].isna().all() and rows["batch"].isna().all()


# ---- failures -------------------------------------------------------------------------------------------------------


def test_a_trial_without_a_result_is_one_row_with_its_reason_and_no_number(folder: Path, frame: pd.DataFrame) -> None:
    (row,) = [row for _, row in frame.iterrows() if (row["model"], row["batch"]) == ("vgg16", 256)]
    assert (row["status"], row["passes"], row["reason"]) == ("oom", 0, ODD)
    assert all(pd.isna(row[name]) for name in ("metric", "unit", "value", "low", "high", "confidence"))
    (in_csv,) = [row for row in text_rows(folder / "numbers.csv") if row["status"] == "oom"]
    assert in_csv["reason"] == ODD and None not in in_csv and None not in in_csv.values(), "nothing shifts the columns"


def test_a_failed_pass_is_not_counted_and_its_reason_is_kept(frame: pd.DataFrame) -> None:
    row = row_of(frame, "images_per_s", study=TRAINING, model="resnet50", batch=64)
    whole = row_of(frame, "images_per_s", study=TRAINING, model="resnet50", batch=256)
    assert (row["passes"], whole["passes"]) == (2, 3)
    of_trial = frame[(frame["study"] == TRAINING) & (frame["model"] == "resnet50") & (frame["batch"] == 64)]
    assert "worker died" in set(of_trial["reason"].dropna())


# ---- claims.csv -----------------------------------------------------------------------------------------------------


def test_claims_csv_has_every_claim_with_the_verdict_of_the_page(
    folder: Path, findings: Findings, tmp_path: Path
) -> None:
    rows = text_rows(folder / "claims.csv")
    verdicts = {row["claim"]: row["verdict"] for row in rows}
    assert verdicts == {finding.claim.id: finding.verdict for finding in findings.findings}
    assert sorted(verdicts) == sorted(claim.id for paper in PAPERS for claim in paper.claims)
    write_claims(tmp_path / "claims.html", findings, title="H200", links=[], days={})
    page = (tmp_path / "claims.html").read_text(encoding="utf-8")
    counts = [int(text) for text in texts(page, ".lk-choose tbody tr:first-child td")]
    assert counts == [*findings.counts().values(), len(verdicts)]
    assert {row["claim"]: row["mark"] for row in rows} == {
        finding.claim.id: finding.mark or "" for finding in findings.findings
    }


def test_claims_csv_has_every_case_with_the_effect_of_the_page_unrounded(folder: Path, findings: Findings) -> None:
    rows = [row for row in text_rows(folder / "claims.csv") if row["case"]]
    cases = [(finding, case) for finding in findings.findings for case in finding.cases]
    assert len(rows) == len(cases) > 5
    for row, (finding, case) in zip(rows, cases, strict=True):
        assert (row["claim"], row["case"], row["case_verdict"]) == (finding.claim.id, case.label, case.verdict)
        assert (row["metric"], row["kind"], row["reason"]) == (case.metric, case.kind, finding.reason)
        if case.effect is None:
            assert (row["effect"], row["low"], row["high"]) == ("", "", "")
            continue
        read = [float(row[name]) for name in ("effect", "low", "high")]
        assert read == [case.effect.point, case.effect.low, case.effect.high]
    (reason,) = {row["case_reason"] for row in rows if "CUDA" in row["case_reason"]}
    assert reason == f"oom: {ODD}", "texts of records are unchanged"


# ---- complete or not at all -----------------------------------------------------------------------------------------


def test_without_records_the_files_still_have_their_columns(tmp_path: Path) -> None:
    with reporting(tmp_path):
        findings = Findings(judge_all(PAPERS, evidence("h200")))
    write_exchange(tmp_path, Results([]), findings)
    assert (tmp_path / "numbers.csv").read_text(encoding="utf-8") == ",".join(COLUMNS) + "\n"
    assert list(pd.read_parquet(tmp_path / "numbers.parquet").columns) == COLUMNS
    rows = text_rows(tmp_path / "claims.csv")
    assert len(rows) == sum(len(paper.claims) for paper in PAPERS)
    assert {row["verdict"] for row in rows} == {"not testable here"} and all(row["reason"] for row in rows)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(FILES)


@pytest.mark.parametrize("method", ["to_csv", "to_parquet"])
def test_an_interrupted_write_leaves_the_former_files_unchanged(
    tmp_path: Path, shown: Results, findings: Findings, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_exchange(tmp_path, shown, findings)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full_disk(_: pd.DataFrame, path: Path, **__: object) -> None:
        Path(path).write_bytes(b"half of i")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pd.DataFrame, method, full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_exchange(tmp_path, shown, findings)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
