"""`labkit trace FILE` says in tables what a file holds, and refuses in one sentence what is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from labkit.analysis.trace_tables import sentence, tables
from labkit.measure.trace import analyse
from tests.traces import ADDITION, CONVOLUTION, call, launched, operator, section, step, text, work, written
from tests.unit.test_cli import labkit

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


def frames(events: list, tmp_path: Path) -> dict[str, dict[str, dict[str, str]]]:
    """Tables by the first word of their caption, rows by their first column."""
    return {
        table.caption.split(" ")[0]: {row[""]: row for row in table.frame.to_dict("records")}
        for table in tables(analyse(written(events, tmp_path / "trace.json")))
    }


def test_tables_give_times_a_step_and_shares(tmp_path: Path) -> None:
    shown = frames(ON_GPU, tmp_path)
    assert shown["Time"]["any of the kernels ran"] == {
        "": "any of the kernels ran",
        "ms a step": "2,000",
        "share": "50.0 %",
    }
    assert shown["Time"]["only copies and fills"]["share"] == "12.5 %"
    assert shown["What"]["convolution"] == {"": "convolution", "ms a step": "1,500", "share": "75.0 %", "a step": "0.5"}
    assert shown["How"]["on tensor cores"]["share"] == "100 %"
    assert shown["Copies."]["host to device"]["MB a step"] == "4.000"
    assert shown["Copies."]["host to device"]["median bytes"] == "8,000,000"
    assert shown["Sections"]["forward"]["kernels ms"] == "1,500"
    assert shown["The"]["cudaDeviceSynchronize"]["a step"] == "0.5"


def test_tables_of_a_cpu_speak_of_operators_and_of_no_device(tmp_path: Path) -> None:
    shown = frames(ON_CPU, tmp_path)
    assert set(shown["Time"]) == {
        "any of the operators ran",
        "two operators or more at once",
        "collectives",
        "collectives alone",
    }
    assert shown["How"]["the library's choice"]["ms a step"] == "3,000"
    assert "Copies." not in shown
    assert sentence(analyse(tmp_path / "trace.json")) == "1 step of a CPU, 4,000 ms each under the profiler."


def test_the_command_prints_each_file_with_its_notes(tmp_path: Path) -> None:
    one, other = written(ON_GPU, tmp_path / "one.json.gz"), tmp_path / "other.json"
    whole = text(ON_CPU * 30)
    other.write_text(whole[: len(whole) // 2])
    done = labkit("trace", str(one), str(other))
    assert done.returncode == 0
    assert done.stderr == ""
    assert f"{one}: 2 steps of a GPU, 4,000 ms each under the profiler." in done.stdout
    assert f"{other}: " in done.stdout
    assert "Notes\n- The file ends in the middle: " in done.stdout


@pytest.mark.parametrize("content", ["", "{}", "no trace", '{"traceEvents": []}'])
def test_a_file_that_is_no_trace_is_a_mistake_of_the_user(content: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text(content)
    done = labkit("trace", str(file))
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("labkit: mine.json ")
    assert done.stderr.count("\n") == 1


def test_a_file_that_is_not_there_and_no_file_at_all_are_mistakes_too(tmp_path: Path) -> None:
    assert labkit("trace", str(tmp_path / "nowhere.json")).returncode == 2
    assert labkit("trace").returncode == 2
