"""The comparison: profiles side by side, a warning where they are not alike, nothing published taken for measured."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import nbformat
import pandas as pd
import pytest
from bs4 import BeautifulSoup
from matplotlib.colors import to_hex
from matplotlib.figure import Figure as Canvas

from labkit.analysis import comparison, comparison_figures
from labkit.analysis.figure import LIGHT, Figure
from labkit.analysis.observations import power_kind
from labkit.analysis.table import Table, Text
from labkit.analysis.verdicts.evidence import Evidence
from labkit.analysis.verdicts.findings import Findings
from labkit.analysis.verdicts.judge import judge_all
from labkit.errors import UserError
from labkit.profile import Peaks, Profile, load_profile
from labkit.records import PROTOCOL, Record
from labkit.registry import COMPARISON, find_study
from labkit.report import compare
from labkit.report.execute import Execution
from labkit.report.html import external_urls, render_notebook
from labkit.report.pages import other_hosts
from labkit.results.study_records import StudyRecords as Results
from labkit.trial import Trial
from tests.unit.test_site import (
    EVIL,
    GPUS,
    HERE,
    POWER,
    POWERED,
    R50,
    R50_LARGE,
    TRAINING,
    VGG,
    A,
    B,
    C,
    assert_harmless,
    described,
    evil,
    evil_paper,
    executed,
    failed,
    images_per_s,
    passes_of,
    put,
    read_page,
    reporting,
    taken,
)
from tests.unit.test_telemetry_pages import PAPERS, with_rapl

TRIALS = (R50, R50_LARGE, VGG)
Parts = dict[tuple[str, str], Results]


# ---- profiles with records, made by hand ----------------------------------------------------------------------------


def results(
    hw: str, records: Sequence[Record], host: dict[str, Any] | None = None, profile: Profile | None = None
) -> Results:
    """What a profile's page of a study shows."""
    first = records[0]
    return Results(
        study=find_study(first.study),
        profile=profile or load_profile(hw),
        scale=first.scale,
        host_id=first.host,
        host=host or described(first.host, GPUS.get(hw, ""), **({} if hw in GPUS else {"gpus": []})),
        records=list(records),
    )


def seen(*parts: Results) -> Evidence:
    """The records of all profiles."""
    known: Parts = {(part.profile.name, part.study.id): part for part in parts}

    def load(name: str, study: str) -> Results:
        nothing = Results(find_study(study), load_profile(name), "quick", None, {}, [])
        return known.get((name, study), nothing)

    names = tuple(sorted({part.profile.name for part in parts}))
    return Evidence(profile=None, profiles=names, available=frozenset({TRAINING, POWER, COMPARISON}), load=load)


def training(hw: str, trials: Sequence[Trial] = TRIALS, **other: Any) -> Results:
    return results(hw, passes_of(trials, **({"host": {"h100": C}.get(hw, A)} | other)))


def power(hw: str, **other: Any) -> Results:
    return results(hw, passes_of(POWERED, study=POWER, **({"host": {"h100": C}.get(hw, B)} | other)))


TWO = seen(training("h100", speed=0.8), training("h200"), power("h100", speed=0.8), power("h200"))
ONE = seen(training("h200"), power("h200"))
NONE = seen()


def drawn(figure: Figure | Text) -> Canvas:
    """The figure as it paints itself; a warning of matplotlib's is an error."""
    assert isinstance(figure, Figure)
    canvas = Canvas(layout="constrained", figsize=figure.size_in)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with mpl.rc_context({"text.parse_math": False}):  # as Figure.svg has it
            figure.draw(canvas, LIGHT)
            canvas.draw_without_rendering()
        figure.svg(LIGHT)
    return canvas


def said(part: Table | Text | Figure) -> str:
    """All that a part says to a reader who sees no picture."""
    if isinstance(part, Text):
        return part.body
    if isinstance(part, Figure):
        return f"{part.caption} {part.alt} {part.data.to_string()}"
    return f"{part.caption} {part.frame.to_string()}"


# ---- who is compared ------------------------------------------------------------------------------------------------


def test_profiles_come_in_the_order_of_their_generations_processors_first() -> None:
    parts = [training(hw) for hw in ("v100_sxm2", "h200", "k40m", "cpu", "h100", "h200_x2", "p40", "p100_16gb")]
    order = [profile.name for profile in comparison.profiles(seen(*parts))]
    assert order == ["cpu", "k40m", "p100_16gb", "p40", "v100_sxm2", "h100", "h200", "h200_x2"]


