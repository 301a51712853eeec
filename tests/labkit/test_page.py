"""The page of labkit: its code runs from top to bottom, and it is short."""

from __future__ import annotations

import re

import pytest

from tests.commands import ROOT

PAGE = (ROOT / "docs" / "labkit.md").read_text(encoding="utf-8")


def test_the_code_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    names: dict[str, object] = {"__name__": "page"}
    for block in re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        exec(compile(block, "docs/labkit.md", "exec"), names)
    assert "StepTiming" in capsys.readouterr().out
    assert names["answer"].images_per_s > 0


def test_the_page_has_at_most_500_words_beside_its_code() -> None:
    text = re.sub(r"^```python\n.*?^```", "", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert len(text.split()) <= 500
