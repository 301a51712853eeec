"""Several devices in each framework: images/s beside one device's. What they buy in PyTorch is a study of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from labkit.analysis import engines
from labkit.analysis.format import listing, percent, with_interval
from labkit.analysis.studies.frameworks import grids, table_2
from labkit.analysis.studies.frameworks.compared import Setting, conditions, how
from labkit.analysis.studies.multi_gpu.scaling import counted, speed_up
from labkit.analysis.table import Table, Text
from labkit.analysis.verdicts.words import shown_effect
from labkit.results.study_records import StudyRecords as Results
from labkit.trial import FRAMEWORKS, Trial


def table(results: Results) -> Table | Text:
    """Images/s on every number of devices in each framework, beside one device; without the paper's trainings."""
    papers = {trial for run in grids.runs() for trial in table_2.trials_of(results, run)}
    timed = [trial for trial in results.trials(workload="train", epochs=0) if trial not in papers]
    several = [trial for trial in timed if trial.devices > 1]
    if not several:
        count = results.profile.device.count
        return Text(
            "This page has no other trainings on several devices"
            + (": the profile has one." if count == 1 else ".")
            + " What more devices buy in PyTorch is the question of 03_multi_gpu."
        )
    order = list(dict.fromkeys(Setting.of(trial) for trial in several))
    alike = list(dict.fromkeys(replace(trial, devices=1) for trial in several))
    alike.sort(key=lambda trial: (order.index(Setting.of(trial)), FRAMEWORKS.index(trial.framework)))
    shown = [row for one in alike for row in _rows(results, [t for t in timed if replace(t, devices=1) == one])]
    frame = pd.DataFrame(shown, dtype=object)
    networks = listing([setting.name for setting in order])
    return Table(
        engines.concise(
            frame.where(frame.notna(), None).drop(columns=["network"] if len(order) == 1 else []),
            ("no result", "speed-up", "of linear"),
        ),
        f"{networks}, each device's batch held: images/s of all devices together, and their ratio to one device's "
        f"within each pass. {conditions(results, several)}. 95 % intervals.",
    )


def _rows(results: Results, alike: Sequence[Trial]) -> list[dict[str, Any]]:
    """A row a number of devices; one for all of them where a framework has no result on several."""
    ordered = sorted(alike, key=lambda one: one.devices)
    lost = [trial for trial in ordered if trial.devices > 1]
    if not any(results.ok(trial) for trial in lost):
        counts = listing([str(trial.devices) for trial in lost])
        return [_row(results, lost[-1]) | {"on": f"{counts} {counted(lost[-1]).split(' ', 1)[1]}"}]
    return [_row(results, trial) for trial in ordered]


def _row(results: Results, trial: Trial) -> dict[str, Any]:
    speed, rate = speed_up(results, trial) if trial.devices > 1 else None, results.interval(trial, "images_per_s")
    return {
        "network": Setting.of(trial).network,
        "by": f"{how(trial)}, {trial.precision.upper()}",
        "on": counted(trial),
        "images/s": with_interval(rate, "images_per_s", unit=False),
        "speed-up": shown_effect(speed, "images_per_s", "ratio") if speed else None,
        "of linear": percent(speed.point / trial.devices) if speed else None,
        "no result": engines.status_without_result(results, trial),
    }
