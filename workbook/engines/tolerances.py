"""Differences with their tolerances: a record's facts if all are within, else a GateError."""

from __future__ import annotations

from collections.abc import Mapping

from workbook.errors import GateError

Difference = tuple[str, float, float]  # its name, its size, and its tolerance


def check(said: str, difference: float, tolerance: float, unit: str) -> None:
    """Raise GateError if a difference, in parts of `unit`, exceeds its tolerance or is NaN."""
    if not difference <= tolerance:
        raise GateError(f"{said} by {difference:.2g} of {unit}, more than {tolerance:.3g}")


def checked(said: str, differences: Mapping[str, Difference], unit: str) -> dict[str, float]:
    """Return `<name>_difference` and `<name>_tolerance` of each. Raise GateError for the first beyond its tolerance."""
    facts: dict[str, float] = {}
    for name, (what, difference, tolerance) in differences.items():
        check(said.format(what), difference, tolerance, unit)
        facts |= {f"{name}_difference": difference, f"{name}_tolerance": tolerance}
    return facts
