"""Tests of the comparison of devices: its configurations and baseline, the papers' readings, and `make compare`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import nbformat
import pandas as pd
import pytest
from bs4 import BeautifulSoup

from labkit.errors import UserError
from tests.committed import committed_reports
from tests.workbook.made_records import NOISE, PASSES, blocks, failed, of_records
from tests.workbook.test_site import (
    HERE,
    R50,
    R50_LARGE,
    TRAINING,
    VGG,
    A,
    B,
    C,
    executed,
    passes_of,
    put,
    read_page,
    taken,
)
from workbook.hardware.profile import load_profile
from workbook.registry import COMPARISON, WHICH_DEVICE
from workbook.report import compare
from workbook.report.execute import Execution
from workbook.report.scraps import Answer
from workbook.results import Results, ratio
from workbook.studies import comparison, machines
from workbook.studies.free_speed import one_change
from workbook.studies.multi_gpu import on_several
from workbook.trials.recipes import CAPTURED, COMPILED
from workbook.trials.trial import Trial

TRIALS = (R50, R50_LARGE, VGG)
STUDY = "07_precision"
EAGER = Trial(batch=256, precision="bf16", optimizer="sgd_fused", memory_format="channels_last", loader="device")
GRAPH, COMPILE = (Trial(batch=256, **recipe) for recipe in (CAPTURED, COMPILED))
EAGER_ONLY, GRAPH_ONLY = replace(EAGER, model="vgg19"), replace(GRAPH, image_px=224)
RATE = {EAGER: 10_000.0, GRAPH: 50_000.0, COMPILE: 90_000.0, EAGER_ONLY: 5_000.0, GRAPH_ONLY: 4_000.0}
GAIN = {EAGER: 1.5, GRAPH: 1.04, COMPILE: 1.1, EAGER_ONLY: 1.6, GRAPH_ONLY: 1.2}  # of the H200 over the H100


def part(hw: str, *trials: Trial, study: str = STUDY) -> Any:
    """Return the records of these trials in a study on a device."""

    def rate(trial: Trial) -> float:
        about = replace(trial, data_checksum="")
        return RATE.get(about, 1e3) * (GAIN.get(about, 1.0) if hw == "h200" else 1.0)

    made = [blocks(study, trial, number, rate(trial) * NOISE[number - 1]) for trial in trials for number in PASSES]
    return of_records(study, made, hw)


def steps(*parts: Any) -> pd.DataFrame:
    return comparison.trainings(Results(parts).frame())


def ratios(frame: pd.DataFrame, base: str) -> pd.DataFrame:
    return comparison.titled(ratio(frame, "images_per_s", over={"profile": base}, by=comparison.CONFIGURATION))


BOTH = steps(part("h200", *RATE), part("h100", *RATE))


# ---- the choice and order of trainings ------------------------------------------------------------------------------


def test_profiles_are_sorted_by_generation_with_cpus_first() -> None:
    profiles = comparison.in_generations(map(load_profile, ["h200_x2", "k40m", "h200", "cpu", "v100_sxm2", "h100"]))
    assert [profile.name for profile in profiles] == ["cpu", "k40m", "v100_sxm2", "h100", "h200", "h200_x2"]
    assert list(BOTH["title"].unique()) == ["H100 SXM", "H200 SXM"]


def test_only_timed_trainings_of_a_single_job_on_a_single_device_are_compared() -> None:
    others = [
        replace(EAGER, workload="infer", optimizer="sgd", loader="indexed"),
        replace(EAGER, epochs=2),
        replace(EAGER, devices=2, gradient_precision="bf16"),
        replace(EAGER, arrangement="at_once", devices=2),
    ]
    frame = steps(part("h200", EAGER, *others), part("h200", replace(EAGER, traced_iterations=5), study="09_profile"))
    assert set(frame["study"]) == {STUDY, "09_profile"} and len(frame) == 2 * len(PASSES)


def test_modes_omit_the_optimiser_and_host_launched_steps_are_an_eager_loop() -> None:
    frame = steps(part("h200", Trial(), *RATE), part("cpu", Trial(device="cpu")))
    modes = frame.groupby("mode")["is_device"].agg(list)
    assert set(modes.index) == {"eager loop", "CUDA graph", "compiled + CUDA graph"}
    assert all(modes["CUDA graph"]) and all(modes["compiled + CUDA graph"])
    eager = frame[frame["mode"] == "eager loop"]
    assert dict(zip(eager["device"], eager["is_device"], strict=True)) == {"cpu": True, "cuda": False}


def test_loops_of_a_gpu_with_one_change_are_not_its_eager_loop() -> None:
    single = [
        Trial(host_setting="two_cores"),
        *(Trial(**one_change(name)) for name in ("fused", "channels_last", "tf32")),
    ]
    frame = steps(part("h200", Trial(), *single), part("cpu", Trial(device="cpu", **one_change("fused"))))
    assert frame.groupby("device")["optimizer"].unique().map(list).to_dict() == {"cpu": ["sgd_fused"], "cuda": ["sgd"]}
    assert len(frame) == 2 * len(PASSES) and set(frame["mode"]) == {"eager loop"}


@pytest.mark.parametrize(
    ("parts", "base"),
    [
        ([part("h200", *RATE), part("h100", *RATE)], "h100"),
        ([part("h200", *RATE), part("h100", EAGER), part("h200_x2", GRAPH)], "h200"),
        ([part("cpu", Trial(device="cpu")), part("h200", EAGER), part("h100", EAGER)], "h100"),
        ([part("cpu", Trial(device="cpu")), part("h200", EAGER)], "cpu"),
        ([part("h200", EAGER)], "h200"),
        ([], ""),
    ],
    ids=["the older", "the first with a CUDA graph in common", "with a loop in common", "nothing", "one", "none"],
)
def test_the_baseline_is_the_first_device_that_shares_a_configuration(parts: list[Any], base: str) -> None:
    assert comparison.baseline_of(steps(*parts)) == base


def test_a_requested_baseline_must_be_among_the_devices() -> None:
    assert comparison.baseline_of(BOTH, "h200") == "h200"
    for without_trainings in ("h20x", "p100_16gb"):
        with pytest.raises(UserError, match=rf"unknown baseline '{without_trainings}'; valid: h\d00, h\d00\.$"):
            comparison.baseline_of(BOTH, without_trainings)


# ---- comparable configurations --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other",
    [{"precision": "fp16"}, {"batch": 64}, {"memory_format": "contiguous"}, {"image_px": 224}, {"data": "imagenet32"}],
    ids=lambda field: next(iter(field)),
)
def test_trials_that_differ_in_more_than_the_device_are_not_compared(other: dict[str, Any]) -> None:
    frame = steps(part("h100", EAGER), part("h200", replace(EAGER, **other)))
    assert ratios(frame, "h100").empty


def test_the_images_may_differ_and_ratios_between_machines_are_unpaired() -> None:
    frame = steps(part("h100", EAGER), part("h200", replace(EAGER, data_checksum="f" * 16)))
    (row,) = ratios(frame, "h100").to_dict("records")
    assert row["title"] == "H200 SXM" and row["value"] == pytest.approx(1.5)
    assert row["low"] < 1.45 and row["high"] > 1.55, "a ratio paired by pass would be exact"


def test_comparable_modes_are_the_baselines_cuda_graphs_that_another_device_shares() -> None:
    frame = steps(part("h100", EAGER, GRAPH, GRAPH_ONLY), part("h200", EAGER, GRAPH, COMPILE))
    alike = comparison.comparable(frame, "h100")
    assert set(alike["mode"]) == {"CUDA graph"} and set(alike["image_px"]) == {32}
    assert set(alike["profile"]) == {"h100", "h200"}
    alone = comparison.comparable(steps(part("h200", EAGER, GRAPH, COMPILE)), "h200")
    assert set(alone["mode"]) == {"CUDA graph", "compiled + CUDA graph"}, "without another device all are kept"
    assert len(comparison.comparable(steps(part("cpu", Trial(device="cpu"))), "cpu")) == len(PASSES)


def test_the_fastest_configuration_per_network_and_image_size_is_shown_on_all_devices() -> None:
    best = comparison.fastest(comparison.comparable(BOTH, "h100"))
    shown = best.groupby(["title", "image_px"])["mode"].unique().map(list).to_dict()
    both = {32: ["compiled + CUDA graph"], 224: ["CUDA graph"]}
    assert shown == {(title, px): mode for title in ("H100 SXM", "H200 SXM") for px, mode in both.items()}


def test_both_ways_sets_the_eager_loop_of_any_precision_beside_the_fastest_configuration() -> None:
    loops = [replace(EAGER, precision="fp32", batch=batch) for batch in (64, 256)]
    frame = steps(part("h100", *RATE, *loops), part("h200", *RATE, *loops))
    again = [part(hw, *RATE, study="02_batch_size") for hw in ("h100", "h200")]
    for rows in (frame, pd.concat([frame, steps(*again)])):
        best = comparison.fastest(comparison.comparable(rows, "h100"))
        eager = ratios(rows, "h100").query("mode == 'eager loop' and precision == 'fp32'")
        both = comparison.both_ways(ratios(best, "h100"), eager)
        assert set(both["model"]) == {"resnet50"} and set(both["image_px"]) == {32} and set(both["batch"]) == {256}
        assert dict(zip(both["mode"], both["precision"], strict=True)) == {
            "eager loop": "fp32",
            "compiled + CUDA graph": "bf16",
        }
        assert both.set_index("mode")["value"]["compiled + CUDA graph"] == pytest.approx(1.1)


def test_nominal_peaks_are_references_if_both_devices_have_them() -> None:
    rows = pd.DataFrame({"profile": ["h200", "h200"], "title": "H200 SXM", "precision": ["fp32", "bf16"]})
    table = comparison.nominal(rows, "h100")
    assert set(table.loc[table["label"] == "nominal FLOP/s", "value"]) == {1.0}
    assert set(table.loc[table["label"] == "nominal memory bandwidth", "value"]) == {4.8 / 3.35}
    older = comparison.nominal(rows, "k40m")
    assert older.loc[older["label"] == "nominal FLOP/s", "precision"].tolist() == ["fp32"], "a K40m has no BF16"


def test_failed_trials_have_no_ratio_and_no_records_give_empty_tables() -> None:
    lost = of_records(STUDY, [failed(STUDY, GRAPH, number) for number in PASSES], "h200")
    assert ratios(steps(part("h100", GRAPH), lost), "h100").empty
    nothing = steps()
    assert comparison.both_ways(*[ratios(nothing, "")] * 2).empty
    assert comparison.nominal(ratios(nothing, ""), "").empty
    assert comparison.fastest(comparison.comparable(nothing, "")).empty


# ---- readings of the papers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metric", "k40m"), [("utilisation", (0.7524019258, 0.58, 0.90)), ("power_w", (120.586543, 99.0, 145.0))]
)
def test_readings_of_the_timed_part_are_listed_below_the_printed_ones(metric: str, k40m: tuple[float, ...]) -> None:
    frame = Results([part("h200", Trial(batch=64), Trial(batch=256), GRAPH)]).frame()
    timed = frame[["record", "batch", "mode"]].assign(window="timed", mean=100.0, lowest=90.0, highest=110.0)
    timed.loc[timed["batch"] == 64, "mean"] = 5.0
    timed.loc[timed["mode"] != "strict FP32", "mean"] = 7.0
    timed.loc[frame["pass_number"] == 2, "highest"] = 120.0
    name = {"power_w": "power_smi_w"}.get(metric, metric)
    polled = timed.assign(metric=name, window="polled", mean=1.0)
    readings = pd.concat([timed.assign(metric=name), timed.assign(metric="sm_clock_hz"), polled])
    table = comparison.beside_papers(frame, readings, metric, "resnet50").set_index("device")
    assert list(table.index[-2:]) == ["Tesla K40m", "H200 SXM"] and len(table) == 5
    assert tuple(table.loc["Tesla K40m", ["value", "low", "high"]]) == pytest.approx(k40m)
    assert tuple(table.loc["H200 SXM", ["value", "low", "high"]]) == (100.0, 90.0, 120.0)
    assert list(table["source"]) == [*["Wisconsin paper"] * 4, "H200 SXM"]
    of_one_run = frame[frame["pass_number"] == 1].assign(host="0", record="first " + frame["record"])
    fewer = readings.assign(record="first " + readings["record"], mean=1.0)
    both = comparison.beside_papers(pd.concat([of_one_run, frame]), pd.concat([fewer, readings]), metric, "resnet50")
    assert both["value"].tolist() == table["value"].tolist(), "a machine of fewer runs is left out"
    newer = frame.assign(host="0", record="first " + frame["record"], started_at="2099-01-01T00:00:00+00:00")
    both = comparison.beside_papers(pd.concat([newer, frame]), pd.concat([fewer, readings]), metric, "resnet50")
    assert both["value"].tolist()[-1] == 1.0, "the newer of two machines with equally many runs"


def test_every_machine_is_listed_once_with_its_studies() -> None:
    parts = [part("h200", EAGER), part("h200", GRAPH, study="02_batch_size"), part("h100", EAGER)]
    table = machines.listed(Results(parts))
    assert table[["device file", "studies"]].to_numpy().tolist() == [["h200", "07, 02"], ["h100", "07"]]
    assert machines.listed(Results([])).empty


# ---- make compare ---------------------------------------------------------------------------------------------------


def stub(reason: str | None = None, write: bool = True) -> Callable[..., Execution]:
    """Return a stand-in for executing the notebook, without a kernel, which shows the parameters it gets."""

    def execute(notebook: Path, output: Path, parameters: dict[str, Any], **_: Any) -> Execution:
        if notebook.stem == WHICH_DEVICE:
            executed(output, Answer(("The other page.",)))
            return Execution(None)
        assert notebook.stem == COMPARISON
        if write:
            executed(output, Answer((f"baseline {parameters['baseline']!r}",)))
            if reason:
                node = nbformat.read(output, as_version=4)
                error = nbformat.v4.new_output("error", ename="ValueError", evalue="it broke", traceback=[])
                node.cells[-1].outputs.append(error)
                nbformat.write(node, output)
        return Execution(reason)

    return execute


@pytest.fixture
def reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with records of two profiles, one with an index. Executing the notebook is a stand-in."""
    put(tmp_path, "h100", passes_of(TRIALS, host=C))
    put(tmp_path, "h200", passes_of(TRIALS))
    (tmp_path / "h200" / "index.html").write_text("<title>H200</title>")
    monkeypatch.setenv("LABKIT_REPORTS", str(tmp_path))
    monkeypatch.setattr(compare, "execute", stub())
    monkeypatch.setattr(compare, "this_host", lambda **_: HERE)
    monkeypatch.setattr("workbook.show.figure.Figure.svg", lambda *_: "<svg/>")  # drawing takes most of the time
    return tmp_path


