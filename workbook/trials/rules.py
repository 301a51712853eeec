"""Support as tables of rules: which trials cannot run, with the reason and its cause."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from workbook.errors import Cause, Unsupported
from workbook.trials.trial import Trial


class Rule(NamedTuple):
    """A reason why trials cannot run, as a sentence without a full stop.

    `refuses` is true for these trials. The reason may name its result (`{value}`) and fields of the trial (`{engine}`).
    """

    cause: Cause
    refuses: Callable[[Trial], object]
    reason: str = "{value}"


def given(condition: Callable[[Trial], bool], rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """Return the rules as they are for trials that fulfil a condition; they let all others pass."""
    return tuple(
        rule._replace(refuses=lambda trial, refuses=rule.refuses: condition(trial) and refuses(trial))  # type: ignore[misc]
        for rule in rules
    )


def check(rules: Iterable[Rule], trial: Trial) -> None:
    """Raise Unsupported with the reason and cause of the first rule that refuses the trial."""
    for rule in rules:
        if value := rule.refuses(trial):
            raise Unsupported(rule.reason.format(value=value, **vars(trial)), rule.cause)
