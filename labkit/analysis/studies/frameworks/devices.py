"""Several devices in each framework: images/s beside one device's. What they buy in PyTorch is a study of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd

from labkit.analysis import engines
from labkit.analysis.format import with_interval
from labkit.analysis.results import Results
from labkit.analysis.studies.frameworks.compared import Setting, conditions, how
from labkit.analysis.studies.multi_gpu.scaling import counted, share_words, speed_up
from labkit.analysis.table import Table, Text
from labkit.analysis.verdicts.words import shown_effect


def table(results: Results) -> Table | Text:
    """Images/s on every number of devices in each framework, beside one device."""
    several = [t for t in results.trials(workload="train", epochs=0) if t.devices > 1]
    if not several:
        count = results.profile.device.count
        return Text(
            "This page has trainings on one device only"
            + (": the profile has no other." if count == 1 else ".")
            + " What more devices buy in PyTorch is the question of `03_multi_gpu`."
        )
    shown: list[dict[str, Any]] = []
    for alike in dict.fromkeys(replace(trial, devices=1) for trial in several):
        same = [t for t in results.by_trial if replace(t, devices=1) == alike]
        for trial in sorted(same, key=lambda one: one.devices):
            speed = speed_up(results, trial) if trial.devices > 1 else None
            shown.append(
                {
                    "": Setting.of(trial).network,
                    "by": f"{how(trial)}, {trial.precision.upper()}",
                    "on": counted(trial),
                    "images/s": with_interval(results.interval(trial, "images_per_s"), "images_per_s", unit=False),
                    "speed-up": shown_effect(speed, "images_per_s", "ratio") if speed else None,
                    "of linear": share_words(speed.scaled(1 / trial.devices)) if speed else None,
                    "no result": engines.status_without_result(results, trial),
                }
            )
    frame = pd.DataFrame(shown, dtype=object)
    return Table(
        engines.concise(frame.where(frame.notna(), None), ("no result", "speed-up", "of linear")),
        "Each device's batch held: images/s of all devices together, and their ratio to one device's within each pass. "
        f"{conditions(results, several)}. 95 % intervals.",
    )
