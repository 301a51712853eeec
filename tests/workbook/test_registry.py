"""Tests of the registry: studies, metrics, scales and labels."""

import pytest

from labkit.errors import UserError
from labkit.sensors import KINDS
from labkit.telemetry.sampling import unit_of
from workbook.paths import notebook_of
from workbook.registry import (
    LABELS,
    METRICS,
    PASSES,
    SCALES,
    STUDIES,
    Metric,
    check_scale,
    find_metric,
    find_study,
)

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
    "13_your_network",
    "14_today",
    "20_comparison",
    "21_which_device",
]

# Printed unit of a metric -> ending of its name, SI unit of the stored value, and ratio of printed to stored value.
UNITS: dict[str, tuple[str, str, float]] = {
    "s": ("_s", "s", 1),
    "ms": ("_s", "s", 1e3),
    "days": ("_s", "s", 1 / 86_400),
    "images/s": ("images_per_s", "images/s", 1),
    "samples/s": ("samples_per_s", "samples/s", 1),
    "tokens/s": ("tokens_per_s", "tokens/s", 1),
    "images/s/device": ("images_per_s_per_device", "images/s/device", 1),
    "images/J": ("images_per_s_per_w", "images/J", 1),
    "launches/s": ("launches_per_s", "launches/s", 1),
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
# The same for metrics whose name does not end in a unit, without the ending.
WITHOUT_SI_UNIT: dict[str, tuple[str, float]] = {
    "": ("1", 1),
    "%": ("1", 1e2),
    "x": ("1", 1),
    "currency": ("currency", 1),
    "cores": ("cores", 1),
    "epochs": ("epochs", 1),
    "readings": ("readings", 1),
    "kernels": ("kernels", 1),
}
# Percentages that may exceed 100: of a limit or peak that can be exceeded, relative to another quantity, or variations.
MAY_PASS_100 = {
    "scaling_efficiency",
    "roofline_fraction",
    "weight_read_share",
    "power_fraction",
    "fp32_utilisation",
    "later_read_share",
    "throughput_variation",
    "piece_busy_deviation",
    "piece_step_deviation",
}


def test_studies_are_found_by_id_name_or_number_and_have_a_single_question():
    assert [study.id for study in STUDIES.values()] == list(STUDIES) == IDS
    for study_id, study in STUDIES.items():
        number, name = study_id.split("_", 1)
        assert {find_study(called).id for called in (study_id, name, number, str(int(number)))} == {study_id}
        assert study.question.count("?") == 1 and study.question.endswith("?")
        assert study.title


@pytest.mark.parametrize("wrong", ["trainin", "17", "", "01_training.ipynb"])
def test_an_unknown_study_lists_those_with_a_notebook_nearest_first(wrong):
    with pytest.raises(UserError) as caught:
        find_study(wrong)
    assert caught.value.exit_code == 2
    for study_id in IDS:
        assert (study_id in str(caught.value)) == notebook_of(study_id).is_file()
    if "train" in wrong.lower():
        assert "valid: 01_training," in str(caught.value)


def test_an_unknown_metric_lists_all_nearest_first():
    with pytest.raises(UserError, match="unknown metric 'image_per_s'; valid: images_per_s,") as caught:
        find_metric("image_per_s")
    assert all(name in str(caught.value) for name in METRICS)


def test_an_unknown_scale_lists_all_nearest_first():
    with pytest.raises(UserError, match="unknown scale 'quik'; valid: quick, "):
        check_scale("quik")


def test_larger_scales_have_more_passes():
    assert SCALES == ("smoke", "quick", "full")
    assert [PASSES[scale] for scale in SCALES] == [1, 3, 6]


def test_the_unit_of_a_metric_agrees_with_its_name_and_scale():
    for name, metric in METRICS.items():
        assert find_metric(name).name == name and metric.label
        assert bool(metric.unit) == (name != "loss")
        if metric.unit in WITHOUT_SI_UNIT:
            assert not name.endswith(tuple({ending for ending, _, _ in UNITS.values()})), name
        else:
            assert name.endswith(UNITS[metric.unit][0]) or name == "launch_rate_beside", name
        si_unit, scale = WITHOUT_SI_UNIT.get(metric.unit) or UNITS[metric.unit][1:]
        assert (metric.scale, metric.si_unit) == (pytest.approx(scale, rel=1e-12), si_unit), name
        assert metric.share == (metric.unit == "%" and name not in MAY_PASS_100), name
    assert {metric.unit for metric in METRICS.values()} == {*UNITS, *WITHOUT_SI_UNIT}


def test_a_metric_is_not_a_share_by_default():
    assert not Metric("made_up", "Made up", "%", "more", 1e2).share
    assert Metric("made_up", "Made up", "", "more").si_unit == "1"


def test_labels_and_metrics_have_distinct_names():
    assert not set(LABELS) & set(METRICS)
    assert all(LABELS.values())


def test_a_metric_knows_which_direction_is_better():
    more = {"images_per_s", "top1", "read_bytes_per_s", "copy_overlap_share"}
    less = {"step_s", "latency_s", "energy_per_image_j", "run_s", "launch_gap_share"}
    assert {METRICS[name].better for name in more} == {"more"} and {METRICS[name].better for name in less} == {"less"}
    assert METRICS["utilisation"].better == "neither"


def test_the_unit_at_the_end_of_a_sensors_name_is_the_registrys():
    shared = METRICS.keys() & KINDS.keys()
    assert len(shared) > 10
    assert {name: unit_of(name) for name in shared} == {name: METRICS[name].si_unit for name in shared}