def test_the_overview_says_of_each_profile_what_was_measured_where_how_and_when() -> None:
    late = training("h200", started_at="2026-11-22T10:00:00+00:00")
    table = comparison.overview(seen(late, power("h200"), training("h100", scale="full")))
    assert isinstance(table, Table)
    rows = table.frame.set_index("profile")
    assert list(rows.index) == ["h100", "h200"]
    assert rows.loc["h200"].to_dict() == {
        "device": "1 x NVIDIA H200",
        "studies": f"{TRAINING} and {POWER}",
        "hosts": f"{A} and {B}",
        "scale": "quick",
        "measured": "2026-11-22",
        "PyTorch": "2.11+cu130",
        "driver": "580.159",
    }
    assert rows.loc["h100", ["device", "studies", "scale"]].tolist() == [f"1 x {GPUS['h100']}", TRAINING, "full"]


def test_the_overview_names_the_driver_of_every_host_of_a_profile() -> None:
    second = results("h200", power("h200").records, described(B, driver="575.0"))
    table = comparison.overview(seen(training("h200"), second))
    assert isinstance(table, Table)
    assert "580.159" in table.frame["driver"][0] and "575.0" in table.frame["driver"][0]


def test_a_profile_of_two_processors_names_both_and_the_index_which_study_is_of_which() -> None:
    of_cpu = training("h200").records
    first, second = (
        results("cpu", power("h200").records if name == "AMD EPYC" else of_cpu, {"id": host, "cpu": name, "gpus": []})
        for host, name in ((A, "Intel Xeon"), (B, "AMD EPYC"))
    )
    table = comparison.overview(seen(first, second))
    assert isinstance(table, Table)
    assert table.frame["device"].tolist() == ["Intel Xeon and AMD EPYC"]
    assert other_hosts([first, second]) == [f"{POWER} on {B} (AMD EPYC)"]
    gpus = [training("h200"), power("h200")]
    assert other_hosts(gpus) == [f"{POWER} on {B}"], "the same device needs no name"


# ---- where they differ ----------------------------------------------------------------------------------------------


def changed(**other: Any) -> Results:
    return training("h200", [replace(trial, **other) for trial in TRIALS])


def of_record(**other: Any) -> Results:
    return training("h200", **other)


VERSIONS = {"torch": "2.11", "torch_build": "2.11+cu130"}
DIFFERENCES: dict[str, tuple[Callable[[], Results], tuple[str, str]]] = {
    "data": (lambda: changed(data="digits"), ("synthetic32", "digits")),
    "content of the data": (lambda: changed(data_checksum="0123456789"), ("", "01234567")),
    "batch": (lambda: changed(batch=32), ("64 and 256", "32")),
    "stem": (lambda: changed(stem="cifar"), ("imagenet", "cifar")),
    "head": (lambda: changed(head="head512"), ("torchvision", "head512")),
    "framework": (lambda: changed(framework="keras-jax"), ("torch", "keras-jax")),
    "scale": (lambda: of_record(scale="full"), ("quick", "full")),
    "protocol": (lambda: of_record(protocol=PROTOCOL + 1), (str(PROTOCOL), str(PROTOCOL + 1))),
    "framework version": (lambda: of_record(versions=VERSIONS | {"torch": "2.12"}), ("2.11", "2.12")),
    "cuDNN": (lambda: of_record(versions=VERSIONS | {"cudnn": "9.1"}), ("none", "9.1")),
}


@pytest.mark.parametrize("what", DIFFERENCES)
def test_what_differs_beside_the_device_is_warned_of_with_both_values(what: str) -> None:
    make, (older, newer) = DIFFERENCES[what]
    table = comparison.differences(seen(training("h100"), make()))
    assert isinstance(table, Table)
    assert table.caption.startswith("Warning:")
    assert list(table.frame.columns) == ["", "H100 SXM", "H200 SXM"]
    rows = {row.iloc[0]: tuple(row.iloc[1:]) for _, row in table.frame.iterrows()}
    assert rows[what] == (older, newer)
    assert set(rows) - {what} <= ({"framework version"} if what == "framework" else set()), "nothing else differs"


def test_nothing_is_warned_of_where_only_the_device_and_its_speed_differ() -> None:
    told = comparison.differences(TWO)
    assert isinstance(told, Text)
    assert told.body == "The compared trials differ in nothing but the device and its host."


