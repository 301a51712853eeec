"""Pages say of telemetry what the sensors said, and where they said nothing they say why: a dash, never a 0."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from matplotlib.figure import Figure as Canvas

from labkit.analysis import beside_paper, observations, quality, summary, utilisation
from labkit.analysis.figure import DARK, LIGHT, Figure
from labkit.analysis.studies import key_numbers, power, power_engines, power_figures
from labkit.analysis.table import Table, Text
from labkit.observed import EnergyWindow, Flagged, Gap, Metrics, Statistic, Telemetry, Window
from labkit.papers import load_papers
from labkit.profile import load_profile
from labkit.recipes import COMPILED
from labkit.record_store import Store
from labkit.records import Blocks, Planned, Process, Record, short_hash
from labkit.registry import find_study
from labkit.results import from_telemetry
from labkit.results.study_records import StudyRecords as Results
from labkit.series import Series
from labkit.series_store import COLUMNS, SeriesStore
from labkit.study import OpenStudy, open_study
from labkit.trial import NO_DATA, Trial
from labkit.trial_label import trial_label
from tests.committed import committed_reports

HOST = "0123456789ab"
R50 = Trial(model="resnet50", batch=64, energy_windows=3)
VGG = Trial(model="vgg16", batch=64, energy_windows=3)
IDLE = Trial(workload="idle", data=NO_DATA, energy_windows=3)
TRIALS = (R50, VGG, IDLE)
WATTS = {"resnet50": 400.0, "vgg16": 500.0, "idle": 100.0}
GPUS = {"v100_sxm2": "Tesla V100-SXM2-16GB", "k40m": "Tesla K40m"}
WINDOW_S, IMAGES = 5.0, 1000  # so ResNet-50 costs 2 J an image, 1.5 J above idle
NO_RAPL = "no RAPL: this kernel shows no energy counter"
NO_GPM = "the driver says: Not Supported"
KILLED = "the telemetry process was killed by signal SIGKILL"
PAPERS = load_papers()

Tell = Callable[[Trial, int], Telemetry | None]


# ---- records made by hand -------------------------------------------------------------------------------------------


def watts(trial: Trial) -> float:
    return WATTS[trial.model if trial.workload == "train" else "idle"]


def on(trial: Trial, device: str) -> Trial:
    return Trial(**(trial.as_dict() | {"device": device}))


def read(**means: float) -> Metrics:
    """Statistics of ten readings, the lowest 10 % below the mean, the highest 10 % above it."""
    return {name: Statistic(mean=value, low=0.9 * value, high=1.1 * value, n=10) for name, value in means.items()}


def made(trial: Trial, pass_number: int, telemetry: Telemetry | None, **other: Any) -> Record:
    """Ten blocks of half a second, 1000 images each where the trial trains."""
    train = trial.workload == "train"
    values: dict[str, Any] = {
        "study": "04_power",
        "scale": "quick",
        "key": trial.key,
        "trial": trial.as_dict(),
        "pass_number": pass_number,
        "planned": Planned(keys=[short_hash(one.key) for one in TRIALS], passes=3, order_seed=1),
        "process": Process(id=f"p{pass_number}", position=0, startup_s=2.0),
        "host": HOST,
        "devices_used": 1,
        "versions": {"torch": "2.11"},
        "status": "ok",
        "started_at": "2026-01-01T00:00:00+00:00",
        "wall_s": 8.0,
        "phases_s": {"idle": 0.5, "build": 0.25, "first_step": 0.25, "warmup": 1.0, "timed": 5.0, "blocks": 6.0},
        "facts": {"cpu_cores_used": 1.5, "threads": 4, "data_description": "Made up."},
        "result": Blocks(
            steps_per_block=10,
            images_per_step=100 if train else None,
            host_s=[0.5] * 10,
            warmup_s=[1.0],
            warmup_steps=[10],
            steady=True,
            stopped_by="time",
        ),
        "telemetry": telemetry,
    }
    return Record(**(values | other))


def shown(*records: Record, hw: str = "h200", study: str = "power") -> Results:
    profile = load_profile(hw)
    host: dict[str, Any] = {"cpu": "a CPU"}
    if profile.device.kind == "cuda":
        host["gpus"] = [{"name": GPUS.get(hw, "NVIDIA H200")}] * profile.device.count
    return Results(
        study=find_study(study),
        profile=profile,
        scale="quick",
        host_id=HOST if records else None,
        host=host if records else {},
        records=list(records),
    )


def told(
    sources: dict[str, Metrics], energy: dict[str, float | None], *, images: int | None = IMAGES, **other: Any
) -> Telemetry:
    """Telemetry of one trial: what each source did in the timed part, and joules of each of three long windows."""
    gpus = {name: metrics for name, metrics in sources.items() if name.startswith("gpu")}
    quiet = {name: read(power_w=80.0) for name, metrics in gpus.items() if "power_w" in metrics}
    polled = {
        name: {metric: metrics[metric] for metric in ("utilisation", "power_smi_w") if metric in metrics}
        for name, metrics in gpus.items()
    }
    values: dict[str, Any] = {
        "status": "ok",
        "windows": {
            "unattached": Window(start_s=-20.0, length_s=3.0, sources=quiet),
            "timed": Window(start_s=0.0, length_s=15.0, sources=sources),
        },
        "polled": polled,
        "energy": [
            EnergyWindow(start_s=WINDOW_S * place, length_s=WINDOW_S, images=images, energy_j=energy)
            for place in range(3)
        ],
        "energy_method": dict.fromkeys(energy, "counter"),
        "missing": {"rapl:package-0": {"energy_j": NO_RAPL}},
        "sampler_cpu_share": 0.01,
    }
    return Telemetry(**(values | other))


def board(trial: Trial) -> Metrics:
    """What NVML tells of any generation."""
    used = 0.9 if trial.workload == "train" else 0.1
    return read(
        power_w=watts(trial),
        power_smi_w=watts(trial),
        utilisation=used,
        memory_bytes=2.0**30,
        temperature_c=50.0,
        sm_clock_hz=1.5e9,
    )


def processor(trial: Trial) -> Metrics:
    return read(cpu_utilisation={"resnet50": 0.25, "vgg16": 0.5}.get(trial.model, 0.1), cpu_clock_hz=2e9)


def images_of(trial: Trial) -> int | None:
    return IMAGES if trial.workload == "train" else None


def hopper(trial: Trial, _: int = 1) -> Telemetry:
    units = read(sm_activity=0.5, fp32_activity=0.4, tensor_activity=0.01, dram_activity=0.2, occupancy=0.3)
    sources = {"gpu0": board(trial) | units, "host": processor(trial)}
    return told(sources, {"gpu0": watts(trial) * WINDOW_S}, images=images_of(trial))


def volta(trial: Trial, _: int = 1) -> Telemetry:
    lacks = dict.fromkeys(("sm_activity", "fp32_activity", "tensor_activity", "dram_activity", "occupancy"), NO_GPM)
    return told(
        {"gpu0": board(trial), "host": processor(trial)},
        {"gpu0": watts(trial) * WINDOW_S},
        images=images_of(trial),
        missing={"gpu0": lacks},
    )


def kepler(trial: Trial, _: int = 1) -> Telemetry:
    method = "trapezoid of power polled every 20 ms"
    return volta(trial).model_copy(update={"energy_method": {"gpu0": method}})


def two_gpus(trial: Trial, _: int = 1) -> Telemetry:
    second = board(trial) | read(power_w=0.5 * watts(trial), utilisation=0.5)
    sources = {"gpu0": board(trial), "gpu1": second}
    joules: dict[str, float | None] = {"gpu0": watts(trial) * WINDOW_S, "gpu1": 0.5 * watts(trial) * WINDOW_S}
    return told(sources, joules, images=images_of(trial))


def with_rapl(trial: Trial, _: int = 1) -> Telemetry:
    joules = {"rapl:package-0": 200.0, "rapl:package-1": 300.0, "rapl:package-0/dram": 50.0}
    if trial.workload == "idle":
        joules = {"rapl:package-0": 50.0, "rapl:package-1": 50.0, "rapl:package-0/dram": 5.0}
    return told({"host": processor(trial)}, {**joules}, images=images_of(trial), missing={})


def without_rapl(trial: Trial, _: int = 1) -> Telemetry:
    return told({"host": processor(trial)}, {}, images=images_of(trial))


def lost_once(trial: Trial, pass_number: int) -> Telemetry:
    return Telemetry(status="lost", reason=KILLED) if pass_number == 2 else hopper(trial)


def lost_always(_: Trial, __: int) -> Telemetry:
    return Telemetry(status="lost", reason=KILLED, missing={"rapl:package-0": {"energy_j": NO_RAPL}})


def no_telemetry(_: Trial, __: int) -> None:
    return None


def of(tell: Tell, hw: str = "h200", passes: int = 3) -> Results:
    """Every trial in every pass, on all devices of the profile, with the telemetry that `tell` gives."""
    device = load_profile(hw).device
    trials = [on(trial, device.kind) for trial in TRIALS]
    used = device.count
    return shown(
        *[made(one, n, tell(one, n), devices_used=used) for n in range(1, passes + 1) for one in trials], hw=hw
    )


def with_failures() -> Results:
    failed = [made(R50, n, None, status="oom", reason="out of memory", result=None) for n in (1, 2, 3)]
    return shown(*failed, *[made(one, n, hopper(one)) for n in (1, 2, 3) for one in (VGG, IDLE)])


CASES: dict[str, Callable[[], Results]] = {
    "a Hopper": lambda: of(hopper),
    "a Volta": lambda: of(volta, "v100_sxm2"),
    "a Kepler": lambda: of(kepler, "k40m"),
    "two GPUs": lambda: of(two_gpus, "h200_x2"),
    "a CPU with RAPL": lambda: of(with_rapl, "cpu"),
    "a CPU without RAPL": lambda: of(without_rapl, "cpu"),
    "lost in one pass": lambda: of(lost_once),
    "lost in every pass": lambda: of(lost_always),
    "records without telemetry": lambda: of(no_telemetry),
    "a CPU's records without telemetry": lambda: of(no_telemetry, "cpu"),
    "one pass": lambda: of(hopper, passes=1),
    "one trial failed": with_failures,
    "no records": lambda: shown(),
    "no records of a CPU": lambda: shown(hw="cpu"),
}


@cache
def case_of(name: str) -> Results:
    """The records of a case, made once."""
    return CASES[name]()


def training(results: Results) -> list[Trial]:
    return results.trials(workload="train")


def first(results: Results) -> Trial:
    return results.trials(workload="train", model="resnet50")[0]


def series_of(results: Results) -> pd.DataFrame:
    """What the sampler kept: power of each device, busy processor time of the host."""
    rows = [
        (results.scale, short_hash(record.key), record.pass_number, source, metric, t_s, metrics[metric].mean)
        for record in results.records
        if record.telemetry and "timed" in record.telemetry.windows
        for source, metrics in record.telemetry.windows["timed"].sources.items()
        for metric in ("power_w", "cpu_utilisation")
        if metric in metrics
        for t_s in (-1.0, 5.0, 10.0)
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


# ---- every part of a page, for every kind of machine ----------------------------------------------------------------


PARTS: dict[str, Callable[[Results], Any]] = {
    "flags": lambda r: observations.flags(r, r.trials()),
    "utilisation.headline": lambda r: utilisation.headline(r, training(r)),
    "utilisation.shares": lambda r: utilisation.shares(r, training(r)),
    "utilisation.shares_summary": lambda r: utilisation.shares_summary(r, training(r)),
    "utilisation.host_table": lambda r: utilisation.host_table(r, r.trials()),
    "utilisation.cores_sentence": lambda r: utilisation.cores_sentence(r, training(r)),
    "power.prediction": lambda r: power.prediction(r.profile, r.trials()),
    "power.headline": lambda r: power.headline(r, r.trials()),
    "power.summary": lambda r: power.summary(r, r.trials()),
    "power_figures.ranges": lambda r: power_figures.ranges(r, r.trials()),
    "power_figures.over_time": lambda r: power_figures.over_time(r, r.trials(), series_of(r)),
    "power_figures.energy": lambda r: power_figures.energy(r, training(r)),
    "power_figures.against_size": lambda r: power_figures.against_size(r, training(r)),
    "beside_paper.utilisation": lambda r: beside_paper.utilisation(r, PAPERS, "resnet50"),
    "beside_paper.power": lambda r: beside_paper.power(r, PAPERS, "resnet50"),
    "summary.trials_table": lambda r: summary.trials_table(TRIALS, 3),
    "summary.limitations": lambda r: summary.limitations(r, training(r)),
    "summary.telemetry_limits": lambda r: Text("\n\n".join(summary.telemetry_limits(r))),
    "quality.pass_time": quality.pass_time,
}
FIGURES = (
    "utilisation.shares",
    "power_figures.ranges",
    "power_figures.over_time",
    "power_figures.energy",
    "power_figures.against_size",
    "quality.pass_time",
)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("case", CASES)
def test_no_part_of_a_page_fails_or_shows_nan_or_none(case: str, part: str) -> None:
    from matplotlib.figure import Figure as Canvas

    made_of = PARTS[part](case_of(case))
    for shown_part in made_of if isinstance(made_of, list) else [made_of]:
        assert isinstance(shown_part, Figure | Table | Text)
        if isinstance(shown_part, Figure):
            shown_part.draw(Canvas(layout="constrained"), LIGHT)  # what it paints; the slow SVG has a test of its own
            text = shown_part.caption + shown_part.alt
            assert shown_part.caption and shown_part.alt and len(shown_part.data)
        else:
            text = shown_part._repr_mimebundle_()["text/html"]
        for odd in ("nan", "None", "NaN", "inf "):
            assert odd not in text, text


@pytest.mark.parametrize(
    ("case", "part"),
    [
        *[("a Hopper", part) for part in FIGURES],
        ("a CPU with RAPL", "power_figures.ranges"),
        ("a CPU with RAPL", "power_figures.over_time"),
        ("one pass", "power_figures.energy"),
        ("two GPUs", "utilisation.shares"),
    ],
)
def test_a_figure_is_an_svg_in_both_themes_with_alt_text_caption_and_data(case: str, part: str) -> None:
    figure = PARTS[part](case_of(case))
    assert isinstance(figure, Figure)
    light, dark = figure.svg(LIGHT), figure.svg(DARK)
    assert light.startswith("<?xml") and "</svg>" in light and light != dark
    assert len(figure.alt) > 40 and figure.caption.endswith(".") and len(figure.data)
    assert figure.caption.count("n = ") == 1, "the caption names the conditions"


# ---- energy ---------------------------------------------------------------------------------------------------------


def point(results: Results, metric: str, trial: Trial | None = None) -> float | None:
    interval = observations.mean_interval(results, trial or first(results), metric)
    return interval.point if interval else None


def test_energy_per_image_is_the_joules_of_all_windows_over_their_images() -> None:
    long, short = (
        EnergyWindow(start_s=0.0, length_s=6.0, images=3000, energy_j={"gpu0": 900.0}),
        EnergyWindow(start_s=6.0, length_s=5.0, images=1000, energy_j={"gpu0": 700.0}),
    )
    results = shown(made(R50, 1, hopper(R50).model_copy(update={"energy": [long, short]})))
    assert point(results, "energy_per_image_j") == pytest.approx(1600 / 4000), "not the mean of 0.3 and 0.7"


def test_net_energy_subtracts_the_idle_trial_of_the_same_pass() -> None:
    def idle_at(w: float) -> Telemetry:
        return told({"gpu0": read(power_w=w)}, {"gpu0": w * WINDOW_S}, images=None)

    passes = {1: 100.0, 2: 200.0}
    results = shown(
        *[made(R50, n, hopper(R50)) for n in passes], *[made(IDLE, n, idle_at(w)) for n, w in passes.items()]
    )
    net = {r.pass_number: from_telemetry.of_pass(results, r, "net_energy_per_image_j") for r in results.ok(R50)}
    assert net == {1: pytest.approx((400 - 100) * 5 / 1000), 2: pytest.approx((400 - 200) * 5 / 1000)}
    assert point(of(hopper), "energy_per_image_j") == pytest.approx(2.0)
    assert point(of(hopper), "net_energy_per_image_j") == pytest.approx(1.5)


def test_without_an_idle_trial_in_the_pass_there_is_no_net_energy() -> None:
    results = shown(made(R50, 1, hopper(R50)), made(IDLE, 2, hopper(IDLE)))
    assert point(results, "net_energy_per_image_j") is None
    assert point(results, "energy_per_image_j") == pytest.approx(2.0)


def test_an_unknown_window_gives_no_energy_per_image_and_never_0() -> None:
    windows = hopper(R50).energy
    hole = windows[1].model_copy(update={"energy_j": {"gpu0": None}})
    results = shown(made(R50, 1, hopper(R50).model_copy(update={"energy": [windows[0], hole, windows[2]]})))
    assert point(results, "energy_per_image_j") is None
    figure = power_figures.energy(results, [R50])
    assert isinstance(figure, Text) and "no image has a price" in figure.body
    table = power.summary(results, [R50])
    assert isinstance(table, Table) and "mJ/image" not in table.frame, "a column without any value is not shown"


def test_a_trial_without_energy_beside_one_with_it_shows_a_dash() -> None:
    without = hopper(R50).model_copy(update={"energy": []})
    table = power.summary(shown(made(R50, 1, without), made(VGG, 1, hopper(VGG))), [R50, VGG])
    assert isinstance(table, Table) and table.frame["mJ/image"].tolist() == [None, "2,500"]
    assert "<td class=n>–</td>" in table._repr_mimebundle_()["text/html"]


def test_an_idle_trial_has_no_energy_per_image() -> None:
    assert point(of(hopper), "energy_per_image_j", IDLE) is None
    assert point(of(hopper), "images_per_s_per_w", IDLE) is None


def test_efficiency_is_images_per_second_over_watts() -> None:
    assert point(of(hopper), "images_per_s_per_w") == pytest.approx(100 * 10 * 10 / 5 / 400)


def test_packages_of_the_processor_count_once_and_their_memory_is_within_them() -> None:
    results = of(with_rapl, "cpu")
    assert point(results, "power_w") == pytest.approx(500 / 5)
    assert point(results, "energy_per_image_j") == pytest.approx(0.5)
    assert point(results, "net_energy_per_image_j") == pytest.approx(0.5 - 20 * 5 / 1000)
    assert "100.0 W" in power.headline(results, results.trials()).body


def test_a_package_that_was_not_read_leaves_no_power_and_no_energy() -> None:
    cpu = on(R50, "cpu")
    results = shown(made(cpu, 1, told({}, {"rapl:package-0": 100.0, "rapl:package-1": None})), hw="cpu")
    assert point(results, "power_w") is None and point(results, "energy_per_image_j") is None


def test_the_platforms_meter_is_not_added_to_the_packages_within_it() -> None:
    cpu = on(R50, "cpu")
    results = shown(made(cpu, 1, told({}, {"rapl:package-0": 100.0, "rapl:psys": 150.0})), hw="cpu")
    assert point(results, "power_w") == pytest.approx(20.0)


def test_how_energy_was_found_is_named() -> None:
    assert from_telemetry.energy_methods(of(hopper)) == ["counter"]
    figure = power_figures.energy(of(kepler, "k40m"), [R50, VGG])
    assert isinstance(figure, Figure) and "Energy by trapezoid of power polled every 20 ms" in figure.caption


# ---- several devices, several passes --------------------------------------------------------------------------------


def test_power_of_several_gpus_is_summed_and_their_utilisation_averaged() -> None:
    results = of(two_gpus, "h200_x2")
    drawn, used = (observations.spread(results, R50, metric) for metric in ("power_w", "utilisation"))
    assert drawn is not None and used is not None
    assert (drawn.mean, drawn.low, drawn.high) == pytest.approx((600, 540, 660))
    assert (used.mean, used.low, used.high) == pytest.approx((0.7, 0.45, 0.99))
    assert point(results, "energy_per_image_j") == pytest.approx(3.0)
    memory = observations.spread(results, R50, "memory_bytes")
    assert memory is not None and memory.mean == pytest.approx(2.0**31)
    assert point(results, "power_w") == pytest.approx(600)


def test_the_power_of_two_boards_is_a_share_of_two_limits() -> None:
    results = of(two_gpus, "h200_x2")
    assert "43 % of" in power.headline(results, [R50]).body, "600 W of 2 x 700 W"


@pytest.mark.parametrize("metric", ["power_w", "sm_activity"])
def test_a_board_that_was_not_read_leaves_no_sum_and_no_mean(metric: str) -> None:
    half = told({"gpu0": board(R50), "gpu1": read(utilisation=0.5)}, {}, missing={"gpu1": {metric: "lost"}})
    results = shown(made(R50, 1, half), hw="h200_x2")
    assert observations.spread(results, R50, metric) is None
    assert observations.spread(results, R50, "utilisation") is not None, "which both tell"


def test_of_several_nodes_only_the_first_is_watched_so_there_are_no_sums() -> None:
    over_nodes = replace(R50, devices=4, nodes=2)
    results = shown(made(over_nodes, 1, two_gpus(over_nodes)), hw="h200_x2")
    for metric in ("power_w", "memory_bytes"):
        assert observations.spread(results, over_nodes, metric) is None
    for metric in ("power_w", "energy_per_image_j", "images_per_s_per_w"):
        assert point(results, metric) is None
    assert point(results, "utilisation") == pytest.approx(0.7), "the first node's devices, as the record says"


def test_the_mean_is_over_passes_and_the_extremes_are_of_all_readings() -> None:
    def drawing(w: float) -> Telemetry:
        return told({"gpu0": read(power_w=w)}, {})

    results = shown(*[made(R50, n, drawing(w)) for n, w in ((1, 300.0), (2, 400.0))])
    found = observations.spread(results, R50, "power_w")
    assert found == observations.Spread(mean=350.0, low=270.0, high=pytest.approx(440.0), passes=2)
    interval = observations.mean_interval(results, R50, "power_w")
    assert interval is not None and interval.n == 2 and interval.low is not None and interval.low < 300


def test_a_pass_whose_telemetry_was_lost_is_left_out_and_counted() -> None:
    results = of(lost_once)
    interval = observations.mean_interval(results, R50, "power_w")
    assert interval is not None and (interval.point, interval.n) == (pytest.approx(400), 2)
    said = observations.sampler_sentence(results)
    assert "beside 6 of 9 results" in said and "lost 3 times" in said and KILLED in said
    assert KILLED in summary.limitations(results, [R50]).body


def test_one_pass_has_no_interval_and_the_page_says_so() -> None:
    results = of(hopper, passes=1)
    assert "one pass, no interval" in power.headline(results, results.trials()).body
    assert "With one pass there are no intervals" in summary.limitations(results, [R50]).body
    data = power.power_table(results, [R50])
    assert data["power_low"].isna().all() and data["gross_low"].isna().all() and data["n"].tolist() == [1]


# ---- what is missing ------------------------------------------------------------------------------------------------


def test_a_missing_activity_is_a_dash_in_the_table_and_its_reason_stands_in_the_figures_caption() -> None:
    results = of(volta, "v100_sxm2")
    table = utilisation.shares_summary(results, training(results))
    assert isinstance(table, Table)
    assert set(table.frame["SM"]) == set(table.frame["DRAM"]) == {"–"}
    assert table.frame["min / mean / max"].iloc[0] == "81.0 / 90.0 / 99.0"
    figure = utilisation.shares(results, training(results))
    assert isinstance(figure, Figure) and f"SM activity ({NO_GPM})" in figure.caption
    assert not [name for name in figure.data.columns if "SM activity" in name], "missing, not 0"
    assert NO_GPM in utilisation.headline(results, training(results)).body


def test_the_table_with_the_dashes_says_why_too() -> None:
    results = of(volta, "v100_sxm2")
    table = utilisation.shares_summary(results, training(results))
    assert isinstance(table, Table) and NO_GPM in table.caption


def test_a_true_zero_is_a_zero() -> None:
    flat = {name: Statistic(mean=0.0, low=0.0, high=0.0, n=5) for name in ("utilisation", "tensor_activity")}
    results = shown(made(R50, 1, told({"gpu0": flat}, {})))
    table = utilisation.shares_summary(results, [R50])
    assert isinstance(table, Table)
    assert table.frame["Tensor"].tolist() == ["0 %"] and table.frame["SM"].tolist() == ["–"]
    assert table.frame["min / mean / max"].tolist() == ["0 / 0 / 0"]


def test_a_cpu_without_rapl_says_in_its_headline_that_power_cannot_be_read_and_why() -> None:
    results = of(without_rapl, "cpu")
    said = power.headline(results, results.trials()).body
    assert said.startswith(f"Power can't be read on this machine: {NO_RAPL}.")
    assert "all cores together were busy 25 % to 50 % of the time" in said
    for part in (power.summary, power_figures.ranges, power_figures.energy, power_figures.against_size):
        shown_part = part(results, training(results))
        assert isinstance(shown_part, Text) and NO_RAPL in shown_part.body


def test_without_telemetry_every_part_says_so() -> None:
    results = of(no_telemetry)
    for part in (
        power.headline,
        power.summary,
        power_figures.energy,
        utilisation.headline,
        utilisation.shares,
        observations.flags,
    ):
        shown_part = part(results, training(results))
        assert isinstance(shown_part, Text) and "these records hold no telemetry" in shown_part.body
    assert observations.sampler_sentence(results) == "No telemetry stands beside these records."


def test_without_records_nothing_is_said_to_be_missing() -> None:
    assert power.headline(shown(), []).body == "Nothing was measured on H200 SXM yet."
    assert summary.telemetry_limits(shown()) == [] and summary.limitations(shown(), []).body == ""


@pytest.mark.parametrize("tell", ["lost", "power not supported"])
def test_the_reason_why_a_boards_power_is_unknown_is_the_boards_and_not_the_processors(tell: str) -> None:
    lacks = {"gpu0": {"power_w": "Not Supported"}, "rapl:package-0": {"energy_j": NO_RAPL}}
    dumb = told({"gpu0": read(utilisation=0.9)}, {"gpu0": None}, missing=lacks)
    results = of(lost_always) if tell == "lost" else shown(made(R50, 1, dumb))
    said = power.headline(results, [R50]).body
    assert NO_RAPL not in said and (KILLED if tell == "lost" else "Not Supported") in said


def test_gaps_are_named() -> None:
    gap = Gap(source="gpu0", metrics=["power_w"], start_s=1.0, length_s=0.5, reason="GPU is lost")
    results = shown(made(R50, 1, hopper(R50).model_copy(update={"gaps": [gap]})))
    assert "Gaps, in which nothing is known: gpu0: GPU is lost." in observations.sampler_sentence(results)


def test_the_samplers_cost_is_the_highest_of_all_trials() -> None:
    low, high = (hopper(R50).model_copy(update={"sampler_cpu_share": share}) for share in (0.01, 0.03))
    assert "took 3.0 % of one core at most" in observations.sampler_sentence(
        shown(made(R50, 1, low), made(R50, 2, high))
    )


def test_only_a_gpu_page_warns_of_the_boards_own_sensor() -> None:
    assert any("wall socket" in said for said in summary.telemetry_limits(of(hopper)))
    assert not any("wall socket" in said for said in summary.telemetry_limits(of(with_rapl, "cpu")))


def test_a_processors_power_is_not_called_board_power() -> None:
    results = of(with_rapl, "cpu")
    table = power.summary(results, results.trials())
    assert isinstance(table, Table) and "Board power" not in table.caption


# ---- flagged blocks -------------------------------------------------------------------------------------------------


def flagged(*found: Flagged) -> Telemetry:
    return hopper(R50).model_copy(update={"flagged": list(found)})


def test_flagged_blocks_are_counted_with_totals() -> None:
    cap = Flagged(why="throttled: power cap", source="gpu0", blocks=[0, 1, 2])
    slow = Flagged(why="below clock", source="gpu0", blocks=[5])
    results = shown(made(R50, 1, flagged(cap, slow)), made(R50, 2, flagged(cap)))
    table = observations.flags(results, [R50])
    assert isinstance(table, Table)
    assert table.frame[["why", "blocks", "of", "share"]].to_numpy().tolist() == [
        ["throttled: power cap", 6, 20, "30.0 %"],
        ["below clock", 1, 20, "5.00 %"],
    ]


def test_what_was_throttled_in_a_short_timed_part_is_said_to_be_unsettled() -> None:
    cap = Flagged(why="throttled: power cap", source="gpu0", blocks=[0, 1, 2])
    slow = Flagged(why="below clock", source="gpu0", blocks=[5])

    def caption(flag: Flagged, block_s: float) -> str:
        timed = made(R50, 1, flagged(flag)).blocks
        assert timed is not None
        timed = timed.model_copy(update={"host_s": [block_s] * 10})
        table = observations.flags(shown(made(R50, 1, flagged(flag), result=timed)), [R50])
        assert isinstance(table, Table)
        return table.caption

    assert "timed for 1.0 s a pass" in caption(cap, 0.1) and "slower yet" in caption(cap, 0.1)
    assert "a pass" not in caption(cap, 0.5), "five seconds are long enough"
    assert "a pass" not in caption(slow, 0.1), "a low clock alone has no limit that settles"


def test_that_nothing_throttled_is_said_only_where_it_was_looked_for() -> None:
    assert observations.flags(of(hopper), [R50]) == Text("No timed block ran throttled or below clock.")
    cpu = of(without_rapl, "cpu")
    said = observations.flags(cpu, training(cpu))
    assert isinstance(said, Text) and "can't be said here: a CPU has no such sensor" in said.body


def test_a_block_that_two_devices_flag_is_one_block() -> None:
    both = [Flagged(why="below clock", source=gpu, blocks=list(range(10))) for gpu in ("gpu0", "gpu1")]
    table = observations.flags(shown(made(R50, 1, flagged(*both))), [R50])
    assert isinstance(table, Table) and table.frame["share"].tolist() == ["100 %"]


def test_blocks_without_telemetry_are_not_counted_as_unthrottled() -> None:
    cap = Flagged(why="throttled: power cap", source="gpu0", blocks=list(range(10)))
    lost = Telemetry(status="lost", reason=KILLED)
    table = observations.flags(shown(made(R50, 1, flagged(cap)), made(R50, 2, lost)), [R50])
    assert isinstance(table, Table) and table.frame["of"].tolist() == [10]


# ---- utilisation, power and the host in words -----------------------------------------------------------------------


def test_the_utilisation_headline_sets_what_the_units_did_beside_what_the_driver_says() -> None:
    said = utilisation.headline(of(hopper), [R50, VGG]).body
    assert "says 90 %" in said
    assert "SM activity 50 %, FP32 pipe activity 40 %, Tensor-core activity 1.0 % and DRAM activity 20 %" in said


def test_the_power_headline_names_most_least_limit_idle_and_price() -> None:
    said = power.headline(of(hopper), list(TRIALS)).body
    assert "VGG-16 draws most, 500.0 W" in said and "71 % of the board's 700 W" in said
    assert "ResNet-50 least, 400.0 W" in said
    assert "with a process attached, it draws 100 W, and 80.0 W when no process of ours holds it." in said
    assert "costs 2,000 mJ [2,000, 2,000] with ResNet-50 and 2,500 mJ" in said


def test_the_host_table_says_what_cannot_be_read_and_why() -> None:
    table = utilisation.host_table(of(hopper), [R50])
    assert isinstance(table, Table)
    assert table.frame["CPU busy mean"].tolist() == ["25.0 %"] and table.frame["clock (MHz)"].tolist() == [2000]
    assert f"energy counter (rapl:package-0): {NO_RAPL}" in table.caption
    assert "temperature (°C)" not in table.frame
    assert "1.50 (ResNet-50, 64)" in utilisation.cores_sentence(of(hopper), [R50]).body
    assert utilisation.cores_sentence(of(without_rapl, "cpu"), [on(R50, "cpu")]).body == ""


def test_the_prediction_is_the_limit_over_the_roofline() -> None:
    table = power.prediction(load_profile("h200"), [R50, IDLE])
    assert isinstance(table, Table) and table.frame["model"].tolist() == ["ResNet-50"]
    row = table.frame.iloc[0]
    assert row["mJ/image there at the board limit"] == pytest.approx(700 / row["images/s at most"] * 1e3)
    without = power.prediction(load_profile("cpu"), [R50])
    assert isinstance(without, Table) and "states no board power" in without.caption
    assert "mJ/image there at the board limit" not in without.frame


def test_the_table_of_trials_shows_energy_windows_only_where_there_are_some() -> None:
    table = summary.trials_table(TRIALS, 3)
    assert table.frame["energy windows"].tolist() == [3, 3, 3] and table.frame["model"].tolist()[2] is None
    assert "The 3 trials planned at this scale, in 3 passes" in table.caption and "precision fp32" in table.caption
    assert "energy windows" not in summary.trials_table([Trial()], 1).frame


def test_pauses_are_a_part_of_a_pass_and_measure_nothing() -> None:
    parts = quality.pass_parts(of(hopper, passes=1)).iloc[0]
    assert parts["pauses (s)"] == pytest.approx(3 * 0.5)
    assert parts["other (s)"] == pytest.approx(3 * (8 - 0.5 - 0.25 - 0.25 - 1 - 5))
    assert parts["total (s)"] == pytest.approx(2 + 3 * 8)
    assert parts["share measuring"] == pytest.approx(3 * 6.25 / 26)


# ---- beside the paper -----------------------------------------------------------------------------------------------


def beside(results: Results, kind: str) -> pd.DataFrame:
    (table,) = getattr(beside_paper, kind)(results, PAPERS, "resnet50")
    assert isinstance(table, Table)
    return table.frame.set_index("")


def test_this_machines_column_comes_first_in_the_papers_rows() -> None:
    for kind in ("power", "utilisation"):
        frame = beside(of(hopper), kind)
        assert list(frame.columns) == ["here, batch 64", "P100 (12GB)", "P100 (16GB)", "V100", "K40M"]
    assert frame["here, batch 64"].to_dict() == {"min": "81.00 %", "mean": "90.00 %", "max": "99.00 %"}
    drawn = beside(of(hopper), "power")["here, batch 64"]
    assert drawn[["min", "mean", "max", "idle"]].tolist() == ["360.0 W", "400.0 W", "440.0 W", "80.00 W"]
    assert drawn["board limit"] == "700 W" and drawn["mean of the limit"] == "57.1 %"


def published(metric: str) -> dict[tuple[str, int], float]:
    tables = [table for paper in PAPERS for table in paper.tables if table.metric == metric]
    return {(row, place): value for row, values in tables[0].rows.items() for place, value in enumerate(values)}


@pytest.mark.parametrize(("kind", "metric"), [("power", "power_w"), ("utilisation", "utilisation")])
def test_published_values_appear_with_four_digits_and_in_the_papers_unit(kind: str, metric: str) -> None:
    frame = beside(of(hopper), kind)
    for (row, place), value in published(metric).items():
        number, unit = frame.loc[row].iloc[place + 1].split()
        assert float(number) == pytest.approx(value, rel=5e-4) and unit == ("W" if kind == "power" else "%")


@pytest.mark.parametrize(("kind", "metric"), [("power", "power_w"), ("utilisation", "utilisation")])
def test_published_values_appear_as_printed(kind: str, metric: str) -> None:
    frame = beside(of(hopper), kind)
    for (row, place), value in published(metric).items():
        assert frame.loc[row].iloc[place + 1].split()[0] == f"{value:.10g}"


def test_a_sensors_systematic_error_stands_there_where_its_vendor_states_one() -> None:
    assert "off by 5.0 % throughout" in power.sensor_sentence(load_profile("k40m"))
    assert "not known" in power.sensor_sentence(load_profile("h200"))
    errors = beside(of(hopper), "power").loc["sensor error"]
    assert errors["K40M"] == "± 5.0 %" and set(errors.drop("K40M")) == {"± ?"}
    assert beside(of(kepler, "k40m"), "power").loc["sensor error"].iloc[0] == "± 5.0 %"


def test_a_ratio_of_devices_carries_the_errors_of_both() -> None:
    on_kepler = beside(of(kepler, "k40m"), "power").loc["mean here over it"]
    assert on_kepler.iloc[0] == "–" and on_kepler["K40M"] == "3.32x ± 10 %" and on_kepler["V100"] == "2.34x ± 5.0 % ± ?"
    on_hopper = beside(of(hopper), "power").loc["mean here over it"]
    assert on_hopper["K40M"] == "3.32x ± 5.0 % ± ?" and on_hopper["V100"] == "2.34x ± ?"


def test_without_power_here_there_are_dashes_and_no_ratio() -> None:
    frame = beside(of(no_telemetry), "power")
    assert set(frame.loc[["min", "mean", "max", "idle"], "here, batch 64"]) == {"–"}
    assert set(frame.loc["mean here over it"]) == {"–"}
    assert set(beside(of(no_telemetry), "utilisation")["here, batch 64"]) == {"–"}


def test_a_model_of_no_paper_is_said_to_be_of_none() -> None:
    (said,) = beside_paper.power(of(hopper), PAPERS, "vgg11")
    assert said == Text("No paper prints the power of vgg11.")


# ---- against the size of the model ----------------------------------------------------------------------------------


def drawing(by_model: dict[str, list[float]], batch: int = 64) -> tuple[Results, list[Trial]]:
    """A pass for each of the powers of a model."""
    trials = {model: Trial(model=model, batch=batch) for model in by_model}
    records = [
        made(trials[model], n, told({"gpu0": read(power_w=w)}, {}))
        for model, values in by_model.items()
        for n, w in enumerate(values, start=1)
    ]
    return shown(*records), list(trials.values())


def caption(by_model: dict[str, list[float]], batch: int = 64) -> str:
    figure = power_figures.against_size(*drawing(by_model, batch))
    assert isinstance(figure, Figure)
    return figure.caption


LOW, HIGH, WIDE = [399.0, 400.0, 401.0], [499.0, 500.0, 501.0], [300.0, 450.0, 600.0]


def test_power_is_said_to_rise_or_fall_from_a_model_to_the_next_larger_one() -> None:
    assert "from ResNet-50 to ResNet-152 it rises (1.250x" in caption({"resnet50": LOW, "resnet152": HIGH})
    assert "from ResNet-50 to ResNet-152 it falls" in caption({"resnet50": HIGH, "resnet152": LOW})


def test_power_that_differs_within_the_intervals_is_said_not_to_change_by_more() -> None:
    said = caption({"resnet50": LOW, "resnet152": WIDE})
    assert "it does not change beyond the interval" in said and "rises" not in said and "falls" not in said


def test_the_two_orders_are_said_apart_where_they_differ() -> None:
    said = caption({"resnet152": LOW, "alexnet": HIGH})  # AlexNet has more parameters and does less arithmetic
    assert "Ordered by parameters, from ResNet-152 to AlexNet it rises" in said
    assert "Ordered by GFLOP/image, from AlexNet to ResNet-152 it falls" in said
    assert "Ordered by" not in caption({"resnet50": LOW}), "one model has no order"


def test_one_pass_has_no_interval_to_say_that_power_rises() -> None:
    said = caption({"resnet50": [400.0], "resnet152": [400.5]})
    assert "rises" not in said


def test_a_batch_of_a_thousand_does_not_stand_in_the_models_name() -> None:
    assert "from ResNet-50 to" in caption({"resnet50": LOW, "resnet152": HIGH}, batch=1024)


def test_two_batches_of_one_model_are_no_step_in_size() -> None:
    small, large = Trial(batch=64), Trial(batch=256)
    records = [
        made(trial, n, told({"gpu0": read(power_w=w)}, {}))
        for trial, values in ((small, LOW), (large, HIGH))
        for n, w in enumerate(values, start=1)
    ]
    figure = power_figures.against_size(shown(*records), [small, large])
    assert isinstance(figure, Figure) and "from ResNet-50 to ResNet-50" not in figure.caption


# ---- a tuned engine beside the plain loop ---------------------------------------------------------------------------

TUNED = Trial(**(R50.as_dict() | COMPILED))


def with_tuned(*passes: float) -> Results:
    """Three passes of the plain loop at 400 W, and of a tuned one at these watts and with four times the images."""
    records = [made(one, n, hopper(one)) for one in (R50, VGG, IDLE) for n in range(1, len(passes) + 1)]
    for n, watts_ in enumerate(passes, start=1):
        seen = told({"gpu0": read(power_w=watts_)}, {"gpu0": watts_ * WINDOW_S}, images=4 * IMAGES)
        quick = Blocks(
            steps_per_block=40,
            images_per_step=100,
            host_s=[0.5] * 10,
            warmup_s=[1.0],
            warmup_steps=[40],
            steady=True,
            stopped_by="time",
        )
        records.append(made(TUNED, n, seen, result=quick))
    return shown(*records)


def test_a_tuned_training_stands_beside_its_plain_loop_in_ratios_of_power_and_energy() -> None:
    results = with_tuned(600.0, 600.0, 600.0)
    table = power_engines.table(results, training(results))
    assert isinstance(table, Table)
    row = {name: value.split("x")[0] for name, value in table.frame.iloc[0].items()}
    # 600 W of 400; 600 W x 5 s / 4,000 images of 2 J; (600 - 100) W x 5 s / 4,000 images of 1.5 J
    assert {name: float(row[name]) for name in ("images/s", "power", "energy an image", "above idle")} == pytest.approx(
        {"images/s": 4.0, "power": 1.5, "energy an image": 0.375, "above idle": 0.625 / 1.5}, rel=1e-3
    )
    assert len(table.frame) == 1, "what is not tuned is no row"


def test_the_answer_says_what_tuning_does_and_keeps_the_papers_loop_apart() -> None:
    results = with_tuned(600.0, 601.0, 602.0)
    first_, second = power.headline(results, results.trials()).body.split("\n\n")
    assert first_.startswith("In the plain loop training VGG-16 draws most, 500") and "ResNet-50 least, 400" in first_
    assert power.headline(of(hopper), of(hopper).trials()).body.startswith("Training VGG-16 draws most")
    assert "Part of it is precision" in power_engines.table(results, training(results)).caption
    assert "Tuned (compile+graph, BF16) ResNet-50 draws 1.50" in first_ and "0.375" in first_
    assert second.endswith("with VGG-16 in the plain loop.") and "An image costs 2" in second
    numbers = key_numbers.power(results, results.trials())
    assert any("ResNet-50, 64, BF16, compile+graph" in what for _, what in numbers)


def test_of_two_tuned_trainings_the_one_that_saves_most_is_told_with_its_batch_and_millijoules() -> None:
    larger = replace(TUNED, batch=256)
    loop = replace(R50, batch=256)
    results = with_tuned(600.0, 601.0, 602.0)
    more = [made(loop, n, hopper(loop)) for n in (1, 2, 3)]
    more += [made(larger, n, told({"gpu0": read(power_w=400.0)}, {"gpu0": 40.0 * WINDOW_S})) for n in (1, 2, 3)]
    results = shown(*results.records, *more)
    said = power_engines.sentence(results, training(results))
    assert "ResNet-50 at batch 256 draws 1" in said and "costs 0.1x" in said and "(200.0 mJ)" in said
    table = power_engines.table(results, training(results))
    assert isinstance(table, Table) and len(table.frame) == 2 and "Above idle" in table.caption
    without_idle = shown(*(one for one in results.records if one.trial["workload"] == "train"))
    table = power_engines.table(without_idle, training(results))
    assert isinstance(table, Table) and "above idle" not in table.frame and "Above idle" not in table.caption


def test_a_page_whose_plain_loop_failed_tells_the_tuned_ones_power_by_their_engine() -> None:
    failed = [made(R50, n, None, status="crashed", reason="no luck", result=None) for n in (1, 2, 3)]
    tuned = [one for one in with_tuned(600.0, 600.0, 600.0).records if one.key == TUNED.key]
    results = shown(*failed, *tuned)
    said = power.headline(results, results.trials()).body
    assert said.startswith("Training ResNet-50 (compile+graph, BF16) draws most, 600") and "can't" not in said
    figure = power_figures.against_size(results, training(results))
    assert isinstance(figure, Text) and "of the plain loop, which has no result" in figure.body


def test_what_lies_below_an_idle_board_has_no_ratio_and_breaks_no_page() -> None:
    results = with_tuned(90.0, 90.0, 90.0)  # idle draws 100 W
    assert observations.mean_ratio(results, TUNED, R50, "net_energy_per_image_j") is None
    table = power_engines.table(results, training(results))
    assert isinstance(table, Table) and "above idle" not in table.frame


def test_a_tuned_trainings_bound_is_of_its_own_precision_and_update() -> None:
    table = power.prediction(load_profile("h200"), [R50, TUNED])
    assert isinstance(table, Table) and table.frame["precision"].tolist() == ["FP32", "BF16"]
    plain, tuned = table.frame["images/s at most"]
    assert tuned > 3 * plain
    table = power.prediction(load_profile("p100_16gb"), [R50, TUNED])
    assert table.frame["images/s at most"].isna().tolist() == [False, True], "no arithmetic of BF16"


def test_where_nothing_was_tuned_the_answer_and_the_table_say_nothing_of_it() -> None:
    results = of(hopper)
    assert "uned" not in power.headline(results, results.trials()).body
    assert isinstance(power_engines.table(results, training(results)), Text)


def test_a_tuned_training_without_joules_is_no_row() -> None:
    plain = [made(one, n, hopper(one)) for one in (R50, IDLE) for n in (1, 2, 3)]
    results = shown(*plain, *[made(TUNED, n, without_rapl(TUNED)) for n in (1, 2, 3)])
    assert isinstance(power_engines.table(results, training(results)), Text)
    assert power_engines.sentence(results, training(results)) == ""


def test_what_a_paper_printed_and_what_a_model_draws_are_of_the_plain_loop_alone() -> None:
    results = with_tuned(600.0, 601.0, 602.0)
    figure = power_figures.against_size(results, training(results))
    assert isinstance(figure, Figure) and "compile" not in figure.caption
    assert figure.data["power_w"].max() == pytest.approx(500, rel=0.01)
    (table,) = beside_paper.power(results, PAPERS, "resnet50")
    assert isinstance(table, Table) and table.frame["here, batch 64"].tolist()[1] == "400.0 W"
    assert [name for name in table.frame if name.startswith("here")] == ["here, batch 64"]
    (table,) = beside_paper.utilisation(results, PAPERS, "resnet50")
    assert [name for name in table.frame if name.startswith("here")] == ["here, batch 64"]
    assert "100 %" not in table.frame["here, batch 64"].tolist()


def test_the_picture_over_time_leaves_out_a_minute_of_compiling_and_says_so() -> None:
    results = of(hopper)
    series = series_of(results)
    early = series[series["key"] == short_hash(R50.key)].assign(t_s=-60.0)
    figure = power_figures.over_time(results, results.trials(), pd.concat([series, early]))
    assert isinstance(figure, Figure) and "more than 15 s before is not drawn" in figure.caption
    assert figure.data["t_s"].min() == -60.0, "the numbers have it"
    canvas = Canvas(figsize=figure.size_in, layout="constrained")
    figure.draw(canvas, LIGHT)
    assert canvas.axes[0].get_xlim()[0] == -15
    short = power_figures.over_time(results, results.trials(), series)
    assert isinstance(short, Figure) and "not drawn" not in short.caption


def test_a_tuned_training_has_the_colour_of_its_plain_loop_and_dashes() -> None:
    results = with_tuned(600.0, 601.0, 602.0)
    figure = power_figures.over_time(results, results.trials(), series_of(results))
    assert isinstance(figure, Figure)
    canvas = Canvas(figsize=figure.size_in, layout="constrained")
    figure.draw(canvas, LIGHT)
    lines = {str(line.get_label()): line for line in canvas.axes[0].get_lines()}
    plain, tuned = lines["ResNet-50, 64, FP32, plain"], lines["ResNet-50, 64, BF16, compile+graph"]
    assert (plain.get_linestyle(), tuned.get_linestyle()) == ("-", "--")
    assert plain.get_color() == tuned.get_color() != lines["VGG-16, 64, FP32, plain"].get_color()


# ---- over time ------------------------------------------------------------------------------------------------------


def test_the_picture_over_time_shows_each_device_of_the_first_pass() -> None:
    results = of(two_gpus, "h200_x2")
    figure = power_figures.over_time(results, results.trials(), series_of(results))
    assert isinstance(figure, Figure) and figure.caption.startswith("Board power (W) over time, pass 1,")
    assert set(figure.data["source"]) == {"gpu0", "gpu1"} and len(figure.data) == 3 * 2 * 3


def test_the_picture_over_time_falls_back_to_the_processors_utilisation() -> None:
    for tell in (with_rapl, without_rapl):
        results = of(tell, "cpu")
        figure = power_figures.over_time(results, results.trials(), series_of(results))
        assert isinstance(figure, Figure) and figure.caption.startswith("CPU busy, all cores (%) over time")
        assert set(figure.data["source"]) == {"host"}
    lost = of(lost_always)
    assert isinstance(power_figures.over_time(lost, lost.trials(), series_of(lost)), Text)


def test_a_trial_without_series_in_the_first_pass_is_not_silently_left_out() -> None:
    results = of(hopper)
    series = series_of(results)
    partly = series[(series["key"] != short_hash(R50.key)) | (series["pass"] > 1)]
    figure = power_figures.over_time(results, results.trials(), partly)
    assert isinstance(figure, Figure)
    assert "ResNet-50" in figure.caption or "ResNet-50, 64" in set(figure.data["trial"])


def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpenStudy:
    monkeypatch.setenv("LABKIT_REPORTS", str(tmp_path))
    return open_study("04_power", hw="h200", mode="render")


def test_a_study_gives_the_series_of_the_records_that_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = opened(tmp_path, monkeypatch)
    store = SeriesStore(lab.store.report, HOST, "04_power")
    for trial, scale in ((R50, "quick"), (R50, "smoke"), (VGG, "quick")):
        kept = Series("power_w", [100.0, 101.0], [80.0, 400.0])
        store.put({("gpu0", "power_w"): kept}, scale=scale, key=trial.key, pass_number=1, zero=100.5)
    series = lab.series(shown(made(R50, 1, hopper(R50))))
    assert set(series["scale"]) == {"quick"} and set(series["key"]) == {short_hash(R50.key)}
    assert series["t_s"].tolist() == [-0.5, 0.5] and series["value"].tolist() == [80.0, 400.0]
    figure = power_figures.over_time(shown(made(R50, 1, hopper(R50))), [R50], series)
    assert isinstance(figure, Figure) and figure.data["value"].tolist() == [80.0, 400.0]


def test_a_study_without_records_or_without_a_file_gives_an_empty_series(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = opened(tmp_path, monkeypatch)
    for results in (shown(), of(hopper), lab._records()):
        series = lab.series(results)
        assert not len(series) and list(series.columns) == list(COLUMNS)
        assert isinstance(power_figures.over_time(results, results.trials(), series), Text)


# ---- the committed records of the H200 ------------------------------------------------------------------------------


def committed(study: str) -> list[tuple[Record, Telemetry]]:
    store = Store(committed_reports() / "h200")
    (host,) = store.hosts(study)
    records = store.read(study, host)
    found = [(record, record.telemetry) for record in records if record.telemetry is not None]
    assert len(found) == len(records), "telemetry stands beside every record"
    return found


@pytest.mark.parametrize("study", ["01_training", "04_power"])
def test_committed_telemetry_is_whole_cheap_and_within_its_bounds(study: str) -> None:
    for record, telemetry in committed(study):
        assert telemetry.status == "ok" and not telemetry.gaps
        assert all(not window.gap_s for window in telemetry.windows.values())
        # The sampler of this host's records woke up for each reading by itself, and read what goes between devices.
        most = 0.023 if record.host == "d9c7b3b2ce9c" else 0.02
        assert telemetry.sampler_cpu_share is not None and telemetry.sampler_cpu_share < most
        tensor, busy = (telemetry.mean("timed", "gpu0", f"{unit}_activity") for unit in ("tensor", "sm"))
        assert tensor is not None and busy is not None and 0 <= tensor <= busy <= 1, trial_label(record.as_trial)


def test_committed_energy_windows_are_long_and_agree_with_the_power_that_was_sampled() -> None:
    for record, telemetry in committed("04_power"):
        assert len(telemetry.energy) == record.as_trial.energy_windows
        assert all(window.length_s >= 5 for window in telemetry.energy)
        assert telemetry.energy_method["gpu0"] == "counter"
        joules = [window.energy_j["gpu0"] for window in telemetry.energy]
        seconds = sum(window.length_s for window in telemetry.energy)
        metered = sum(one for one in joules if one is not None) / seconds
        assert None not in joules and metered == pytest.approx(telemetry.mean("timed", "gpu0", "power_w"), rel=0.03)
