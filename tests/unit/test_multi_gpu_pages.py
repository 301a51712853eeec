"""The page of several devices says what the records say, whatever is missing from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from matplotlib.figure import Figure as Canvas

from labkit.analysis.figure import DARK, LIGHT, Figure
from labkit.analysis.studies.multi_gpu import answer, concurrency, figures, grids, links, plan, scaling, to_target
from labkit.analysis.table import Table, Text
from labkit.analysis.verdicts import Evidence, judge_all
from labkit.analysis.verdicts.evidence import BETWEEN_DEVICES as BETWEEN
from labkit.analysis.verdicts.verdict import Finding
from labkit.errors import UserError
from labkit.papers import load_papers
from labkit.profile import load_profile
from labkit.recipes import CAPTURED, on_devices, runs_on, traced
from labkit.records import Record
from labkit.results.from_result import epochs_to_target
from labkit.results.study_records import StudyRecords as Results
from labkit.study import OpenStudy
from labkit.trial import ARRANGEMENTS, INTERCONNECTS, Trial, grid
from labkit.trial_label import trial_label
from tests.unit.made_records import NOISE, PASSES, blocks, failed, of_records, record_of, run

STUDY = "03_multi_gpu"
ONE_S = {"vgg16": 1000.0, "resnet50": 2000.0, "mlp512": 9000.0}  # images/s on one device
EFFICIENCY = {1: 1.0, 2: 0.95, 4: 0.8}  # weak
STRONG = 0.5  # of weak scaling's images/s on several devices
WAY = {"direct": 1.0, "host": 0.7, "sockets": 0.1}
AT_ONCE = 1.5  # images/s of two jobs at once over the same two in turns
SIZES = (2**12, 2**28)
RATE = {"direct": 300e9, "host": 20e9, "sockets": 1e9}
SMALL: dict[str, Any] = {"model": "vgg16", "batch": 256}
RUN: dict[str, Any] = {"model": "resnet18", "epochs": 5, "target_top1": 0.5, "learning_rate": 0.01, "classes": 10}
# Top-1 after the last of five epochs, reached evenly: the target comes after 2.5 / top1 epochs.
ENDS = {"one": 0.96, "large": 0.6, "same": 0.96, "rate": 0.8, "warm": 0.9, "stale": 0.4}


def timed() -> list[Trial]:
    plain = [Trial(**SMALL, **on_devices({}, n)) for n in EFFICIENCY]
    tuned = [Trial(**SMALL, **on_devices(CAPTURED, n)) for n in EFFICIENCY]
    strong = [Trial(**SMALL, devices=n, scaling="strong") for n in (2, 4)]
    ways = [Trial(**SMALL, devices=4, interconnect=way) for way in INTERCONNECTS[1:]]
    resnet = [Trial(model="resnet50", batch=256, devices=n, image_px=224) for n in EFFICIENCY]
    narrow = [Trial(**SMALL, devices=4, gradient_precision="fp16")]
    return [*plain, *tuned, *strong, *ways, *narrow, *resnet]


def jobs() -> list[Trial]:
    about = [SMALL, {"model": "mlp512", "batch": 32, "data": "reuters_shaped", "classes": 46}]
    return [
        Trial(**one, devices=n, arrangement=arrangement)
        for one in about
        for n in (1, 4)
        for arrangement in ARRANGEMENTS
    ]


def messages() -> list[Trial]:
    return [
        Trial(workload=workload, size=size, devices=4, interconnect=way, data="none")
        for workload in ("all_reduce", "peer_copy")
        for size in SIZES
        for way in INTERCONNECTS
    ]


def training_runs() -> dict[str, Trial]:
    several = [Trial(**(RUN | recipe)) for recipe in runs_on(4, 0.01)]
    return dict(zip(ENDS, [Trial(**RUN), *several], strict=True))


def rate(trial: Trial) -> float:
    speed = ONE_S[trial.model] * trial.devices * EFFICIENCY[trial.devices] * WAY[trial.interconnect]
    speed *= 1.1 if trial.model == "resnet50" and trial.devices > 1 else 1
    speed *= 3 if trial.engine != "eager" else 1
    speed *= STRONG if trial.scaling == "strong" else 1
    return speed * (AT_ONCE if trial.arrangement == "at_once" else 1)


def timed_record(trial: Trial, number: int) -> Record:
    made = blocks(STUDY, trial, number, rate(trial) * NOISE[number - 1], devices_used=trial.devices)
    facts = {"flop_training": 10**9, "weight_traffic_bytes_per_step": 10**6, "image_bytes": 3072}
    two = {"jobs": 2} if trial.arrangement != "alone" else {}
    return made.model_copy(update={"facts": {**made.facts, **facts, **two}})


def message_record(trial: Trial, number: int) -> Record:
    seconds = trial.size / RATE[trial.interconnect] / NOISE[number - 1]
    made = blocks(STUDY, trial, number, 1.0, devices_used=trial.devices)
    assert made.blocks is not None
    times = {"host_s": [5 * seconds] * 10, "images_per_step": None, "bytes_per_step": trial.size, "loss": []}
    return made.model_copy(update={"result": made.blocks.model_copy(update=times)})


@cache
def shown(hw: str = "h200_x4") -> Results:
    made = [timed_record(trial, n) for trial in dict.fromkeys([*timed(), *jobs()]) for n in PASSES]
    made += [message_record(trial, n) for trial in messages() for n in PASSES]
    made += [
        run(STUDY, trial, n, [1.0] * 5, ENDS[name] * NOISE[n - 1] ** 0.1, devices_used=trial.devices)
        for name, trial in training_runs().items()
        for n in PASSES
    ]
    return of_records(STUDY, made, hw)


def only(trials: Iterable[Trial], results: Results) -> Results:
    keys = {trial.key for trial in trials}
    return of_records(STUDY, [record for record in results.records if record.key in keys], results.profile.name)


def verdicts(results: Results) -> dict[str, Finding]:
    seen = Evidence(results.profile.name, (results.profile.name,), frozenset({STUDY}), lambda *_: results)
    return {finding.claim.id: finding for finding in judge_all(load_papers(), seen, STUDY)}


def column(table: Table | Text, name: str) -> list[Any]:
    assert isinstance(table, Table)
    return list(table.frame[name])


def test_speed_up_is_over_one_device_of_the_same_engine_and_efficiency_over_their_number() -> None:
    results = shown()
    four = Trial(**SMALL, devices=4)
    assert scaling.speed_up(results, four).point == pytest.approx(4 * EFFICIENCY[4])
    assert scaling.efficiency(results, four).point == pytest.approx(EFFICIENCY[4])
    tuned = Trial(**SMALL, **on_devices(CAPTURED, 4))
    assert tuned.gradient_precision == "bf16", "what one device cannot have"
    assert scaling.on_one(results, tuned) == Trial(**SMALL, **CAPTURED), "its own engine's, not the plain one"
    strong = replace(four, scaling="strong")
    assert scaling.efficiency(results, strong).point == pytest.approx(EFFICIENCY[4] * STRONG)
    assert scaling.on_one(only([four], results), four) is None


def test_scaling_shows_no_other_ways_nor_two_jobs() -> None:
    results = shown()
    scaled = scaling.scaled(results)
    assert {trial.interconnect for trial in scaled} == {"direct"} and {t.arrangement for t in scaled} == {"alone"}
    assert not [t for t in scaled if t.gradient_precision == "fp16"] and not [t for t in scaled if t.model == "mlp512"]
    table = scaling.table(results, scaled)
    assert len(column(table, "on")) == len(scaled) == 11
    assert column(table, "of linear")[3:6] == [None, "95.0 % [95.0, 95.0]", "80.0 % [80.0, 80.0]"]
    said = scaling.sentence(results, scaled)
    assert said.startswith(
        "Of a linear speed-up 4 GPUs reach 88.0 % [88.0, 88.0] for ResNet-50, 224 px, plain in FP32, down to 80.0 % "
        "[80.0, 80.0] for VGG-16, 32 px, graph in BF16, with the batch of each device held; 40.0 % [40.0, 40.0] for "
        "VGG-16, 32 px, plain in FP32, with the total batch held."
    )
    assert "oo uncertain" not in said


def test_a_table_says_whose_update_is_shared_out() -> None:
    tuned = Trial(**SMALL, **on_devices(CAPTURED, 4))
    results = only([tuned, Trial(**SMALL, **CAPTURED)], shown())
    assert "share out" not in scaling.table(results, scaling.scaled(results)).caption
    facts = {"gradient_buckets_bytes": [40, 200, 10], "shared_buckets_bytes": [40, 200]}
    told = [
        record.model_copy(update={"facts": {**record.facts, **facts}}) if record.key == tuned.key else record
        for record in results.records
    ]
    results = of_records(STUDY, told, results.profile.name)
    said = scaling.table(results, scaling.scaled(results)).caption
    assert "share out the update of large layers, 96 % of VGG-16's weights" in said


def test_the_sentence_has_the_best_first_and_what_is_too_uncertain_last() -> None:
    fast, slow, vague = (Trial(**{**SMALL, "model": model}) for model in ("resnet50", "vgg16", "resnet152"))
    gains = {fast: (1.8,) * 3, slow: (1.7,) * 3, vague: (1.99, 1.0, 1.99)}  # of each pass, on two devices
    made = [blocks(STUDY, one, n, 1000.0) for one in gains for n in PASSES]
    made += [
        blocks(STUDY, replace(one, devices=2), n, 1000.0 * gain, devices_used=2)
        for one, of_passes in gains.items()
        for n, gain in zip(PASSES, of_passes, strict=True)
    ]
    results = of_records(STUDY, made, "h200_x2")
    said = scaling.sentence(results, scaling.scaled(results))
    best, worst, unknown = (said.index(name) for name in ("ResNet-50", "VGG-16", "ResNet-152"))
    assert best < worst < said.index("Too uncertain to be placed") < unknown
    assert "1 GPU, " not in said, "none alone is as fast as two"
    main, unsure = said.split("\n\n")
    assert "ResNet-152" not in main and unsure.endswith(
        "ResNet-152, 32 px, plain in FP32, with the batch of each device held."
    )


def test_one_device_with_a_better_engine_may_outdo_several_and_then_the_page_says_so() -> None:
    plain, tuned = Trial(**SMALL), Trial(**SMALL, **CAPTURED)
    rates = {plain: 1000.0, replace(plain, devices=2): 1800.0, tuned: 4500.0}

    def said(of: dict[Trial, float]) -> str:
        made = [blocks(STUDY, one, n, rate, devices_used=one.devices) for one, rate in of.items() for n in PASSES]
        results = of_records(STUDY, made, "h200_x2")
        return scaling.sentence(results, scaling.scaled(results))

    assert said(rates).endswith(
        "1 GPU, graph in BF16, trains VGG-16, 32 px, 2.50x [2.50, 2.50] as fast as 2 GPUs, plain in FP32."
    )
    assert "as fast as" not in said(rates | {tuned: 1700.0})


def test_an_exchange_stands_beside_what_its_bytes_would_take_at_the_best_rate() -> None:
    results = shown()
    four = Trial(**SMALL, devices=4)
    wire = 1.5 * RATE["direct"]  # four devices in a ring send 2 x 3 / 4 of what is summed
    assert scaling.best_rate(results, four) == pytest.approx(wire, rel=0.05)
    assert float(links._at_best_ms(results, four) or 0) == pytest.approx(
        scaling.sent_bytes(four) / wire * 1e3, rel=0.05
    )
    assert links._at_best_ms(results, replace(four, devices=2)) is None, "between two nothing was sent"


def test_a_number_of_devices_that_is_not_there_is_a_row_and_a_cross() -> None:
    lost = Trial(**SMALL, devices=4)
    results = shown()
    made = [record for record in results.records if record.key != lost.key]
    made += [failed(STUDY, lost, n, "unsupported", "there are fewer devices") for n in PASSES]
    results = of_records(STUDY, made, "h200_x4")
    scaled = scaling.scaled(results)
    assert "unsupported" in column(scaling.table(results, scaled), "no result")
    assert "there are fewer devices" in answer.headline(results).body
    picture = figures.speed_ups(results, scaled)
    assert isinstance(picture, Figure) and "not supported here" in picture.caption


def test_epochs_to_the_target_lie_on_a_line_between_two_epochs_and_begin_at_chance() -> None:
    trial = Trial(**RUN)

    def needed(*top1: float) -> float | None:
        made = run(STUDY, trial, 1, [1.0] * len(top1), 0.0)
        assert made.epochs is not None
        epochs = [epoch.model_copy(update={"top1": one}) for epoch, one in zip(made.epochs.epochs, top1, strict=True)]
        return epochs_to_target(made.model_copy(update={"result": made.epochs.model_copy(update={"epochs": epochs})}))

    assert needed(0.3, 0.4, 0.6) == pytest.approx(2.5)
    assert needed(0.3, 0.5) == pytest.approx(2.0)
    assert needed(0.9) == pytest.approx(0.5), "from 10 classes' chance of 0.1"
    assert needed(0.6, 0.2, 0.7) == pytest.approx(0.8), "the first time counts"
    assert needed(0.3, 0.4) is None
    assert epochs_to_target(run(STUDY, replace(trial, target_top1=0.0), 1, [1.0], 0.9)) is None


def test_runs_are_told_apart_by_what_they_are_about() -> None:
    runs = training_runs()
    assert [to_target.named(trial, runs["one"]) for trial in runs.values()] == [
        "1 GPU, batch 64",
        "4 GPUs, total batch 256",
        "4 GPUs, total batch 64",
        "4 GPUs, total batch 256, rate x4",
        "4 GPUs, total batch 256, rate x4, warm-up",
        "4 GPUs, batch 64 each, stale updates",
    ]
    with pytest.raises(UserError, match="training run on several devices"):
        runs_on(4, 0.01, ["slow"])


def test_a_run_that_never_comes_to_the_target_counts_as_all_its_epochs_and_says_so() -> None:
    results, runs = shown(), training_runs()
    table = to_target.table(results, to_target.runs(results))
    by_run = dict(zip(column(table, "run"), column(table, "over one device"), strict=True))
    assert by_run["4 GPUs, total batch 256"].startswith("1.60x")
    assert by_run["4 GPUs, batch 64 each, stale updates"].startswith("at least 1.92x")
    epochs = dict(zip(column(table, "run"), column(table, "epochs"), strict=True))
    assert epochs["4 GPUs, batch 64 each, stale updates"] == "at least 5.00" and epochs["1 GPU, batch 64"].startswith(
        "2.6"
    )
    assert isinstance(table, Table) and "3 of 18 runs did not" in table.caption
    said = to_target.sentence(results, to_target.runs(results))
    assert "stale updates at least 1.92x" in said and "total batch 64 1.00x" in said
    without = only([trial for name, trial in runs.items() if name != "one"], results)
    assert to_target.sentence(without, to_target.runs(without)).startswith("Only ")


def test_two_jobs_are_timed_until_both_are_done() -> None:
    results = shown()
    alone, at_once, in_turns = (Trial(**SMALL, devices=4, arrangement=one) for one in ARRANGEMENTS)
    times = [concurrency.run_time(results, trial).point for trial in (alone, at_once, in_turns)]
    assert times[2] == pytest.approx(2 * times[0]), "two jobs, the same images/s"
    assert times[1] == pytest.approx(times[2] / AT_ONCE)
    assert concurrency.ratio(results, at_once, "in_sequence").point == pytest.approx(1 / AT_ONCE)
    table = concurrency.table(results)
    assert len(column(table, "jobs")) == 12 and "VGG-16 on 4 GPUs 0.667x" in concurrency.sentence(results)


def test_what_a_link_carries_is_counted_on_the_wire() -> None:
    results = shown()
    most = SIZES[-1]
    summed = Trial(workload="all_reduce", size=most, devices=4, data="none")
    copied = replace(summed, workload="peer_copy")
    expected = RATE["direct"] * 3 / sum(1 / noise for noise in NOISE)
    assert links.wire_rate(results, copied).point == pytest.approx(expected, rel=0.01)
    assert links.wire_rate(results, summed).point == pytest.approx(1.5 * expected, rel=0.01)
    table = links.table(results)
    assert column(table, "gradients") == ["FP32", "FP16", "FP32", "FP32"]
    assert column(table, "way") == ["directly", "directly", "through the host's memory", "by sockets"]
    megabytes = [float(one.replace(",", "")) for one in column(table, "must (MB)")]
    assert megabytes[1] == pytest.approx(megabytes[0] / 2, rel=0.01)
    assert column(table, "of the usual")[2].startswith("0.7x")
    assert links.size_words(2**12) == "4 KiB" and links.size_words(2**28) == "256 MiB"


def test_claims_are_judged_by_the_trials_that_they_are_about() -> None:
    found = verdicts(shown())
    assert found["wisconsin-two-linear"].verdict == "replicated", "1.9x of 1.8x"
    assert len(found["wisconsin-two-linear"].cases) == 1, "neither strong scaling, nor other ways, nor tuned engines"
    assert found["wisconsin-diminishing"].verdict == "replicated"
    assert found["wisconsin-concurrent-vgg"].verdict == "replicated"
    assert {len(case.sides) for case in found["wisconsin-concurrent-vgg"].cases} == {2}
    assert found["wisconsin-concurrent-mlp"].verdict == "not replicated", "1.5x of 1.8x"
    assert found["wisconsin-concurrent-one"].verdict == "not replicated", "1.33x"
    assert {side.trial.devices for case in found["wisconsin-concurrent-one"].cases for side in case.sides} == {4}
    assert found["wisconsin-multigpu-convergence"].verdict != "not testable here"
    nvlink = found["dell_v100-nvlink-p2p"]
    assert nvlink.verdict == "replicated" and nvlink.cases[0].effect.point == pytest.approx(15, rel=0.01)


def test_stale_updates_that_never_arrive_need_more_epochs_for_certain() -> None:
    finding = verdicts(shown())["wisconsin-stale"]
    stale, without = (judged.cases for judged in finding.tests)
    assert [case.verdict for case in (*stale, *without)] == ["replicated", "replicated"], "one case each"
    assert "did not reach 50 % in 5 epochs" in stale[0].reason
    assert [side.trial.devices for side in stale[0].sides] == [4, 1], "as many updates as one device makes"
    assert without[0].sides[0].trial.scaling == "strong", "a larger batch is another cause"


def test_what_epochs_that_were_not_run_could_turn_round_is_no_verdict() -> None:
    one, large = (training_runs()[name] for name in ("one", "large"))
    for ends, verdict, said in (
        ({one: 0.96, large: 0.4}, "replicated", "at least"),
        ({one: 0.4, large: 0.96}, "not replicated", "at most"),
        ({one: 0.4, large: 0.4}, "inconclusive", None),
    ):
        made = [
            run(STUDY, trial, n, [1.0] * 5, top1 * NOISE[n - 1] ** 0.1, devices_used=trial.devices)
            for trial, top1 in ends.items()
            for n in PASSES
        ]
        results = of_records(STUDY, made, "h200_x4")
        assert verdicts(results)["wisconsin-multigpu-convergence"].verdict == verdict
        ratio = to_target.over_one(results, large, one)
        assert (ratio is None) if said is None else (ratio or "").startswith(said)


def test_a_table_of_one_gpu_explains_no_speed_up() -> None:
    alone = only([trial for trial in timed() if trial.devices == 1], shown())
    said, of_all = (scaling.table(results, scaling.scaled(results)).caption for results in (alone, shown()))
    assert "Speed-up" not in said and "compared with" in said
    assert "Speed-up" in of_all


def test_one_gpu_and_no_gpu_say_what_they_cannot_show() -> None:
    for hw, said in (("h200", "one GPU"), ("cpu", "no GPU")):
        results = of_records(STUDY, [], hw)
        assert said in plan.stands_for(load_profile(hw))
        assert said in answer.limitations(results).body
        assert {finding.verdict for finding in verdicts(results).values()} == {"not testable here"}
    two = [replace(trial, device="cpu") for trial in timed() if trial.engine == "eager" and trial.devices < 4]
    results = of_records(STUDY, [timed_record(trial, n) for trial in two for n in PASSES], "cpu")
    finding = verdicts(results)["wisconsin-two-linear"]
    assert finding.verdict == "not testable here" and "the profile cpu has none" in finding.reason
    assert "2 processes" in scaling.sentence(results, scaling.scaled(results))


PICTURES: list[Callable[[Results], Figure | Text]] = [
    lambda results: figures.speed_ups(results, scaling.scaled(results)),
    lambda results: to_target.curves(results, to_target.runs(results)),
    concurrency.figure,
    links.bandwidth,
]


@pytest.mark.parametrize("picture", PICTURES)
def test_every_picture_is_drawn_in_light_and_dark_or_says_why_not(picture: Callable[[Results], Figure | Text]) -> None:
    drawn = picture(shown())
    assert isinstance(drawn, Figure) and drawn.alt and "n = 3" in drawn.caption
    assert all("<svg" in drawn.svg(theme) for theme in (LIGHT, DARK))
    nothing = picture(of_records(STUDY, [], "h200_x4"))
    assert isinstance(nothing, Text) and nothing.body


def test_the_plan_predicts_what_the_links_must_carry() -> None:
    table = plan.prediction(load_profile("h200_x4"), timed())
    names = zip(column(table, "network"), column(table, "on"), strict=True)
    sent = dict(zip(names, column(table, "sent by each a step (MB)"), strict=True))
    plain = "VGG-16, 32 px, plain in FP32"
    assert (
        sent[plain, "4 GPUs, weak"] == sent[plain, "4 GPUs, strong"] == pytest.approx(1.5 * sent[plain, "2 GPUs, weak"])
    )
    assert sent["VGG-16, 32 px, graph in BF16", "2 GPUs, weak"] == pytest.approx(sent[plain, "2 GPUs, weak"] / 2)
    assert "states none" in plan.prediction(load_profile("p100_16gb_x4"), timed()).caption
    assert len(column(plan.table([*timed(), *jobs(), *messages()], 3), "for")) == 4 + 3 + 5 + 6


def test_the_plan_of_one_gpu_speaks_of_no_scaling() -> None:
    one = [trial for trial in timed() if trial.devices == 1]
    assert set(column(plan.table(one, 3), "what")) == {plan.ALONE}
    assert plan.ALONE not in column(plan.table(timed(), 3), "what")


def test_a_number_of_gpus_that_can_not_share_a_runs_batch_is_said_where_a_run_wants_it_to() -> None:
    alone = Trial(model="resnet18", batch=64, epochs=1)
    said = ["Left out: 6 devices can't share a training run's batch of 64 evenly."]
    assert plan.left_out([alone, replace(alone, devices=6)], ["same batch", "stale"]) == said
    assert plan.left_out([alone, replace(alone, devices=6)], ["stale"]) == []
    assert plan.left_out([alone, replace(alone, devices=4)], ["same batch"]) == []
    assert plan.left_out([Trial(batch=64, devices=6)], ["same batch"]) == [], "which is timed, and has its own for each"
    lab = Lab("h200_x2")
    assert "Left out" not in plan.extent(lab.profile, grids.runs(lab), "quick").body


def test_key_numbers_are_of_the_most_devices() -> None:
    numbers = answer.key_numbers(shown())
    assert ["80.0 % [80.0, 80.0]", "of linear on 4 GPUs: VGG-16, 32 px, plain in FP32"] in numbers
    assert all("4 GPUs" in of for _, of in numbers)
    assert answer.key_numbers(of_records(STUDY, [record_of(STUDY, Trial(), 1, status="oom")], "h200_x4")) == []


class Lab:
    """As much of an open study as the trials need."""

    def __init__(self, hw: str, nodes: int = 1) -> None:
        self.profile, self.nodes, self.threads_of_each = load_profile(hw), nodes, 0
        self.sweep: dict[str, Any] = dict(self.profile.sweep(STUDY, "quick"))
        self.interconnects = INTERCONNECTS if self.profile.device.kind == "cuda" else INTERCONNECTS[:1]

    @property
    def device_counts(self) -> list[int]:
        return OpenStudy.device_counts.fget(self)  # type: ignore[attr-defined]

    def trials(self, **axes: Any) -> list[Trial]:
        return grid(**{"device": self.profile.device.kind, **axes})


def planned(lab: Lab) -> list[Trial]:
    asked = (grids.scaling, grids.runs, grids.jobs)
    found = [trial for ask in (*asked, grids.links, grids.over_nodes) for trial in ask(lab)]
    return traced(found, 3)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6, 8])
def test_every_number_of_gpus_has_trials_that_can_be_run_and_told_apart(count: int) -> None:
    lab = Lab("h200_x2")
    device = lab.profile.device.model_copy(update={"count": count})
    lab.profile = lab.profile.model_copy(update={"device": device})
    trials = planned(lab)
    assert max(trial.devices_taken for trial in trials) == count
    assert len({trial.key for trial in trials}) == len(trials)
    runs = [trial for trial in trials if trial.epochs and trial.devices > 1]
    learners = count if count > 1 else lab.sweep["learners"]
    assert {(one.devices, one.placement) for one in runs} == {(learners, "together" if count == 1 else "apart")}
    told = [
        (scaling.Setting.of(trial), trial.devices > 1 and trial.scaling, trial.devices)
        for trial in trials
        if scaling.is_scaled(trial)
    ]
    assert len(set(told)) == len(told), "no row of the table stands twice"
    for trial in trials:
        if trial.workload == "train" and trial.devices > 1 and not trial.epochs and trial.arrangement == "alone":
            alone = {name: getattr(Trial(), name) for name in BETWEEN}
            on_one = replace(trial, devices=1, traced_iterations=0, **alone)
            assert on_one in trials, f"{trial_label(trial)} has nothing to stand beside"


def learners() -> Results:
    """Training runs of four learners on one GPU, beside the one's."""
    found = {
        name: trial if name == "one" else replace(trial, placement="together")
        for name, trial in training_runs().items()
    }
    made = [
        run(STUDY, trial, n, [1.0] * 5, ENDS[name] * NOISE[n - 1] ** 0.1)
        for name, trial in found.items()
        for n in PASSES
    ]
    return of_records(STUDY, made, "h200")


