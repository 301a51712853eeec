"""The page of inference says what the records say, whatever is missing from them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from labkit.analysis import method, summary, utilisation
from labkit.analysis.figure import DARK, LIGHT, Figure
from labkit.analysis.studies import inference, inference_figures
from labkit.analysis.table import Table, Text
from labkit.recipes import PREDICTED, PREDICTED_COMPILED, PREDICTED_ON_CPU, engine_name, predicting
from labkit.records import Queries, Record
from labkit.results import roofline
from labkit.results.from_result import value_of
from labkit.results.study_records import StudyRecords as Results
from labkit.trial import Trial
from tests.unit.made_records import NOISE, PASSES, blocks, failed, of_records
from tests.unit.reading import row_of, said

STUDY = "05_inference"
ASKED: dict[str, Any] = {"workload": "infer", "queries": 10_000}
SWEPT = (1, 64, 1024, 10_000)


def rate(trial: Trial) -> float:
    launch_s = {"eager": 4e-3, "graph": 6e-4, "compile": 3e-3, "compile+graph": 3e-4}[trial.engine]
    image_s = {"resnet50": 2e-6, "vgg16": 3e-6}[trial.model] * (1 if trial.engine == "eager" else 0.4)
    return trial.batch / (launch_s + trial.batch * image_s)


def answered(trial: Trial, number: int, *, count: int = 5000, **other: Any) -> Record:
    """A timed trial that then answered queries: latencies from the median up to twice it."""
    median_ns = int(1e9 * trial.batch / rate(trial) * NOISE[number - 1])
    latency_ns = [median_ns + median_ns * k // count for k in range(-count // 2, count // 2)]
    made = blocks(STUDY, trial, number, rate(trial) * NOISE[number - 1])
    assert made.blocks is not None
    queries = Queries(images=trial.batch, latency_ns=latency_ns, asked_for=10_000) if trial.queries else None
    gate = {"batches": 2, "logits_difference": 0.02, "logits_tolerance": 0.35}
    facts = {**made.facts, "gate": gate, "build_s": 0.5, "first_step_s": 0.25, **other}
    return made.model_copy(update={"result": made.blocks.model_copy(update={"queries": queries}), "facts": facts})


def trials() -> list[Trial]:
    found = [Trial(batch=batch, **ASKED, **recipe) for recipe in ({}, PREDICTED) for batch in SWEPT]
    found += [Trial(model="vgg16", batch=1, **ASKED, **recipe) for recipe in ({}, PREDICTED_COMPILED)]
    return [*found, Trial(batch=1, copies="included", **ASKED)]


def records(passes: tuple[int, ...] = PASSES, **other: Any) -> list[Record]:
    return [answered(trial, n, **other) for n in passes for trial in trials()]


def on_cpu() -> list[Record]:
    found = [Trial(batch=b, device="cpu", **ASKED, **recipe) for recipe in ({}, PREDICTED_ON_CPU) for b in (1, 16)]
    return [answered(trial, n, count=300) for n in PASSES for trial in found]


def some_failed() -> list[Record]:
    large = [trial for trial in trials() if trial.batch == 10_000 and trial.engine == "eager"]
    kept = [record for record in records() if record.as_trial not in large]
    return [*kept, *(failed(STUDY, trial, n) for trial in large for n in PASSES)]


def with_training() -> list[Record]:
    return [*records(), *(blocks(STUDY, Trial(batch=256), n, 10_000 * NOISE[n - 1]) for n in PASSES)]


CASES: dict[str, Callable[[], Results]] = {
    "a GPU": lambda: of_records(STUDY, with_training()),
    "one pass": lambda: of_records(STUDY, records((1,))),
    "few queries": lambda: of_records(STUDY, records(count=3)),
    "in parts": lambda: of_records(STUDY, records(predicted_in_parts_of=2500, out_of_memory_at_parts_of=[10000, 5000])),
    "some failed": lambda: of_records(STUDY, some_failed()),
    "all failed": lambda: of_records(STUDY, [failed(STUDY, trial, n) for n in PASSES for trial in trials()]),
    "tuned only": lambda: of_records(STUDY, [one for one in records() if one.trial["engine"] != "eager"]),
    "a CPU": lambda: of_records(STUDY, on_cpu(), hw="cpu"),
    "no records": lambda: of_records(STUDY, []),
    "no records of a CPU": lambda: of_records(STUDY, [], hw="cpu"),
}


@cache
def case_of(name: str) -> Results:
    return CASES[name]()


def predicted(r: Results) -> list[Trial]:
    return inference.predicted(r)


PARTS: dict[str, Callable[[Results], Any]] = {
    "headline": lambda r: inference.headline(r, predicted(r)),
    "table": lambda r: inference.table(r, predicted(r)),
    "throughput": lambda r: inference_figures.throughput(r, predicted(r)),
    "latencies": lambda r: inference_figures.latencies(r, predicted(r)),
    "latency": lambda r: inference.latency_table(r, predicted(r)),
    "copies": inference.copies_table,
    "first": lambda r: inference.first_table(r, predicted(r)),
    "activity": lambda r: utilisation.shares(r, inference.compared_with_training(r)),
    "limitations": lambda r: inference.limitations(r, predicted(r)),
    "method": lambda r: method.sentence(r, "Nothing was measured now."),
    "prediction": lambda r: summary.prediction_table(r.profile, trials()),
    "trials": lambda r: summary.trials_table(trials(), 3),
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("case", CASES)
def test_no_part_of_the_page_fails_or_shows_nan_or_none(case: str, part: str) -> None:
    made = PARTS[part](case_of(case))
    assert isinstance(made, Figure | Table | Text)
    if isinstance(made, Figure):
        assert made.caption and made.alt and len(made.data)
        text = made.caption + made.alt + Table(made.data, "")._repr_mimebundle_()["text/html"]
    else:
        text = made._repr_mimebundle_()["text/html"]
    for odd in ("nan", "None", "NaN", "inf "):
        assert odd not in text, text


@pytest.mark.parametrize("part", ["throughput", "latencies"])
def test_each_figure_draws_in_both_schemes(part: str) -> None:
    figure = PARTS[part](case_of("a GPU"))
    assert isinstance(figure, Figure) and figure.alt
    for theme in (LIGHT, DARK):
        assert figure.svg(theme).startswith("<")


def test_a_percentile_is_of_every_query_by_nearest_rank_and_missing_where_too_few_lie_beyond() -> None:
    trial = Trial(batch=1, **ASKED)
    record = answered(trial, 1)
    latencies = sorted(record.blocks.queries.latency_ns)  # type: ignore[union-attr]
    assert value_of(record, "latency_s") == latencies[2499] / 1e9
    assert value_of(record, "latency_p99_s") == latencies[4949] / 1e9
    assert value_of(record, "latency_p999_s") == latencies[4994] / 1e9
    few = answered(trial, 1, count=1000)
    assert value_of(few, "latency_p99_s") is not None and value_of(few, "latency_p999_s") is None
    assert value_of(answered(trial, 1, count=3), "latency_s") is None


def test_a_percentile_that_one_pass_lacks_is_not_shown_of_the_others() -> None:
    trial = Trial(batch=1, **ASKED)
    results = of_records(STUDY, [answered(trial, 1), answered(trial, 2), answered(trial, 3, count=100)])
    assert inference.percentile(results, trial, "latency_s") is not None
    assert inference.percentile(results, trial, "latency_p99_s") is None
    table = inference.latency_table(results, [trial])
    assert isinstance(table, Table) and table.frame["queries a pass"].iloc[0] == "100 to 5,000"


def test_the_first_prediction_counts_building_compiling_capturing_and_the_step_itself() -> None:
    record = answered(Trial(batch=1, **ASKED, **PREDICTED_COMPILED), 1)
    assert value_of(record, "first_prediction_s") == pytest.approx(0.5 + 45 + 0.5 + 0.25), "not the reference"


def test_tuned_stands_beside_plain_and_copies_beside_none() -> None:
    results = case_of("a GPU")
    row = row_of(PARTS["table"](results).frame, model="ResNet-50", batch=1, engine="graph, BF16")
    assert row["over plain"].startswith("6.66x")  # (4 ms + 2 us) / (0.6 ms + 0.8 us)
    assert len(PARTS["copies"](results).frame) == 1
    assert "included" not in " ".join(PARTS["table"](results).frame["engine"]), "copies have a table of their own"


def test_the_headline_says_where_throughput_saturates_and_what_was_split() -> None:
    text = said(PARTS["headline"](case_of("a GPU")))
    assert "ResNet-50, plain, only at the largest, 10,000" in text
    assert "VGG-16, " not in text.split("Batch at which")[1], "one batch is no sweep"
    assert "in parts of 2,500" in said(PARTS["headline"](case_of("in parts")))
    assert set(PARTS["table"](case_of("in parts")).frame["in parts of"]) == {2500}


def test_a_single_image_is_told_of_the_plain_loop_by_its_ends_and_of_each_model_by_its_fastest_engine() -> None:
    (first,) = (part for part in said(PARTS["headline"](case_of("a GPU"))).split("\n\n") if "One image" in part)
    assert "the plain loop 4.01" in first and "(ResNet-50) to 4.01" in first
    assert "the fastest tuned engine 0.60" in first and "(ResNet-50, graph) and 0.30" in first
    assert first.endswith("(VGG-16, compile+graph).")
    slower = [answered(Trial(batch=1, **ASKED, **{**PREDICTED, "engine": "compile"}), n) for n in PASSES]
    more = said(PARTS["headline"](of_records(STUDY, [*with_training(), *slower])))
    assert more.split("\n\n")[0] == first, "an engine that is slower than another is not the fastest"
    assert "the plain loop" not in said(PARTS["headline"](case_of("tuned only")))


def test_a_failure_is_a_row_and_a_sentence() -> None:
    results = case_of("some failed")
    row = row_of(PARTS["table"](results).frame, model="ResNet-50", batch=10_000, engine="plain, FP32")
    assert (row["images/s"], row["n"], row["no result"]) == ("–", 0, "oom")
    assert "Without a result: ResNet-50, 10,000" in said(PARTS["headline"](results))


def test_training_stands_beside_inference_where_activity_is_compared() -> None:
    workloads = [trial.workload for trial in inference.compared_with_training(case_of("a GPU"))]
    assert workloads == ["infer", "infer", "train", "infer"], "ResNet-50 at both ends and in training, VGG-16"


def test_inference_reads_the_weights_once_a_batch() -> None:
    narrow, wide = (
        roofline.planned_work(Trial(batch=1, workload="infer", precision=precision)) for precision in ("bf16", "fp32")
    )
    assert wide.unavoidable_bytes == 2 * narrow.unavoidable_bytes == 4 * (25_557_032 + 3 * 32 * 32)
    training = roofline.planned_work(Trial(batch=1))
    assert training.flop > 2 * wide.flop and training.unavoidable_bytes > 7 * wide.unavoidable_bytes


def test_recipes_of_inference_are_plain_first_and_named_by_their_engine() -> None:
    for kind in ("cuda", "cpu"):
        known = predicting(kind)  # type: ignore[arg-type]
        assert next(iter(known)) == "plain"
        assert [engine_name(Trial(workload="infer", **recipe)) for recipe in known.values()] == list(known)


def test_key_numbers_name_latency_throughput_and_tail() -> None:
    found = inference.key_numbers(case_of("a GPU"), predicted(case_of("a GPU")))
    assert [what.split(":")[0] for _, what in found] == [
        "shortest median latency of one image",
        "fastest",
        "p99 over p50 at batch 1, the most",
    ]
    assert inference.key_numbers(case_of("no records"), []) == []
