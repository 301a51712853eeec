"""A trial's key stays what it was, so that what was measured is found again."""

import json
from dataclasses import dataclass, fields, make_dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.errors import UserError
from labkit.trial import (
    DEVICES,
    ENGINES,
    LOADERS,
    MEMORY_FORMATS,
    PLACEMENTS,
    PRECISIONS,
    SCHEDULES,
    WEIGHTS,
    Trial,
    grid,
    trial_from_dict,
)
from labkit.trial_label import trial_label

# Committed records hold keys like these: a change of a default, of a name or of the form makes them unfindable.
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
    '{"image_px":224,"stem":"cifar"}': Trial(image_px=224, stem="cifar"),
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
    workload=st.text(max_size=12),
    model=st.sampled_from(["resnet50", "vgg16", "réseau", 'a "quoted" one']),
    image_px=st.integers(1, 512),
    classes=st.integers(1, 2000),
    batch=st.integers(1, 20_000),
    precision=st.sampled_from(PRECISIONS),
    engine=st.sampled_from(ENGINES),
    memory_format=st.sampled_from(MEMORY_FORMATS),
    learning_rate=st.floats(0.0, 10.0) | st.integers(0, 3),
    device=st.sampled_from(DEVICES),
    devices=st.integers(1, 32),
    augment=st.booleans(),
    seed=st.integers(0, 2**63),
    size=st.integers(0, 2**40),
    loader=st.sampled_from(LOADERS),
    epochs=st.integers(0, 100),
    schedule=st.sampled_from(SCHEDULES),
    threads=st.integers(0, 256),
    weights=st.sampled_from(WEIGHTS),
)


@pytest.mark.parametrize(("key", "trial"), PINNED.items(), ids=str)
def test_the_key_is_what_it_was_when_records_were_committed(key, trial):
    assert trial.key == key


def test_every_field_that_differs_is_in_the_key():
    others = {str: "another", int: 7, float: 0.5, bool: True}
    named = {
        "precision": "fp16",
        "engine": "graph",
        "memory_format": "channels_last",
        "device": "cpu",
        "loader": "device",
        "schedule": "one_cycle",
        "copies": "included",
        "weights": "trained",
        "scaling": "strong",
        "arrangement": "in_sequence",
        "parallel": "one_process",
        "constraint": "gradient_penalty",
        "updates": "asynchronous",
        "placement": "together",
        "interconnect": "host",
        "gradient_precision": "bf16",
        "network": "ethernet",
        "framework": "keras-jax",
    }
    taken = {  # without which there is no such trial
        "nodes": {"devices": 7},
        "network": {"devices": 2, "nodes": 2},
        "placement": {"devices": 2, "epochs": 1},
        "parallel": {"devices": 2, "scaling": "strong"},
    }
    for field in fields(Trial):
        value = named.get(field.name, others[type(field.default)])
        changed = {**taken.get(field.name, {}), field.name: value}
        assert json.loads(replace(Trial(), **changed).key) == changed


@settings(deadline=None)
@given(trials, trials, st.sets(st.sampled_from([field.name for field in fields(Trial)]), max_size=2))
def test_two_trials_have_one_key_only_if_they_are_equal(one, donor, names):
    other = replace(one, **{name: getattr(donor, name) for name in names})
    assert (one.key == other.key) == (one == other)


@settings(deadline=None)
@given(trials)
def test_a_trial_survives_the_way_through_a_record(trial):
    again = trial_from_dict(json.loads(json.dumps(trial.as_dict())))
    assert again == trial
    assert again.key == trial.key


@settings(deadline=None)
@given(trials)
def test_a_key_says_all_that_is_needed_to_make_the_trial_again(trial):
    assert Trial(**json.loads(trial.key)) == trial


@settings(deadline=None)
@given(trials, st.randoms(use_true_random=False))
def test_the_order_of_fields_does_not_matter(trial, random):
    items = list(trial.as_dict().items())
    random.shuffle(items)
    assert trial_from_dict(dict(items)).key == trial.key


def test_a_whole_learning_rate_has_one_key_however_it_is_written():
    assert Trial(learning_rate=1).key == Trial(learning_rate=1.0).key == '{"learning_rate":1.0}'


@pytest.mark.parametrize(("key", "trial"), PINNED.items(), ids=str)
def test_a_new_field_with_a_default_changes_no_key(key, trial):
    @dataclass(frozen=True, kw_only=True)
    class Newer(Trial):
        a_new_field: str = "the old behaviour"
        another: int = 0

    assert Newer(**trial.as_dict()).key == key
    assert json.loads(Newer(**trial.as_dict(), another=1).key) == json.loads(key) | {"another": 1}


def test_a_new_field_that_stands_first_changes_no_key_either():
    first = make_dataclass("First", [("a_first_field", int, 0)], frozen=True, kw_only=True)
    newer = make_dataclass("Newer", [], bases=(Trial, first), frozen=True, kw_only=True)
    assert fields(newer)[0].name == "a_first_field"
    assert newer(batch=256).key == '{"batch":256}'


