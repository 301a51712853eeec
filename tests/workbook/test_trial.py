"""Tests of trials: stable keys, with which records are found again, and validation, grids and labels."""

import json
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.errors import UserError
from workbook.trials import parts
from workbook.trials.parts import PARTS, fields_of
from workbook.trials.trial import WORDS, Trial, grid, trial_from_dict

# Committed records hold such keys. After a change of a default, a name or the format they would not be found.
PINNED = {
    "{}": Trial(),
    '{"batch":256}': Trial(batch=256),
    '{"batch":256,"engine":"compile+graph","memory_format":"channels_last","precision":"bf16"}': Trial(
        precision="bf16", engine="compile+graph", memory_format="channels_last", batch=256
    ),
    '{"model":"vgg16"}': Trial(workload="train", model="vgg16", image_px=32, classes=1000, batch=64, precision="fp32"),
    '{"batch":8,"device":"cpu","model":"vgg19"}': Trial(model="vgg19", batch=8, device="cpu"),
    '{"batch":10000,"model":"resnet152","workload":"infer"}': Trial(workload="infer", model="resnet152", batch=10_000),
    '{"devices":4,"model":"vgg16"}': Trial(model="vgg16", devices=4),
    '{"image_px":224}': Trial(image_px=224),
    '{"head":"head512","learning_rate":0.1,"model":"vgg16"}': Trial(model="vgg16", head="head512", learning_rate=0.1),
    '{"precision":"tf32","size":8192,"workload":"matmul"}': Trial(workload="matmul", size=8192, precision="tf32"),
    '{"augment":true,"data":"imagenet32","data_checksum":"c0ffee"}': Trial(
        data="imagenet32", data_checksum="c0ffee", augment=True
    ),
    '{"framework":"keras-jax","model":"inception_v3","optimizer":"adam","seed":3}': Trial(
        framework="keras-jax", model="inception_v3", optimizer="adam", seed=3
    ),
    '{"classes":10}': Trial(classes=10),
    '{"epochs":8,"loader":"device","optimizer":"sgd_master","schedule":"one_cycle"}': Trial(
        epochs=8, loader="device", optimizer="sgd_master", schedule="one_cycle"
    ),
}

trials = st.builds(
    Trial,
    workload=st.text(max_size=12).map("mine.{}".format),  # a workload of the user: it may use all fields
    model=st.sampled_from(["resnet50", "vgg16", "réseau", 'a "quoted" one']),
    batch=st.integers(1, 20_000),
    learning_rate=st.floats(0.0, 10.0) | st.integers(0, 3),
    augment=st.booleans(),
    seed=st.integers(0, 2**63),
    epochs=st.integers(0, 100),
    **{
        name: st.sampled_from(WORDS[name])
        for name in ("precision", "engine", "memory_format", "device", "loader", "schedule", "weights")
    },
)


@pytest.mark.parametrize(("key", "trial"), PINNED.items(), ids=str)
def test_the_keys_of_committed_records_have_not_changed(key, trial):
    assert trial.key == key


def another(name: str) -> Any:
    """Return a valid value of a field other than its default."""
    by_type = {str: "another", int: 7, float: 0.5, bool: True}
    named = {"workload": "mine.other", "framework": "keras-jax", "arrangement": "in_sequence"}
    return named.get(name, WORDS[name][1] if name in WORDS else by_type[type(getattr(Trial, name))])


def test_every_field_that_differs_is_in_the_key():
    taken = {  # other fields that such a trial needs
        "nodes": {"devices": 7},
        "network": {"devices": 2, "nodes": 2},
        "placement": {"devices": 2, "epochs": 1},
        "parallel": {"devices": 2, "scaling": "strong"},
        "form": {"reader": "torch_pil"},
        **{name: {"form": "jpeg", "reader": "torch_pil"} for name in fields_of(parts.Storage)[1:]},
        "cache": {"form": "jpeg", "reader": "torch_pil", "epochs": 1},
    }
    for field in fields(Trial):
        changed = {"workload": "mine.steps", **taken.get(field.name, {}), field.name: another(field.name)}
        assert json.loads(replace(Trial(), **changed).key) == changed


def test_every_field_is_in_one_part_and_every_part_has_a_workload():
    declared = [name for part in Trial.__mro__[1:-1] for name in vars(part).get("__annotations__", ())]
    assert sorted(declared) == sorted(field.name for field in fields(Trial))
    assert set(declared) == {name for part in PARTS.values() for name in fields_of(part)}


@pytest.mark.parametrize("workload", PARTS)
def test_a_field_that_the_workload_does_not_use_is_refused_with_the_workloads_that_use_it(workload):
    for name in set(fields_of(Trial)) - set(fields_of(PARTS[workload])):
        value = another(name)
        with pytest.raises(UserError) as caught:
            Trial(workload=workload, **{name: value})
        said = str(caught.value)
        using = [other for other in PARTS if name in fields_of(PARTS[other])]
        assert f"{name}={value!r}" in said and workload in said and ", ".join(using) in said
        Trial(workload=workload, **{name: getattr(Trial, name)})


