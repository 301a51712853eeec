"""Tests of intervals over hosts and passes: which one is formed, its coverage, and the error rates of its verdicts."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from scipy import stats

from labkit.errors import UserError
from tests.workbook.made_records import blocks, of_records
from tests.workbook.test_results import made
from workbook.claims.verdict import Bounds
from workbook.claims.words import TIE
from workbook.hardware.host import Host
from workbook.hardware.identity import fingerprint
from workbook.records.store import Store
from workbook.results import Results, difference, estimate, ratio
from workbook.results.intervals import Passes, are_planned_alike, in_one_process, level_of, ratio_of
from workbook.statistics import Interval
from workbook.trials.trial import Trial

HOSTS = ("a", "b", "c")
MACHINE = "NVIDIA H200, Intel Xeon, 16 cores, torch 2.11.0"


def on_hosts(*values: dict[tuple[str, int], list[float]], **changed: Sequence[object]) -> pd.DataFrame:
    """Return a frame with the values of each host; `changed` replaces a column by one value per host."""
    frames = []
    for place, of_host in enumerate(values):
        columns = {name: of_hosts[place] for name, of_hosts in changed.items()}
        about = {"machine": MACHINE, "protocol": 3, "scale": "quick"} | columns
        frames.append(made(of_host, host=HOSTS[place]).assign(**about))
    return pd.concat(frames, ignore_index=True)


def level(*rates: list[float], **changed: Sequence[object]) -> pd.DataFrame:
    return on_hosts(*({("strict FP32", 1): of_host} for of_host in rates), **changed)


# ---- which interval is formed ---------------------------------------------------------------------------------------


def test_three_equal_hosts_have_students_t_interval_of_their_log_means() -> None:
    rates = [[10.0, 12.0, 11.0], [20.0, 21.0], [15.0, 14.0, 16.0]]
    (row,) = estimate(level(*rates), "images_per_s", by=["mode"]).itertuples()
    logs = [np.log(of_host).mean() for of_host in rates]
    low, high = stats.t.interval(0.95, 2, loc=np.mean(logs), scale=stats.sem(logs))
    assert (row.value, row.low, row.high) == pytest.approx(tuple(np.exp([np.mean(logs), low, high])))
    assert (row.passes, row.hosts) == (8, 3)


def test_shares_of_three_hosts_are_averaged_arithmetically_and_stay_below_1() -> None:
    (row,) = estimate(level([0.9, 1.0], [0.96, 1.0], [1.0, 1.0]), "utilisation", by=["mode"]).itertuples()
    assert row.value == pytest.approx((0.95 + 0.98 + 1) / 3) and row.high == 1 and row.hosts == 3


def test_a_ratio_on_three_hosts_is_of_each_hosts_means() -> None:
    # Hosts differ threefold, their ratios hardly. The captured side has fewer passes.
    sides = [
        ({("strict FP32", 1): [f, 1.2 * f], ("CUDA graph", 1): [f * gain]}) for f, gain in ((1, 2), (3, 2.1), (2, 2))
    ]
    (row,) = ratio(on_hosts(*sides), "images_per_s", over={"mode": "strict FP32"}, by=["mode"]).itertuples()
    logs = np.log([gain / math.sqrt(1.2) for gain in (2, 2.1, 2)])
    low, high = stats.t.interval(0.95, 2, loc=logs.mean(), scale=stats.sem(logs))
    assert (row.value, row.low, row.high) == pytest.approx(tuple(np.exp([logs.mean(), low, high])))
    assert (row.passes, row.hosts) == (3, 3)
    (row,) = difference(on_hosts(*sides), "images_per_s", over={"mode": "strict FP32"}, by=["mode"]).itertuples()
    assert row.value == pytest.approx(np.mean([f * (gain - 1.1) for f, gain in ((1, 2), (3, 2.1), (2, 2))]))


def test_hosts_that_ran_only_one_side_are_left_out_of_a_ratio() -> None:
    four = [{("strict FP32", 1): [1.0], ("CUDA graph", 1): [gain]} for gain in (2.0, 2.2, 1.9)]
    data = pd.concat([on_hosts(*four), made({("strict FP32", 1): [9.0]}, host="d").assign(machine=MACHINE)])
    data = data.assign(protocol=3, scale="quick")
    (row,) = ratio(data, "images_per_s", over={"mode": "strict FP32"}, by=["mode"]).itertuples()
    assert row.hosts == 3 and row.value == pytest.approx((2.0 * 2.2 * 1.9) ** (1 / 3))
    with pytest.raises(UserError, match="on a, b,"):
        both = data[(data["mode"] == "strict FP32") | data["host"].isin(["a"])]
        more = made({("CUDA graph", 1): [2.0]}, host="b").assign(machine=MACHINE, protocol=3, scale="quick")
        third = more.assign(host="e")
        ratio(pd.concat([both, more, third]), "images_per_s", over={"mode": "strict FP32"}, by=["mode"])


@pytest.mark.parametrize(
    ("rates", "changed", "named"),
    [
        (2, {}, r"differ in host \(host: a, b\)"),
        (3, {"machine": [MACHINE, MACHINE, "another"]}, r"differ in machine \(machine: NVIDIA.*another\)"),
        (3, {"protocol": [3, 3, 2]}, r"differ in protocol \(protocol: 3, 2\)"),
        (3, {"scale": ["quick", "full", "quick"]}, "differ in scale"),
    ],
)
def test_two_hosts_or_unequal_ones_are_refused(rates: int, changed: dict[str, list[object]], named: str) -> None:
    data = level(*[[1.0, 2.0]] * rates, **changed)
    with pytest.raises(UserError, match=f"{named}.*`query`"):
        estimate(data, "images_per_s", by=["mode"])
    with pytest.raises(UserError, match=named):
        ratio(pd.concat([data, data.assign(batch=2)]), "images_per_s", over={"batch": 1}, by=["mode", "batch"])


def test_hosts_whose_machines_are_unknown_are_not_pooled() -> None:
    with pytest.raises(UserError, match="differ in host"):
        estimate(level([1.0], [1.1], [1.2]).drop(columns="machine"), "images_per_s", by=["mode"])


def test_trials_with_different_planned_passes_are_unpaired_and_use_all_passes() -> None:
    eager, captured = [10.0, 12.0, 11.0, 10.5, 12.5, 11.5], [20.0, 20.1, 19.9]
    data = made({("strict FP32", 1): eager, ("CUDA graph", 1): captured})
    planned = data["mode"].map({"strict FP32": 6, "CUDA graph": 3})
    (row,) = ratio(
        data.assign(planned_passes=planned), "images_per_s", over={"mode": "strict FP32"}, by=["mode"]
    ).itertuples()
    welch = stats.ttest_ind(np.log(captured), np.log(eager), equal_var=False).confidence_interval(0.95)
    assert (row.low, row.high) == pytest.approx((math.exp(welch.low), math.exp(welch.high)))
    # A pass that is planned for both, and failed on one side, leaves the others paired.
    (row,) = ratio(
        data.assign(planned_passes=6), "images_per_s", over={"mode": "strict FP32"}, by=["mode"]
    ).itertuples()
    paired = np.log(captured) - np.log(eager[:3])
    assert row.value == pytest.approx(math.exp(paired.mean())) and row.passes == 3


def test_the_plan_decides_on_pairing() -> None:
    three, six = ({("a", number): 1.0 for number in range(1, many + 1)} for many in (3, 6))
    assert are_planned_alike(three, three, (3, 6)), "before the short passes both sides have the same ones"
    assert not are_planned_alike(six, three, (6, 3)) and not are_planned_alike(three, six, (3, 6))
    assert are_planned_alike(six, three, (6, 6))


def test_a_whole_pass_without_a_value_does_not_displace_an_interrupted_pass() -> None:
    # Pass 1 was interrupted. Steps were traced in passes 1 to 3 only, so pass 4 has no value of the trace.
    processes = [{("a", number): process for number, process in enumerate(of_side, 1)} for of_side in ("0234", "1234")]
    traced = {("a", number): float(number) for number in (1, 2, 3)}
    timed = traced | {("a", 4): 4.0}
    assert in_one_process((traced, traced), processes) == [traced, traced]
    assert [set(side) for side in in_one_process((timed, timed), processes)] == [{("a", n) for n in (2, 3, 4)}] * 2


def test_equal_hosts_have_the_same_text_and_others_another() -> None:
    record = blocks("01_training", Trial(), 1, 100.0)
    hardware = {"gpus": [{"name": "NVIDIA H200"}], "cpu": "Intel(R) Xeon(R) Platinum 8481C", "cpu_cores": 16}
    results = replace(of_records("01_training", [record]), host=hardware)
    text = results.machine(record)
    assert text.split(", ")[:4] == ["NVIDIA H200", "Intel Xeon Platinum 8481C", "16 cores", "torch 2.11"]
    capped = {"gpus": [{"name": "NVIDIA H200", "power_limit_w": 500.0}]}
    for changed in ({"cpu": "AMD EPYC"}, {"cpu_cores": 8}, {"gpus": [{"name": "NVIDIA H200 NVL"}]}, capped):
        assert replace(results, host=hardware | changed).machine(record) != text
    own = record.model_copy(update={"fingerprint": fingerprint(hardware | {"cpu_family": "family 25, model 17"})})
    assert results.machine(own) != text, "a record's own fingerprint counts before that of its host"
    assert results.machine(own.model_copy(update={"fingerprint": fingerprint(hardware)})) == text
    assert results.machine(record.model_copy(update={"versions": record.versions | {"torch": "2.12"}})) != text
    assert Results([results]).frame()["machine"].tolist() == [text]


@pytest.mark.parametrize("commit", ["0123456789ab+", ""])
def test_hosts_without_a_clean_commit_equal_no_other(commit: str) -> None:
    known = blocks("01_training", Trial(), 1, 100.0)
    unknown = blocks("01_training", Trial(), 2, 100.0, versions={"torch": "2.11", "commit": commit})
    texts = [of_records("01_training", [known]).machine(known)]
    for host in ("a" * 12, "b" * 12):
        mixed = replace(of_records("01_training", [known, unknown]), host_id=host)
        texts.append(mixed.machine(unknown))
        assert mixed.machine(known) == mixed.machine(unknown), "the runs of one host stay together"
    assert len(set(texts)) == 3


def test_a_family_that_one_description_lacks_separates_no_hosts_and_known_families_do(tmp_path: Path) -> None:
    record = blocks("01_training", Trial(), 1, 100.0)

    def machine(report: str, **families: str | None) -> set[str]:
        folder = tmp_path / report / "hosts"
        folder.mkdir(parents=True)
        texts = set()
        for host, family in families.items():
            (folder / f"{host}.json").write_text(json.dumps(as_host(host, family)))
        for host, family in families.items():
            own = {"store": Store(tmp_path / report), "host": as_host(host, family), "host_id": host}
            made = record.model_copy(update={"fingerprint": fingerprint(own["host"]) if family else None})
            texts.add(replace(of_records("01_training", [made]), **own).machine(made))
        return texts

    def as_host(host: str, family: str | None) -> dict[str, Any]:
        about: dict[str, Any] = {"gpus": (), "driver": None, "cpu": "Virtual CPU", "cpu_cores": 4, "cpu_threads": 4}
        about |= {"cpu_features": ("avx2",), "memory_bytes": 2**34, "os": "Linux", "python": "3.12", "packages": {}}
        return Host(id=host, **about, cpu_family=family).as_dict()

    assert len(machine("old beside new", a=None, b="family 6, model 207", c="family 6, model 143")) == 1
    assert len(machine("new", a="family 6, model 207", b="family 6, model 143", c="family 6, model 143")) == 2


def test_a_caption_counts_the_equal_nodes_of_a_host() -> None:
    passes = [blocks("01_training", Trial(), number, 100.0) for number in (1, 2, 3)]
    on_nodes = [record.model_copy(update={"node": node}) for record, node in zip(passes, "aba", strict=True)]
    assert "2 equal nodes" in of_records("01_training", on_nodes).describe()
    assert "nodes" not in of_records("01_training", passes).describe()


def test_hosts_of_one_name_that_differ_in_instruction_sets_are_not_pooled() -> None:
    virtual = {"cpu": "Virtual CPU", "cpu_cores": 4}
    groups = [
        replace(
            of_records("01_training", [blocks("01_training", Trial(), 1, 100.0).model_copy(update={"host": host})]),
            host=virtual | {"cpu_features": features},
            host_id=host,
        )
        for host, features in (("a", ["sve"]), ("b", ["sve"]), ("c", ["sve", "bf16"]))
    ]
    with pytest.raises(UserError, match="differ in machine"):
        estimate(Results(groups).frame(), "images_per_s", by=["model"])
    equal = [replace(group, host=virtual) for group in groups]
    assert estimate(Results(equal).frame(), "images_per_s", by=["model"]).hosts.tolist() == [3]


# ---- coverage and error rates ---------------------------------------------------------------------------------------
# Standard deviations of logarithms on H200 hosts, protocol 2. Those of passes are what `benchmarks/between_hosts.py`
# prints. Those of hosts, and of what a pass shares, are from an analysis of variance that has the replaced records too.

DRAWS = 20_000
LIMIT = 0.028  # 2.5 % and 2.7 standard errors


@dataclass(frozen=True)
class Noise:
    """Standard deviations: of a pass, of what all trials of a pass share, and of a host."""

    of_pass: float
    shared: float
    of_host: float


CAPTURED, EAGER = Noise(0.003, 0.0, 0.005), Noise(0.12, 0.09, 0.31)
# The factor of a host is common to its eager loops; these parts differ between their configurations.
EAGER_BESIDE_EAGER = Noise(0.12, 0.0, 0.13)


def logs_of(noise: Noise, hosts: int, passes: int, seed: int) -> NDArray[np.float64]:
    """Return logarithms with the truth 0, by draw, host and pass."""
    draw = np.random.default_rng(seed)
    of_host = noise.of_host * draw.normal(size=(DRAWS, hosts, 1))
    return of_host + math.hypot(noise.of_pass, noise.shared) * draw.normal(size=(DRAWS, hosts, passes))


def students_t(samples: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
    """Return the low ends, middles and high ends of Student's t intervals of the rows."""
    n = samples.shape[1]
    half = stats.t.ppf(0.975, n - 1) * samples.std(axis=1, ddof=1) / math.sqrt(n)
    middle = samples.mean(axis=1)
    return middle - half, middle, middle + half


