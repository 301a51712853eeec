"""The same training on several hosts: whose intervals hold whose means."""

from __future__ import annotations

from dataclasses import replace

import pytest

from labkit.analysis import between_hosts
from labkit.analysis.table import Table, Text
from labkit.results.study_records import StudyRecords as Results
from labkit.trial import Trial
from tests.unit.made_records import blocks, of_records

PLAIN, TUNED = Trial(model="resnet50", batch=64), Trial(model="resnet50", batch=64, engine="graph")
NEAR, FAR = (0.99, 1.0, 1.01), (0.5, 0.505, 0.51)


def measured(study: str, host: str, rates: dict[Trial, tuple[float, ...]]) -> Results:
    records = [blocks(study, trial, n, rate) for trial, of in rates.items() for n, rate in enumerate(of, start=1)]
    return replace(of_records(study, records), host_id=host)


def test_a_host_whose_mean_lies_in_anothers_interval_is_held_and_the_others_are_not() -> None:
    alike = [measured("01_training", "a", {PLAIN: NEAR}), measured("02_batch_size", "b", {PLAIN: NEAR})]
    assert between_hosts.held(between_hosts.seen(alike)) == (2, 2)
    apart = [*alike, measured("04_power", "c", {PLAIN: FAR})]
    assert between_hosts.held(between_hosts.seen(apart)) == (2, 6)
    said = between_hosts.sentence(apart)
    assert "One training was measured on several of 3 hosts" in said
    assert "by 1.98x to 1.98x; in 4 of 6 pairs" in said


def test_what_is_asked_after_a_trial_was_timed_makes_no_other_training_of_it() -> None:
    traced = replace(PLAIN, traced_iterations=5, energy_windows=1)
    shown = [measured("01_training", "a", {PLAIN: NEAR}), measured("09_profile", "b", {traced: NEAR, TUNED: NEAR})]
    assert list(between_hosts.seen(shown)) == [PLAIN]
    table = between_hosts.table(shown)
    assert isinstance(table, Table)
    (row,) = table.frame.itertuples(index=False)
    assert row[0].startswith("ResNet-50, 64") and "(01); " in row[1] and row[1].endswith("(09)")


@pytest.mark.parametrize("hosts", [("a", "a"), ("a",)])
def test_one_host_says_nothing_of_others(hosts: tuple[str, ...]) -> None:
    studies = ("01_training", "02_batch_size")
    shown = [measured(study, host, {PLAIN: NEAR}) for study, host in zip(studies, hosts, strict=False)]
    assert between_hosts.sentence(shown) == ""
    assert isinstance(between_hosts.table(shown), Text)
