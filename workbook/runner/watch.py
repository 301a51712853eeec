"""Telemetry beside a study's trials: the sampling process, each trial's windows, and the series in Parquet.

A failure of telemetry costs telemetry and never a trial.
"""

from __future__ import annotations

import sys
import time
import traceback

from labkit.telemetry import summary as observed
from labkit.telemetry.process import TelemetryProcess
from labkit.telemetry.series import Span
from labkit.telemetry.windows import Marks, Recording
from workbook.records import Blocks
from workbook.session import Session
from workbook.trials.trial import Trial
from workbook.words import configuration_name


class Watch:
    """The telemetry of one call of `measure`. Use as a context. `one_device` says that every trial has one device."""

    def __init__(self, study: str, session: Session, *, one_device: bool = False) -> None:
        from workbook.records.series_store import SeriesStore

        self._gpus, report = session.devices, session.store.report
        log = report / "logs" / f"{study}-telemetry.log"
        self._process = TelemetryProcess(self._gpus, log=log, one_device=one_device)
        self._series = SeriesStore(report, session.host.id, study)
        self._last: tuple[Recording, float] | None = None  # the last trial's, until `keep` stores it

    def __enter__(self) -> Watch:
        self._process.__enter__()
        self._process.ready()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.end()

    def begin_pass(self) -> None:
        """Restart telemetry if it has died or fallen silent, before the first process of a pass."""
        self._process.revive()

    def of_trial(self, trial: Trial, *, result: Blocks | None, windows: dict[str, Span]) -> observed.Telemetry | None:
        """Return the telemetry of the trial just ended, `lost` if it fails; None for a trial without timed blocks."""
        self._last = None
        if result is None or result.began_s is None or not windows:
            return None
        try:
            spans = {name: (float(a), float(b)) for name, (a, b) in windows.items()}
            # An idle board is not part of the trial, and a trial on the CPU has no board.
            used = [f"gpu{index}" for index in self._gpus[: trial.devices_of_node]] if trial.device == "cuda" else []
            telemetry, recording = self._process.cut(Marks.of(result, spans), gpus=used)
            self._last = (recording, result.began_s)
            return telemetry
        except Exception as error:  # noqa: BLE001 - a fault of telemetry must not cost the trial
            traceback.print_exc()
            return observed.Telemetry(status="lost", reason=f"telemetry failed: {type(error).__name__}: {error}")

    def keep(self, trial: Trial, *, scale: str, pass_number: int) -> None:
        """Store the series of a recorded trial, and restart telemetry if it has died or fallen silent."""
        try:
            if self._last is not None:
                recording, zero = self._last
                self._series.put(recording.series, scale=scale, key=trial.key, pass_number=pass_number, zero=zero)
            self._process.revive()
            self._process.forget_before(time.monotonic())
        except Exception as error:  # noqa: BLE001 - most likely a full disk; the trial is recorded
            print(f"The telemetry series of {configuration_name(trial)} could not be kept: {error}.", file=sys.stderr)  # noqa: T201