@pytest.mark.parametrize(
    ("field", "value"),
    [("precision", "bf16"), ("engine", "compile"), ("memory_format", "channels_last"), ("devices", 2)],
)
def test_a_profile_that_was_measured_otherwise_throughout_is_named_and_not_passed_over(field: str, value: Any) -> None:
    """Its trials are not of the plain loop, so nothing of it is compared: a reader must be told, and why."""
    otherwise = training("v100_sxm2", [replace(trial, **{field: value}) for trial in TRIALS])
    told = said(comparison.differences(seen(training("h100"), training("h200"), otherwise)))
    assert "Tesla V100 SXM2" in told and field.replace("_", " ") in told


def test_two_profiles_that_share_no_precision_are_not_called_one_profile() -> None:
    told = said(comparison.differences(seen(training("h100"), changed(precision="bf16"))))
    assert "Only one profile has training records" not in told
    assert "bf16" in told


def test_more_trials_of_another_precision_on_one_side_are_no_difference_of_what_is_compared() -> None:
    more = training("h200", (*TRIALS, replace(R50, precision="bf16"), replace(R50, engine="compile")))
    assert isinstance(comparison.differences(seen(training("h100"), more)), Text)


def test_training_runs_are_not_compared_as_if_they_were_timed() -> None:
    more = training("h200", (*TRIALS, replace(R50, epochs=5)))
    trials = [side.trial for side in comparison.plain(seen(training("h100"), more), comparison.TRAINING)]
    assert replace(R50, epochs=5) not in trials and len(trials) == 2 * len(TRIALS)


# ---- ratios ---------------------------------------------------------------------------------------------------------


def ratios_of(records: Evidence, baseline: str = "") -> dict[tuple[str, str], dict[Trial, Any]]:
    found = comparison.ratio_rows(records, baseline)
    return {couple: {side.trial: effect for side, effect in rows} for couple, rows in found.items()}


def test_a_ratio_is_that_of_the_same_trial_on_two_profiles_with_welchs_interval() -> None:
    (couple,) = found = ratios_of(TWO)
    assert couple == ("H200 SXM", "H100 SXM"), "the newer over the one before it"
    assert set(found[couple]) == set(TRIALS)
    for effect in found[couple].values():
        assert effect.point == pytest.approx(1 / 0.8, rel=1e-9)
        assert effect.low < effect.point < effect.high
        assert effect.n == 3


def test_passes_of_two_hosts_are_no_pairs() -> None:
    """What both hosts have in each pass would cancel in pairs; here it is noise, and the interval is wide."""
    effect = ratios_of(TWO)["H200 SXM", "H100 SXM"][R50]
    rates = [math.log(images_per_s(R50, number)) for number in (1, 2, 3)]
    mean = sum(rates) / 3
    error = math.sqrt(2 * sum((rate - mean) ** 2 for rate in rates) / 2 / 3)
    assert math.log(effect.high / effect.low) / 2 == pytest.approx(2.776445105 * error, rel=1e-6)  # t(0.975, 4)


def test_one_pass_gives_a_ratio_without_an_interval() -> None:
    found = ratios_of(seen(training("h100", passes=1), training("h200")))
    assert {(effect.low, effect.high) for effect in found["H200 SXM", "H100 SXM"].values()} == {(None, None)}


@pytest.mark.parametrize(
    "field",
    [
        {"data": "digits"},
        {"precision": "bf16"},
        {"engine": "compile"},
        {"memory_format": "channels_last"},
        {"framework": "keras-jax"},
        {"batch": 32},
        {"stem": "cifar"},
        {"head": "head512"},
        {"devices": 2},
        {"optimizer": "sgd_fused"},
        {"image_px": 224},
    ],
    ids=lambda field: next(iter(field)),
)
def test_there_is_no_ratio_between_trials_that_are_not_comparable(field: dict[str, Any]) -> None:
    records = seen(training("h100"), changed(**field))
    assert ratios_of(records) == {}
    assert comparison_figures.ratios(records) == comparison_figures.NOTHING
    assert " over " not in comparison.headline(records).body


def test_only_the_trials_that_both_have_are_compared() -> None:
    found = ratios_of(seen(training("h100", (R50, VGG)), training("h200", (R50, R50_LARGE))))
    assert {couple: set(trials) for couple, trials in found.items()} == {("H200 SXM", "H100 SXM"): {R50}}


def test_a_trial_that_failed_on_one_side_has_no_ratio() -> None:
    records = [
        failed(VGG, one.pass_number, "oom", host=C) if one.as_trial == VGG else one for one in passes_of(TRIALS, host=C)
    ]
    found = ratios_of(seen(results("h100", records), training("h200")))
    assert set(found["H200 SXM", "H100 SXM"]) == {R50, R50_LARGE}