def test_learners_that_share_a_gpu_show_epochs_and_no_seconds() -> None:
    results = learners()
    runs = to_target.runs(results)
    table, said = to_target.table(results, runs), to_target.sentence(results, runs)
    assert isinstance(table, Table)
    assert "seconds" not in table.frame and "Seconds of learners" in table.caption
    assert "4 learners on 1 GPU, total batch 256, rate x4" in column(table, "run")
    assert "4 learners on 1 GPU take of the epochs that one takes" in said and "seconds" not in said
    drawn = to_target.curves(results, runs)
    assert isinstance(drawn, Figure) and "seconds" not in drawn.alt and "Seconds" not in drawn.caption
    assert drawn.data["seconds"].notna().sum() == 5 * len(PASSES), "those of one device are its own"
    several = next(trial for trial in runs if trial.devices > 1)
    alone = next(trial for trial in runs if trial.devices == 1)
    for metric in ("images_per_s", "step_s", "epoch_s", "run_s"):
        assert results.interval(several, metric) is None and results.interval(alone, metric) is not None
    assert results.interval(several, "top1") is not None


def test_learners_are_named_as_what_they_are() -> None:
    results = learners()
    runs = to_target.runs(results)
    assert "share a device" in answer.limitations(results).body
    assert "share a device" not in answer.limitations(shown()).body
    found = verdicts(results)
    convergence, stale = found["wisconsin-multigpu-convergence"], found["wisconsin-stale"]
    for one in (convergence, stale):
        assert one.verdict == "replicated"
        assert "4 learners that share one device" in one.scope and "4 GPUs" not in one.scope
    assert "4 learners on 1 device over 1 device" in convergence.cases[0].label
    others = {one.verdict for one in found.values() if one not in (convergence, stale)}
    assert others == {"not testable here"}, "of speed they say nothing"
    assert plan.extent(results.profile, runs, "quick").body.endswith("Numbers of GPUs: 1.")
    planned_ = plan.table(runs, 3)
    assert set(column(planned_, "devices")) == {"1"} and plan.ALONE not in column(planned_, "what")
    numbers = dict(map(reversed, answer.key_numbers(results)))  # type: ignore[arg-type]
    assert {of.split(": ")[1] for of in numbers} == {
        "4 learners on 1 GPU, total batch 256",
        "4 learners on 1 GPU, batch 64 each, stale updates",
    }, "what changes nothing else, and what the paper blames"