def test_every_field_has_a_default():
    assert Trial() == Trial(**{field.name: field.default for field in fields(Trial)})


@pytest.mark.parametrize("make", [lambda v: trial_from_dict(v), lambda v: grid(**v)], ids=["trial_from_dict", "grid"])
def test_an_unknown_field_lists_the_valid_ones_nearest_first(make):
    with pytest.raises(UserError, match="unknown trial field 'batches'; valid: batch, ") as caught:
        make({"model": "vgg16", "batches": 64})
    assert all(field.name in str(caught.value) for field in fields(Trial))


def test_a_record_of_a_newer_labkit_says_so():
    with pytest.raises(UserError, match="newer labkit"):
        trial_from_dict({**Trial().as_dict(), "a_new_field": 1})


@pytest.mark.parametrize(
    ("field", "wrong", "nearest"),
    [
        ("engine", "eagr", "eager"),
        ("engine", "compile+grph", "compile+graph"),
        ("precision", "fp61", "fp16"),
        ("precision", "BF16", "bf16"),
        ("memory_format", "channel_last", "channels_last"),
        ("device", "gpu", "cpu"),
        ("loader", "devise", "device"),
        ("schedule", "onecycle", "one_cycle"),
    ],
)
def test_a_word_that_is_none_of_the_valid_ones_is_refused(field, wrong, nearest):
    with pytest.raises(UserError, match=rf"unknown trial {field} '.*'; valid: {nearest.replace('+', '[+]')}[,.]"):
        Trial(**{field: wrong})


@pytest.mark.parametrize("field", ["batch", "devices", "image_px", "classes"])
@pytest.mark.parametrize("wrong", [0, -1])
def test_a_count_is_at_least_one(field, wrong):
    with pytest.raises(UserError, match=f"{field} is at least 1, not {wrong}"):
        Trial(**{field: wrong})


@pytest.mark.parametrize("field", ["epochs", "energy_windows"])
def test_epochs_and_windows_are_not_negative(field):
    with pytest.raises(UserError, match=f"{field} is at least 0, not -1"):
        Trial(**{field: -1})


def test_a_trial_trains_epochs_or_times_energy_windows_not_both():
    with pytest.raises(UserError, match="not both"):
        Trial(epochs=1, energy_windows=1)


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("batch", 64.0),
        ("batch", "64"),
        ("batch", True),
        ("batch", None),
        ("devices", 2.0),
        ("augment", 1),
        ("model", 50),
        ("learning_rate", "0.1"),
        ("learning_rate", False),
        ("seed", 1.5),
        ("precision", None),
    ],
)
def test_a_value_of_another_type_is_refused_rather_than_given_a_key_of_its_own(field, wrong):
    with pytest.raises(UserError, match=f"a trial's {field} is of type "):
        Trial(**{field: wrong})


def test_a_trial_does_not_change_and_can_be_a_member_of_a_set():
    with pytest.raises(AttributeError):
        Trial().batch = 1
    assert len({Trial(), Trial(batch=64), Trial(batch=65)}) == 2


def test_a_grid_is_every_combination_the_last_axis_fastest():
    found = [(t.model, t.batch, t.precision) for t in grid(model=["a", "b"], batch=(64, 256), precision="bf16")]
    assert found == [("a", 64, "bf16"), ("a", 256, "bf16"), ("b", 64, "bf16"), ("b", 256, "bf16")]


def test_a_grid_without_axes_is_one_trial_and_with_an_empty_axis_none():
    assert grid() == [Trial()]
    assert grid(batch=[]) == []


def test_a_label_names_what_differs_beside_others():
    one, other = Trial(batch=256), Trial(batch=256, precision="bf16")
    assert trial_label(one) == "resnet50 batch 256"
    assert trial_label(one, beside=[one, other]) == "resnet50 batch 256 fp32"
    swept = [Trial(threads=0), Trial(threads=2)]
    assert [trial_label(one, beside=swept).split("64 ")[1] for one in swept] == ["default threads", "2 threads"]
    assert trial_label(Trial(epochs=3)) == "resnet50 batch 64 3 epochs"
    runs = [Trial(epochs=3), *(Trial(epochs=3, devices=2, placement=where) for where in PLACEMENTS)]
    runs += [Trial(epochs=3, learning_rate=0.04, schedule="warm_up")]
    assert [trial_label(one, beside=runs).removeprefix("resnet50 batch 64 3 epochs") for one in runs] == [
        "",
        " 2 devices",
        " 2 learners on 1 device",
        " rate 0.04 warm_up",
    ]
    assert trial_label(Trial(workload="matmul", size=8192)) == "matmul size 8192"


def test_whole_epochs_are_not_traced() -> None:
    with pytest.raises(UserError, match="whole epochs or traces steps"):
        Trial(epochs=1, traced_iterations=5)
    with pytest.raises(UserError, match="traced_iterations is at least 0"):
        Trial(traced_iterations=-1)
