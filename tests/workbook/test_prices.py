"""The price list: each module has one feature, and a feature without records says since when it waits."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import prices
from tests.prices import Feature, features


def test_each_module_belongs_to_one_feature() -> None:
    assert {path.name: owners for path, owners in prices.owners().items() if len(owners) != 1} == {}


def test_each_feature_has_modules() -> None:
    listed = [part for feature in features() for part in feature.modules]
    assert len(listed) == len(set(listed))
    assert [part for part in listed if not (prices.ROOT / part).exists()] == []
    owned = {name for names in prices.owners().values() for name in names}
    assert [feature.feature for feature in features() if feature.feature not in owned] == []


@pytest.mark.parametrize("feature", [one for one in features() if one.records], ids=lambda one: one.feature)
def test_a_feature_without_records_says_since_when_it_waits(feature: Feature) -> None:
    assert bool(feature.hypothesis) != any(prices.fits_one(trial, feature.records) for trial in prices.recorded())


def test_the_benchmark_of_a_library_exists() -> None:
    assert [one.library for one in features() if one.library and not (prices.ROOT / one.library).exists()] == []


def test_a_line_of_code_is_no_docstring_comment_or_blank(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    before = ['"""One.', "", 'Two."""', "", "# a comment"]
    code = ["X = [", "    1,", "]", "def f():", '    """Three."""', "    return X"]
    file.write_text("\n".join(before + code))
    assert prices.code_lines(file) == 5


def test_every_bound_has_a_size() -> None:
    assert prices.bounds().keys() == prices.sizes().keys()
