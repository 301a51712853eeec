"""Prepares a trial: opens its data, builds and prepares its workload, and checks the first step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from labkit.data import DataSet, open_by_checksum
from workbook import ranks
from workbook.datasets import stored_by_checksum
from workbook.engines.keras.back_end import free_keras, reset_peak_of_keras
from workbook.engines.state import begin_anew, reset_compiler, reset_peak_memory
from workbook.errors import Unsupported
from workbook.hardware.frameworks import is_keras
from workbook.runner.nodes.equality import why_not_over_nodes
from workbook.storage import StoredSet
from workbook.trials.trial import NO_DATA, Trial
from workbook.workloads import Workload, build_workload


class Data:
    """What the trials of a process share: data sets, the folder of weights, the user's network, whether any compiled.

    Each data set is opened once.
    """

    def __init__(self, weights: Path | None = None, network: str | None = None) -> None:
        self.compiles, self.weights, self.network = False, weights, network
        self._open: dict[tuple[str, ...], DataSet | StoredSet] = {}

    def of(self, trial: Trial) -> DataSet | StoredSet | None:
        """Return the trial's data set; None for a workload without data."""
        if trial.data == NO_DATA:
            return None
        form = trial.form
        identity = (form, trial.data, trial.data_checksum)
        if identity not in self._open:
            name, checksum = identity[1:]
            opened = open_by_checksum(name, checksum) if form == "embedded" else stored_by_checksum(form, checksum)
            self._open[identity] = opened
        return self._open[identity]


def prepared_workload(
    trial: Trial,
    pass_number: int,
    data: Data,
    close_phase: Callable[[str], None],
    on_preparation: Callable[[str], None],
    *,
    gate_passed: bool = False,
) -> tuple[Workload, Trial]:
    """Return the trial's workload after its first, checked step, and the trial with this pass's seed.

    Every rank of a team must make this call. `close_phase` is called with each phase's name when the phase ends,
    `on_preparation` with each preparation's name when it begins. With `gate_passed` nothing is compared.

    Raise Unsupported if the trial cannot be built,
    GateError if the check fails, and any other exception of the trial.
    """
    if trial.framework == "torch":
        # A compiled trial's state in Dynamo would affect later trials. Dynamo takes 5 s to reset for the first time.
        if data.compiles or "compile" in trial.engine:
            data.compiles = True
            reset_compiler()
        begin_anew(trial.device)
    elif is_keras(trial.framework):
        free_keras(trial.framework)
    if trial.epochs:  # training runs of different passes start from different weights and orders
        trial = replace(trial, seed=trial.seed + pass_number - 1)
    workload = _built(trial, data)
    if gate_passed:
        workload.leave_out_gate()
    close_phase("build")
    for name, prepare in workload.preparations():
        on_preparation(name)
        prepare()
        close_phase(name)
    workload.check()
    if workload.read_loss:
        workload.read_loss()  # discards the loss of the gate's step, which is not part of the warm-up
    close_phase("first_step")
    # In the first step cuDNN tries its algorithms, some with huge workspaces that training does not need.
    if trial.framework == "torch":
        reset_peak_memory(trial.device)
    elif is_keras(trial.framework):
        reset_peak_of_keras(trial.framework, trial.device)
    return workload, trial


def _built(trial: Trial, data: Data) -> Workload:
    """Return the workload. Raise Unsupported on every rank of a team if any rank cannot build it."""
    team, workload = ranks.team(), None
    refused: Unsupported | None = None
    try:
        if reason := why_not_over_nodes(trial, team):
            raise Unsupported(reason)
        if trial.processes != (team.size if team else 1):
            raise Unsupported(f"the trial asks for {trial.devices} devices, and fewer are usable here")
        workload = build_workload(trial, data.of(trial), data.weights, data.network)
        for asked, ability, lacks in (
            (trial.queries, workload.query, "answers no queries"),
            (trial.scored, workload.score, "scores no images"),
            (trial.samples, workload.draw_samples, "makes no images, so it has no samples"),
            (trial.epochs, workload.stored or workload.evaluate, "does not train whole epochs"),
        ):
            if asked and ability is None:
                raise Unsupported(f"the {trial.workload} workload {lacks}", "version")
    except Unsupported as error:
        if team is None:
            raise
        refused = error
    if team is not None:
        team.agree(refused)
    assert workload is not None
    return workload
