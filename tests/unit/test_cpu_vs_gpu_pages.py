"""The page of CPU against GPU says what the records say, whatever is missing from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from labkit.analysis import method, summary, utilisation
from labkit.analysis.figure import DARK, LIGHT, Figure
from labkit.analysis.studies import cost, cpu_vs_gpu, cpu_vs_gpu_figures, cpu_vs_gpu_plan, sides
from labkit.analysis.studies.sides import Setting
from labkit.analysis.table import Table, Text
from labkit.analysis.verdicts import Evidence, judge_all
from labkit.observed import EnergyWindow, Statistic, Telemetry, Window
from labkit.papers import load_papers
from labkit.profile import Cost, Sourced, load_profile
from labkit.recipes import BF16_ON_CPU, CAPTURED, FUSED_ON_CPU, PREDICTED, PREDICTED_BY_OPENVINO
from labkit.records import Record
from labkit.results import Results as Recorded
from labkit.results.exchange import numbers
from labkit.results.study_records import StudyRecords as Results
from labkit.trial import Trial
from tests.unit.made_records import NOISE, PASSES, blocks, failed, of_records
from tests.unit.reading import row_of

STUDY = "06_cpu_vs_gpu"
NO_RAPL = "no RAPL here"
LARGE: dict[str, Any] = {"model": "googlenet", "image_px": 224, "batch": 32, "energy_windows": 1}
SMALL: dict[str, Any] = {"model": "resnet50", "batch": 64}
INFER: dict[str, Any] = {"workload": "infer", "model": "resnet50", "batch": 256}
THREADS = (1, 2, 4)


def gpu() -> list[Trial]:
    tuned = [Trial(**LARGE, **CAPTURED), Trial(**SMALL, **CAPTURED), Trial(**INFER, **PREDICTED)]
    return [Trial(**LARGE), Trial(**SMALL), Trial(**INFER), *tuned]


def cpu() -> list[Trial]:
    plain = [Trial(device="cpu", **about) for about in (LARGE, SMALL, INFER)]
    tuned = [Trial(device="cpu", **LARGE, **recipe) for recipe in (FUSED_ON_CPU, BF16_ON_CPU)]
    tuned.append(Trial(device="cpu", **INFER, **PREDICTED_BY_OPENVINO))
    return [*plain, *tuned, *(Trial(device="cpu", threads=n, **SMALL) for n in THREADS)]


def rate(trial: Trial) -> float:
    """GPU over CPU is 20x in plain training, 100x in plain inference; tuning gains 3x on the GPU, 2x on the CPU."""
    on_cpu = {"train": 50.0, "infer": 400.0}[trial.workload] * (1 if trial.image_px == 32 else 0.1)
    if trial.device == "cuda":
        return on_cpu * {"train": 20, "infer": 100}[trial.workload] * (3 if trial.engine != "eager" else 1)
    gain = 2.0 if trial.precision == "bf16" or trial.engine == "openvino" else 1.0
    return on_cpu * gain * {0: 1.0, 1: 0.4, 2: 0.7, 4: 1.1}[trial.threads]


def watched(trial: Trial, *, rapl: bool = False) -> Telemetry:
    sources = {"host": {"cpu_utilisation": Statistic(mean=0.5, low=0.4, high=0.6, n=10)}}
    joules: dict[str, float | None] = {}
    if trial.device == "cuda":
        sources["gpu0"] = {"power_w": Statistic(mean=500, low=400, high=600, n=10)}
        joules["gpu0"] = 2500.0
    if rapl:
        joules["rapl:package-0"] = 1000.0
    images = int(5 * rate(trial))
    window = EnergyWindow(start_s=0, length_s=5, images=images, energy_j=joules)
    return Telemetry(
        status="ok",
        windows={"timed": Window(start_s=0, length_s=5, sources=sources)},
        energy=[window] if trial.energy_windows else [],
        energy_method=dict.fromkeys(joules, "counter"),
        missing={} if rapl else {"rapl:package-0": {"energy_j": NO_RAPL}},
    )


def made(trial: Trial, number: int, *, rapl: bool = False) -> Record:
    record = blocks(STUDY, trial, number, rate(trial) * NOISE[number - 1], telemetry=watched(trial, rapl=rapl))
    facts = {"threads": trial.threads or 4, "cpu_cores_used": 3.5, "flop_training": 10**9, "flop_forward": 10**8}
    facts |= {"weight_traffic_bytes_per_step": 10**6, "image_bytes": 3072}
    return record.model_copy(update={"facts": {**record.facts, **facts}})


def ceilings(device: str, number: int) -> list[Record]:
    work = 10**12 if device == "cuda" else 10**10
    found = []
    for name, unit in (("matmul", "flop_per_step"), ("memory_copy", "bytes_per_step")):
        record = blocks(STUDY, Trial(workload=name, device=device, data="none"), number, 1.0)
        assert record.blocks is not None
        result = record.blocks.model_copy(
            update={"images_per_step": None, "steps_per_block": 1, "host_s": [1e-3] * 10, unit: work}
        )
        found.append(record.model_copy(update={"result": result}))
    return found


def both(passes: tuple[int, ...] = PASSES, *, rapl: bool = False) -> list[Record]:
    found = [made(trial, n, rapl=rapl) for n in passes for trial in (*gpu(), *cpu())]
    return [*found, *(one for n in passes for device in ("cuda", "cpu") for one in ceilings(device, n))]


def without(device: str) -> list[Record]:
    """The trials of a device all failed."""
    kept = [record for record in both() if record.trial["device"] != device]
    return [
        *kept,
        *(failed(STUDY, t, n, "crashed", "broken") for t in (*gpu(), *cpu()) if t.device == device for n in PASSES),
    ]


NOT_INSTALLED = "OpenVINO is not installed here"


def without_openvino() -> list[Record]:
    """A network that only its plain loop gave a result of on the CPU, and one that nothing else was tried of."""
    alone = [Trial(device=device, workload="train", model="vgg16", batch=64) for device in ("cuda", "cpu")]
    refused = [trial for trial in cpu() if trial.engine == "openvino"]
    return [
        *(one for one in both() if one.trial["engine"] != "openvino"),
        *(failed(STUDY, trial, n, "unsupported", NOT_INSTALLED) for trial in refused for n in PASSES),
        *(made(trial, n) for trial in alone for n in PASSES),
    ]


def on_cpu() -> list[Record]:
    return [*(made(trial, n) for n in PASSES for trial in cpu()), *(one for n in PASSES for one in ceilings("cpu", n))]


def priced(records: list[Record], *, cpu_too: bool = True) -> Results:
    results = of_records(STUDY, records)
    about = Cost(
        per_hour=Sourced(value=3.6, source="a list"),
        cpu_per_hour=Sourced(value=0.36, source="another list") if cpu_too else None,
        currency="EUR",
    )
    return replace(results, profile=results.profile.model_copy(update={"cost": about}))


CASES: dict[str, Callable[[], Results]] = {
    "both": lambda: of_records(STUDY, both()),
    "one pass": lambda: of_records(STUDY, both((1,))),
    "with RAPL": lambda: of_records(STUDY, both(rapl=True)),
    "with prices": lambda: priced(both()),
    "the CPU without a price": lambda: priced(both(), cpu_too=False),
    "the CPU failed": lambda: of_records(STUDY, without("cpu")),
    "the GPU failed": lambda: of_records(STUDY, without("cuda")),
    "without OpenVINO": lambda: of_records(STUDY, without_openvino()),
    "all failed": lambda: of_records(STUDY, [failed(STUDY, t, n) for n in PASSES for t in (*gpu(), *cpu())]),
    "tuned only": lambda: of_records(STUDY, [one for one in both() if one.trial["precision"] == "bf16"]),
    "a CPU": lambda: of_records(STUDY, on_cpu(), hw="cpu"),
    "no records": lambda: of_records(STUDY, []),
    "no records of a CPU": lambda: of_records(STUDY, [], hw="cpu"),
}


@cache
def case_of(name: str) -> Results:
    return CASES[name]()


def trials_of(r: Results) -> list[Trial]:
    return sides.networks(r)


PARTS: dict[str, Callable[[Results], Any]] = {
    "headline": lambda r: cpu_vs_gpu.headline(r, trials_of(r)),
    "answer": lambda r: cpu_vs_gpu.answer_table(r, trials_of(r)),
    "table": lambda r: cpu_vs_gpu.table(r, trials_of(r)),
    "ratios": lambda r: cpu_vs_gpu_figures.ratios(r, trials_of(r)),
    "rates": lambda r: cpu_vs_gpu_figures.rates(r, trials_of(r)),
    "threads": lambda r: cpu_vs_gpu_figures.threads(r, trials_of(r)),
    "cost": lambda r: cost.cost_table(r, trials_of(r)),
    "days": lambda r: cost.days_table(r, trials_of(r)),
    "host": lambda r: utilisation.host_table(r, [trial for trial in trials_of(r) if trial.device == "cpu"]),
    "limitations": lambda r: cpu_vs_gpu.limitations(r, trials_of(r)),
    "prediction": lambda r: cpu_vs_gpu_plan.prediction(r.profile, [*gpu(), *cpu()]),
    "left out": lambda r: cpu_vs_gpu_plan.left_out(r.profile, trials_of(r), "quick", ()),
    "trials": lambda r: summary.trials_table([*gpu(), *cpu()], 3),
    "plan": lambda r: cpu_vs_gpu_plan.table([*gpu(), *cpu()], 3),
    "method": lambda r: method.sentence(r, "Nothing was measured now."),
}


def said(name: str, part: str) -> str:
    made_part = PARTS[part](case_of(name))
    return made_part.body if isinstance(made_part, Text) else made_part.caption  # type: ignore[no-any-return]


TRAINING, LARGE_TRAINING, INFERENCE = (Setting.of(Trial(**about)).name for about in (SMALL, LARGE, INFER))


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("case", CASES)
def test_no_part_of_the_page_fails_or_shows_nan_or_none(case: str, part: str) -> None:
    found = PARTS[part](case_of(case))
    assert isinstance(found, Figure | Table | Text)
    if isinstance(found, Figure):
        assert found.caption and found.alt and len(found.data)
        text = found.caption + found.alt + Table(found.data, "")._repr_mimebundle_()["text/html"]
    else:
        text = found._repr_mimebundle_()["text/html"]
    for odd in ("nan", "None", "NaN", "inf "):
        assert odd not in text, text


@pytest.mark.parametrize("case", ["both", "one pass", "a CPU"])
@pytest.mark.parametrize("part", ["ratios", "rates", "threads"])
def test_each_figure_draws_in_both_schemes(case: str, part: str) -> None:
    found = PARTS[part](case_of(case))
    if (case, part) == ("a CPU", "ratios"):
        assert isinstance(found, Text)
        return
    assert isinstance(found, Figure)
    for theme in (LIGHT, DARK):
        assert found.svg(theme).startswith("<")


def test_the_plan_has_a_row_for_what_models_share_and_one_for_a_sweep_of_threads() -> None:
    vgg = Trial(device="cpu", model="vgg16", batch=64)
    ceiling = Trial(workload="matmul", device="cpu", size=2048, data="none")
    made_plan = cpu_vs_gpu_plan.table([*cpu(), vgg, ceiling], 3)
    plain = made_plan.frame[(made_plan.frame["engine"] == "plain, FP32") & (made_plan.frame["batch"] == 64)]
    assert list(plain["models"]) == ["ResNet-50, VGG-16", "ResNet-50"]
    assert list(plain["threads"]) == ["default", "1, 2, 4"]
    assert (
        "The 11 trials planned" in made_plan.caption
        and "10 of networks on synthetic32, and 1 that" in made_plan.caption
    )


def test_plain_is_over_plain_and_best_over_best_within_passes() -> None:
    rows = {row.setting.name: row for row in sides.compared(case_of("both"), trials_of(case_of("both")))}
    for name, plain, best in (
        (TRAINING, 20, 20 * 3 / 1.1),  # the CPU's best is the loop with four threads
        (LARGE_TRAINING, 20, 20 * 3 / 2),
        (INFERENCE, 100, 100 * 3 / 2),
    ):
        for found, expected in ((rows[name].plain, plain), (rows[name].best, best)):
            assert found is not None and found.point == pytest.approx(expected)
            assert found.low == pytest.approx(found.high), "the noise of a pass is the same on both sides"


def test_the_best_names_how_and_the_answer_stands_beside_what_was_printed() -> None:
    frame = PARTS["answer"](case_of("both")).frame
    large = row_of(frame, **{"": LARGE_TRAINING})
    assert (large["CPU's best"], large["GPU's best"]) == ("fused, BF16", "graph, BF16")
    assert large["published"] == "5.30x" and large["GPU over CPU, plain"].startswith("20.0x")
    assert "would allow the plain loop 100x." in PARTS["answer"](case_of("both")).caption
    small = row_of(frame, **{"": TRAINING})
    assert small["CPU's best"] == "plain, FP32, 4 threads"
    assert not isinstance(small["published"], str), "what was printed is of 224 px"
    assert "5.30x (Tesla P100" in said("both", "headline") and "here, plain: 20.0x" in said("both", "headline")


def test_a_profile_of_a_cpu_says_that_it_has_no_gpu_and_what_its_best_is() -> None:
    assert "This profile has no GPU" in said("a CPU", "headline") and "openvino, FP32, 2.00x" in said(
        "a CPU", "headline"
    )
    assert "its trials are left out" in said("a CPU", "left out")
    assert "BF16 is left out on the CPU" in said("a CPU", "left out")
    assert "GPU over CPU, plain" not in PARTS["answer"](case_of("a CPU")).frame


def test_a_sweep_of_threads_has_its_speed_up_and_parallel_efficiency() -> None:
    data = sides.thread_scaling(case_of("both"), trials_of(case_of("both")))
    assert list(data["threads"]) == list(THREADS)
    assert list(data["speed-up"]) == pytest.approx([1, 1.75, 2.75])
    assert list(data["efficiency"]) == pytest.approx([1, 0.875, 2.75 / 4])
    assert "a parallel efficiency of 69 %" in said("both", "headline")


def test_the_gpus_joules_are_shown_and_the_cpus_missing_ones_have_their_reason() -> None:
    frame = PARTS["cost"](case_of("both")).frame
    assert set(frame["on"]) == {"GPU", "CPU"}, "all that asked for energy"
    plain = row_of(frame, on="GPU", engine="plain, FP32")
    assert plain["mJ/image"].startswith("5,000")  # 2,500 J over 500 images
    assert frame[frame["on"] == "CPU"]["mJ/image"].isna().all()
    assert f"Energy of the CPU can't be read: {NO_RAPL}." in said("both", "cost")
    assert f"Of the CPU it can't be read: {NO_RAPL}." in said("both", "headline")


def test_with_rapl_the_cpus_packages_are_its_energy_and_not_the_gpus() -> None:
    frame = PARTS["cost"](case_of("with RAPL")).frame
    assert row_of(frame, on="CPU", engine="plain, FP32")["mJ/image"].startswith("40,000")  # 1,000 J over 25 images
    assert row_of(frame, on="GPU", engine="plain, FP32")["mJ/image"].startswith("5,000")
    assert "can't be read" not in said("with RAPL", "cost")


def test_prices_give_the_cost_of_a_million_images_on_each_side() -> None:
    results = case_of("with prices")
    found = {t.device: cost.per_million_images(results, t) for t in (Trial(**LARGE), Trial(device="cpu", **LARGE))}
    on_gpu, of_cpu = found["cuda"], found["cpu"]
    assert on_gpu is not None and of_cpu is not None and on_gpu.low is not None and on_gpu.high is not None
    rate_of = results.interval(Trial(**LARGE), "images_per_s")
    assert rate_of is not None
    assert on_gpu.point == pytest.approx(1e6 * 3.6 / 3600 / rate_of.point) and on_gpu.low < on_gpu.point < on_gpu.high
    assert of_cpu.point == pytest.approx(2 * on_gpu.point), "a tenth of the price, a twentieth of the speed"
    assert "EUR per million images" in PARTS["cost"](results).frame
    assert "A million images, the cheapest: " in said("with prices", "headline")
    assert "GPU, GoogLeNet training, 224 px, batch 32, graph, BF16" in said("with prices", "headline")
    assert "cheapest" not in said("both", "headline")
    assert "GPU 3.60 EUR an hour (a list)" in said("with prices", "cost") and "add `cost" not in said(
        "with prices", "cost"
    )


def test_the_numbers_for_other_programs_have_the_cost_in_its_currency() -> None:
    frame = numbers(Recorded([case_of("with prices")]))
    costs = frame[frame["metric"] == "cost_per_million_images"]
    assert set(costs["unit"]) == {"EUR"} and set(costs["device"]) == {"cpu", "cuda"}
    assert "cost_per_million_images" not in set(numbers(Recorded([case_of("both")]))["metric"])


def test_a_side_without_a_price_has_none_and_says_how_to_give_one() -> None:
    results = case_of("the CPU without a price")
    assert cost.per_million_images(results, Trial(device="cpu", **LARGE)) is None
    assert "Trials on the CPU have no price" in said("the CPU without a price", "cost")
    assert "add `cost.cpu_per_hour` to params/h200.yaml" in said("the CPU without a price", "cost")
    assert "add `cost` to params/h200.yaml" in said("both", "cost")
    assert "EUR per million images" not in PARTS["cost"](case_of("both")).frame


def test_a_trial_on_one_of_several_boards_pays_its_share() -> None:
    results = case_of("with prices")
    device = results.profile.device.model_copy(update={"count": 4})
    four = replace(results, profile=results.profile.model_copy(update={"device": device}))
    whole, share = (cost.per_million_images(one, Trial(**LARGE)) for one in (results, four))
    assert whole is not None and share is not None and share.point == pytest.approx(whole.point / 4)
    same = [cost.per_million_images(one, Trial(device="cpu", **LARGE)) for one in (results, four)]
    assert same[0] == same[1]


def test_days_are_of_training_alone_at_the_measured_images_per_second() -> None:
    frame = PARTS["days"](case_of("both")).frame
    assert list(frame[""]) == [LARGE_TRAINING, TRAINING] or list(frame[""]) == [TRAINING, LARGE_TRAINING]
    large = row_of(frame, **{"": LARGE_TRAINING})
    assert large["GPU, plain (days)"].startswith("12.")  # 108 million images at 100 images/s
    assert large["CPU, plain (days)"].startswith("24")


def test_a_failure_is_a_row_and_ratios_are_missing_not_zero() -> None:
    frame = PARTS["table"](case_of("the CPU failed")).frame
    assert set(frame[frame["on"] == "CPU"]["images/s"]) == {"crashed"}
    assert "GPU over CPU, plain" not in PARTS["answer"](case_of("the CPU failed")).frame
    assert all(row.plain is None and row.best is None for row in _compared("the CPU failed"))


def test_the_best_of_a_side_is_not_the_plain_loop_for_want_of_another() -> None:
    rows = {row.setting.name: row for row in _compared("without OpenVINO")}
    refused, alone = "ResNet-50 inference, 32 px, batch 256", "VGG-16 training, 32 px, batch 64"
    for name in (refused, alone):
        assert rows[name].plain is not None
        assert rows[name].best is None
    results = case_of("without OpenVINO")
    said = cpu_vs_gpu.headline(results, trials_of(results)).body
    assert f"not known of {refused} on the CPU (unsupported: {NOT_INSTALLED})" in said
    assert alone not in said.split("each at the best of what was tried here")[1].split(".")[0]
    table = cpu_vs_gpu.answer_table(results, trials_of(results))
    assert isinstance(table, Table)
    shown = table.frame.set_index("")
    assert shown.loc[refused, "CPU's best"] is None
    assert shown.loc[refused, "GPU's best"] == "graph, BF16"
    assert shown.loc[alone, "GPU over CPU, best"] is None


def _compared(name: str) -> list[sides.Compared]:
    return sides.compared(case_of(name), trials_of(case_of(name)))


def test_key_numbers_are_the_ratios_or_of_a_cpu_alone_what_tuning_gains() -> None:
    found = cpu_vs_gpu.key_numbers(case_of("both"), trials_of(case_of("both")))
    assert [what.split(":")[0] for _, what in found] == [
        "GPU over CPU, plain, the most",
        "GPU over CPU, best, the least",
        "parallel efficiency of 4 threads",
    ]
    alone = cpu_vs_gpu.key_numbers(case_of("a CPU"), trials_of(case_of("a CPU")))
    assert alone[0][1].startswith("best of the CPU over plain, the most") and alone[0][0].startswith("2.00x")
    assert cpu_vs_gpu.key_numbers(case_of("no records"), []) == []


# ---- verdicts -------------------------------------------------------------------------------------------------------


def verdicts(name: str) -> dict[str, Any]:
    results = case_of(name)
    seen = Evidence(
        profile=results.profile.name,
        profiles=(results.profile.name,),
        available=frozenset({STUDY}),
        load=lambda *_: results,
    )
    return {found.claim.id: found for found in judge_all(load_papers(), seen, STUDY)}


def test_the_claims_pair_the_same_trial_on_both_sides() -> None:
    found = verdicts("both")
    assert {name: one.verdict for name, one in found.items()} == {
        "dell_p100-cpu": "replicated",
        "dell_p100-day": "not replicated",  # 12 days on the GPU of these records
        "wisconsin-cpu": "replicated",
    }
    cases = [case for judged in found["wisconsin-cpu"].tests for case in judged.cases]
    assert len(cases) == 2, "training and inference; a sweep of threads has no GPU beside it"
    (ratio,) = found["dell_p100-cpu"].tests[0].cases
    assert ratio.effect is not None and ratio.effect.point == pytest.approx(20)
    assert "5.30x" in ratio.published


def test_without_a_gpu_they_are_not_testable_with_a_plain_reason() -> None:
    found = verdicts("a CPU")
    assert {one.verdict for one in found.values()} == {"not testable here"}
    assert all("the profile cpu has none" in one.reason for one in found.values())


def test_the_cost_of_a_profile_is_checked() -> None:
    assert load_profile("h200").cost is None, "no price without a source"
    with pytest.raises(ValueError, match="source"):
        Cost.model_validate(
            {"per_hour": {"value": 1.0, "source": "a list"}, "cpu_per_hour": {"value": 1.0}, "currency": "EUR"}
        )