def page_in(reports: Path) -> str:
    return (reports / "comparison" / "index.html").read_text(encoding="utf-8")


def test_comparing_two_profiles_writes_a_page_claims_and_the_numbers_of_both(reports: Path) -> None:
    assert compare.make_compare() == 0
    made = {path.name for path in (reports / "comparison").iterdir()}
    pages = {"index.html", "which_device.html", "claims.html", "then_and_now.html", "glossary.html"}
    pages |= {f"{COMPARISON}.ipynb", f"{WHICH_DEVICE}.ipynb"}
    numbers = {"findings.json", "tested.json", "numbers.csv", "numbers.parquet", "claims.csv"}
    assert made == pages | numbers | {"papers", "logs"}
    frame = pd.read_parquet(reports / "comparison" / "numbers.parquet")
    assert set(zip(frame["profile"], frame["host"], strict=True)) == {("h100", C), ("h200", A)}
    _, text = read_page(page_in(reports))
    assert "H100 SXM, H200 SXM" in text and "make compare" in text and "baseline ''" in text
    links = [str(link["href"]) for link in BeautifulSoup(page_in(reports), "html.parser").select("nav a")]
    assert [link for link in links if link[0] != "#"] == [
        *("../h200/index.html", "which_device.html", "then_and_now.html", "claims.html", "glossary.html"),
        *("numbers.csv", "claims.csv"),
    ], "only reports that exist"


