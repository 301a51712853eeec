"""Tests of `labkit trace FILE`: the tables of a trace, and refusal of other files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.traces import ADDITION, CONVOLUTION, call, launched, operator, section, step, text, work, written
from tests.workbook.test_cli import assert_refused, labkit
from workbook.results.from_trace import sentence, tables
from workbook.trace import analyse

ON_GPU = [
    step(0, 4),
    step(4, 8),
    section("forward", 0, 4),
    *launched(CONVOLUTION, 0, 1, 4, 1),
    *launched(ADDITION, 4.5, 6, 7, 2),
    work("Memcpy HtoD (Pinned -> Device)", 4, 5, kind="copy", size=8_000_000),
    call("cudaDeviceSynchronize", 7, 8),
]
ON_CPU = [step(0, 4), operator("aten::conv2d", 0, 3), operator("aten::relu", 3, 3.5)]


def shown(events: list, tmp_path: Path) -> dict[str, dict[str, dict[str, float]]]:
    """Return the tables by title, and their rows by the first column."""
    frames = tables(analyse(written(events, tmp_path / "trace.json")))
    return {title: {row[""]: row for row in table.to_dict("records")} for title, table in frames.items()}


def test_tables_give_times_per_step_and_shares(tmp_path: Path) -> None:
    by_title = shown(ON_GPU, tmp_path)
    time, kernels, algorithms, *_, sections_of_step = by_title.values()
    ran, only_copies = (next(row for name, row in time.items() if word in name) for word in ("ran", "only"))
    assert (ran["ms"], ran["%"], only_copies["%"]) == (2_000.0, 50.0, 12.5)
    assert kernels["convolution"] == {"": "convolution", "ms": 1_500.0, "%": 75.0, "count": 0.5}
    assert algorithms["tensor core"]["%"] == 100.0
    (copied,) = by_title["Copies"].values()
    assert (copied["MB"], copied["median bytes"]) == (4.0, 8_000_000)
    assert sections_of_step["forward"]["kernels ms"] == 1_500.0
    assert by_title["Longest calls"]["cudaDeviceSynchronize"]["count"] == 0.5


def test_tables_of_a_cpu_name_operators_and_no_device(tmp_path: Path) -> None:
    by_title = shown(ON_CPU, tmp_path)
    time, _, algorithms, *_ = by_title.values()
    assert ["operators" in name for name in time] == [True]
    assert algorithms["library"]["ms"] == 3_000.0 and "Copies" not in by_title
    assert "1 step of a CPU, 4000 ms" in sentence(analyse(tmp_path / "trace.json"))


def test_the_command_prints_each_file_with_its_notes(tmp_path: Path) -> None:
    whole_file, cut_file = written(ON_GPU, tmp_path / "one.json.gz"), tmp_path / "other.json"
    whole = text(ON_CPU * 30)
    cut_file.write_text(whole[: len(whole) // 2])
    done = labkit("trace", str(whole_file), str(cut_file))
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{whole_file}: {sentence(analyse(whole_file))}" in done.stdout
    notes = [note for note in analyse(cut_file).notes if note[1:] in done.stdout]
    assert f"{cut_file}: " in done.stdout and notes == [*analyse(cut_file).notes] != []


@pytest.mark.parametrize("content", ["", "{}", "no trace", '{"traceEvents": []}'])
def test_a_file_that_is_not_a_trace_is_a_user_error(content: str, tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text(content)
    assert_refused(labkit("trace", str(tmp_path / "mine.json")), "mine.json")


def test_a_missing_file_or_argument_is_a_user_error(tmp_path: Path) -> None:
    assert labkit("trace", str(tmp_path / "nowhere.json")).returncode == 2
    assert labkit("trace").returncode == 2
