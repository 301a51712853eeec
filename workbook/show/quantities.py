"""Numbers as display text. Only this module rounds: to at most 3 digits, 2 if the 95 % interval exceeds ±10 %."""

from __future__ import annotations

import math
import re

from workbook.registry import METRICS, Metric
from workbook.results.columns import NOT_MEASURED

MISSING = "–"
DIGITS = 3
VAGUE_DIGITS = 2
VAGUE = 0.10  # relative half width of an interval above which the third digit means nothing
WIDE = 0.05  # relative half width above which tables show the interval beside the number
INVERTED_BELOW = 0.45  # smaller ratios are shown as inverses: 0.143 as 1/6.99
NAN = float("nan")


def metric_of(name: str) -> Metric:
    """Return the registry's metric, or a metric without unit and scale for any other column of numbers."""
    return METRICS.get(name) or Metric(name, name.replace("_", " "), "", "neither")


def half_width(value: float, low: float, high: float) -> float:
    """Return half the interval's width over `value` (0.02 = ±2 %); NaN without an interval, or for a value of 0.

    >>> half_width(100, 98, 102)
    0.02
    """
    return (high - low) / 2 / abs(value) if value and math.isfinite(high - low) else NAN


def digits_of(value: float, low: float, high: float) -> int:
    """Return the number of significant digits to show.

    >>> digits_of(14_700, 14_600, 14_800), digits_of(14_700, 7_900, 27_100)
    (3, 2)
    """
    return VAGUE_DIGITS if half_width(value, low, high) > VAGUE else DIGITS


def number(value: float | None, digits: int = DIGITS) -> str:
    """Return `digits` significant digits with thousands separators; a dash for a missing value, never 0.

    >>> number(14_733), number(0.0345678), number(float("nan")), number(0.0)
    ('14,700', '0.0346', '–', '0')
    >>> number(14_733, 2), number(6.98e-4), number(1.2e-7), number(-0.5, 2)
    ('15,000', '0.000698', '1.20e-07', '−0.50')
    """
    if value is None or not math.isfinite(value):
        return MISSING
    if value == 0:
        return "0"
    rounded = float(f"{value:.{digits}g}")
    size = abs(rounded)
    if not 1e-6 <= size < 1e15:
        return f"{rounded:.{digits - 1}e}"
    decimals = digits - 1 - math.floor(math.log10(size))
    return f"{'−' if rounded < 0 else ''}{size:,.{max(decimals, 0)}f}"


def amount(value: float, metric: str, digits: int = DIGITS) -> str:
    """Return a stored SI value in its display unit. Only `%` and `x` are written: headings and axes name other units.

    >>> amount(0.0208, "energy_per_image_j"), amount(0.613, "utilisation"), amount(7.16, "speedup")
    ('20.8', '61.3 %', '7.16x')
    """
    unit = metric_of(metric).unit
    if unit == "x":
        return factor(value, digits)
    text = number(value * metric_of(metric).scale, digits)
    return f"{text} %" if unit == "%" and text != MISSING else text


def quantity(value: float, metric: str, digits: int = DIGITS) -> str:
    """Return a stored SI value with its unit, for sentences.

    >>> quantity(0.0208, "energy_per_image_j"), quantity(14_733, "images_per_s", 2)
    ('20.8 mJ', '15,000 images/s')
    """
    text, unit = amount(value, metric, digits), metric_of(metric).unit
    return text if text == MISSING or unit in ("%", "x", "") else f"{text} {unit}"


def factor(value: float, digits: int = DIGITS) -> str:
    """Return a ratio as text, below 0.45 as its inverse.

    >>> factor(7.16), factor(1.9846), factor(29.1, 2), factor(0.1434), factor(0.904)
    ('7.16x', '1.98x', '29x', '1/6.97', '0.904x')
    """
    if 0 < value < INVERTED_BELOW:
        return f"1/{number(1 / value, digits)}"
    text = number(value, digits)
    return text if text == MISSING else f"{text}x"


def lacks_subject(title: str) -> bool:
    """Return whether a title lacks more than its value: what is largest among nothing has no name either.

    >>> lacks_subject("INT8 over BF16 at batch 64: not measured"), lacks_subject("Largest at batch –: not measured")
    (False, True)
    >>> lacks_subject("Slowest: not measured (not measured)")
    True
    """
    subject = title.removesuffix(NOT_MEASURED)
    return NOT_MEASURED in subject or bool(re.search(rf"(^|\s){MISSING}(\W|$)", subject))


def lacks_value(text: str) -> bool:
    """Return whether a text says "not measured" and has no value after its bold label, parentheses aside.

    A number in a part of a sentence that is not measured is a setting, and one in ResNet-50 a name. "No difference
    found" is a value.

    >>> lacks_value("**At batch 64:** VGG-16 not measured."), lacks_value("VGG-16 not measured, ResNet-50 3 images/s")
    (True, False)
    """
    parts = re.split(r"[:;] |[.,](?= |$)", re.sub(r"\*\*.*?\*\*|\([^)]*\)", "", text))
    values = [part for part in parts if NOT_MEASURED not in part]
    return NOT_MEASURED in text and not any(re.search(r"(?<![\w-])\d|found", value) for value in values)


def points(value: float, *beside: float) -> str:
    """Return a difference of shares as text in percentage points, with its sign.

    The largest of `value` and of the shares `beside` it (an interval's ends) has two digits. All have its decimals.

    >>> points(-0.0016), points(0.123), points(0.0)
    ('−0.16', '+12', '0')
    >>> points(0.0000004, 0.00074, 0.0015)
    '0.00'
    """
    if not math.isfinite(value):
        return MISSING
    largest = 100 * max(abs(share) for share in (value, *beside) if math.isfinite(share))
    decimals = max(0, VAGUE_DIGITS - 1 - math.floor(math.log10(largest))) if largest else 0
    text = f"{abs(100 * value):.{decimals}f}"
    return text if not float(text) else f"{'+' if value > 0 else '−'}{text}"
