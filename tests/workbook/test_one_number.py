"""One configuration has one number: all studies share one recipe per execution mode, and the same requests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from typing import Any, TypeAlias

import pytest

from workbook.paths import notebook_of
from workbook.registry import OF_ALL, STUDIES, YOUR_NETWORK
from workbook.report.execute import planned_trials
from workbook.studies import requests
from workbook.study import data_at_scale, open_study, stored_set
from workbook.trials.parts import Storage, fields_of
from workbook.trials.trial import OF_NETWORKS, OWN, Trial
from workbook.words import mode_name

# What a reader takes for one configuration.
READ = (
    *("workload", "size", "model", "image_px", "batch", "precision", "engine", "framework", "device", "devices"),
    *fields_of(Storage),
)
# The fields in which trials of one configuration and execution mode may differ, each with the reason.
ALLOWED = {
    "energy_windows": "04_power and the metered networks: windows of 5 s replace the timed blocks",
    "threads": "06_cpu_vs_gpu asks how a CPU scales; in 03_multi_gpu each process has its share of the cores",
    "copies": "05_inference asks what copies from the host cost",
    "arrangement": "03_multi_gpu asks what two jobs at once cost",
    "learning_rate": "nyu-learning-rate says that it does not change the speed",
    "scaling": "weak and strong scaling",
    "interconnect": "03_multi_gpu asks what the link between devices gives",
    "gradient_precision": "03_multi_gpu asks what narrower gradients give",
    "parallel": "09_profile repeats the DataParallel of the NYU paper",
    "memory_format": "09_profile changes one setting at a time; in 07_precision each precision has its own",
}
TRACED = {"traced_iterations", "traced_s", "steps_before"}
COMPARES_TRACES = {  # beside the trace that all studies share
    "09_profile": "nyu-sampling compares few traced steps with many",
    "10_gan": "cern-sampling compares few traced iterations with many, early and late",
}
# Configurations with several keys at `quick`. A lower number is welcome: then lower it here.
# Two of them are due to loops of 09_profile with one change: FP32 at 224 px, and TF32 in the baseline's memory format.
# Seven are tuned eager loops: with energy windows, and beside the loops of 07_precision with PyTorch's default SGD.
# One trains for a minute, which shows how a board at its power limit drifts.
MOST = {"h200": 29, "cpu": 12}

Planned: TypeAlias = dict[str, set[Trial]]


@cache
def planned(hw: str) -> Planned:
    """Return study -> its trials at `quick`, on small data."""
    given = {"hw": hw, "scale": "quick", "mode": "plan", "data": ""}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("workbook.study.data_at_scale", lambda name, _: data_at_scale(name, "smoke"))
        patch.setattr("workbook.study.stored_set", lambda name, _, **kept: stored_set(name, 8, **kept))
        notebooks = {study: notebook_of(study) for study in STUDIES if study not in (*OF_ALL, YOUR_NETWORK)}
        return {study: set(planned_trials(path, given)) for study, path in notebooks.items() if path.is_file()}


def differing(trials: Iterable[Trial]) -> set[str]:
    values = [trial.as_dict() for trial in trials]
    return {name for name in values[0] if len({one[name] for one in values}) > 1}


@pytest.mark.parametrize("hw", ["h200", "h200_x4", "cpu"])
def test_trials_of_one_configuration_and_mode_differ_only_where_a_question_needs_it(hw: str) -> None:
    plans = planned(hw)
    groups: dict[Any, set[Trial]] = defaultdict(set)
    for trial in set().union(*plans.values()):
        if trial.workload in OF_NETWORKS and not trial.epochs and not trial.samples:
            groups[(*(getattr(trial, name) for name in READ), mode_name(trial))].add(trial)
    for group, trials in groups.items():
        assert differing(trials) <= set(ALLOWED) | TRACED, group
        # What follows the timed part differs only if that part differs, or if a claim compares traces.
        for timed in {trial.only_timed() for trial in trials}:
            alike = {trial for trial in trials if trial.only_timed() == timed and not trial.energy_windows}
            studies = {study for study, of_study in plans.items() if alike & of_study}
            assert len(alike) <= 1 or studies <= set(COMPARES_TRACES), (group, studies)


@pytest.mark.parametrize("hw", MOST)
def test_the_number_of_configurations_with_several_keys_does_not_grow(hw: str) -> None:
    groups: dict[Any, set[Trial]] = defaultdict(set)
    for trial in set().union(*planned(hw).values()):
        # Training runs are compared by what they learn, and energy windows of networks in samples are no second time.
        if not trial.epochs and not (trial.workload in OWN and trial.energy_windows):
            groups[tuple(getattr(trial, name) for name in READ)].add(trial)
    several = [group for group, trials in groups.items() if len(trials) > 1]
    assert len(several) <= MOST[hw], several


@pytest.mark.parametrize(
    ("hw", "batch", "studies"),
    [("h200", 256, "01 02 03 05 07 09 11"), ("h200", 64, "02 06 09"), ("cpu", 16, "01 02 05 06 07 11")],
)
def test_the_headline_configuration_has_one_key_in_every_study(hw: str, batch: int, studies: str) -> None:
    plans = planned(hw)
    (headline,) = {
        trial.only_timed()
        for trial in plans["02_batch_size"]
        if (trial.model, trial.batch, trial.epochs, mode_name(trial)) == ("resnet50", batch, 0, "strict FP32")
    }
    assert headline.device == ("cpu" if hw == "cpu" else "cuda")
    keys = {
        trial.key: [study[:2] for study in plans if trial in plans[study]]
        for trial in set().union(*plans.values())
        if trial.only_timed() == headline and not trial.energy_windows
    }
    assert list(keys.values()) == [studies.split()]


def test_requests_follow_the_configuration_and_stay_with_those_who_ask() -> None:
    lab = open_study("01_training", hw="h200_x4", scale="quick", mode="plan")
    of_profile, alone = Trial(batch=256), Trial(model="resnet152", batch=256)
    asked = Trial(workload="infer", batch=256)
    traced, same, queried = requests.shared(lab, [of_profile, alone, asked, of_profile])
    steps, queries = lab.profile.sweep("09_profile", "quick"), lab.profile.sweep("05_inference", "quick")
    assert traced.traced_iterations == steps["traced_iterations"] and traced.only_timed() == of_profile
    assert same == alone and queried.queries == queries["queries"]
    own = [Trial(batch=256, energy_windows=3), Trial(batch=256, traced_iterations=2)]
    assert requests.shared(lab, own) == own


def test_jobs_that_exchange_gradients_are_traced_in_every_study() -> None:
    lab = open_study("11_frameworks", hw="h200_x4", scale="quick", mode="plan")
    steps = lab.profile.sweep("03_multi_gpu", "quick")["traced_iterations"]
    one_job = Trial(batch=64, devices=2)
    (traced,) = requests.shared(lab, [one_job])
    assert traced.traced_iterations == steps and traced.only_timed() == one_job
    untraced = [
        Trial(batch=64, devices=2, arrangement="at_once"),
        Trial(batch=64, devices=2, epochs=1),
        Trial(batch=64, devices=2, parallel="one_process", scaling="strong"),
    ]
    assert requests.shared(lab, untraced) == untraced