@pytest.mark.parametrize("asked", [0, -1, 17, 100, 3, 1.5, "x", True, [2, 4]])
def test_a_number_of_learners_that_cannot_be_is_one_sentence(asked: Any) -> None:
    lab = Lab("h200")
    lab.sweep["learners"] = asked
    with pytest.raises(UserError, match=r"learners is .* from 1 \(none\) to 16 that divides run_batch"):
        grids.runs(lab)


def test_one_learner_is_none() -> None:
    lab = Lab("h200")
    lab.sweep["learners"] = 1
    assert grids.runs(lab) == []


def test_seconds_that_say_nothing_are_left_out_and_that_is_said() -> None:
    drawn, table = to_target.curves(shown(), to_target.runs(shown())), to_target.table(shown(), to_target.runs(shown()))
    assert isinstance(drawn, Figure) and isinstance(table, Table)
    assert "stale updates say nothing and are left out" in drawn.caption
    without = drawn.data[drawn.data["seconds"].isna()]["run"].unique()
    assert list(without) == ["4 GPUs, batch 64 each, stale updates"]
    stale = only([training_runs()[name] for name in ("one", "stale")], shown())
    table = to_target.table(stale, to_target.runs(stale))
    assert isinstance(table, Table)
    assert "Seconds of stale updates say nothing" in table.caption and "seconds" not in table.frame


