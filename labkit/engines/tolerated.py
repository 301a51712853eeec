"""Differences beside what is tolerated of them: a record's facts where all are within, else a GateError."""

from __future__ import annotations

from collections.abc import Mapping

from labkit.errors import GateError

Difference = tuple[str, float, float]  # of what, how much, and the most that is tolerated


def check(said: str, difference: float, tolerance: float, unit: str) -> None:
    """GateError where a difference, in parts of `unit`, is beyond its tolerance or not a number."""
    if not difference <= tolerance:
        raise GateError(f"{said} by {difference:.2g} of {unit}, more than {tolerance:.3g}")


def checked(said: str, differences: Mapping[str, Difference], unit: str) -> dict[str, float]:
    """`<name>_difference` and `<name>_tolerance` of each; GateError for the first beyond."""
    facts: dict[str, float] = {}
    for name, (what, difference, tolerance) in differences.items():
        check(said.format(what), difference, tolerance, unit)
        facts |= {f"{name}_difference": difference, f"{name}_tolerance": tolerance}
    return facts
