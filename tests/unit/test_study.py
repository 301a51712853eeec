"""What a notebook holds: trials carry the identity of the images that they name."""

from __future__ import annotations

from pathlib import Path

import pytest

from labkit import study
from labkit.data import DataSet
from labkit.study import OpenStudy, open_study
from labkit.trial import NO_DATA
from tests.faulty.campaign import HOST


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpenStudy:
    """A study on this machine's own profile, as a plan opens it: its images are known."""
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("LABKIT_REPORTS", str(tmp_path / "reports"))
    return open_study("02_batch_size", hw="cpu", scale="smoke", mode="plan", host=HOST)


def test_trials_that_name_the_digits_carry_their_checksum_and_classes(planned: OpenStudy) -> None:
    (own,), (digits,), (named,) = (planned.trials(**about) for about in ({}, {"data": "digits"}, {"data": "own"}))
    assert (own.data, own.classes, own.data_checksum) == ("synthetic32", 1000, planned.images.checksum)  # type: ignore[union-attr]
    assert (digits.data, digits.classes, digits.data_checksum) == ("digits", 10, planned.digits.checksum)  # type: ignore[union-attr]
    assert own.data_checksum != digits.data_checksum and named == own


def test_a_data_set_is_opened_once(planned: OpenStudy, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def count(name: str, scale: str, real: object = study.data_at_scale) -> DataSet:
        opened.append(name)
        return real(name, scale)  # type: ignore[operator, no-any-return]

    monkeypatch.setattr(study, "data_at_scale", count)
    for _ in range(3):
        planned.trials(data="digits")
        planned.trials(data=NO_DATA)
    assert opened == ["digits"], "the report's own images are not needed for that"


def test_where_nothing_can_be_measured_no_data_set_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_REPORTS", str(tmp_path))
    lab = open_study("02_batch_size", hw="h200", mode="render", host=HOST)
    (trial,) = lab.trials(data="digits")
    assert (trial.data, trial.data_checksum, lab.digits) == ("digits", "", None)