@pytest.mark.parametrize(("last", "scale"), [(0.9, "linear"), (0.001, "log"), (0.0, "linear")])
def test_losses_that_are_decades_apart_get_a_logarithmic_axis(last: float, scale: str) -> None:
    made = [run(STUDY, Trial(**RUN), n, [3.0, 2.0, 1.0, 1.0, last], 0.9) for n in PASSES]
    results = of_records(STUDY, made, "h200")
    drawn = to_target.curves(results, to_target.runs(results))
    assert isinstance(drawn, Figure)
    canvas = Canvas(figsize=drawn.size_in, layout="constrained")
    drawn.draw(canvas, LIGHT)
    assert canvas.axes[0].get_yscale() == scale


def test_a_job_of_several_nodes_has_its_own_trials_and_lines() -> None:
    lab = Lab("p100_16gb_x4", nodes=2)
    over = [trial for trial in planned(lab) if trial.nodes == 2]
    assert {trial.devices for trial in over} == {8} and {trial.network for trial in over} >= {"ethernet", "infiniband"}
    made = [message_record(trial, n) for trial in messages() for n in PASSES]
    across = [replace(trial, nodes=2, devices=8) for trial in messages() if trial.interconnect == "direct"]
    made += [message_record(trial, n) for trial in across if trial.workload == "all_reduce" for n in PASSES]
    results = of_records(STUDY, made, "p100_16gb_x4")
    drawn = links.bandwidth(results)
    assert isinstance(drawn, Figure) and "<svg" in drawn.svg(LIGHT) and "4 GPUs and 8 GPUs of 2 nodes" in drawn.caption
    assert "over the network of 2 nodes" in column(links.messages_table(results), "way")


def test_what_would_be_left_if_nothing_hid_follows_from_one_step_and_the_best_rate() -> None:
    results, four = shown(), Trial(**SMALL, devices=4)
    step_s = 256 / ONE_S["vgg16"]
    exchange_s = scaling.sent_bytes(four) / (1.5 * RATE["direct"])
    expected = step_s / (step_s + exchange_s)
    assert scaling.without_hiding(results, four) == pytest.approx(expected, rel=0.02)
    assert scaling.without_hiding(results, replace(four, devices=2)) is None, "nothing was sent between two"
    strong = scaling.without_hiding(results, replace(four, scaling="strong"))
    assert strong is not None and strong < expected, "a quarter of the step, and the same bytes"


def test_seconds_to_the_target_are_of_training_up_to_it() -> None:
    results, runs = shown(), training_runs()
    made = results.ok(runs["one"])[0]
    assert made.epochs is not None
    needed = epochs_to_target(made)
    assert needed is not None
    assert to_target.seconds_to_target(made) == pytest.approx(needed * made.epochs.epochs[0].train_s)
    assert to_target.time_to_target(results, runs["stale"]) is None
    assert "In seconds of training one takes" in to_target.sentence(results, to_target.runs(results))
