"""Numbers of README's findings are ranges over all machines of the newest protocol with enough runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

import pandas as pd
import pytest

from workbook.claims.evidence import FEWEST_RUNS
from workbook.paths import ROOT
from workbook.results import load
from workbook.studies import machines
from workbook.studies.sweeps import OPTIMISED, ORDINARY, beside_references
from workbook.words import STRICT, VAGUE_DIGITS, digits_of, number

pytestmark = pytest.mark.usefixtures("committed")
WIDER = 0.1  # by which a stated range may exceed that of the records
Range = tuple[float, float, int]  # lowest, highest, machines


@cache
def of_all_machines(profile: str, study: str) -> pd.DataFrame:
    return load(profile, study).frame(hosts="all")


def rows(profile: str, study: str, query: str) -> pd.DataFrame:
    """Return the runs of all machines of the newest protocol that a query selects."""
    frame = of_all_machines(profile, study).query("status == 'ok'")
    return frame[frame["protocol"] == frame["protocol"].max()].query(query)


def table_row(reference: str) -> str:
    """Return a row of README's table: optimised over a reference, with its interval, by network."""
    frame = of_all_machines("h200", "training").query("batch == 256")
    gained = machines.gains(frame, reference, ["model", "image_px", "batch"], "images_per_s")
    cells = [cell(gained.query("model == @model and image_px == @px")) for model, px in NETWORKS]
    row = " | ".join([f"| {reference}", *cells, f"{gained['machines'].min()} |"])
    return re.sub(r" +", " ", row)


def cell(row: pd.DataFrame) -> str:
    """Return a mean with its interval from three runs on, in as many digits as it allows; empty without a mean."""
    if row.empty:
        return ""
    value, low, high, passes = row[["value", "low", "high", "passes"]].iloc[0]
    digits = digits_of(value, low, high)
    if passes < FEWEST_RUNS:
        about = "about " * (digits == VAGUE_DIGITS)
        return f"{about}{number(value, digits)} ({int(passes)} run{'s' * (passes > 1)})"
    return "{} [{}, {}]".format(*(number(part, digits) for part in (value, low, high)))


def over_strict() -> Range:
    """Return the lowest and the highest mean of a machine, optimised over strict FP32 at 32 px and batch 256."""
    trained = rows(
        "h200", "training", "workload == 'train' and image_px == 32 and batch == 256 and energy_windows == 0"
    )
    sides = beside_references(trained, by=["model", "batch"])
    means = sides.groupby(["host", "model", "side"])["images_per_s"].mean().unstack("side")
    ratios = (means[OPTIMISED] / means[STRICT]).dropna()
    return ratios.min(), ratios.max(), ratios.index.get_level_values("host").nunique()


def idle() -> Range:
    query = "model == 'resnet50' and workload == 'train' and image_px == 32 and batch == 256 and devices == 1"
    shares = rows("h200", "", query).drop_duplicates("record")
    means = of_enough_runs(shares[shares["mode"] == STRICT], "host_share")
    return 100 * means.min(), 100 * means.max(), len(means)


def of_enough_runs(runs: pd.DataFrame, metric: str) -> pd.Series:
    """Return the mean of each machine that has enough runs."""
    of_hosts = runs.groupby("host")[metric].agg(["mean", "count"])
    return of_hosts.loc[of_hosts["count"] >= FEWEST_RUNS, "mean"]


def over_h100() -> Range:
    def rate(profile: str) -> pd.Series:
        query = "workload == 'train' and model == 'resnet50' and image_px == 224 and mode == 'compiled + CUDA graph'"
        trained = rows(profile, "", f"{query} and batch == 256 and energy_windows == 0").drop_duplicates("record")
        return of_enough_runs(trained, "images_per_s")

    ratios = rate("h200") / rate("h100").item()
    return ratios.min(), ratios.max(), len(ratios)


ENDS = r"(?P<low>[\d.]+) to (?P<high>[\d.]+)"
COUNTS = {
    word: count
    for count, word in enumerate(
        ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"), start=1
    )
}
NETWORKS = [("resnet50", 32), ("resnet152", 32), ("vgg16", 32), ("vgg19", 32), ("resnet50", 224)]
# A sentence with its lowest and highest number and its number of machines, and the range of the records.
FINDINGS: list[tuple[str, Callable[[], Range]]] = [
    (rf"idle for {ENDS} % of a step of ResNet-50 \(32 px, batch 256, means of (?P<count>\w+) H200\)", idle),
    (rf"(?P<count>\w+) H200 each train ResNet-50 at 224 px {ENDS} times as fast as one H100", over_h100),
]


def problem(text: str, pattern: str, range_of: Callable[[], Range]) -> str:
    """Return what is wrong with a stated range; an empty text if it covers the records' range closely."""
    told = re.search(pattern, text)
    if not told:
        return "no such sentence"
    low, high, machines = range_of()
    stated = [(float(number), 0.5 * 10 ** -len(number.partition(".")[2])) for number in told.group("low", "high")]
    if stated[0][0] > low + stated[0][1] or stated[1][0] < high - stated[1][1]:
        return f"narrower than {low:.3g} to {high:.3g} over {machines} machines"
    if stated[0][0] < low * (1 - WIDER) or stated[1][0] > high * (1 + WIDER):
        return f"wider than {low:.3g} to {high:.3g}"
    return "" if COUNTS[told["count"].lower()] == machines else f"{machines} machines have it"


@pytest.mark.parametrize(("pattern", "range_of"), FINDINGS)
def test_a_finding_covers_all_machines_of_the_newest_protocol(pattern: str, range_of: Callable[[], Range]) -> None:
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert problem(text, pattern, range_of) == ""


@pytest.mark.parametrize(
    ("earlier", "range_of"),
    [
        ("train ResNets and VGGs 7 to 9 times as fast as eager FP32", over_strict),
    ],
)
def test_the_sentences_of_26_november_2026_were_too_narrow(earlier: str, range_of: Callable[[], Range]) -> None:
    assert "narrower" in problem(earlier, ENDS, range_of)


@pytest.mark.parametrize("reference", [ORDINARY, STRICT])
def test_the_table_of_gains_is_that_of_the_records(reference: str) -> None:
    written = re.sub(r" +", " ", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert table_row(reference) in written
