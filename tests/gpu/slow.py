"""Cases of a test that take minutes together: `LABKIT_SLOW=1` asks for them."""

from __future__ import annotations

from typing import Any

import pytest


def slow(*values: object) -> list[Any]:
    """Parameters of `pytest.mark.parametrize` that are marked as slow."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]
