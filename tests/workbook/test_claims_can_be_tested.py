"""The plans of the papers' devices, a CPU and eight GPUs have trials for every test, except those listed here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import pytest

from tests.workbook.made_telemetry import PAPERS
from workbook.claims import schema
from workbook.claims.evidence import Side, families, pairs, select
from workbook.claims.schema import FASTEST, Claim
from workbook.datasets import data_at_scale, stored_set
from workbook.hardware.host import this_host
from workbook.hardware.profile import Profile, load_profile, profile_names
from workbook.paths import notebook_of
from workbook.records import Record
from workbook.registry import OF_ALL, STUDIES, YOUR_NETWORK, Study
from workbook.report.execute import planned_trials
from workbook.results import Results
from workbook.studies.free_speed import which_change
from workbook.trials.trial import Trial

NODES = "needs a Slurm job over several nodes, which no profile plans by itself"
UNTESTABLE = {  # (claim, place of the test): why no plan has its trials
    ("dell_p100-speedup16", 0): NODES,
    ("dell_p100-speedup16", 1): NODES,
    ("dell_p100-ethernet", 0): NODES,
    ("dell_p100-ethernet-io", 0): NODES,
    ("dell_v100-storage-nodes", 0): NODES,
    ("dell_v100-storage-nodes", 1): NODES,
    ("dell_v100-nodes-time", 0): NODES,
    ("dell_v100-io-wait", 0): NODES,
    ("dell_v100-io-wait", 1): NODES,
    ("dell_v100-io-wait", 2): NODES,
    ("dell_v100-network", 0): NODES,
    ("dell_v100-network", 1): NODES,
    ("dell_v100-network", 2): NODES,
}

Plans: TypeAlias = dict[tuple[str, str], list[Side]]


@dataclass(frozen=True)
class Planned:
    """The records of a study on a profile, as far as tests of claims read them: nothing is measured."""

    profile: Profile
    study: Study
    host_id: str = "planned"
    host: dict[str, Any] = field(default_factory=dict)
    by_trial: dict[Trial, Any] = field(default_factory=dict)

    def ok(self, trial: Trial) -> list[Record]:
        """Return the records of a trial: none."""
        return self.by_trial.get(trial, [])


@pytest.fixture(scope="module", params=["quick", pytest.param("full", marks=pytest.mark.thorough)])
def plans(request: pytest.FixtureRequest) -> Plans:
    """Return (profile, study) -> the trials of the plan at a scale whose records are evidence, on small data."""
    studies = [study for study in STUDIES if study not in (*OF_ALL, YOUR_NETWORK) and notebook_of(study).is_file()]
    named = {name for _, _, test in each_test() for printed in test.published for name in printed.hardware}
    named |= {
        str(side["profile"]) for _, _, test in each_test() for side in (test.over, test.under) if "profile" in side
    }
    profiles = [load_profile(name) for name in sorted(named & set(profile_names()) | {"cpu", "h200_x8"})]
    given = {"scale": request.param, "mode": "plan", "data": ""}
    with pytest.MonkeyPatch.context() as patch:
        here = this_host()  # once for all plans: each call asks git
        patch.setattr("workbook.study.this_host", lambda **_: here)
        patch.setattr("workbook.study.data_at_scale", lambda name, _: data_at_scale(name, "smoke"))
        patch.setattr("workbook.study.stored_set", lambda name, _, **kept: stored_set(name, 8, **kept))
        return {
            (profile.name, study): [
                Side(Results([cast(Any, Planned(profile, STUDIES[study]))]), trial)
                for trial in planned_trials(notebook_of(study), given | {"hw": profile.name})
            ]
            for profile in profiles
            for study in studies
        }


def without_fastest(test: schema.Test) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what a test compares, without fields of which one side is `fastest`, which only records can tell."""
    names = [name for name in test.over if FASTEST not in (test.over[name], test.under[name])]
    return {name: test.over[name] for name in names}, {name: test.under[name] for name in names}


def has_case(test: schema.Test, sides: Iterable[Side]) -> bool:
    """Return whether these trials form a case of the test: all that its shape compares is planned."""
    chosen = select(sides, test.select)
    if test.over:
        groups = families(chosen, test.over)
        return any(pairs(family, *without_fastest(test)) for family in groups)
    if test.along:
        return any(len({side.field(test.along) for side in family}) > 1 for family in families(chosen, [test.along]))
    return bool(chosen)


def test_sides_of_one_and_of_three_energy_windows_are_of_one_family() -> None:
    power = Results([cast(Any, Planned(load_profile("cpu"), STUDIES["04_power"]))])
    windows_of = {"vgg16": (1, 12), "resnet50": (3, 1)}
    sides = [
        Side(power, Trial(model=model, energy_windows=windows)) for model, of in windows_of.items() for windows in of
    ]
    found = [[side.trial.energy_windows for side in family] for family in families(sides, ["model"])]
    assert found == [[1, 3, 1], [12]]


def each_test() -> list[tuple[Claim, int, schema.Test]]:
    claims = [claim for paper in PAPERS for claim in paper.claims]
    return [(claim, place, test) for claim in claims for place, test in enumerate(claim.tests)]


def can_be_tested(test: schema.Test, claim: Claim, plans: Plans) -> bool:
    """Return whether the plan of a profile has a case, or all plans together have one."""
    studies = claim.studies_of(test)
    names = dict.fromkeys(name for name, _ in plans)
    each = ([side for study in studies for side in plans.get((name, study), [])] for name in names)
    if any(has_case(test, sides) for sides in each):
        return True
    return has_case(test, [side for (_, study), sides in plans.items() if study in studies for side in sides])


@pytest.mark.parametrize(("claim", "place", "test"), each_test(), ids=lambda value: getattr(value, "id", ""))
def test_every_test_can_get_a_case_or_is_listed_with_the_reason(
    claim: Claim, place: int, test: schema.Test, plans: Plans
) -> None:
    listed = UNTESTABLE.get((claim.id, place))
    assert can_be_tested(test, claim, plans) != bool(listed), listed or "no profile plans trials for this test"


def test_no_claim_is_judged_by_a_loop_that_one_change_makes_faster(
    plans: Plans, request: pytest.FixtureRequest
) -> None:
    sides = [side for (_, study), planned in plans.items() if study == "09_profile" for side in planned]
    loops = [side.trial for side in sides if side.trial.device == "cuda" and side.trial.workload == "train"]
    changed = {trial for trial in loops if which_change(trial.as_dict())}
    assert len(changed) == {"quick": 3, "full": 6}[request.node.callspec.params["plans"]]
    for claim, place, test in each_test():
        if "09_profile" in claim.studies_of(test):
            assert not changed & {side.trial for side in select(sides, test.select)}, (claim.id, place)


def test_every_published_magnitude_can_be_met_on_its_own_hardware(plans: Plans) -> None:
    without = [
        (claim.id, printed.value)
        for claim, place, test in each_test()
        for printed in test.published
        if (claim.id, place) not in UNTESTABLE
        and printed.select.get("nodes", 1) == 1  # several nodes need a Slurm job
        and not can_be_tested(
            test.model_copy(update={"select": test.select | printed.select}),
            claim,
            {place: sides for place, sides in plans.items() if place[0] in printed.hardware},
        )
    ]
    assert without == []


def test_every_listed_test_exists() -> None:
    assert set(UNTESTABLE) <= {(claim.id, place) for claim, place, _ in each_test()}
