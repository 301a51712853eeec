"""Committed records under reports/ are complete, describe their host, are small, and intervals cover their noise."""

from __future__ import annotations

import gzip
import json
import math
import subprocess
from functools import cache
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from tests.committed import committed_reports
from tests.faulty.campaign import HOST
from workbook.hardware.host import source_of
from workbook.hardware.profile import load_profile
from workbook.paths import ROOT
from workbook.records import Blocks, Record
from workbook.records.after_traces import waits_for_launches
from workbook.records.selection import at_scale, is_complete, scale_to_show
from workbook.records.shared import read_together
from workbook.records.store import Store
from workbook.registry import SCALES, SMALL, STUDIES
from workbook.report.keep import LIMIT_BYTES
from workbook.runner.plan import pass_at, planned_s
from workbook.session import Session
from workbook.statistics import log_interval
from workbook.trials.trial import Trial

# The least share of a pass for gate, warm-up and timed parts. At scale quick, a pass on a CPU lasts 35 to 45 s. The
# imports of a new process take 7 to 10 s of it: PyTorch, then, with the first network, torchvision and Dynamo, which
# PyTorch's optimisers also import. Pauses take 1.5 s. One or two threads fill VGG-16's weights and the copy's 268 MB in
# 2 to 4 s. All this is up to 38 % in the committed records. A harness that wastes 2 to 4 s more breaks the bound.
MEASURING_SHARE = {"cuda": 0.7, "cpu": 0.6}
# Smaller shares. 08 has trials of 1.2 s, each between two pauses of half a second for telemetry. 11 has frameworks that
# import longer than they compute. 03 starts groups of processes for each way between devices, and times messages for
# 0.3 s. On one GPU it has eleven trials, of 30 s, and starts as many processes for two jobs as for one: 51 %. 12 starts
# up to 16 workers for each loader, and empties or fills the page cache.
SHORT = {"03_multi_gpu": 0.5, "08_quantization": 0.6, "11_frameworks": 0.5, "12_data_pipeline": 0.55}
# Where few trials fill a pass, imports weigh more. On the CPU other studies measured trials of 05, 07, 08 and 11; of
# 07, two are left, and of 08, four to seven. On the H200 a short pass of 04 has four trials of 2.4 s, and a short pass
# of 10 eleven of 0.7 s. A short pass of 08 has one trial on both GPUs, and one
# of 11 has nine trials of 2 s beside the imports of Keras.
FEW_OF_ITS_OWN = {
    ("cpu", "05_inference", "8215aab88c5a"): 0.54,
    ("cpu", "08_quantization", "8215aab88c5a"): 0.4,
    ("cpu", "11_frameworks", "8215aab88c5a"): 0.47,
    ("cpu", "07_precision", "c8356bb2d1ac"): 0.4,
    ("cpu", "08_quantization", "c8356bb2d1ac"): 0.5,
    ("cpu", "11_frameworks", "c8356bb2d1ac"): 0.42,
    ("cpu", "07_precision", "078e75187d3a"): 0.4,
    ("cpu", "08_quantization", "078e75187d3a"): 0.5,
    ("cpu", "11_frameworks", "078e75187d3a"): 0.42,
    ("h200", "04_power", "dd5f463fbb1f"): 0.5,
    ("h200", "08_quantization", "610a12fb508c"): 0.43,
    ("h200", "10_gan", "610a12fb508c"): 0.6,
    ("h200", "11_frameworks", "67ca168cf0f4"): 0.45,
    ("h100", "08_quantization", "1578a499d0c8"): 0.5,
}
# Passes that the end of a call interrupted: a second process imports again.
INTERRUPTED = {
    ("h100", "01_training", "5986c7f97bad"): {3, 5},
    ("h200", "01_training", "f57d4943a4be"): {3},
    ("h200", "02_batch_size", "6346e26edeed"): {2, 4},
    ("h200", "08_quantization", "610a12fb508c"): {1, 3},
}
# The number of records that a host lacks, because its time ran out.
CUT_OFF = {
    ("h200_x2", "03_multi_gpu", "dd025893b696"): 1,
    ("h200_x2", "03_multi_gpu", "cfb229591c1c"): 167,
    ("h200_x4", "03_multi_gpu", "3056c92725b2"): 117,
    ("h100_x4", "03_multi_gpu", "e605d018d142"): 193,
    ("h100_x2", "03_multi_gpu", "59e6874fb276"): 217,
    ("h100_x2", "03_multi_gpu", "a3e0b87a887f"): 65,
    ("h200", "01_training", "cccc70150c62"): 18,
    ("h200", "01_training", "487bb03cdb29"): 32,
    ("h200", "01_training", "f57d4943a4be"): 10,
    ("h200", "01_training", "129a7e46634c"): 60,
    ("h200", "01_training", "4a335710f74d"): 38,
    ("h200", "02_batch_size", "6346e26edeed"): 4,
    ("h200", "04_power", "4fc9fc749f4e"): 26,
    ("h200", "04_power", "563e0c9cbb5d"): 24,
    ("h200", "06_cpu_vs_gpu", "66f6a44bd546"): 158,
    ("h200", "07_precision", "c47dbaaf7234"): 83,
    ("h200", "08_quantization", "610a12fb508c"): 1,
    ("h200", "09_profile", "c47dbaaf7234"): 94,
    ("h200", "09_profile", "67ca168cf0f4"): 101,
    ("h200", "10_gan", "610a12fb508c"): 15,
    ("h200", "12_data_pipeline", "ba9325dbda59"): 108,
    ("h200", "14_today", "89bb84c108db"): 138,
    ("h200", "14_today", "05369192f117"): 96,
    ("h200", "14_today", "76cd9c110e85"): 125,
    ("h200", "14_today", "1f1901c5f9d2"): 142,
    ("h200", "14_today", "955bbced55b9"): 141,
    ("h200", "14_today", "d5c259a4f258"): 129,
    ("h200", "14_today", "c35bc5e1c94a"): 135,
    ("h100", "08_quantization", "1578a499d0c8"): 1,
    ("h100", "09_profile", "5986c7f97bad"): 78,
    ("h100", "09_profile", "3eaba35b6c3d"): 59,
    ("h100", "10_gan", "1578a499d0c8"): 24,
}
# The files of these records were a commit's, on a machine whose git stood at an earlier commit.
COMMITTED_LATER = {"d02e1d0d05ee+": "c4f0ec7c6c36"}
MEASURING = (
    *("reference", "first_step", "warmup", "timed", "queries", "validation", "scoring", "steps_before"),
    *("traced_steps", "short_trace"),
)
# Done on request and timed separately, so not part of a pass.
PREPARING = ("weights", "convert", "calibrate", "trace", "compile", "capture", "nsight")
COVERAGE = (0.93, 0.97)