def welch(first: NDArray[np.float64], second: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
    """Return the low ends, middles and high ends of Welch's intervals of the rows' differences."""
    parts = [side.var(axis=1, ddof=1) / side.shape[1] for side in (first, second)]
    total = parts[0] + parts[1]
    degrees = total**2 / sum(part**2 / (s.shape[1] - 1) for part, s in zip(parts, (first, second), strict=True))
    half = stats.t.ppf(0.975, degrees) * np.sqrt(total)
    middle = first.mean(axis=1) - second.mean(axis=1)
    return middle - half, middle, middle + half


def by_pass(logs: NDArray[np.float64], draw: int) -> Passes:
    """Return one draw as labkit has it: (host, pass) -> value."""
    of_draw = np.exp(logs[draw])
    return {(f"h{host}", number + 1): value for (host, number), value in np.ndenumerate(of_draw)}


def check(ends: tuple[NDArray[np.float64], ...], found: Sequence[Interval | None]) -> None:
    """Check that the vectorised intervals are those of labkit."""
    for place, interval in enumerate(found):
        assert interval is not None and interval.low is not None and interval.high is not None
        expected = tuple(math.exp(end[place]) for end in ends)
        assert (interval.low, interval.point, interval.high) == pytest.approx(expected, rel=1e-9)


def verdicts(ends: tuple[NDArray[np.float64], ...], truth: float, bounds: Bounds) -> dict[str, float]:
    """Return the share of each verdict if the truth is `truth`."""
    shares = dict.fromkeys(("replicated", "not replicated", "inconclusive"), 0.0)
    for low, middle, high in zip(*(truth * np.exp(end) for end in ends), strict=True):
        shares[bounds.verdict(Interval(middle, low, high, 3))] += 1 / DRAWS
    return shares


def check_rates(ends: tuple[NDArray[np.float64], ...], *, direction: bool) -> None:
    """Check coverage, and that at most 2.5 % per side are decided wrongly if the truth is at the bound."""
    covered = float(((ends[0] <= 0) & (ends[2] >= 0)).mean())
    assert 0.93 <= covered <= 0.97
    of_bound = verdicts(ends, 1.5, Bounds(low=1.5))
    assert of_bound["replicated"] <= LIMIT and of_bound["not replicated"] <= LIMIT
    if direction:
        more = Bounds(low=1.0, strict=True, tie=TIE)
        # Up to a tie the direction is absent, and "not replicated" is right; from a tie on it is wrong.
        at_tie = verdicts(ends, 1 + TIE, more)
        assert at_tie["replicated"] <= LIMIT and at_tie["not replicated"] <= LIMIT
        assert verdicts(ends, 1.0, more)["replicated"] <= LIMIT


CASES = [(noise, hosts, passes) for noise in (CAPTURED, EAGER) for hosts in (3, 5) for passes in (3, 6)]


@pytest.mark.parametrize(("noise", "hosts", "passes"), CASES)
def test_levels_over_hosts_cover_the_truth_of_all_hosts(noise: Noise, hosts: int, passes: int) -> None:
    logs = logs_of(noise, hosts, passes, seed=1)
    ends = students_t(logs.mean(axis=2))
    check(ends, [level_of(by_pass(logs, draw), "images_per_s") for draw in range(50)])
    check_rates(ends, direction=False)


@pytest.mark.parametrize(("noise", "passes"), [(CAPTURED, 3), (EAGER, 3), (EAGER, 6)])
def test_levels_over_passes_cover_the_truth_of_their_host(noise: Noise, passes: int) -> None:
    logs = logs_of(Noise(noise.of_pass, noise.shared, 0.0), 1, passes, seed=2)
    ends = students_t(logs[:, 0])
    check(ends, [level_of(by_pass(logs, draw), "images_per_s") for draw in range(50)])
    check_rates(ends, direction=False)


def test_levels_over_passes_do_not_cover_the_truth_of_all_hosts() -> None:
    # The reason for intervals over hosts: a host's passes do not show how far it is from others.
    low, _, high = students_t(logs_of(EAGER, 1, 6, seed=3)[:, 0])
    assert ((low <= 0) & (high >= 0)).mean() < 0.6


@pytest.mark.parametrize("hosts", [3, 5])
@pytest.mark.parametrize("passes", [3, 6])
def test_ratios_over_hosts_are_decided_wrongly_in_at_most_one_of_forty(hosts: int, passes: int) -> None:
    for below, number in ((EAGER, passes), (EAGER_BESIDE_EAGER, passes), (CAPTURED, 3)):
        above = EAGER_BESIDE_EAGER if below is EAGER_BESIDE_EAGER else CAPTURED
        first, second = logs_of(above, hosts, 3, seed=4), logs_of(below, hosts, number, seed=5)
        ends = students_t(first.mean(axis=2) - second.mean(axis=2))
        check(ends, [ratio_of(by_pass(first, draw), by_pass(second, draw), paired=True) for draw in range(20)])
        check_rates(ends, direction=True)


@pytest.mark.parametrize("passes", [3, 6])
def test_ratios_of_two_eager_loops_on_one_host_are_paired(passes: int) -> None:
    shared = EAGER.shared * np.random.default_rng(6).normal(size=(DRAWS, 1, passes))
    own = Noise(EAGER.of_pass, 0.0, 0.0)
    first, second = (logs_of(own, 1, passes, seed) + shared for seed in (7, 8))
    ends = students_t((first - second)[:, 0])
    check(ends, [ratio_of(by_pass(first, draw), by_pass(second, draw), paired=True) for draw in range(50)])
    check_rates(ends, direction=True)


def test_ratios_of_captured_and_eager_steps_on_one_host_are_unpaired() -> None:
    first = logs_of(Noise(CAPTURED.of_pass, 0.0, 0.0), 1, 3, seed=9)
    second = logs_of(Noise(EAGER.of_pass, EAGER.shared, 0.0), 1, 6, seed=10)
    ends = welch(first[:, 0], second[:, 0])
    check(ends, [ratio_of(by_pass(first, draw), by_pass(second, draw), paired=False) for draw in range(50)])
    check_rates(ends, direction=True)
    paired = students_t(first[:, 0] - second[:, 0, :3])
    assert np.median(ends[2] - ends[0]) < 0.6 * np.median(paired[2] - paired[0]), "three of six passes are not dropped"
