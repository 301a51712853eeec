"""Tests of records that a newer labkit wrote, beside those of other profiles."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from labkit.errors import UserError
from tests.workbook.made_records import HOST, blocks
from workbook.claims.reports import evidence, recorded
from workbook.hardware.host import this_host, write_host
from workbook.records import PROTOCOL
from workbook.records.store import Store
from workbook.report.compare import make_compare
from workbook.results import reports_folder
from workbook.trials.trial import Trial


@pytest.mark.parametrize(
    "changed",
    [
        {"protocol": PROTOCOL + 1},
        {"trial": lambda trial: trial | {"a_newer_field": 4}},
        {"protocol": PROTOCOL + 2, "trial": lambda trial: trial | {"a_newer_field": 4}},
    ],
    ids=["protocol", "field of a trial", "both"],
)
def test_a_profile_of_a_newer_labkit_is_named_and_the_others_are_compared(changed: dict[str, Any]) -> None:
    study = "01_training"
    for profile in ("h100", "p100_16gb"):
        store = Store(reports_folder() / profile)
        store.append(blocks(study, Trial(), 1, 500.0))
        write_host(replace(this_host(numbered=False), id=HOST), store.report)
    newer = json.loads(blocks(study, Trial(), 1, 500.0).line())
    for name, value in changed.items():
        newer[name] = value(newer[name]) if callable(value) else value
    store.path(HOST, study).write_text(json.dumps(newer) + "\n")
    seen = evidence(None)
    assert [results.profile.name for results in recorded(seen).selected] == ["h100"]
    why = seen.unreadable["p100_16gb", study]
    assert "newer labkit" in why and "update this" in why and "Restore" not in why


def test_a_comparison_without_any_readable_profile_says_why() -> None:
    store = Store(reports_folder() / "h100")
    store.append(blocks("01_training", Trial(), 1, 500.0, protocol=PROTOCOL + 1))
    write_host(replace(this_host(numbered=False), id=HOST), store.report)
    with pytest.raises(UserError, match="01_training of h100: a newer labkit"):
        make_compare()
