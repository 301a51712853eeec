"""The names that everything else is looked up by."""

import pytest

from labkit.errors import UserError
from labkit.registry import METRICS, PASSES, SCALES, STUDIES, check_scale, find_metric, find_study

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

# What a metric is printed in -> how the name of its stored SI value ends.
SI_ENDING = {
    "s": "_s",
    "ms": "_s",
    "images/s": "images_per_s",
    "images/s/W": "images_per_s_per_w",
    "TFLOP/s": "flop_per_s",
    "GB/s": "bytes_per_s",
    "GiB": "_bytes",
    "W": "_w",
    "mJ": "_j",
    "°C": "_c",
    "MHz": "_hz",
}
WITHOUT_SI_UNIT = {"", "%", "x", "currency", "cores"}


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
        assert not name.endswith(tuple(set(SI_ENDING.values())))
    else:
        assert name.endswith(SI_ENDING[unit])


@pytest.mark.parametrize("name", METRICS)
def test_what_is_printed_is_the_stored_value_in_the_printed_unit(name):
    factors = {"ms": 1e3, "mJ": 1e3, "TFLOP/s": 1e-12, "GB/s": 1e-9, "GiB": 2.0**-30, "%": 1e2, "MHz": 1e-6}
    assert METRICS[name].scale == factors.get(METRICS[name].unit, 1.0)


@pytest.mark.parametrize(
    ("name", "better"),
    [
        ("images_per_s", "more"),
        ("step_s", "less"),
        ("latency_s", "less"),
        ("energy_per_image_j", "less"),
        ("top1", "more"),
        ("utilisation", "neither"),
    ],
)
def test_a_metric_knows_which_direction_is_better(name, better):
    assert METRICS[name].better == better
