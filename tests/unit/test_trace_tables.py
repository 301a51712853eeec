"""`labkit trace FILE` says in tables what a file holds, and refuses in one sentence what is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from labkit.measure.trace import analyse
from labkit.results.trace_tables import sentence, tables
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


def shown(events: list, tmp_path: Path) -> dict[str, dict[str, dict[str, float]]]:
    """Tables by their titles, rows by their first column."""
    found = tables(analyse(written(events, tmp_path / "trace.json")))
    return {title: {row[""]: row for row in table.to_dict("records")} for title, table in found.items()}


def test_tables_give_times_a_step_and_shares(tmp_path: Path) -> None:
    found = shown(ON_GPU, tmp_path)
    time = found["Time of a step (parts overlap)"]
    assert time["any of the kernels ran"] == {"": "any of the kernels ran", "ms": 2_000.0, "%": 50.0}
    assert time["only copies and fills"]["%"] == 12.5
    convolution = {"": "convolution", "ms": 1_500.0, "%": 75.0, "count": 0.5}
    assert found["What the kernels do"]["convolution"] == convolution
    assert found["Algorithms of convolutions"]["tensor core"]["%"] == 100.0
    assert found["Copies"]["host to device"]["MB"] == 4.0
    assert found["Copies"]["host to device"]["median bytes"] == 8_000_000
    assert found["Sections of a step"]["forward"]["kernels ms"] == 1_500.0
    assert found["Longest calls"]["cudaDeviceSynchronize"]["count"] == 0.5


def test_tables_of_a_cpu_speak_of_operators_and_of_no_device(tmp_path: Path) -> None:
    found = shown(ON_CPU, tmp_path)
    assert set(found["Time of a step (parts overlap)"]) == {"any of the operators ran"}
    assert found["Algorithms of convolutions"]["library"]["ms"] == 3_000.0
    assert "Copies" not in found
    assert sentence(analyse(tmp_path / "trace.json")) == "1 step of a CPU, 4000 ms each under the profiler."


def test_the_command_prints_each_file_with_its_notes(tmp_path: Path) -> None:
    one, other = written(ON_GPU, tmp_path / "one.json.gz"), tmp_path / "other.json"
    whole = text(ON_CPU * 30)
    other.write_text(whole[: len(whole) // 2])
    done = labkit("trace", str(one), str(other))
    assert done.returncode == 0
    assert done.stderr == ""
    assert f"{one}: 2 steps of a GPU, 4000 ms each under the profiler." in done.stdout
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