def test_without_a_baseline_each_is_compared_with_the_one_before_it_and_with_one_all_with_that() -> None:
    records = seen(*(training(hw) for hw in ("v100_sxm2", "h100", "h200")))
    v100, h100, h200 = "Tesla V100 SXM2", "H100 SXM", "H200 SXM"
    assert list(ratios_of(records)) == [(h100, v100), (h200, h100)]
    assert set(ratios_of(records, "v100_sxm2")) == {(h100, v100), (h200, v100)}
    assert set(ratios_of(records, "h200")) == {(v100, h200), (h100, h200)}


def test_a_profile_without_such_records_does_not_stand_between_two_that_have_them() -> None:
    records = seen(training("v100_sxm2"), power("h100"), training("h200"))
    assert list(ratios_of(records)) == [("H200 SXM", "Tesla V100 SXM2")]


# ---- the answer in words --------------------------------------------------------------------------------------------


def test_the_headline_names_the_fastest_profile_of_each_network_and_the_span_of_ratios() -> None:
    body = comparison.headline(TWO).body
    best = math.exp(sum(math.log(images_per_s(R50_LARGE, number)) for number in (1, 2, 3)) / 3)
    assert f"ResNet-50 trains fastest on H200 SXM, {best:,.0f} images/s [" in body
    assert "VGG-16 trains fastest on H200 SXM" in body
    assert "H200 SXM over H100 SXM, the same trials: 1.25x [" in body


def test_the_slower_profile_is_not_named_though_it_is_the_newer() -> None:
    body = comparison.headline(seen(training("h100"), training("h200", speed=0.5))).body
    assert "fastest on H100 SXM" in body and "fastest on H200" not in body
    assert "H200 SXM over H100 SXM, the same trials: 0.5x [" in body


def test_a_profile_alone_is_compared_with_nothing() -> None:
    assert comparison.ratio_rows(ONE) == {}
    assert comparison_figures.ratios(ONE) == comparison_figures.NOTHING
    told = comparison.differences(ONE)
    assert isinstance(told, Text)
    assert told.body.startswith("Only H200 SXM ") and told.body.endswith("so nothing is compared.")
    assert " over " not in comparison.headline(ONE).body


def test_a_profile_alone_is_not_called_the_fastest() -> None:
    assert "fastest on" not in comparison.headline(ONE).body


def test_without_records_every_part_says_so_and_none_fails() -> None:
    parts: list[Table | Text | Figure] = [
        comparison.headline(NONE),
        comparison.overview(NONE),
        comparison.differences(NONE),
        comparison_figures.throughput(NONE),
        comparison_figures.ratios(NONE),
        comparison_figures.efficiency(NONE),
    ]
    assert all(isinstance(part, Text) and part.body for part in parts)


# ---- published beside measured --------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", ["utilisation", "power_w"])
def test_published_numbers_are_those_printed_and_are_marked_as_published(metric: str) -> None:
    figure = comparison_figures.beside_published(NONE, PAPERS, metric)
    assert isinstance(figure, Figure)
    assert set(figure.data["kind"]) == {"published"}
    (table,) = [
        table
        for paper in PAPERS
        for table in paper.tables
        if (table.metric, table.model, table.columns_are) == (metric, "resnet50", "profile")
    ]
    assert len(figure.data) == len(table.columns)
    for name, statistic in (("lowest", "min"), ("mean", "mean"), ("highest", "max")):
        assert list(figure.data[name]) == pytest.approx(table.rows[statistic], rel=1e-12), "as the paper prints them"
    assert all(table.where in source for source in figure.data["source"])
    assert table.where in figure.caption and "Published" in figure.caption


@pytest.mark.parametrize(("metric", "mean", "span"), [("utilisation", 90.0, 0.1), ("power_w", 400.0, 0.1)])
def test_measured_numbers_are_those_of_the_records_and_name_their_file(metric: str, mean: float, span: float) -> None:
    figure = comparison_figures.beside_published(TWO, PAPERS, metric)
    assert isinstance(figure, Figure)
    rows = figure.data[figure.data["kind"] == "measured"]
    study, batches = (POWER, 1) if metric == "power_w" else (TRAINING, 2)
    assert len(rows) == 2 * batches, "each profile, each batch of ResNet-50"
    assert {source.rsplit("/", 1)[-1] for source in rows["source"]} == {f"{study}.jsonl"}
    assert {source.split("/")[0] for source in rows["source"]} == {"h100", "h200"}
    assert list(rows["mean"]) == pytest.approx([mean] * len(rows))
    assert list(rows["lowest"]) == pytest.approx([mean * (1 - span)] * len(rows))
    assert list(rows["highest"]) == pytest.approx([mean * (1 + span)] * len(rows))


