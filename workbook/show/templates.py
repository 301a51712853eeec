"""Draw plain data with templates: the macros of `template/macros.html.j2` make the pieces of pages and of displays."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbook.registry import METRICS
from workbook.words import MISSING

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

TEMPLATE = Path(__file__).resolve().parent / "template"
_UNITS = "|".join(sorted({"points", *(re.escape(metric.unit) for metric in METRICS.values() if metric.unit)}))
_WITH_UNIT = re.compile(rf"(.+), ({_UNITS})")
_AMOUNT = re.compile(r"(at (least|most) )?[-−+]?\d[\d.,/e+-]*( ?[%x])?[†‡]?( [(\[].*[)\]])?")
_WITH_RANGE = re.compile(r"(.*\S) ([(\[].*[)\]])")


@cache
def environment(*folders: Path) -> Environment:
    """Return Jinja's environment for the templates in `folders` and the macros, which escapes all values but Markup."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader([*folders, TEMPLATE])
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    made.filters |= {
        "split": lambda text, pattern: re.split(pattern, text),
        "unit": lambda heading: _parts(_WITH_UNIT, heading),
        "range": lambda text: _parts(_WITH_RANGE, text),
    }
    made.tests["amount"] = lambda text: text == MISSING or bool(_AMOUNT.fullmatch(text))
    return made


def drawn(macro: str, *values: Any, **options: Any) -> Markup:
    """Return what a macro of `macros.html.j2` makes of plain values."""
    markup: Markup = getattr(environment().get_template("macros.html.j2").module, macro)(*values, **options)
    return markup


def _parts(pattern: re.Pattern[str], text: str) -> tuple[str, str]:
    """Return a heading and its unit, or a value and its range; the second is empty where the text has none."""
    parts = pattern.fullmatch(text)
    return (parts[1], parts[2]) if parts else (text, "")