@settings(deadline=None)
@given(trials, trials, st.sets(st.sampled_from([field.name for field in fields(Trial)]), max_size=2))
def test_two_trials_have_the_same_key_only_if_they_are_equal(one, donor, names):
    other = replace(one, **{name: getattr(donor, name) for name in names})
    assert (one.key == other.key) == (one == other)


@settings(deadline=None)
@given(trials, st.randoms(use_true_random=False))
def test_a_trial_can_be_restored_from_a_record_and_from_its_key(trial, random):
    items = list(json.loads(json.dumps(trial.as_dict())).items())
    random.shuffle(items)
    again = trial_from_dict(dict(items))
    assert again == trial and again.key == trial.key
    assert Trial(**json.loads(trial.key)) == trial


def test_an_integer_learning_rate_has_the_key_of_the_float():
    assert Trial(learning_rate=1).key == Trial(learning_rate=1.0).key == '{"learning_rate":1.0}'


def test_a_new_field_with_a_default_changes_no_key():
    @dataclass(frozen=True, kw_only=True)
    class Newer(Trial):
        a_new_field: str = "the old behaviour"
        another: int = 0

    for key, trial in PINNED.items():
        assert Newer(**trial.as_dict()).key == key
        assert json.loads(Newer(**trial.as_dict(), another=1).key) == json.loads(key) | {"another": 1}


@pytest.mark.parametrize("make", [lambda v: trial_from_dict(v), lambda v: grid(**v)], ids=["trial_from_dict", "grid"])
def test_an_unknown_field_lists_the_valid_ones_nearest_first(make):
    with pytest.raises(UserError, match="unknown trial field 'batches'; valid: batch, ") as caught:
        make({"model": "vgg16", "batches": 64})
    assert all(field.name in str(caught.value) for field in fields(Trial))


def test_the_trial_of_a_newer_labkit_is_refused():
    with pytest.raises(UserError, match="newer labkit"):
        trial_from_dict({**Trial().as_dict(), "a_new_field": 1})


def test_a_record_may_name_a_former_field_at_the_value_that_all_records_have() -> None:
    assert trial_from_dict({**Trial(batch=8).as_dict(), "stem": "imagenet"}) == Trial(batch=8)
    for other in ("cifar", {}):
        with pytest.raises(UserError, match="unknown trial field 'stem'"):
            trial_from_dict({**Trial().as_dict(), "stem": other})


@pytest.mark.parametrize(
    ("field", "wrong", "said"),
    [
        ("engine", "compile+grph", r"unknown trial engine '.*'; valid: compile\+graph,"),
        ("precision", "BF16", "unknown trial precision 'BF16'; valid: bf16,"),
        ("loader", "devise", "unknown trial loader 'devise'; valid: device,"),
        ("framework", "keras", "unknown trial framework 'keras'; valid: keras-"),
        ("batch", 0, "batch must be at least 1, not 0"),
        ("classes", -1, "classes must be at least 1, not -1"),
        ("epochs", -1, "epochs must be at least 0, not -1"),
        ("traced_iterations", -1, "traced_iterations must be at least 0"),
        ("target_top1", 1.0, "must be at least 0 and below 1"),
        ("batch", 64.0, "a trial's batch must be an int"),
        ("batch", True, "a trial's batch must be an int"),
        ("augment", 1, "a trial's augment must be a bool"),
        ("model", 50, "a trial's model must be a str"),
        ("learning_rate", False, "a trial's learning_rate must be a float"),
        ("precision", None, "a trial's precision must be a str"),
    ],
)
def test_an_invalid_value_of_a_field_is_refused(field, wrong, said):
    with pytest.raises(UserError, match=said):
        Trial(**{field: wrong})


def test_a_trial_trains_epochs_or_times_blocks_not_both():
    for field in ("energy_windows", "traced_iterations"):
        with pytest.raises(UserError, match=r"whole epochs, or .*not both"):
            Trial(**{"epochs": 1, field: 5})


def test_a_trial_is_immutable_and_hashable():
    with pytest.raises(AttributeError):
        Trial().batch = 1
    assert len({Trial(), Trial(batch=64), Trial(batch=65)}) == 2


def test_a_grid_is_every_combination_with_the_last_axis_fastest():
    combinations = [(t.model, t.batch, t.precision) for t in grid(model=["a", "b"], batch=(64, 256), precision="bf16")]
    assert combinations == [("a", 64, "bf16"), ("a", 256, "bf16"), ("b", 64, "bf16"), ("b", 256, "bf16")]
    assert (grid(), grid(batch=[])) == ([Trial()], [])


def test_numbers_of_numpy_arrays_and_ranges_are_numbers():
    keys = [trial.key for trial in grid(batch=[64, 256])]
    assert [trial.key for trial in grid(batch=np.array([64, 256]))] == keys
    assert [trial.key for trial in grid(batch=range(64, 257, 192))] == keys
    assert grid(batch=np.int64(64))[0].key == keys[0] == Trial(batch=np.int64(64)).key
    with pytest.raises(UserError, match="must be an int"):
        Trial(batch=np.float64(64))