@pytest.mark.parametrize("metric", ["utilisation", "power_w"])
def test_neither_kind_changes_the_other(metric: str) -> None:
    both = comparison_figures.beside_published(TWO, PAPERS, metric)
    published = comparison_figures.beside_published(NONE, PAPERS, metric)
    measured = comparison_figures.beside_published(TWO, [], metric)
    assert isinstance(both, Figure) and isinstance(published, Figure) and isinstance(measured, Figure)
    pd.testing.assert_frame_equal(both.data, pd.concat([published.data, measured.data], ignore_index=True))
    assert set(published.data["device"]).isdisjoint(measured.data["device"])
    names = {profile.title for profile in comparison.profiles(TWO)}
    assert not [device for device in published.data["device"] if any(device.startswith(name) for name in names)]


@pytest.mark.parametrize("metric", ["utilisation", "power_w"])
def test_published_bars_are_hollow_and_hatched_and_measured_ones_filled(metric: str) -> None:
    figure = comparison_figures.beside_published(TWO, PAPERS, metric)
    assert isinstance(figure, Figure)
    (axes,) = drawn(figure).axes
    bars = list(axes.patches)
    assert len(bars) == len(figure.data)
    colours = set()
    for bar, (_, row) in zip(bars, figure.data.iterrows(), strict=True):
        hollow = row["kind"] == "published"
        assert bool(bar.get_hatch()) == hollow
        assert (bar.get_facecolor()[3] == 0) == hollow
        assert (bar.get_x(), bar.get_width()) == pytest.approx((row["lowest"], row["highest"] - row["lowest"]))
        colours.add((hollow, to_hex(bar.get_edgecolor() if hollow else bar.get_facecolor())))
    assert len(colours) == len({colour for _, colour in colours}) == 2, "and each kind has a colour of its own"
    legend = [text.get_text() for text in axes.get_legend().get_texts()]
    assert any("published" in text for text in legend) and "measured" in legend


def test_no_published_images_per_second_stand_there_because_none_were_printed() -> None:
    found = comparison_figures.beside_published(NONE, PAPERS, "images_per_s")
    assert isinstance(found, Text) and "Nobody published" in found.body
    figure = comparison_figures.throughput(TWO)
    assert isinstance(figure, Figure) and set(figure.data["profile"]) == {"H100 SXM", "H200 SXM"}


def magnitudes(records: Evidence) -> pd.DataFrame:
    table = comparison.published_magnitudes(judge_all(PAPERS, records))
    assert isinstance(table, Table)
    return table.frame


def test_published_magnitudes_stand_beside_the_same_quantity_of_every_profile() -> None:
    rows = magnitudes(TWO).set_index("claim")
    printed, measured = rows.loc["wisconsin-underused", ["published", "measured"]]
    assert re.findall(r"(\S+) % \((.*?)\)(?:; |$)", printed) == [
        ("78.8", "Tesla P100 PCIe, 12 GB"),
        ("86.1", "Tesla P100 PCIe, 16 GB"),
        ("71.7", "Tesla V100 SXM2"),
        ("75.2", "Tesla K40m"),
    ]
    assert re.findall(r"batch (\d+), (H\d00 SXM): (\S+) %", measured) == [
        (batch, name, "90.0") for name in ("H100 SXM", "H200 SXM") for batch in ("64", "256")
    ]


def test_what_was_published_does_not_depend_on_what_was_measured() -> None:
    here, nowhere = magnitudes(TWO), magnitudes(NONE)
    assert here[["claim", "what", "published"]].equals(nowhere[["claim", "what", "published"]])
    assert all(nowhere["measured"]), "where nothing was measured it says why"
    assert not nowhere["measured"].str.contains(r"\[").any(), "and there is no interval"
    printed = {claim.id for paper in PAPERS for claim in paper.claims if any(test.published for test in claim.tests)}
    assert set(here["claim"]) == printed, "also what no study of this version can measure"


# ---- figures --------------------------------------------------------------------------------------------------------

