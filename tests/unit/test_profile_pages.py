"""The page of where the time goes says what the records say, whatever is missing from them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from labkit.analysis import summary
from labkit.analysis.figure import DARK, LIGHT, Figure
from labkit.analysis.format import number, percent
from labkit.analysis.studies import host_time, known_rates
from labkit.analysis.studies.profile import (
    answer,
    calls,
    convolutions,
    counters,
    figures,
    gpus,
    grids,
    limits,
    memory,
    removed,
    sample,
    seen,
)
from labkit.analysis.table import Table, Text
from labkit.analysis.verdicts import Findings, judge_all
from labkit.analysis.verdicts.evidence import Evidence
from labkit.models import count
from labkit.observed import Statistic, Telemetry
from labkit.papers import load_papers
from labkit.profile import load_profile
from labkit.recipes import CAPTURED, COMPILED, FUSED_ON_CPU
from labkit.records import Record
from labkit.results.study_records import StudyRecords as Results
from labkit.traced import Total, Traced, Untraced
from labkit.trial import Trial, grid
from tests.unit.made_records import NOISE, PASSES, failed, of_records
from tests.unit.made_traces import MIXES, STUDY, ceiling, kernel_s, step_s, trace, traced
from tests.unit.reading import row_of, said

STEPS = 20
ASKED: dict[str, Any] = {"traced_iterations": STEPS}
LARGE: dict[str, Any] = {"image_px": 224, **ASKED}
BATCHES = [4, 8, 16, 32, 64]
CEILINGS = [Trial(workload="matmul", size=8192), Trial(workload="memory_copy", size=2**32)]


def loop() -> list[Trial]:
    small = [Trial(model="resnet50", batch=batch, **ASKED) for batch in (64, 256)]
    return [*grid(model=["alexnet", "resnet18", "vgg16"], batch=BATCHES, **LARGE), *small]


def tuned() -> list[Trial]:
    large = [Trial(model="resnet18", batch=4, **LARGE, **recipe) for recipe in (CAPTURED, COMPILED)]
    return [*large, Trial(model="resnet50", batch=64, **ASKED, **CAPTURED)]


def sampled(device: str = "cuda") -> list[Trial]:
    return [Trial(model="resnet18", traced_iterations=n, steps_before=300, device=device) for n in (5, 200)]


def everything() -> list[Trial]:
    return [*loop(), *tuned(), *sampled(), Trial(model="alexnet", learning_rate=0.1, **LARGE)]


def shared() -> list[Trial]:
    about: dict[str, Any] = {"devices": 2, "parallel": "one_process", "scaling": "strong", **LARGE}
    return grid(model=["alexnet", "resnet18", "vgg16"], batch=BATCHES, **about)


def records(trials: list[Trial], passes: tuple[int, ...] = PASSES, **other: Any) -> list[Record]:
    return [traced(trial, n, **other) for n in passes for trial in trials]


def ceilings(device: str = "cuda") -> list[Record]:
    found = [Trial(**{**one.as_dict(), "device": device}) for one in CEILINGS]
    return [ceiling(trial, n) for n in PASSES for trial in found]


def on_cpu() -> list[Record]:
    found = grid(model=["alexnet", "resnet18", "vgg16"], batch=[4, 32], device="cpu", **ASKED)
    found += [Trial(model="alexnet", batch=4, device="cpu", **ASKED, **FUSED_ON_CPU), *sampled("cpu")]
    return [*records(found), *ceilings("cpu")]


def some_failed() -> list[Record]:
    lost = [trial for trial in everything() if trial.model == "vgg16" and trial.batch == 64]
    return [record for record in records(everything()) if record.as_trial not in lost] + [
        failed(STUDY, trial, n) for trial in lost for n in PASSES
    ]


def without(*names: str) -> list[Record]:
    """The same, but a trace without some of its parts."""
    empty: dict[str, Any] = {"sections": {}, "memory": None, "calls": {}, "calls_by_name": {}, "copies": {}}
    update: dict[str, Any] = {name: empty.get(name) for name in names}
    return [traced(trial, n, found=trace(trial, n, **update)) for n in PASSES for trial in everything()]


UNTRACED = Untraced(reason="the profiler saw no kernels: the driver may keep its tracing from users")
CASES: dict[str, Callable[[], Results]] = {
    "a GPU": lambda: of_records(STUDY, [*records(everything()), *ceilings()]),
    "one pass": lambda: of_records(STUDY, records(everything(), (1,))),
    "several GPUs": lambda: of_records(STUDY, records([*loop(), *shared()]), hw="h200_x2"),
    "some failed": lambda: of_records(STUDY, some_failed()),
    "all failed": lambda: of_records(STUDY, [failed(STUDY, one, n) for n in PASSES for one in everything()]),
    "untraced": lambda: of_records(STUDY, records(everything(), found=UNTRACED)),
    "captured only": lambda: of_records(STUDY, records(tuned())),
    "no counters": lambda: of_records(
        STUDY, [one.model_copy(update={"telemetry": None}) for one in records(everything())] + ceilings()
    ),
    "bare traces": lambda: of_records(STUDY, without("sections", "memory", "calls", "calls_by_name", "copies")),
    "no pass in common": lambda: of_records(
        STUDY, [record for n, trial in enumerate(sampled(), 1) for record in records([*loop(), trial], (n,))]
    ),
    "no gaps": lambda: of_records(STUDY, without("launch_gap_s", "queue_gap_s")),
    "a CPU": lambda: of_records(STUDY, on_cpu(), hw="cpu"),
    "no records": lambda: of_records(STUDY, []),
    "no records of a CPU": lambda: of_records(STUDY, [], hw="cpu"),
}


@cache
def case_of(name: str) -> Results:
    return CASES[name]()


def verdicts(results: Results) -> Findings:
    hw = results.profile.name
    return Findings(judge_all(load_papers(), Evidence(hw, (hw,), frozenset({STUDY}), lambda *_: results), STUDY))


PARTS: dict[str, Callable[[Results], Any]] = {
    "headline": lambda r: answer.headline(r, verdicts(r)),
    "networks": answer.networks,
    "steps": lambda r: figures.steps(r, seen.alone(r)),
    "bounds": lambda r: limits.table(r, seen.alone(r)),
    "roofline": lambda r: figures.roofline(r, seen.plain(r)),
    "algorithms": lambda r: convolutions.picture(r, seen.plain(r)),
    "winograd": lambda r: convolutions.course(r, seen.plain(r)),
    "convolutions": lambda r: convolutions.table(r, seen.alone(r)),
    "calls": lambda r: calls.table(r, seen.alone(r)),
    "sections": lambda r: calls.sections(r, seen.plain(r)),
    "memory": lambda r: memory.picture(r, seen.plain(r)),
    "copies": lambda r: memory.copies(r, seen.alone(r)),
    "gpus": gpus.table,
    "flop": lambda r: counters.flop(seen.plain(r)),
    "counters": lambda r: counters.table(r, seen.alone(r)),
    "difference": lambda r: counters.difference(r, seen.alone(r)),
    "sample": sample.sentence,
    "sample picture": sample.picture,
    "slowdown": lambda r: sample.slowdown(r, seen.alone(r)),
    "longest": lambda r: sample.longest(r, seen.plain(r)),
    "limitations": answer.limitations,
}


def part_of(case: str, part: str) -> Any:
    return PARTS[part](case_of(case))


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("case", CASES)
def test_no_part_of_the_page_fails_or_shows_nan_or_none(case: str, part: str) -> None:
    made = part_of(case, part)
    assert isinstance(made, Figure | Table | Text)
    if isinstance(made, Figure):
        assert made.caption and made.alt and len(made.data)
        text = made.caption + made.alt + Table(made.data, "")._repr_mimebundle_()["text/html"]
        made.svg(LIGHT)
    else:
        text = made._repr_mimebundle_()["text/html"]
    for odd in ("nan", "None", "NaN", "inf ", "{}", "..", "  "):
        assert odd not in text, text


def test_of_a_gpu_each_network_has_a_table_of_what_bounds_it_and_of_a_cpu_all_have_one() -> None:
    results = case_of("a GPU")
    whole, parts = part_of("a GPU", "bounds"), limits.by_network(results, seen.alone(results))
    assert [part.caption.partition(". ")[0] for part in parts] == list(dict.fromkeys(whole.frame[""]))  # type: ignore[union-attr]
    assert sum(len(part.frame) for part in parts) == len(whole.frame)  # type: ignore[union-attr]
    assert whole.caption in parts[0].caption and parts[1].caption.endswith(". As above.")  # type: ignore[union-attr]
    of_cpu = case_of("a CPU")
    (alone,) = limits.by_network(of_cpu, seen.alone(of_cpu))
    assert "" in alone.frame  # type: ignore[union-attr]
    (nothing,) = limits.by_network(case_of("no records"), [])
    assert isinstance(nothing, Text)


@pytest.mark.parametrize("part", ["steps", "roofline", "algorithms", "sections", "memory", "sample picture"])
def test_each_figure_draws_in_both_schemes(part: str) -> None:
    figure = part_of("a GPU", part)
    assert isinstance(figure, Figure) and "NVIDIA H200" in figure.caption and figure.caption.endswith("n = 3.")
    for theme in (LIGHT, DARK):
        assert figure.svg(theme).startswith("<")


def the(results: Results, model: str, batch: int, **fields: Any) -> Trial:
    (found,) = [one for one in seen.alone(results) if (one.model, one.batch) == (model, batch) and _has(one, fields)]
    return found


def _has(trial: Trial, fields: dict[str, Any]) -> bool:
    return all(getattr(trial, name) == value for name, value in ({"engine": "eager"} | fields).items())


@pytest.mark.parametrize("case", ["a GPU", "a CPU", "no gaps", "several GPUs"])
def test_the_parts_of_a_step_add_up_to_all_of_it(case: str) -> None:
    results = case_of(case)
    for trial in seen.trainings(results):
        for record, found in seen.traces(results, trial):
            parts = seen.step_parts(record, found)
            assert sum(parts.values()) == pytest.approx(1.0, abs=1e-9)
            assert min(parts.values()) >= 0


def test_kernels_are_set_against_the_timed_step_and_not_the_slower_traced_one() -> None:
    results = case_of("a GPU")
    trial = the(results, "resnet18", 4)
    (record, found), *_ = seen.traces(results, trial)
    parts = seen.step_parts(record, found)
    busy = 1 - sum(parts.get(name, 0.0) for name in seen.REST)
    assert busy == pytest.approx(kernel_s(trial) / step_s(trial), rel=0.01)
    assert found.busy_s / found.elapsed_s < 0.7 * busy, "the profiler slows the host, which leaves longer gaps"
    assert parts["convolution"] == pytest.approx(busy * MIXES["resnet18"]["convolution"])


def test_kernels_that_no_rule_knows_are_shown_and_the_most_of_them_is_said() -> None:
    caption = said(part_of("a GPU", "steps"))
    assert "Unknown to every rule is 2.0 % of the kernels' time at most (ResNet-50, 32 px, batch 64)" in caption
    trial = Trial(model="vgg16", batch=4, **LARGE)
    known = said(figures.steps(of_records(STUDY, records([trial])), [trial]))
    assert "Every kernel's name is known to a rule." in known


def test_convolutions_sorted_by_earlier_rules_are_not_shown() -> None:
    trial = the(case_of("a GPU"), "vgg16", 64)
    before = [traced(trial, n, found=trace(trial, n, rules=1)) for n in PASSES]
    results = of_records(STUDY, before)
    shown = convolutions.picture(results, [trial])
    assert isinstance(shown, Text) and "sorted by earlier rules" in shown.body and "FORCE=1" in shown.body
    kernels = convolutions.table(results, [trial])
    assert isinstance(kernels, Table) and "Winograd" not in kernels.frame, "the kernel's name holds"
    assert "sorted by earlier rules" in said(figures.steps(results, [trial]))
    assert "earlier rules" not in said(part_of("a GPU", "steps"))


def test_on_a_cpu_shares_are_of_the_traced_step() -> None:
    results = case_of("a CPU")
    (record, found), *_ = seen.traces(results, the(results, "vgg16", 4))
    parts = seen.step_parts(record, found)
    assert parts[seen.BETWEEN] == pytest.approx(1 - found.busy_s / found.elapsed_s)
    assert not set(parts) & {seen.WAITING, seen.COPIES, seen.QUEUED}


def test_each_word_of_the_rule_is_reached_by_what_it_says() -> None:
    results = case_of("a GPU")
    words = {
        ("resnet18", 4): limits.LAUNCH,
        ("alexnet", 8): limits.DRAM,
        ("vgg16", 4): limits.NO_UNIT,
        ("vgg16", 64): limits.COMPUTE,
    }
    for (model, batch), word in words.items():
        found = limits.limit_of(results, the(results, model, batch))
        assert found is not None and found.word == word
    none = limits.limit_of(results, the(results, "vgg16", 4))
    assert none is not None and none.share is not None and none.share < limits.NEAR_PEAK
    launch = limits.limit_of(results, the(results, "resnet18", 4))
    assert launch is not None and launch.share is not None and launch.share >= limits.STANDS_STILL


def test_passes_on_both_sides_of_a_threshold_leave_it_undecided() -> None:
    trial = the(case_of("a GPU"), "vgg16", 64)
    found = []
    for n, waiting in zip(PASSES, (0.1, 0.3, 0.25), strict=True):
        usual = trace(trial, n)
        idle = {"busy_s": (1 - waiting) * usual.steps * step_s(trial), "launch_gap_s": 1.0, "queue_gap_s": 0.0}
        idle["active_s"] = idle["busy_s"]
        found.append(traced(trial, n, found=usual.model_copy(update=idle)))
    results = of_records(STUDY, found)
    limit = limits.limit_of(results, trial)
    assert limit is not None and limit.word == limits.UNDECIDED and limit.share == pytest.approx(0.22, abs=0.02)
    text = said(answer.headline(results))
    assert "for 1 it is undecided (the device waits for launches for " in text
    assert "of the step, and the interval of the passes reaches across 20 %)" in text
    (alone,) = limits.limits(of_records(STUDY, found[:1]), [trial]).values()
    assert alone.word != limits.UNDECIDED, "one pass has no interval"


def of_passes(trial: Trial, step: float, kernels: float) -> Results:
    """Three passes of a trial, in the last of which its step and its kernels take so many times as long."""
    made = [traced(trial, n) for n in PASSES]
    slow, usual = made[2].blocks, trace(trial, 3)
    assert slow is not None
    longer = usual.model_copy(update={"busy_s": kernels * usual.busy_s, "elapsed_s": step * usual.elapsed_s})
    slow = slow.model_copy(update={"host_s": [step * one for one in slow.host_s], "trace": longer})
    return of_records(STUDY, [*made[:2], made[2].model_copy(update={"result": slow})])


def test_how_long_the_host_keeps_the_device_waiting_differs_between_passes() -> None:
    trial = the(case_of("a GPU"), "resnet18", 4)
    assert host_time.sentence(of_passes(trial, 1.0, 1.0), [trial], seen.name) == "", "passes agree"
    found = host_time.spread(of_passes(trial, 1.5, 1.0), trial)
    assert found is not None and found.ratio == pytest.approx(1.5, rel=0.05) and found.is_the_hosts
    text = host_time.sentence(of_passes(trial, 1.5, 1.0), [trial], seen.name)
    assert (
        "over the passes that were steady a step of ResNet-18, 224 px, batch 4 takes " in text
        and "kernels run for " in text
    )
    assert host_time.spread(of_records(STUDY, [traced(trial, 1)]), trial) is None
    unsteady = [
        one.model_copy(update={"result": one.blocks.model_copy(update={"steady": n < 2})})  # type: ignore[union-attr]
        for n, one in enumerate(of_passes(trial, 1.5, 1.0).records)
    ]
    assert host_time.sentence(of_records(STUDY, unsteady), [trial], seen.name) == "", "the slow pass was not steady"


def test_kernels_that_take_longer_themselves_are_not_the_hosts_doing() -> None:
    busy = the(case_of("a GPU"), "vgg16", 64)
    assert host_time.sentence(of_passes(busy, 1.5, 1.5), [busy], seen.name) == ""


def test_calls_that_no_step_makes_are_named_once() -> None:
    trial = the(case_of("a GPU"), "resnet18", 4)
    few = {name: one for name, one in trace(trial).calls.items() if name != "wait"}
    table = calls.table(
        of_records(STUDY, [traced(trial, n, found=trace(trial, n, calls=few)) for n in PASSES]), [trial]
    )
    assert isinstance(table, Table) and "wait" not in table.frame and "launch" in table.frame
    assert "No step made a call of these: wait and other." in table.caption
    kept = {name: one for name, one in few.items() if name != "clean_up"}
    table = calls.table(
        of_records(STUDY, [traced(trial, n, found=trace(trial, n, calls=kept)) for n in PASSES]), [trial]
    )
    assert isinstance(table, Table) and not [name for name in table.frame if "clean-up" in name]
    assert "way back: launch" in table.frame


def test_counters_stand_beside_rates_that_are_known() -> None:
    results = case_of("a GPU")
    assert known_rates.sentence(results) == "", "the ceilings have no telemetry here"
    sensed = traced(the(results, "vgg16", 64), 1).telemetry
    made = [one.model_copy(update={"telemetry": sensed}) for one in ceilings()]
    text = known_rates.sentence(of_records(STUDY, made))
    assert text.startswith("The counters beside known rates, by pass: the matrix product reached ")
    assert text.count("were active for ") == 1 and text.count(" and DRAM was active for ") == 1


def test_a_step_that_only_copies_is_bound_by_copying() -> None:
    trial = the(case_of("a GPU"), "vgg16", 64)
    usual = trace(trial)
    copying = usual.busy_s * 0.5
    values = {"busy_s": usual.busy_s * 0.5, "active_s": usual.busy_s * 0.5 + copying, "copy_s": copying}
    found = trace(trial, **values, launch_gap_s=0.0, queue_gap_s=0.0)
    limit = limits.limit_of(of_records(STUDY, [traced(trial, 1, found=found)]), trial)
    assert limit is not None and limit.word == limits.COPY


def test_without_counters_the_roofline_decides_or_nothing_does() -> None:
    results = case_of("no counters")
    compute, launch = the(results, "vgg16", 64), the(results, "resnet18", 4)
    for trial, word in ((compute, limits.COMPUTE), (launch, limits.LAUNCH)):
        found = limits.limit_of(results, trial)
        assert found is not None and found.word == word
    faster = of_records(STUDY, [one for one in results.records if one.trial["workload"] == "train"])
    small = limits.limit_of(faster, the(faster, "alexnet", 64))
    assert small is not None and small.word == limits.OPEN, "beside the vendor's peak it is a third"


def test_python_between_operators_bounds_a_step_on_a_cpu() -> None:
    trial = Trial(model="resnet18", batch=4, device="cpu", **ASKED)
    usual = trace(trial)
    found = trace(trial, elapsed_s=usual.busy_s / 0.7)
    limit = limits.limit_of(of_records(STUDY, [traced(trial, 1, found=found)], hw="cpu"), trial)
    assert limit is not None and limit.word == limits.PYTHON and limit.share == pytest.approx(0.3)


def test_the_headline_counts_what_bounds_and_judges_memory_by_its_claim() -> None:
    results = case_of("a GPU")
    text = said(part_of("a GPU", "headline"))
    counted = sum(limit.word == limits.LAUNCH for limit in limits.limits(results, seen.plain(results)).values())
    assert f"{counted} are bound by launching kernels (the device waits for launches for " in text
    assert "ResNet-50 at 32 px, which the Wisconsin paper trained: not replicated at batch 64 and 256. DRAM " in text
    assert "graph in BF16: waiting for launches from " in text and "Kernels get shorter by precision, layout" in text
    assert "without any waiting the plain step alone would be " in text
    assert text.endswith("stands for 200 traced steps in how the time of kernels divides.")


def test_what_a_tuned_engine_removes_is_told_in_ms_of_the_part_that_shrinks_most() -> None:
    """A part can have the same share of a step a quarter as long: shares would name another one."""
    plain, quick = (Trial(model="vgg16", batch=64, **LARGE, **how) for how in ({}, COMPILED))
    results = of_records(STUDY, records([plain, quick]))
    text = removed.sentence(results, [plain, quick])
    before, after = (removed.parts_ms(results, one) for one in (plain, quick))
    assert sum(before.values()) == pytest.approx(results.interval(plain, "step_s").point * 1e3)  # type: ignore[union-attr]
    shrinks = {name: before[name] - after.get(name, 0.0) for name in before}
    assert max(shrinks, key=lambda name: shrinks[name]) == "convolution"
    steps = f"{number(sum(before.values()))} to {number(sum(after.values()))} ms"
    part = f"{number(before['convolution'])} to {number(after['convolution'])} ms"
    assert f"convolution from {part}, of a step from {steps}; " in text


def test_only_the_largest_gain_of_each_network_is_told() -> None:
    text = removed.sentence(case_of("a GPU"), seen.alone(case_of("a GPU")))
    assert "(of each network the largest gain)" in text
    assert text.count("ResNet-18") == text.count("ResNet-50") == 1


def test_a_class_that_leads_in_some_passes_only_is_not_counted() -> None:
    trial = Trial(model="alexnet", batch=16, device="cpu", **ASKED)
    made = []
    for n in PASSES:
        usual = trace(trial, n)
        most = "optimiser" if n == 1 else "convolution"
        more = usual.kernels[most].model_copy(update={"seconds": 2 * usual.kernels[most].seconds})
        kernels = {**usual.kernels, most: more}
        made.append(traced(trial, n, found=usual.model_copy(update={"kernels": kernels})))
    text = said(answer.headline(of_records(STUDY, made, hw="cpu")))
    assert "not separated by the passes: optimiser and convolution (AlexNet, 32 px, batch 16)" in text
    assert "most time goes to" not in text


def test_a_cpu_says_what_is_unknown_and_what_the_work_explains() -> None:
    results = case_of("a CPU")
    text = said(answer.headline(results, verdicts(results)))
    assert "not testable here; it is not traced at this scale on a CPU, and its DRAM activity is not counted" in text
    frame = part_of("a CPU", "bounds").frame
    assert "of roofline" not in frame and list(frame.columns)[2:4] == ["engine", "bound by"]
    trial = the(results, "resnet18", 32)
    known, (_, found) = count("resnet18", image_px=32), seen.traces(results, trial)[0]
    seconds = known.flop_training * 32 * 400 / 50e12 + (8 * known.parameter_bytes + 32 * 3072) * 400 / 4e12
    share = seconds / (step_s(trial) * 400 * found.busy_s / found.elapsed_s)
    row = row_of(frame[frame["engine"].str.startswith("plain")], **{"": "ResNet-18, 32 px", "batch": 32})
    assert float(row[limits.EXPLAINED].removesuffix(" %")) == pytest.approx(100 * share, rel=0.05)


def test_a_cpu_without_ceilings_says_that_nothing_tells_what_bounds_it() -> None:
    trials = grid(model="resnet18", batch=[4, 32], device="cpu", **ASKED)
    text = said(answer.headline(of_records(STUDY, records(trials), hw="cpu")))
    assert "What bounds them is not known: a CPU has no counters here." in text


def test_what_is_too_little_to_see_is_drawn_as_one() -> None:
    trial = Trial(model="vgg16", batch=64, **LARGE)
    small = figures.steps(of_records(STUDY, records([trial])), [trial])
    assert isinstance(small, Figure) and "drawn as one (idle, other)" in small.caption and "idle, other" in small.alt
    assert {seen.COPIES, seen.QUEUED} <= set(small.data["part"]), "the numbers keep both"
    large = part_of("a GPU", "steps")
    assert "idle, other" not in large.alt and seen.QUEUED in large.alt


def test_columns_below_one_percent_are_left_out_and_said_to_be() -> None:
    table = part_of("a GPU", "bounds")
    assert "copies" not in table.frame and "Below 1.0 % of every step, so not shown: " in said(table)
    assert seen.of_step(1.3e-5) == "< 0.1 %" and seen.of_step(0.0) == "0 %" and seen.of_step(None) is None


def test_what_copies_cost_is_said_to_depend_on_where_the_data_lies() -> None:
    for part in ("copies", "limitations"):
        assert memory.LOADER in said(part_of("a GPU", part))
    assert memory.LOADER not in said(part_of("a CPU", "limitations"))


def test_notes_on_the_sizes_of_some_trials_are_told_of_these() -> None:
    trials = grid(model="alexnet", batch=[4, 64], **LARGE)
    usual = trace(trials[0]).memory
    assert usual is not None
    noted = usual.model_copy(update={"method": f"{usual.method}; no peak was seen"})
    found = [traced(trials[0], 1, found=trace(trials[0], memory=noted)), traced(trials[1], 1)]
    caption = said(memory.picture(of_records(STUDY, found), trials))
    assert (
        "Sizes are from: PyTorch's allocator, at the ends of sections. No peak was seen (AlexNet, 224 px, batch 4)."
        in caption
    )


def test_panels_of_many_bars_stand_two_in_a_row() -> None:
    large = grid(model=["alexnet", "resnet18", "vgg16"], batch=BATCHES, **LARGE)
    compiled = [Trial(model="resnet18", batch=batch, **LARGE, **COMPILED) for batch in BATCHES]
    few, many = (figures.steps(of_records(STUDY, records(one)), one) for one in (large, [*large, *compiled]))
    assert isinstance(few, Figure) and isinstance(many, Figure)
    assert many.size_in[1] > few.size_in[1], "three panels in one row, and in two"
    for theme in (LIGHT, DARK):
        assert many.svg(theme).startswith("<")


def test_a_verdict_that_nobody_formed_is_not_told() -> None:
    assert "Wisconsin" not in said(answer.headline(case_of("a GPU")))


def test_networks_name_batches_alike_in_what_bounds_them_together() -> None:
    text = said(part_of("a GPU", "networks"))
    assert "ResNet-18, 224 px: batch 4 and 8 bound by launching kernels" in text
    assert "waits for launches for 47 % at batch 4 and 25 % at 8 of the step" in text
    assert "batch 16 to 64 bound by arithmetic" in text
    assert "convolution (55 % at batch 4, 55 % at batch 64)" in text


def test_what_has_no_trace_is_named_with_its_reason() -> None:
    assert "Without a trace: VGG-16, 224 px, batch 64 (oom: CUDA out of memory)" in said(
        part_of("some failed", "steps")
    )
    row = row_of(part_of("some failed", "bounds").frame, **{"": "VGG-16, 224 px", "batch": 64})
    assert (row["bound by"], row["no result"]) == (None, "oom")
    assert UNTRACED.reason in said(part_of("untraced", "headline"))
    for part in ("steps", "algorithms", "calls", "sections", "memory", "copies", "slowdown", "longest"):
        assert UNTRACED.reason in said(part_of("untraced", part)), part


def test_trials_that_only_test_the_sample_stand_in_no_other_picture() -> None:
    for case in ("a GPU", "a CPU"):
        for trial in seen.trainings(case_of(case)):
            assert trial.traced_iterations == STEPS and trial.steps_before == 0


def test_few_steps_stand_for_many_only_where_every_interval_lies_within_two_points() -> None:
    assert "a sample of 5 traced steps stands for 200 traced steps" in said(part_of("a GPU", "sample"))
    few, many = sampled()

    def with_more_convolution(points: float) -> Results:
        usual = trace(few)
        shifted = {
            kind: one.model_copy(update={"seconds": one.seconds + sign * points / 100 * usual.kernel_s})
            for (kind, one), sign in zip(usual.kernels.items(), (1, -1, 0, 0, 0), strict=True)
        }
        found = usual.model_copy(update={"kernels": shifted})
        return of_records(STUDY, [*(traced(few, n, found=found) for n in PASSES), *records([many])])

    assert "stands for" in said(sample.sentence(with_more_convolution(1.5)))
    text = said(sample.sentence(with_more_convolution(4)))
    assert "does not stand for" in text and "4 points" in text and "300 steps of the trial at least" in text


def test_an_interval_across_the_tolerance_decides_nothing() -> None:
    few, many = sampled()
    made = []
    for n, shift in zip(PASSES, (0.0, 0.03, 0.0), strict=True):
        usual = trace(few, n)
        kernels = dict(usual.kernels)
        kernels["convolution"] = kernels["convolution"].model_copy(
            update={"seconds": kernels["convolution"].seconds + shift * usual.kernel_s}
        )
        made.append(traced(few, n, found=usual.model_copy(update={"kernels": kernels})))
    assert "can't be told to stand for" in said(sample.sentence(of_records(STUDY, [*made, *records([many])])))


def test_where_the_largest_batch_failed_the_next_one_stands_for_it() -> None:
    for part in ("calls", "copies"):
        frame = part_of("some failed", part).frame
        assert list(frame[frame[""] == "VGG-16, 224 px"]["batch"]) == [4, 32]


def test_what_traces_say_of_themselves_is_told_once() -> None:
    trials = grid(model="alexnet", batch=[4, 64], **LARGE)
    found = [traced(one, n, found=trace(one, n, notes=["the time was up"])) for n in PASSES for one in trials]
    assert "own notes: the time was up (2 trials)." in said(sample.slowdown(of_records(STUDY, found), trials))


def test_the_way_back_stands_beside_the_whole_step() -> None:
    frame = part_of("a GPU", "calls").frame
    small = row_of(frame, **{"": "ResNet-18, 224 px", "batch": 4, "engine": "plain"})
    large = row_of(frame, **{"": "ResNet-18, 224 px", "batch": 64, "engine": "plain"})
    assert (small["launch"], small["way back: launch"], small["way back: clean-up"]) == ("88 %", "89 %", "1.0 %")
    assert large["way back: clean-up"] == "5.0 %"
    captured = row_of(frame, **{"": "ResNet-50, 32 px", "batch": 64, "engine": "graph"})
    assert captured["way back: launch"] is None, "a captured step has no sections"
    results = case_of("captured only")
    assert "a captured step, which is one launch" in said(calls.sections(results, seen.alone(results)))
    assert "no such training" in said(part_of("captured only", "sections")), "plain ones there are none of"


def test_a_kernel_of_convolutions_has_one_row_with_its_batches() -> None:
    found = [
        traced(trial, n, found=trace(trial, n, convolution_kernel="one" if trial.batch < 32 else "two"))
        for n in PASSES
        for trial in grid(model="alexnet", batch=BATCHES, **LARGE)
    ]
    frame = convolutions.table(of_records(STUDY, found), seen.alone(of_records(STUDY, found))).frame  # type: ignore[union-attr]
    assert list(frame["at batch"]) == ["4, 8 and 16", "32 and 64"]
    assert list(frame["most convolution time"]) == ["one", "two"]


def test_winograds_share_is_told_over_the_batch() -> None:
    told = said(part_of("a GPU", "winograd"))
    shares = {
        batch: seen.metric(case_of("a GPU"), the(case_of("a GPU"), "vgg16", batch), "winograd_share")
        for batch in BATCHES
    }
    first, most, last = (percent(shares[batch].point) for batch in (4, 16, 64))  # type: ignore[union-attr]
    assert f"VGG-16 (224 px) {first} at batch 4, most at 16 ({most}), {last} at 64" in told
    assert "ResNet-50" not in told.split("Winograd's kernels")[1], "of two batches the table says as much"
    led = "implicit matrix product at 4, 8, 32 and 64 (80 %, 65 %, 45 % and 60 %) and Winograd at 16 (50 %)"
    assert f"of VGG-16 (224 px) {led}" in told
    assert "implicit matrix product at every batch of ResNet-50 (32 px)" in told
    plain = grid(model="vgg16", batch=BATCHES, **LARGE)
    without = [
        traced(one, n, found=trace(one, n, algorithms={"direct": Total(seconds=1.0, count=1)}))
        for one in plain
        for n in PASSES
    ]
    assert "none at any of 5 batches" in said(convolutions.course(of_records(STUDY, without), plain))


def test_the_batches_of_an_engine_stand_together() -> None:
    plain = grid(model="resnet18", batch=BATCHES, **LARGE)
    captured = Trial(model="resnet18", batch=4, **LARGE, **CAPTURED)
    found = [
        traced(one, n, found=trace(one, n, convolution_kernel=f"kernel {one.batch} {one.engine}"))
        for one in (*plain, captured)
        for n in PASSES
    ]
    results = of_records(STUDY, found)
    frame = convolutions.table(results, seen.alone(results)).frame  # type: ignore[union-attr]
    assert list(frame["engine"]) == ["plain"] * len(BATCHES) + ["graph"]


def test_a_kernel_that_differs_between_passes_is_said_to() -> None:
    trial = Trial(model="alexnet", batch=4, **LARGE)
    found = [traced(trial, n, found=trace(trial, n, convolution_kernel=f"kernel {n % 2}")) for n in PASSES]
    results = of_records(STUDY, found)
    frame = convolutions.table(results, [trial]).frame  # type: ignore[union-attr]
    assert frame["most convolution time"].iloc[0] == "kernel 0; or kernel 1"


def test_memory_is_of_one_step_in_gibibytes_and_what_is_unknown_is_said() -> None:
    figure = part_of("a GPU", "memory")
    row = row_of(figure.data, network="VGG-16, 224 px", batch=64)
    assert row["weights (GiB)"] == row["gradients (GiB)"] == pytest.approx(4 * 138_357_544 / 2**30)
    trial = Trial(model="vgg16", batch=4, **LARGE)
    known = trace(trial).memory
    assert known is not None
    partly = known.model_copy(update={"activations": None, "workspace": None})
    results = of_records(STUDY, [traced(trial, 1, found=trace(trial, memory=partly))])
    assert "Not known of any: activations and workspace." in said(memory.picture(results, [trial]))


def test_memory_of_other_trials_is_not_shown_as_a_steps() -> None:
    trial = Trial(model="vgg16", batch=4, **LARGE)
    before = [traced(trial, n) for n in PASSES]
    untold = [
        one.model_copy(update={"facts": {k: v for k, v in one.facts.items() if k != "memory_left_bytes"}})
        for one in before
    ]
    figure = memory.picture(of_records(STUDY, untold), [trial])
    assert isinstance(figure, Figure)
    assert "weights (GiB)" in figure.data and not {"workspace (GiB)", "peak (GiB)"} & set(figure.data)
    assert "Workspace and peak are unknown: earlier trials" in figure.caption
    assert "workspace (GiB)" in memory.picture(of_records(STUDY, before), [trial]).data  # type: ignore[union-attr]
    some = [one.model_copy(update={"facts": {**one.facts, "memory_left_bytes": 2**30}}) for one in before[:1]]
    figure = memory.picture(of_records(STUDY, [*some, *before[1:]]), [trial])
    assert isinstance(figure, Figure) and "which lie apart by less than" in figure.caption, "parts that all passes have"
    usual = trace(trial).memory
    assert usual is not None and usual.workspace is not None
    assert figure.data["workspace (GiB)"].iloc[0] == pytest.approx(usual.workspace / 2**30, rel=0.01)


def test_memory_is_the_mean_of_passes_that_may_choose_other_algorithms() -> None:
    trial = Trial(model="vgg16", batch=4, **LARGE)
    usual = trace(trial).memory
    assert usual is not None and usual.workspace is not None
    more = [usual.model_copy(update={"workspace": usual.workspace + n * 2**30}) for n in range(3)]
    found = [traced(trial, n, found=trace(trial, n, memory=one)) for n, one in enumerate(more, 1)]
    figure = memory.picture(of_records(STUDY, found), [trial])
    assert isinstance(figure, Figure)
    assert figure.data["workspace (GiB)"].iloc[0] == pytest.approx(usual.workspace / 2**30 + 1)
    assert "Means of passes, which lie apart by 2.0 GiB at most (VGG-16, 224 px, batch 4)." in figure.caption


def test_several_gpus_say_what_broadcasting_takes_and_one_gpu_that_it_has_none() -> None:
    frame = part_of("several GPUs", "gpus").frame
    shares = [float(text.removesuffix(" %")) for text in frame[frame[""] == "AlexNet, 224 px"]["in broadcasts"]]
    assert shares == sorted(shares, reverse=True) and len(shares) == len(BATCHES)
    assert "AlexNet on 2 GPUs " in said(part_of("several GPUs", "networks"))
    assert "nobody to send to" in said(part_of("a GPU", "gpus"))


def test_busy_time_and_sm_activity_are_told_apart_and_a_counter_above_is_named() -> None:
    text = said(part_of("a GPU", "difference"))
    assert "counts a kernel that fills one multiprocessor like one that fills all" in text
    assert "SM activity nowhere exceeds busy time." in text
    assert "Nsight Compute is not installed" in said(part_of("a GPU", "counters"))
    trial = Trial(model="vgg16", batch=4, **LARGE)
    found = of_records(
        STUDY, [traced(trial, n, nsight={"fp32_activity": 0.41, "kernels": 300, "kernel_s": 2.5e-3}) for n in PASSES]
    )
    table = counters.table(found, [trial])
    assert isinstance(table, Table) and "n = 3" in table.caption
    single = counters.nsight(found, [trial])
    assert isinstance(single, Table) and "ncu is of the first pass" in single.caption
    assert "it stops after" not in single.caption, "records before said no limit"
    limited = {"fp32_activity": 0.41, "kernels": 300, "most_kernels": 300, "kernel_s": 2.5e-3}
    limited_too = of_records(STUDY, [traced(trial, n, nsight=limited) for n in PASSES])
    assert "it stops after 300 kernels" in said(counters.nsight(limited_too, [trial]))
    row = single.frame.iloc[0]
    assert (row["FP32 (ncu)"], row["kernels counted"], row["ms counted"]) == ("41 %", 300, pytest.approx(2.5))
    assert row["ms in a step"] == pytest.approx(1e3 * kernel_s(trial), rel=0.02)
    told = [traced(trial, n, nsight={"reason": "not permitted"}) for n in PASSES]
    assert said(counters.nsight(of_records(STUDY, told), [trial])) == ""
    assert said(counters.nsight(found, [])) == ""


def test_flop_are_counted_forward_and_back_over_the_batch() -> None:
    row = row_of(part_of("a GPU", "flop").frame, **{"": "VGG-16, 224 px"})
    assert row["forward (GFLOP/image)"] == pytest.approx(30.94, abs=0.01)
    assert row["GFLOP a step"].split(", ")[0] == "371"


def test_the_longest_kernels_are_of_the_first_network_at_its_largest_batch() -> None:
    table = part_of("a GPU", "longest")
    assert "AlexNet, 224 px, batch 64" in said(table)
    assert table.frame["of all"].iloc[0] == "15 %", "half of the convolutions'"


def test_on_a_cpu_the_page_speaks_of_operators() -> None:
    assert "operators" in said(part_of("a CPU", "headline"))
    assert "PyTorch's operators" in said(part_of("a CPU", "steps"))
    assert "one operator of the library" in said(part_of("a CPU", "algorithms"))
    assert "an operator calls the library itself" in said(part_of("a CPU", "calls"))
    assert "copies nothing to itself" in said(part_of("a CPU", "copies"))
    assert "Nsight Compute (ncu) count GPUs only" in said(part_of("a CPU", "counters"))


def test_key_numbers_are_the_ends_of_waiting_and_the_largest_class() -> None:
    found = answer.key_numbers(case_of("a GPU"))
    assert [what.split(":")[0] for _, what in found] == [
        "of the step waiting for launches, the most",
        "of the step waiting for launches, the least",
        "of the step in convolution, the most of a class",
    ]
    assert answer.key_numbers(case_of("no records")) == []


class FakeLab:
    """An opened study, as far as its trials need it."""

    def __init__(self, hw: str, scale: str) -> None:
        self.profile = load_profile(hw)
        self.sweep: dict[str, Any] = self.profile.sweep(STUDY, scale)
        self.device_counts = [n for n in (1, 2, 4, 8) if n <= self.profile.device.count]

    def trials(self, **axes: Any) -> list[Trial]:
        return grid(device=self.profile.device.kind, **axes)


@pytest.mark.parametrize("scale", ["smoke", "quick", "full"])
@pytest.mark.parametrize("hw", ["cpu", "h200", "h200_x8", "p100_16gb_x4"])
def test_trials_are_each_once_traced_and_valid(hw: str, scale: str) -> None:
    lab = FakeLab(hw, scale)
    parts = (grids.plain(lab), grids.tuned(lab), grids.rated(lab), grids.shared(lab))
    found = [*grids.traced(lab, [trial for part in parts for trial in part]), *grids.sampled(lab)]
    assert len({trial.key for trial in found}) == len(found) > 0
    assert all(trial.traced_iterations and not trial.epochs for trial in found)
    assert bool(grids.shared(lab)) == (lab.profile.device.count > 1 and scale != "smoke")
    for trial in grids.shared(lab):
        assert trial.batch % trial.devices == 0 and trial.processes == 1


def test_what_claims_select_is_among_the_trials_of_quick_on_several_gpus() -> None:
    lab = FakeLab("h200_x8", "quick")
    found = grids.traced(lab, [*grids.plain(lab), *grids.rated(lab), *grids.shared(lab)])
    results = of_records(STUDY, records([*found, *grids.sampled(lab)]), hw="h200_x8")
    judged = {finding.claim.id: finding for finding in verdicts(results).findings}
    untested = {name for name, one in judged.items() if one.verdict == "not testable here"}
    assert untested == {"nyu-algorithm"}, "half of it compares devices"
    assert len(judged["nyu-learning-rate"].cases) == 1


def test_nsight_compute_counts_in_a_few_trials_of_the_papers_loop() -> None:
    lab = FakeLab("h200_x8", "quick")
    found = grids.traced(lab, [*grids.plain(lab), *grids.tuned(lab), *grids.rated(lab), *grids.shared(lab)])
    counted = [(trial.model, trial.image_px, trial.batch, trial.engine) for trial in found if trial.counted]
    assert counted == [("resnet18", 224, 64, "eager"), ("resnet50", 32, 64, "eager")]


def test_samples_stand_in_nothing_that_a_claim_selects() -> None:
    lab = FakeLab("h200", "full")
    results = of_records(STUDY, records(grids.sampled(lab)))
    assert all(not finding.cases for finding in verdicts(results).findings)


def test_a_trace_of_the_made_up_kind_is_a_trace_of_the_record() -> None:
    for trial in everything():
        found = trace(trial, 2)
        assert Traced.model_validate_json(found.model_dump_json()) == found
        assert found.kernel_s == pytest.approx(kernel_s(trial) * NOISE[1] * found.steps)


def test_the_table_of_what_peaks_allow_says_that_nothing_is_measured_only_where_that_is_so() -> None:
    profile = load_profile("h200")
    assert "Nothing is measured yet." in said(summary.prediction_table(profile, loop()))
    caption = said(summary.prediction_table(profile, loop(), after="This is from the trials alone."))
    assert "This is from the trials alone." in caption and "measured" not in caption


def test_nsight_compute_names_the_kernel_that_it_counted_longest() -> None:
    trial = Trial(model="vgg16", batch=4, **LARGE)
    longest = [{"name": "one<1>", "count": 2, "seconds": 1e-3}, {"name": "two", "count": 1, "seconds": 5e-4}]
    seen_by_it = {"fp32_activity": 0.41, "kernels": 3, "most_kernels": 300, "kernel_s": 2.5e-3, "longest": longest}
    table = counters.nsight(of_records(STUDY, [traced(trial, n, nsight=seen_by_it) for n in PASSES]), [trial])
    assert isinstance(table, Table) and table.frame["longest counted"].iloc[0] == "one<1>, 40 %"


def test_calls_are_means_of_the_passes_that_have_them_longest_first() -> None:
    trial = the(case_of("a GPU"), "resnet18", 4)
    by_pass = [{"b": 1.0, "a": 3.0}, {"b": 3.0, "a": 1.0}, {"b": 3.0, "a": 1.0}]
    made = [
        trace(
            trial,
            n,
            calls={"launch": Total(seconds=4.0, count=4)},
            calls_by_name={name: Total(seconds=seconds, count=1) for name, seconds in calls_of.items()},
        )
        for n, calls_of in enumerate(by_pass, 1)
    ]
    found = [traced(trial, n, found=one) for n, one in enumerate(made[:2], 1)]
    found.append(traced(trial, 3, found=trace(trial, 3, calls={}, calls_by_name={})))
    table = calls.table(of_records(STUDY, found), [trial])
    assert isinstance(table, Table)
    assert table.frame["most time in"].iloc[0].replace("\N{NO-BREAK SPACE}", " ") == "b 50 %, a 50 %"
    found[2] = traced(trial, 3, found=made[2])
    table = calls.table(of_records(STUDY, found), [trial])
    assert isinstance(table, Table)
    assert table.frame["most time in"].iloc[0].replace("\N{NO-BREAK SPACE}", " ") == "b 58 %, a 42 %"


def with_tensor(found: Telemetry | None, share: float) -> Telemetry:
    """The same, but tensor cores active for this share of the timed part."""
    assert found is not None
    window = found.windows["timed"]
    sources = {
        name: {**metrics, "tensor_activity": Statistic(mean=share, low=share, high=share, n=10)}
        for name, metrics in window.sources.items()
    }
    return found.model_copy(update={"windows": {"timed": window.model_copy(update={"sources": sources})}})


def test_tensor_cores_that_are_busy_in_fp32_are_told_beside_a_matrix_product() -> None:
    assert "In FP32, which uses no tensor cores" not in said(part_of("a GPU", "difference")), "there they are idle"
    trial = the(case_of("a GPU"), "vgg16", 64)
    made = [one for one in records([trial]) if one.telemetry]
    for share, told in ((0.0005, ""), (0.004, "too little to change"), (0.3, "is not known.")):
        changed = [one.model_copy(update={"telemetry": with_tensor(one.telemetry, share)}) for one in made]
        found = said(counters.difference(of_records(STUDY, changed), [trial]))
        assert ("In FP32, which uses no tensor cores" in found) == bool(told) and told in found
        assert ("too little" in found) == (share == 0.004)


def test_kernels_sorted_by_the_rules_before_are_shown_with_what_has_changed() -> None:
    trial = the(case_of("a GPU"), "vgg16", 64)
    before = of_records(STUDY, [traced(trial, n, found=trace(trial, n, rules=2)) for n in PASSES])
    assert isinstance(convolutions.picture(before, [trial]), Figure)
    assert "cuDNN's transformations of tensors under layout" in said(figures.steps(before, [trial]))