# (profile, study, host) of every committed file of records. Tests read the files when they need them.
COMMITTED = [
    (report.name, study, host)
    for report in sorted(committed_reports().glob("*"))
    for study in STUDIES
    for host in Store(report).hosts(study)
]


@cache
def records_of(profile: str, study: str, host: str) -> list[Record]:
    return Store(committed_reports() / profile).read(study, host)


each = pytest.mark.parametrize(("profile", "study", "host"), COMMITTED, ids=["-".join(place) for place in COMMITTED])


@each
def test_the_host_of_records_is_described_and_fits_the_profile(profile: str, study: str, host: str) -> None:
    records = records_of(profile, study, host)
    described = json.loads((committed_reports() / profile / "hosts" / f"{host}.json").read_text())
    assert described["id"] == host
    device = load_profile(profile).device
    if device.kind == "cuda":
        assert len(described["gpus"]) >= device.count
        beside = {"cpu"} if study == "06_cpu_vs_gpu" else set()
        assert {"cuda"} <= {record.trial["device"] for record in records} <= {"cuda"} | beside
        assert described["gpus"][0]["compute_capability"] == device.compute_capability


def test_every_commit_of_the_records_is_in_the_history() -> None:
    """A shallow clone, and a copy without git, can not tell."""
    shallow = subprocess.run(
        ["git", "rev-parse", "--is-shallow-repository"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if shallow.stdout.strip() != "false":
        pytest.skip("this copy of the project has no whole history")
    named = {record.versions["commit"].removesuffix("+") for place in COMMITTED for record in records_of(*place)}
    objects = subprocess.run(
        ["git", "cat-file", "--batch-check"],
        input="\n".join(named),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert {line.split()[0] for line in objects.stdout.splitlines() if line.endswith("missing")} == set()


@each
def test_a_scale_is_complete_and_every_number_can_be_traced(profile: str, study: str, host: str) -> None:
    records = records_of(profile, study, host)
    together = read_together(Store(committed_reports() / profile), study, host).records
    if not any(is_complete(together, scale) for scale in SCALES):
        tried = {(record.key, record.pass_number) for record in together}
        assert sum(records[-1].planned.passes.values()) - len(tried) == CUT_OFF[profile, study, host]
    for record in records:
        assert record.study == study and record.host == host and record.scale != SMALL
        assert record.as_trial.key == record.key, "today's code gives the same key"
        assert record.versions.get("commit") and record.versions.get("source")
        if record.versions["commit"].endswith("+"):  # changed files, unless they are those of a later commit
            source = source_of(COMMITTED_LATER[record.versions["commit"]])
            assert source in (None, record.versions["source"]), "a copy without the history can't tell"


@each
def test_most_of_a_pass_is_spent_measuring(profile: str, study: str, host: str) -> None:
    records = records_of(profile, study, host)
    shown = at_scale(records, scale_to_show(records) or "")
    numbers = {record.pass_number for record in shown} - INTERRUPTED.get((profile, study, host), set())
    if (profile, study, host) in CUT_OFF and len(numbers) > 1:
        numbers.remove(max(numbers))  # few of its trials ran after the start of its processes
    for number in numbers:
        of_pass = [record for record in shown if record.pass_number == number and record.status != "unsupported"]
        startup_s = sum({record.process.id: record.process.startup_s for record in of_pass}.values())
        measuring_s = sum(record.phases_s.get(phase, 0.0) for record in of_pass for phase in MEASURING)
        preparing_s = sum(record.phases_s.get(phase, 0.0) for record in of_pass for phase in PREPARING)
        total_s = startup_s + sum(record.wall_s for record in of_pass) - preparing_s
        usual = SHORT.get(study, MEASURING_SHARE[load_profile(profile).device.kind])
        least = FEW_OF_ITS_OWN.get((profile, study, host), usual)
        if all(record.short for record in of_pass):  # bursts of tiny operations lie between the blocks
            least -= 0.1
        if 2 * len({record.process.id for record in of_pass}) > len(of_pass):  # each initialises CUDA: 1 to 2 s
            least -= 0.1
        assert measuring_s >= least * total_s


@pytest.mark.parametrize("is_first", [True, False])
def test_a_plan_without_records_says_about_what_a_gpu_takes(is_first: bool) -> None:
    """On a CPU a single step may last longer than the timed part, which no plan without records knows."""
    shares = {}
    for profile, study, host in COMMITTED:
        gpu = load_profile(profile)
        session = Session(profile=gpu, host=HOST, store=Store(Path("none")), scale="quick")
        of_pass = [
            record
            for record in at_scale(records_of(profile, study, host), "quick")
            if record.status == "ok" and not record.short and (record.pass_number == 1) == is_first
        ]
        if gpu.device.kind == "cuda" and len(of_pass) >= 15 and {record.protocol for record in of_pass} == {3}:
            planned = [planned_s(of.as_trial, pass_at(session, study, of.pass_number)) for of in of_pass]
            shares[profile, study, host] = sum(of.wall_s for of in of_pass) / sum(planned)
    assert len(shares) > 15
    assert {place: share for place, share in shares.items() if not 0.4 < share < 1.8} == {}


def test_no_committed_file_is_one_that_git_ignores() -> None:
    command = ["git", "ls-files", "--cached", "--ignored", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("this copy of the project is no checkout of git")
    assert listed.stdout.splitlines() == []


def test_a_profile_stays_within_its_limit() -> None:
    for report in committed_reports().glob("*"):
        kept = [path for name in ("records", "hosts", "telemetry") for path in (report / name).rglob("*")]
        sizes = [path.stat().st_size for path in kept if path.is_file() and "aside" not in path.parts]
        assert sum(sizes) <= LIMIT_BYTES, f"make pack HW={report.name}"


def test_records_contain_no_path_of_this_machine() -> None:
    for path in committed_reports().glob("*/[hr]*/**/*.json*"):
        text = (gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()).decode()
        assert str(Path.home()) + "/" not in text and str(ROOT) not in text


@pytest.mark.parametrize("study", ["01_training", "04_power"])
def test_telemetry_of_the_h200_is_complete_and_cheap(study: str) -> None:
    shares: dict[str, list[float]] = {}
    for record in of_h200(study):
        telemetry = record.telemetry
        if record.status == "withdrawn":
            continue
        assert telemetry is not None and telemetry.status == "ok" and not telemetry.gaps
        assert all(not window.gap_s for window in telemetry.windows.values())
        assert telemetry.sampler_cpu_share is not None and telemetry.sampler_cpu_share < 0.05
        shares.setdefault(record.host, []).append(telemetry.sampler_cpu_share)
        tensor, busy = (telemetry.mean("timed", "gpu0", f"{unit}_activity") for unit in ("tensor", "sm"))
        assert tensor is not None and busy is not None and 0 <= tensor <= busy <= 1
    assert shares
    assert all(np.median(of_host) < 0.025 for of_host in shares.values()), "a single short trial may take more"


def test_energy_windows_of_the_h200_are_long_and_agree_with_the_sampled_power() -> None:
    for record in of_h200("04_power"):
        telemetry = record.telemetry
        assert telemetry is not None
        if record.short:
            assert not telemetry.energy
            continue
        assert len(telemetry.energy) == record.as_trial.energy_windows
        assert all(window.length_s >= 5 for window in telemetry.energy)
        joules = [window.energy_j["gpu0"] for window in telemetry.energy]
        metered = sum(joule for joule in joules if joule is not None) / sum(span.length_s for span in telemetry.energy)
        assert None not in joules and metered == pytest.approx(telemetry.mean("timed", "gpu0", "power_w"), rel=0.03)


def test_the_first_energy_window_of_a_run_has_the_mean_of_all() -> None:
    """So tables pool runs of one and of three windows."""
    firsts: dict[tuple[str, ...], list[float]] = {}
    for profile, study, host in COMMITTED:
        for record in records_of(profile, study, host) if profile in ("h100", "h200") else []:
            if record.as_trial.energy_windows > 1 and record.telemetry and record.telemetry.energy:
                powers = [(window.energy_j["gpu0"] or math.nan) / window.length_s for window in record.telemetry.energy]
                trial = record.as_trial
                configuration = trial.workload, trial.model, trial.precision, trial.engine
                firsts.setdefault(configuration, []).append(powers[0] / np.mean(powers))
    several = {configuration: of for configuration, of in firsts.items() if len(of) >= 6}  # 3 runs scatter by 7 %
    assert len(several) >= 8
    for configuration, of in several.items():  # eager loops, with six runs each, wait for their CPUs
        assert np.median(of) == pytest.approx(1, rel=0.01 if len(of) >= 9 else 0.015), configuration
    assert np.median(list(chain(*several.values()))) == pytest.approx(1, rel=0.002)


def test_a_step_takes_as_long_in_energy_windows_as_in_the_usual_time() -> None:
    """So verdicts and tables on times pool runs with and without windows. Steps that wait for launches scatter more."""
    steps: dict[tuple[str, str, Trial], tuple[list[float], list[float]]] = {}
    for profile, study, host in COMMITTED:
        for record in records_of(profile, study, host) if profile in ("h100", "h200") else []:
            trial = record.as_trial
            if (
                record.blocks
                and not trial.is_sustained
                and ("graph" in trial.engine or waits_for_launches(record) is False)
            ):
                of_timing = steps.setdefault((profile, host, trial.only_timed()), ([], []))
                of_timing[trial.energy_windows > 0].append(record.blocks.step_s)
    shares = [np.median(metered) / np.median(usual) for usual, metered in steps.values() if usual and metered]
    deviations = np.abs(np.log(shares))
    assert len(shares) >= 25 and np.median(shares) == pytest.approx(1, rel=0.002)
    assert np.quantile(deviations, 0.9) < 0.01 and max(deviations) < 0.04


def test_equal_gpus_have_nearly_the_same_peaks() -> None:
    """A product in a slow layout, or beside other work, would be a wrong peak for every share of it."""
    steps: dict[tuple[str, str, int], list[float]] = {}
    for profile, study, host in COMMITTED:
        for record in records_of(profile, study, host) if profile in ("h100", "h200") else []:
            trial, result = record.as_trial, record.result
            is_peak = trial.workload in ("matmul", "memory_copy") and trial.device == "cuda"
            if is_peak and isinstance(result, Blocks):
                steps.setdefault((profile, record.key, record.protocol), []).append(float(np.median(result.step_s)))
    assert max(map(len, steps.values())) > 10
    for key, values in steps.items():
        assert max(values) < 1.1 * min(values), key


def of_h200(study: str) -> list[Record]:
    hosts = [host for profile, about, host in COMMITTED if (profile, about) == ("h200", study)]
    return [record for host in hosts for record in records_of("h200", study, host)]


def shown_trainings() -> list[list[Record]]:
    """Return the passes of every training trial that a page shows and that has at least three."""
    trials: dict[tuple[str, str], list[Record]] = {}
    for profile, study, host in COMMITTED:
        records = records_of(profile, study, host)
        for record in at_scale(records, scale_to_show(records) or ""):
            if record.blocks and record.blocks.images_per_step:
                trials.setdefault((profile + host, record.key), []).append(record)
    return [passes for passes in trials.values() if len(passes) >= 3]


def simulated_rates(passes: list[Record], draws: int, number: int, rng: np.random.Generator) -> np.ndarray:
    """Return images/s of simulated passes, in the shape (draws, number), with the recorded noise of passes and blocks.

    The pass effect is normal on the logarithm, because three to six passes show its size but not its shape. The blocks
    of a simulated pass are drawn from those of a recorded pass, including stalls.
    """
    blocks = [np.array(record.blocks.host_s) for record in passes if record.blocks]
    logs = np.log([1 / block.mean() for block in blocks])
    effect = np.exp(rng.normal(0, logs.std(ddof=1), (draws, number)))
    chosen = blocks[0] / blocks[0].mean()
    block_s = rng.choice(chosen, (draws, number, len(chosen))) / effect[:, :, None]
    return np.asarray(1 / block_s.mean(axis=2))


@pytest.mark.parametrize("passes", [3, 6])
def test_intervals_contain_the_truth_of_simulated_passes(passes: int) -> None:
    """The pages' intervals (`log_interval`) contain the truth in 93-97 % of simulated reports of one host.

    How often a host's interval contains another host's result is a finding, not a test (`workbook.studies.machines`).
    """
    rng = np.random.default_rng(20)
    trials = shown_trainings()
    covered = []
    for trial in trials:
        rates = simulated_rates(trial, 12_000 // len(trials), passes, rng)
        truth = float(np.exp(np.log(rates).mean()))
        for pass_rates in rates:
            interval = log_interval(list(pass_rates))
            assert interval.low is not None and interval.high is not None
            covered.append(interval.low <= truth <= interval.high)
    assert COVERAGE[0] <= float(np.mean(covered)) <= COVERAGE[1]