FIGURES: dict[str, Callable[[Evidence], Figure | Text]] = {
    "throughput": comparison_figures.throughput,
    "ratios": comparison_figures.ratios,
    "utilisation": lambda records: comparison_figures.beside_published(records, PAPERS, "utilisation"),
    "power": lambda records: comparison_figures.beside_published(records, PAPERS, "power_w"),
    "efficiency": comparison_figures.efficiency,
}


@pytest.mark.parametrize("name", FIGURES)
def test_each_figure_names_its_hosts_and_its_command_and_says_what_it_shows_in_words(name: str) -> None:
    figure = FIGURES[name](TWO)
    assert isinstance(figure, Figure)
    drawn(figure)
    assert figure.again == "make compare"
    hosts = {C, B} if name in ("power", "efficiency") else {C, A}
    assert all(f"host {host}" in figure.caption for host in hosts)
    assert len(figure.alt) > 60 and len(figure.data)
    assert len(figure.name) and "nan" not in figure.caption + figure.alt


def test_a_figure_made_for_a_baseline_has_the_command_with_that_baseline() -> None:
    """Without it the command would make another picture."""
    figure = comparison_figures.ratios(TWO, "h200")
    assert isinstance(figure, Figure)
    assert set(figure.data["profiles"]) == {"H100 SXM over H200 SXM"}
    assert figure.again == "make compare BASELINE=h200"


def test_the_throughput_picture_has_a_dot_at_each_rate_and_a_line_for_its_interval() -> None:
    figure = comparison_figures.throughput(TWO)
    assert isinstance(figure, Figure)
    (axes,) = drawn(figure).axes
    dots = sorted(line.get_xdata()[0] for line in axes.lines if len(line.get_xdata()) == 1)
    assert dots == pytest.approx(sorted(figure.data["images/s"]))
    ends = sorted(end for line in axes.lines if len(line.get_xdata()) == 2 for end in line.get_xdata())
    assert ends == pytest.approx(sorted([*figure.data["low"], *figure.data["high"]]))
    assert len(dots) == 6 and axes.get_xscale() == "log"


@pytest.mark.parametrize("name", FIGURES)
def test_one_pass_is_drawn_without_a_line_and_without_a_warning(name: str) -> None:
    parts = [training("h100", passes=1), training("h200", passes=1), power("h100", passes=1), power("h200", passes=1)]
    figure = FIGURES[name](seen(*parts))
    (axes, *_) = drawn(figure).axes
    if name in ("throughput", "efficiency"):
        assert not [line for line in axes.lines if len(line.get_xdata()) == 2]


def test_the_ratio_picture_shows_what_the_nominal_peaks_would_give() -> None:
    figure = comparison_figures.ratios(TWO)
    assert isinstance(figure, Figure)
    (axes,) = drawn(figure).axes
    peaks = {hw: load_profile(hw).peaks for hw in ("h100", "h200")}
    bandwidth = [peaks[hw].memory_bytes_per_s for hw in ("h200", "h100")]
    assert bandwidth[0] and bandwidth[1]
    lines = {
        line.get_label(): line.get_xdata()[0] for line in axes.lines if str(line.get_label()).startswith("nominal")
    }
    fp32 = [peaks[hw].flop_per_s["fp32"].value for hw in ("h200", "h100")]
    assert lines == {
        "nominal bandwidth": pytest.approx(bandwidth[0].value / bandwidth[1].value),
        "nominal FP32": pytest.approx(fp32[0] / fp32[1]),
    }


def test_profiles_without_nominal_peaks_have_a_ratio_picture_too() -> None:
    bare = load_profile("h200").model_copy(update={"peaks": Peaks()})
    own = results("h200", training("h200").records, profile=bare)
    assert isinstance(comparison_figures.ratios(seen(training("h100"), own)), Figure)
    drawn(comparison_figures.ratios(seen(training("h100"), own)))


def test_efficiency_is_images_per_joule() -> None:
    figure = comparison_figures.efficiency(TWO)
    assert isinstance(figure, Figure)
    rows = figure.data.set_index(["model", "profile"])["images/s/W"]
    rate = math.exp(sum(math.log(images_per_s(R50, number)) for number in (1, 2, 3)) / 3)
    assert rows["ResNet-50", "H200 SXM"] == pytest.approx(rate / 400)
    assert rows["ResNet-50", "H100 SXM"] == pytest.approx(0.8 * rate / 400)


