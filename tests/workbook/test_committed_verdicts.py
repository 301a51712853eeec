"""The verdicts on the committed records have reasons, and the README has their number and the best batch size."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

from tests.committed import committed_reports
from workbook.claims import Findings
from workbook.claims.evidence import FEWEST_RUNS
from workbook.claims.reports import evidence, verdicts
from workbook.claims.verdict import TESTED, Case
from workbook.paths import ROOT
from workbook.registry import STUDIES
from workbook.results import difference, load, ratio
from workbook.results.intervals import HOSTS
from workbook.studies import batch_runs, machines, sweeps, today

PROFILES = ("cpu", "h100", "h100_x2", "h100_x4", "h200", "h200_x2", "h200_x4")


each_profile = pytest.mark.parametrize(
    "profile", ["h200", *(pytest.param(name, marks=pytest.mark.thorough) for name in PROFILES if name != "h200")]
)


def is_over_hosts(case: Case) -> bool:
    return case.effect is not None and case.effect.hosts >= HOSTS


class ByProfile(dict[str, Findings]):
    """The findings of profiles from committed records alone, without this machine's, each formed when needed."""

    def __missing__(self, profile: str) -> Findings:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LABKIT_REPORTS", str(committed_reports()))
            return self.setdefault(profile, verdicts(evidence(profile)))


@pytest.fixture(scope="module")
def findings() -> ByProfile:
    return ByProfile()


@each_profile
def test_each_claim_that_is_not_replicated_or_open_has_a_reason(findings: dict[str, Findings], profile: str) -> None:
    open_or_failed = [f for f in findings[profile].findings if f.verdict in ("not replicated", "inconclusive")]
    assert open_or_failed, "a profile with records has such claims"
    assert [finding.claim.id for finding in open_or_failed if not finding.why] == []


def test_the_readme_has_the_numbers_of_todays_verdicts(findings: dict[str, Findings]) -> None:
    counts = findings["h200"].of_papers().counts()
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    claims = re.search(r"turns (\d+) of their claims into tests", text)
    assert claims and int(claims[1]) == len(findings["h200"].of_papers().findings)
    told = re.search(
        r"can test (\d+) of the claims; another (\d+) verdicts are not counted\..* \| replicated \| in direction only "
        r"\| not replicated \| inconclusive \|[ |:-]* (\d+) \| (\d+) \| (\d+) \| (\d+) \|",
        text,
    )
    assert told, "the README has a sentence on the H200's verdicts"
    tested = [counts[group] for group in TESTED]
    assert [int(number) for number in told.groups()] == [sum(tested), counts["not counted"], *tested]


@each_profile
def test_every_verdict_of_a_claim_has_its_quantity_its_runs_and_at_least_three_of_them(
    findings: dict[str, Findings], profile: str
) -> None:
    for finding in findings[profile].findings:
        if finding.verdict in ("replicated", "not replicated"):
            deciding = [case for case in finding.cases if case.verdict == finding.verdict]
            assert deciding and all(case.n >= FEWEST_RUNS for case in deciding), finding.claim.id
    tested = [(row.test, row.here) for row in findings[profile].rows() if row.here]
    assert tested
    for test, here in tested:
        assert (
            re.fullmatch(r"\S.*: \S.*", test)
            and re.search(r"\d", here.value + here.n)
            and re.search(r"\d (run|image)s?$", here.n)
        )


@pytest.mark.thorough
def test_32_gpus_of_eight_nodes_are_not_replicated_by_four_of_one(findings: dict[str, Findings]) -> None:
    (scaling,) = [f for f in findings["h200_x4"].findings if f.claim.id == "dell_v100-scaling"]
    assert scaling.group == "direction replicated"
    assert {"32 GPUs", "eight nodes", "29.43"} <= set(scaling.not_judged)
    assert "4 GPUs" in scaling.scope


