"""Checks of a study, on committed records."""

from __future__ import annotations

import pandas as pd
import pytest

from tests.committed import committed_reports
from workbook.results import load
from workbook.studies import trust


def test_the_share_that_the_power_limit_slowed_is_that_of_the_list_of_throttled_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LABKIT_REPORTS", str(committed_reports()))
    results = load("h200", "inference")
    frame = results.frame()
    listed = trust.throttled(results).query("why == 'throttled: power cap'")
    assert len(listed) > 1
    fields = ["workload", "model", "image_px", "batch", "mode", "precision", "copies"]
    of_listed = frame.merge(listed[fields].drop_duplicates())
    assert trust.power_capped(results, of_listed) == pytest.approx(listed["blocks"].sum() / listed["of"].sum())
    assert trust.power_capped(results, frame[~frame["record"].isin(of_listed["record"])]) == 0
    assert pd.isna(trust.power_capped(results, frame.iloc[:0])), "nothing measured is not 0 %"
