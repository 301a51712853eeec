"""What several studies ask of one configuration, so that it has one key and is measured once.

Latency queries and traces follow the timed blocks and change none of their numbers, but they are part of a trial's key.
The studies of latencies, traces and several devices say which configurations have them, and each study plans the same
keys. Energy windows replace the timed blocks, so they have keys of their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from workbook.studies import inference_trials, profile
from workbook.studies.planner import Planner, Sweep
from workbook.trials import recipes
from workbook.trials.trial import ASKED_AFTER, Trial

LATENCIES, TRACES, EXCHANGES, ENERGIES = "05_inference", "09_profile", "03_multi_gpu", "04_power"


def shared(lab: Planner, trials: Iterable[Trial]) -> list[Trial]:
    """Return the trials, each once, with the queries and traces that other studies ask of the same configurations.

    Timed trainings of one job on several devices trace the steps that the study of several devices asks for. A trial
    that asks for something itself, or for energy windows, stays as it is.
    """
    asked = inference_trials.queried(lab, lab.profile.sweep(LATENCIES, lab.scale))
    asked += profile.traced(lab, lab.profile.sweep(TRACES, lab.scale))
    exchanges: Sweep = lab.profile.sweep(EXCHANGES, lab.scale)
    by_configuration = {_configuration(trial.only_timed()): trial for trial in asked}

    def with_requests(trial: Trial) -> Trial:
        alone = trial.workload == "train" and not trial.epochs and trial.arrangement == "alone"
        exchanges_gradients = alone and trial.devices > 1 and trial.parallel == "ranks"
        if exchanges_gradients and trial == trial.only_timed():
            return replace(trial, traced_iterations=exchanges["traced_iterations"])
        requests = by_configuration.get(_configuration(trial))
        return replace(trial, **{name: getattr(requests, name) for name in ASKED_AFTER}) if requests else trial

    return list(dict.fromkeys(map(with_requests, trials)))


def metered(lab: Planner) -> list[Trial]:
    """Return ordinary and optimised trainings over energy windows, as the study of power asks for them."""
    sweep: Sweep = lab.profile.sweep(ENERGIES, lab.scale)
    kind, cpu = lab.profile.device.kind, lab.cpu
    about = {name: sweep[name] for name in ("batch", "energy_windows")} | {"workload": "train", "model": sweep["tuned"]}
    chosen = recipes.ordinary(kind) + recipes.of_side([sweep["tuned_engine"]], kind, "train", cpu_features=cpu.features)
    return [trial for recipe in chosen for trial in lab.trials(**about, **recipe)]


def _configuration(trial: Trial) -> Trial:
    """Return the trial without its images: with a validation set, studies time other images than they score."""
    return replace(trial, data=Trial().data, data_checksum="")