def test_a_row_names_both_metrics_that_a_claim_compares_and_the_study_of_its_value(
    findings: dict[str, Findings],
) -> None:
    rows = [row for row in findings["h200"].rows() if row.here]
    assert any(row.test.startswith("DRAM activity minus FP32") for row in rows)
    assert any(row.here and row.here.value.endswith("(Quantization)") for row in rows), "study 05 tests the same claim"
    labels = [case.label for row in rows for case in row.finding.cases]
    assert any("page “CPU against GPU”" in label for label in labels)
    code_words = [study.name for study in STUDIES.values() if "_" in study.name]
    assert not any(word in label for label in labels for word in code_words)


def test_the_readme_has_the_batch_size_that_is_the_most_accurate(committed: None) -> None:
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    said = r"After (\d+) s of training, ResNet-18 is more accurate with batch (\d+) than with (\d+) \(synthetic"
    told = re.search(said, text)
    assert told, "the README has a sentence on accuracy against time"
    results = load("h200", "batch_size")
    runs = batch_runs.described(results.frame().query("epochs > 0"), results.epochs())
    assert round(batch_runs.base(runs)["seconds"].mean()) == int(told[1])
    at_seconds = batch_runs.equalled(runs).query("equal == 'seconds' and rate == 'scaled'")
    behind = difference(at_seconds, "top1", over={"batch": int(told[2])}, by="batch")
    assert behind.set_index("batch").loc[int(told[3]), "high"] < 0


def test_an_interval_over_hosts_names_records_of_just_its_hosts(findings: dict[str, Findings]) -> None:
    judged = [judged for finding in findings["h200"].findings for judged in finding.tests]
    cases = [case for of_test in judged for case in of_test.cases if is_over_hosts(case) and len(case.sides) == 2]
    for case in cases:
        assert case.effect is not None
        alike = [side.study.on_all_hosts.of_any_windows(side.trial) for side in case.sides]
        hosts = [{results.host_id for results, trial in case.sources if trial in trials} for trials in alike]
        assert hosts[0] == hosts[1] and len(hosts[0]) == case.effect.hosts, case.label
    partial = [side for case in cases for side in case.sides if len(side.equal_hosts(case.metric)) > case.effect.hosts]  # type: ignore[union-attr]
    assert partial, "some host ran one side alone"


def test_a_pages_gain_over_machines_is_that_of_the_verdict(findings: dict[str, Findings], committed: None) -> None:
    results = load("h200", "today")
    frame = results.frame()
    equals = machines.of_equals(results.frame(hosts="all"), frame)
    here, equal = (sweeps.timed(today.rated(rows)) for rows in (frame, equals))
    gains = today.findings(equal, here)["tuned"].set_index("model")
    (claim,) = [of for of in findings["h200"].findings if of.claim.id == "nanogpt-compile"]
    (effect,) = [case.effect for judged in claim.tests for case in judged.cases]
    assert effect is not None and effect.hosts >= 4
    shown = gains.loc["gpt2_124m", ["value", "low", "high", "hosts"]].tolist()
    assert shown == pytest.approx([effect.point, effect.low, effect.high, effect.hosts])


def test_a_reader_repeats_the_ratio_of_a_verdict_from_the_table_of_results(findings: dict[str, Findings]) -> None:
    judged = [judged for finding in findings["h200"].findings for judged in finding.tests]
    cases = [case for of_test in judged if of_test.test.shape == "ratio" for case in of_test.cases if case.effect]
    over_passes = [case for case in cases if len(case.sides) == 2 and not (case.is_by_image or case.is_least)]
    assert len(over_passes) > 20
    assert any(map(is_over_hosts, over_passes))
    for case in over_passes:
        named = {(results.profile.name, results.host_id) for results, _ in case.sources}
        equal = [(side.results.profile.name, side.rows_on_hosts(case.metric)) for side in case.sides]
        of_side = [rows[[(profile, host) in named for host in rows["host"]]] for profile, rows in equal]
        sides = [rows.assign(side=name) for name, rows in zip(("over", "under"), of_side, strict=True)]
        table = ratio(pd.concat(sides), case.metric, over={"side": "under"}, by="side")
        assert case.effect is not None
        shown = [None if np.isnan(value) else value for value in table[["value", "low", "high"]].iloc[0]]
        assert (len(table), shown) == (1, [case.effect.point, case.effect.low, case.effect.high]), case.label
