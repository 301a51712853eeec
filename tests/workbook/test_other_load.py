"""Tests of runs beside other work on the machine: found in the pauses, repeated once, named by terminal and pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from labkit.telemetry.summary import Statistic, Telemetry, Window
from tests.faulty.campaign import HOST, STUDY, records, run, sound, tiny_profile
from workbook.hardware.host import write_host
from workbook.records.other_load import other_load
from workbook.records.store import Store
from workbook.registry import STUDIES
from workbook.results import Results, records_of_host
from workbook.runner import runner
from workbook.studies.trust import summary


def window(**shares: float) -> Window:
    """Return a window with the given utilisation of `host` (its processors) and of GPUs."""
    read = {
        source: {"cpu_utilisation" if source == "host" else "utilisation": Statistic(mean=share, low=0, high=1, n=1)}
        for source, share in shares.items()
    }
    return Window(start_s=0, length_s=0.2, sources=read)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (window(host=0.9), window(host=0.7), "70% of the processors"),
        (window(host=0.9), window(host=0.2), ""),
        (window(host=0.2), window(host=0.9), ""),
        (window(host=0.8), window(), "80% of the processors"),
        (window(host=0.1, gpu0=0.04, gpu1=0.6), window(host=0.1, gpu1=0.0), "gpu1 for 60% of the time"),
        (window(host=0.1, gpu0=0.0), window(host=0.1, gpu0=0.95), ""),
        (window(), window(host=1.0), ""),
    ],
)
def test_others_count_where_they_use_much_in_the_pauses(before: Window, after: Window, said: str) -> None:
    assert other_load(Telemetry(status="ok", windows={"idle_before": before, "after": after})) == said


@pytest.mark.parametrize(("held_gib", "said"), [(12.0, "12 GiB of gpu1"), (2.6, "")])
def test_memory_of_others_counts_only_before_the_first_trial_of_a_process(held_gib: float, said: str) -> None:
    held = {"memory_bytes": Statistic(mean=held_gib * 2**30, low=0, high=2**40, n=1)}
    before = Window(start_s=0, length_s=0.4, sources={"gpu1": held})
    telemetry = Telemetry(status="ok", windows={"idle_before": before})
    assert other_load(telemetry, first=True) == said
    assert other_load(telemetry) == "", "an earlier trial of this process may hold it"


def test_a_trial_without_telemetry_says_nothing_of_others() -> None:
    assert other_load(None) == other_load(Telemetry(status="lost")) == ""


BUSY, IDLE = (
    Telemetry(status="ok", windows={"idle_before": window(host=share), "after": window(host=share)})
    for share in (0.97, 0.05)
)


@pytest.mark.parametrize(
    ("scale", "seen", "attempts", "flagged"),
    [
        ("quick", [BUSY, IDLE, IDLE], 3, 0),
        ("quick", [BUSY, BUSY, BUSY, BUSY], 4, 2),
        ("quick", [IDLE, IDLE], 2, 0),
        ("smoke", [BUSY, IDLE], 2, 1),
    ],
)
def test_runs_beside_other_work_are_repeated_once_and_keep_their_flag(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    scale: str,
    seen: list[Telemetry],
    attempts: int,
    flagged: int,
) -> None:
    readings = iter(seen)
    monkeypatch.setattr(runner.Watch, "of_trial", lambda *_, **__: next(readings))
    run(sound(2), tmp_path / "cpu", scale=scale)
    assert len(records(tmp_path / "cpu")) == attempts
    said = capsys.readouterr().out
    texts = (f"This repeats {attempts - 2} of 2 runs", f"The pages flag {flagged} of 2 runs")
    assert [text in said for text in texts] == [attempts > 2, flagged > 0]
    write_host(HOST, tmp_path / "cpu")
    shown = records_of_host(tiny_profile(), STUDIES[STUDY], store=Store(tmp_path / "cpu"), host_id=HOST.id, scale=scale)
    assert shown.beside_others == flagged
    assert (f"{flagged} of 2 runs while others used the machine" in shown.how_measured) == (flagged > 0)
    checks = summary(Results([shown], list)).set_index("check")["result"]
    assert checks["Runs while others used the machine"] == f"{flagged} of 2"
    assert run(sound(2), tmp_path / "cpu", scale=scale).resumed == 2, "the same command measures nothing again"
