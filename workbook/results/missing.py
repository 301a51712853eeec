"""A metric without a value: the function that computes it raises `Missing` with the reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Missing(Exception):  # noqa: N818 - it is a result of its own, and no fault
    """A record has no value of a metric, or no label; the text says why, in a few words."""

    def __init__(self, reason: str = "this configuration does not produce it") -> None:
        super().__init__(reason)


def present(value: T | None, *reason: str) -> T:
    """Return a value that may be None. Raise Missing for None, with the reason if one is given."""
    if value is None:
        raise Missing(*reason)
    return value


def over(part: float | None, whole: float | None) -> float:
    """Return `part / whole`. Raise Missing if one of them is unknown or `whole` is 0."""
    return present(part) / present(whole or None)


def or_none(metric: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """Return the value of a metric's function; None if it is missing."""
    try:
        return metric(*args, **kwargs)
    except Missing:
        return None


def why_none(metric: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> str:
    """Return why a metric's function gives no value; an empty text if it gives one."""
    try:
        metric(*args, **kwargs)
    except Missing as missing:
        return str(missing)
    return ""