def test_a_processors_power_is_not_called_that_of_a_board() -> None:
    """RAPL sees the packages only: a reader who sets it beside a board's power must know."""
    trials = [replace(trial, device="cpu") for trial in POWERED]
    records = [
        record.model_copy(update={"telemetry": with_rapl(record.as_trial)}) for record in passes_of(trials, study=POWER)
    ]
    cpu = results("cpu", records)
    figure = comparison_figures.efficiency(seen(cpu, power("h200")))
    assert isinstance(figure, Figure) and "The CPU of this machine" in set(figure.data["profile"])
    assert power_kind(cpu).split(" of ", 1)[1] in figure.caption
    (axes,) = drawn(figure).axes
    assert "board" not in axes.get_xlabel()


@pytest.mark.parametrize("title", ["from $\\frac{$ to $$", "50 % of an_H200 & <b>"])
def test_a_profiles_title_is_text_and_not_mathematics(title: str) -> None:
    odd = load_profile("h200").model_copy(update={"title": title})
    records = seen(training("h100"), results("h200", training("h200").records, profile=odd))
    figure = comparison_figures.throughput(records)
    (axes,) = drawn(figure).axes
    shown = [text.get_text().replace("\\$", "$") for text in axes.get_legend().get_texts()]
    assert title in shown
    drawn(comparison_figures.ratios(records))


# ---- the page -------------------------------------------------------------------------------------------------------


def evil_evidence() -> Evidence:
    gpus = [described()["gpus"][0] | {"name": f"NVIDIA H200 {EVIL}"}]
    profile = load_profile("h200")
    device = profile.device.model_copy(update={"pattern": "H200"})
    profile = profile.model_copy(
        update={"title": evil("profile"), "description": evil("description"), "device": device}
    )
    versions = {name: evil(name) for name in ("torch", "torch_build", "cudnn", "commit", "source")}
    records = [
        failed(VGG, one.pass_number, evil("out of memory"), versions=versions) if one.as_trial == VGG else one
        for one in passes_of(TRIALS, versions=versions)
    ]
    host = described(A, gpus=gpus, driver=evil("driver"), cpu=evil("cpu"))
    return seen(training("h100"), results("h200", records, host, profile))


def test_what_a_device_a_host_a_profile_or_a_paper_says_stays_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records, papers = evil_evidence(), [evil_paper(paper) for paper in PAPERS]
    judged = judge_all(papers, records)
    monkeypatch.setattr(Figure, "svg", lambda *_: "<svg/>")
    parts = [
        comparison.overview(records),
        comparison.differences(records),
        comparison.headline(records),
        comparison.published_magnitudes(judged),
        Findings([one for one in judged if COMPARISON in one.claim.studies]),
        comparison_figures.throughput(records),
        comparison_figures.ratios(records),
        comparison_figures.beside_published(records, papers, "utilisation"),
    ]
    notebook, path = tmp_path / "index.ipynb", tmp_path / "index.html"
    executed(notebook, *parts)
    strip, links = {evil("label"): evil("value")}, [("../h200/index.html", evil("link"))]
    render_notebook(notebook, path, title=evil("comparison"), strip=strip, links=links)
    page = path.read_text(encoding="utf-8")
    assert_harmless(page, *map(evil, ("profile", "1 x NVIDIA H200", "driver", "torch", "torch_build", "cudnn")))
    assert_harmless(
        page, *map(evil, ("printed", "title", "table", "statement", "label", "value", "link", "comparison"))
    )
    assert external_urls(page) == []


# ---- make compare ---------------------------------------------------------------------------------------------------


def stub(reason: str | None = None, write: bool = True) -> Callable[..., Execution]:
    """An execution of the notebook that takes no kernel: it shows which parameters it was given."""

    def execute(notebook: Path, output: Path, parameters: dict[str, Any], **_: Any) -> Execution:
        assert notebook.stem == COMPARISON
        if write:
            executed(output, Text(f"baseline {parameters['baseline']!r}"))
            if reason:
                node = nbformat.read(output, as_version=4)
                error = nbformat.v4.new_output("error", ename="ValueError", evalue="it broke", traceback=[])
                node.cells[-1].outputs.append(error)
                nbformat.write(node, output)
        return Execution(reason)

    return execute