def test_a_baseline_without_records_is_refused_with_the_valid_ones(reports: Path) -> None:
    with pytest.raises(UserError, match=r"unknown BASELINE 'k40m'; valid: h\d00, h\d00\.$"):
        compare.make_compare("k40m")
    assert not (reports / "comparison").exists()


def test_an_unreadable_profile_is_named_first(reports: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "profile_names", lambda: ["h200", "mine"])
    with pytest.raises(UserError, match="'mine'"):
        compare.make_compare()
    assert not (reports / "comparison").exists()


def test_a_comparison_without_records_is_refused_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "h200").mkdir()
    monkeypatch.setenv("LABKIT_REPORTS", str(tmp_path))
    with pytest.raises(UserError, match="no records to compare: `make report`"):
        compare.make_compare()
    assert [path.name for path in tmp_path.iterdir()] == ["h200"]


def test_a_failed_comparison_returns_1_and_its_page_gives_the_reason(
    reports: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compare, "execute", stub("ValueError: it broke\nlong story"))
    assert compare.make_compare() == 1
    out = "".join(capsys.readouterr())
    assert "the comparison failed: ValueError: it broke" in out and "long story" not in out
    assert re.search(r"Cell \[\d+\] failed: ValueError: it broke\.", page_in(reports))


def test_a_baseline_is_on_its_page_which_a_comparison_that_could_not_run_removes(
    reports: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert compare.make_compare("h100") == 0
    _, text = read_page(page_in(reports))
    assert "baseline 'h100'" in text and "make compare BASELINE=h100" in text
    monkeypatch.setattr(compare, "execute", stub("the notebook could not be run", write=False))
    assert compare.make_compare() == 1
    page = reports / "comparison" / "index.html"
    assert not page.exists() or "baseline 'h100'" not in page.read_text(), "an old page under a new command"


def test_the_page_and_its_files_of_numbers_are_of_the_same_host(reports: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The notebook loads the records of all profiles. The files of numbers must select the same hosts."""
    for host, day in ((B, "2027-01-01"), (HERE.id, "2026-01-01")):
        started = f"{day}T00:00:00+00:00"
        put(reports, "h200", [taken(t, n, TRIALS, host=host, started_at=started) for t in TRIALS for n in PASSES])
    monkeypatch.setattr("workbook.hardware.host.this_host", lambda **_: HERE)
    compare.make_compare()
    frame = pd.read_parquet(reports / "comparison" / "numbers.parquet")
    in_files = set(frame.loc[frame["profile"] == "h200", "host"])
    cells = nbformat.read(compare.notebook_of(COMPARISON), as_version=4).cells
    names: dict[str, Any] = {}
    for cell in cells:
        if "imports" in cell.metadata.get("tags", []) or "frame = results.frame()" in cell.source:
            exec(cell.source, names)
    on_page = names["frame"]
    assert set(on_page.loc[(on_page["profile"] == "h200") & (on_page["study"] == TRAINING), "host"]) == in_files


@pytest.mark.parametrize(("profile", "said"), [("h200", "; 2x H200 SXM and 4x H200 SXM have it"), ("cpu", "")])
def test_one_gpu_names_the_recorded_devices_with_several(
    profile: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LABKIT_REPORTS", str(committed_reports()))
    assert on_several(load_profile(profile)) == said
