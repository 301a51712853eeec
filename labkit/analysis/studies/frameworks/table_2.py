"""Table 2 of the P100 paper as trials: its batches, its numbers of samples, on as many devices as there are."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from labkit.analysis import engines
from labkit.analysis.format import listing, with_interval
from labkit.analysis.studies.frameworks import grids
from labkit.analysis.studies.frameworks.compared import conditions, framework, is_own
from labkit.analysis.studies.multi_gpu.scaling import counted, speed_up
from labkit.analysis.table import Table, Text
from labkit.analysis.verdicts.words import shown_effect
from labkit.models import MODELS
from labkit.papers import PublishedRun
from labkit.results.study_records import StudyRecords as Results
from labkit.statistics import Interval
from labkit.trial import Trial

ROW = "table 2"
SPEED_UP = "Speed-up over one device within each pass; printed: the paper's, on P100s. "


def trials_of(results: Results, run: PublishedRun) -> list[Trial]:
    """The trials of a run of the paper: FP32, each framework by its plainest engine."""
    found = results.trials(
        workload="train",
        epochs=0,
        model=run.model,
        image_px=run.image_px,
        batch=run.batch_of_device,
        device=run.device,
        devices=run.devices,
        precision="fp32",
        scaling="weak",
    )
    return [trial for trial in found if _is_plainest(trial)]


def _is_plainest(trial: Trial) -> bool:
    return not is_own(trial) and trial.engine == ("xla" if trial.framework == "keras-jax" else "eager")


def samples(results: Results, run: PublishedRun, trial: Trial) -> int | None:
    """Images of the whole run: as printed, or as often as printed those that the trial's data have."""
    images = results.fact(trial, "train_images")
    if run.samples is not None:
        return run.samples
    return int(images) * run.epochs if images and run.epochs else None


def run_time(results: Results, run: PublishedRun, trial: Trial) -> Interval | None:
    """Seconds that the run takes at the images/s of its timed part, input included."""
    images = samples(results, run, trial)
    each = results.interval(trial, "step_s")
    return each.scaled(images / trial.batch_of_step) if images and each else None


def table(results: Results) -> Table | Text:
    """Each of the paper's trainings that has a trial here, in every framework: images/s, its time, its speed-up."""
    shown, lacking = [], []
    for run in grids.runs():
        trials = trials_of(results, run)
        if not trials:
            lacking.append((run, _why_not(results, run)))
        for trial in trials:
            speed, took = (speed_up(results, trial) if run.devices > 1 else None), run_time(results, run, trial)
            images = samples(results, run, trial)
            shown.append(
                {
                    "the paper's": f"{run.framework} {MODELS[run.model].title}",
                    "here": framework(trial),
                    "on": counted(trial),
                    "iterations": f"{images / trial.batch_of_step:,.0f} x {trial.batch_of_step}" if images else None,
                    "images/s": with_interval(results.interval(trial, "images_per_s"), "images_per_s", unit=False),
                    "time (s)": with_interval(took, "run_s", 3, unit=False) if took else None,
                    "speed-up": shown_effect(speed, "images_per_s", "ratio") if speed else None,
                    "printed": f"{run.speed_up}x" if run.speed_up else None,
                    "no result": engines.status_without_result(results, trial),
                }
            )
    if not shown:
        return Text(f"No training of the paper's {ROW} was run here. {_lacking(lacking)}")
    title = grids.paper().citation.title
    frame = pd.DataFrame(shown, dtype=object)
    frame = engines.concise(frame.where(frame.notna(), None), ("speed-up", "of linear", "printed", "no result"))
    trials = [trial for run in grids.runs() for trial in trials_of(results, run)]
    return Table(
        frame,
        f"The trainings of '{title}', {ROW}, with its batches, in FP32, each framework by its plainest engine "
        "(eager, on JAX XLA's). Time: what the samples take at the images/s "
        "measured here, with their way from the loader to the device; the paper's own times and images/s were printed "
        "as pictures only. Iterations: of those samples; where the paper counts an epoch, of this report's images. "
        f"{SPEED_UP if 'speed-up' in frame else ''}{_lacking(lacking)} {conditions(results, trials)}. 95 % intervals.",
    )


def _why_not(results: Results, run: PublishedRun) -> str:
    """Why a run has no trial on this page."""
    if reason := grids.why_not_built(run):
        return reason
    kind = results.profile.device.kind
    if run.device != kind:
        return "of GPUs" if run.device == "cuda" else "of a CPU, which 06_cpu_vs_gpu compares with a GPU"
    if run.devices > results.profile.device.count:
        return f"more devices than the profile's {results.profile.device.count}"
    return f"not at scale {results.scale}"


def _lacking(lacking: Sequence[tuple[PublishedRun, str]]) -> str:
    """Which runs are not here, by their reasons."""
    by_reason: dict[str, dict[str, list[int]]] = {}
    for run, why in lacking:
        by_reason.setdefault(why, {}).setdefault(f"{run.framework} {MODELS[run.model].title}", []).append(run.devices)
    said = [
        f"{listing([f'{name} on {listing(list(map(str, counts)))}' for name, counts in of.items()])} ({why})"
        for why, of in by_reason.items()
    ]
    return f"Not here: {'; '.join(said)}." if said else ""