@pytest.fixture
def reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two profiles with records, one of them with an index, and a notebook that takes no time."""
    put(tmp_path, "h100", passes_of(TRIALS, host=C))
    put(tmp_path, "h200", passes_of(TRIALS))
    (tmp_path / "h200" / "index.html").write_text("<title>H200</title>")
    monkeypatch.setenv("LABKIT_REPORTS", str(tmp_path))
    monkeypatch.setattr(compare, "execute", stub())
    monkeypatch.setattr(compare, "load_papers", lambda: PAPERS)
    monkeypatch.setattr(compare, "this_host", lambda: HERE)
    return tmp_path


def page_in(reports: Path) -> str:
    return (reports / "comparison" / "index.html").read_text(encoding="utf-8")


def test_two_profiles_give_a_page_and_the_numbers_of_both(reports: Path) -> None:
    assert compare.make_compare() == 0
    made = {path.name for path in (reports / "comparison").iterdir()}
    assert made == {"index.html", f"{COMPARISON}.ipynb", "numbers.csv", "numbers.parquet", "claims.csv"}
    frame = pd.read_parquet(reports / "comparison" / "numbers.parquet")
    assert set(zip(frame["profile"], frame["host"], strict=True)) == {("h100", C), ("h200", A)}
    _, text = read_page(page_in(reports))
    assert "H100 SXM, H200 SXM" in text and "make compare" in text
    assert "baseline ''" in text


def test_the_page_leads_to_the_reports_there_are_and_to_no_others(reports: Path) -> None:
    compare.make_compare()
    links = [
        link["href"]
        for link in BeautifulSoup(page_in(reports), "html.parser").select("nav a")
        if link["href"][0] != "#"
    ]
    assert links == ["../h200/index.html", "numbers.csv", "claims.csv"]


def test_a_baseline_reaches_the_notebook_and_the_command_on_the_page(reports: Path) -> None:
    assert compare.make_compare("h100") == 0
    _, text = read_page(page_in(reports))
    assert "baseline 'h100'" in text and "make compare BASELINE=h100" in text


def test_a_baseline_without_records_is_refused_with_those_that_have_some(reports: Path) -> None:
    with pytest.raises(UserError, match=r"unknown BASELINE 'k40m'; valid: h\d00, h\d00\.$"):
        compare.make_compare("k40m")
    assert not (reports / "comparison").exists()


def test_without_records_there_is_nothing_to_compare_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "h200").mkdir()
    monkeypatch.setenv("LABKIT_REPORTS", str(tmp_path))
    with pytest.raises(UserError, match="no records to compare: `make report`"):
        compare.make_compare()
    assert [path.name for path in tmp_path.iterdir()] == ["h200"]


def test_a_comparison_that_fails_ends_with_1_and_its_page_says_why(
    reports: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compare, "execute", stub("ValueError: it broke\nlong story"))
    assert compare.make_compare() == 1
    out = "".join(capsys.readouterr())
    assert "the comparison failed: ValueError: it broke" in out and "long story" not in out
    assert "This study failed. ValueError: it broke." in page_in(reports)


def test_a_comparison_that_could_not_run_does_not_pass_off_the_former_one_as_new(
    reports: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare.make_compare("h100")
    monkeypatch.setattr(compare, "execute", stub("the notebook could not be run", write=False))
    assert compare.make_compare() == 1
    page = reports / "comparison" / "index.html"
    assert not page.exists() or "baseline 'h100'" not in page.read_text(), "an old picture under a new command"


def test_a_picture_and_the_numbers_beside_it_are_of_the_same_host(reports: Path) -> None:
    """The notebook asks for the records of all profiles; the files beside it must not prefer another host's."""
    newer = [
        taken(one.as_trial, one.pass_number, TRIALS, host=B, started_at="2027-01-01T00:00:00+00:00")
        for one in passes_of(TRIALS)
    ]
    put(reports, "h200", newer)
    own = [taken(one.as_trial, one.pass_number, TRIALS, host=HERE.id) for one in passes_of(TRIALS)]
    put(reports, "h200", own)
    compare.make_compare()
    frame = pd.read_parquet(reports / "comparison" / "numbers.parquet")
    in_files = set(frame[frame["profile"] == "h200"]["host"])
    cells = list(nbformat.read(compare.notebook_of(COMPARISON), as_version=4).cells)
    reading = next(cell for cell in cells if cell.cell_type == "code" and cell.source.startswith("records = "))
    names: dict[str, Any] = {}
    with reporting(reports) as patch:
        patch.setattr("labkit.host.this_host", lambda: HERE)
        patch.setattr("labkit.study.this_host", lambda: HERE)
        for cell in (next(cell for cell in cells if "imports" in cell.metadata.get("tags", [])), reading):
            exec(cell.source, names)
    on_page = {names["records"].results("h200", TRAINING).host_id}
    assert on_page == in_files
