"""The names that everything else is looked up by."""

import pytest

from labkit.errors import UserError
from labkit.registry import LABELS, METRICS, PASSES, SCALES, STUDIES, Metric, check_scale, find_metric, find_study

IDS = [
    "01_training",
    "02_batch_size",
    "03_multi_gpu",
    "04_power",
    "05_inference",
    "06_cpu_vs_gpu",
    "07_precision",
    "08_quantization",
    "09_profile",
    "10_gan",
    "11_frameworks",
    "12_data_pipeline",
    "20_comparison",
]

# What a metric is printed in -> how the name of its stored SI value ends, the unit of that, and printed over stored.
UNITS: dict[str, tuple[str, str, float]] = {
    "s": ("_s", "s", 1),
    "ms": ("_s", "s", 1e3),
    "days": ("_s", "s", 1 / 86_400),
    "images/s": ("images_per_s", "images/s", 1),
    "images/s/W": ("images_per_s_per_w", "images/s/W", 1),
    "GFLOP": ("flop_per_step", "FLOP", 1e-9),
    "TFLOP/s": ("flop_per_s", "FLOP/s", 1e-12),
    "MB/s": ("bytes_per_s", "B/s", 1e-6),
    "GB/s": ("bytes_per_s", "B/s", 1e-9),
    "KiB": ("_bytes", "B", 2.0**-10),
    "MB": ("_bytes", "B", 1e-6),
    "GiB": ("_bytes", "B", 2.0**-30),
    "W": ("_w", "W", 1),
    "mJ": ("_j", "J", 1e3),
    "°C": ("_c", "°C", 1),
    "MHz": ("_hz", "Hz", 1e-6),
}
# The same of metrics whose name ends in no unit.
WITHOUT_SI_UNIT: dict[str, tuple[str, float]] = {
    "": ("1", 1),
    "%": ("1", 1e2),
    "x": ("1", 1),
    "currency": ("currency", 1),
    "cores": ("cores", 1),
    "epochs": ("epochs", 1),
}
# Percentages that may be more than 100: of a limit or a peak that can be passed, over something else, or a variation.
MAY_PASS_100 = {"roofline_fraction", "power_fraction", "fp32_utilisation", "later_read_share", "throughput_variation"}


def test_the_studies_are_the_thirteen_in_order():
    assert list(STUDIES) == IDS
    assert [study.id for study in STUDIES.values()] == IDS


@pytest.mark.parametrize("study_id", IDS)
def test_a_study_is_found_by_id_name_and_number(study_id):
    number, name = study_id.split("_", 1)
    assert {find_study(called).id for called in (study_id, name, number)} == {study_id}


@pytest.mark.parametrize("study_id", IDS)
def test_a_study_asks_one_question_and_says_what_it_measures(study_id):
    study = STUDIES[study_id]
    assert study.question.count("?") == 1
    assert study.question.endswith("?")
    assert study.title
    assert study.measures


@pytest.mark.parametrize("wrong", ["trainin", "1", "13", "", "TRAINING", "01_training.ipynb"])
def test_an_unknown_study_lists_all_nearest_first(wrong):
    with pytest.raises(UserError) as caught:
        find_study(wrong)
    assert caught.value.exit_code == 2
    assert all(study_id in str(caught.value) for study_id in IDS)
    if "train" in wrong.lower():
        assert "valid: 01_training," in str(caught.value)


def test_an_unknown_metric_lists_all_nearest_first():
    with pytest.raises(UserError, match="unknown metric 'image_per_s'; valid: images_per_s,") as caught:
        find_metric("image_per_s")
    assert all(name in str(caught.value) for name in METRICS)


def test_an_unknown_scale_lists_all_nearest_first():
    with pytest.raises(UserError, match="unknown scale 'quik'; valid: quick, "):
        check_scale("quik")


def test_scales_grow_and_so_do_their_passes():
    assert SCALES == ("smoke", "quick", "full")
    assert [PASSES[scale] for scale in SCALES] == [1, 3, 6]


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_is_found_by_its_name_and_has_a_label(name):
    assert find_metric(name).name == name
    assert find_metric(name).label


@pytest.mark.parametrize("name", METRICS)
def test_only_the_loss_has_no_unit(name):
    assert bool(METRICS[name].unit) == (name != "loss")


@pytest.mark.parametrize("name", METRICS)
def test_a_metrics_name_ends_in_the_si_unit_that_is_stored(name):
    unit = METRICS[name].unit
    if unit in WITHOUT_SI_UNIT:
        assert not name.endswith(tuple({ending for ending, _, _ in UNITS.values()}))
    else:
        assert name.endswith(UNITS[unit][0])


@pytest.mark.parametrize("name", METRICS)
def test_what_is_printed_is_the_stored_value_in_the_printed_unit(name):
    metric = METRICS[name]
    si_unit, scale = WITHOUT_SI_UNIT.get(metric.unit) or UNITS[metric.unit][1:]
    assert metric.scale == pytest.approx(scale, rel=1e-12)
    assert metric.si_unit == si_unit, "files for other programs name the unit of what is stored"


def test_every_unit_of_the_table_is_one_of_a_metric():
    assert {metric.unit for metric in METRICS.values()} == {*UNITS, *WITHOUT_SI_UNIT}


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_in_percent_is_a_share_unless_it_may_pass_100(name):
    metric = METRICS[name]
    assert metric.share == (metric.unit == "%" and name not in MAY_PASS_100)
    if name.endswith("_share"):
        assert metric.unit == "%"


def test_a_metric_is_no_share_unless_it_says_so():
    assert not Metric("made_up", "Made up", "%", "more", 1e2).share
    assert Metric("made_up", "Made up", "", "more").si_unit == "1"


def test_a_label_is_no_metric():
    assert not set(LABELS) & set(METRICS)
    assert all(LABELS.values())


@pytest.mark.parametrize(
    ("name", "better"),
    [
        ("images_per_s", "more"),
        ("step_s", "less"),
        ("latency_s", "less"),
        ("energy_per_image_j", "less"),
        ("top1", "more"),
        ("utilisation", "neither"),
        ("run_s", "less"),
        ("read_bytes_per_s", "more"),
        ("copy_overlap_share", "more"),
        ("launch_gap_share", "less"),
    ],
)
def test_a_metric_knows_which_direction_is_better(name, better):
    assert METRICS[name].better == better
