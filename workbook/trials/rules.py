"""Support as tables of rules: which trials cannot run, with the reason and its cause."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from workbook.errors import Cause, Unsupported

if TYPE_CHECKING:
    from workbook.trials.trial import Trial


class Rule(NamedTuple):
    """A reason why trials cannot run, as a sentence without a full stop.

    `refuses` is true for these trials. The reason may name its result (`{value}`) and fields of the trial (`{engine}`).
    A rule with the cause `here`, or with `asks_machine`, depends on the machine too, and the others on the trial alone.
    """

    cause: Cause
    refuses: Callable[[Trial], object]
    reason: str = "{value}"
    asks_machine: bool = False


def given(condition: Callable[[Trial], bool], rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """Return the rules as they are for trials that fulfil a condition; they let all others pass."""
    return tuple(
        rule._replace(refuses=lambda trial, refuses=rule.refuses: condition(trial) and refuses(trial))  # type: ignore[misc]
        for rule in rules
    )


def refusal(rules: Iterable[Rule], trial: Trial, *, elsewhere: bool = False) -> Unsupported | None:
    """Return the reason and cause of the first rule that refuses the trial; None if no rule does.

    With `elsewhere`, the trial will run on another machine: only rules on the trial alone count.
    """
    for rule in rules:
        if not (elsewhere and (rule.asks_machine or rule.cause == "here")) and (value := rule.refuses(trial)):
            return Unsupported(rule.reason.format(value=value, **vars(trial)), rule.cause)
    return None


def check(rules: Iterable[Rule], trial: Trial) -> None:
    """Raise the refusal of a trial."""
    if refused := refusal(rules, trial):
        raise refused
