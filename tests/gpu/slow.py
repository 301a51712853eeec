"""Cases of a test that together take minutes. They run with `LABKIT_SLOW=1`."""

from __future__ import annotations

from typing import Any

import pytest


def slow(*values: object) -> list[Any]:
    """Return parameters for `pytest.mark.parametrize` that are marked as slow."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]
