"""Telemetry beside a study's trials: the process, the windows of each trial, the series kept in Parquet.

Whatever happens here costs telemetry and never a trial.
"""

from __future__ import annotations

import sys
import time
import traceback

from labkit.hardware.host import Host
from labkit.hardware.matching import device_indices
from labkit.hardware.profile import Profile
from labkit.records import Blocks, observed
from labkit.records.series import Span
from labkit.records.store import Store
from labkit.telemetry.process import TelemetryProcess
from labkit.telemetry.windows import Marks, Recording
from labkit.trial import Trial
from labkit.trial_label import trial_label


class Watch:
    """The telemetry of one call of `measure`, all of whose trials have `one_device` or not. Use as a context."""

    def __init__(self, study: str, profile: Profile, host: Host, store: Store, *, one_device: bool = False) -> None:
        from labkit.records.series_store import (
            SeriesStore,  # with pandas: here, not between trials, not to import labkit.run
        )

        self._gpus = device_indices(profile, host) if profile.device.kind == "cuda" else []
        log = store.report / "logs" / f"{study}-telemetry.log"
        self._process = TelemetryProcess(self._gpus, log=log, one_device=one_device)
        self._series = SeriesStore(store.report, host.id, study)
        self._last: tuple[Recording, float] | None = None  # of the trial that has just ended, not kept yet

    def __enter__(self) -> Watch:
        self._process.__enter__()
        self._process.ready()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.end()

    def begin_pass(self) -> None:
        """See that telemetry runs before the first process of a pass."""
        self._process.revive()

    def of_trial(self, trial: Trial, *, result: Blocks | None, windows: dict[str, Span]) -> observed.Telemetry | None:
        """The telemetry of a trial that has just ended; None for one without blocks, which has no windows."""
        self._last = None
        if result is None or result.began_s is None or not windows:
            return None
        try:
            return self._cut(trial, result, result.began_s, windows)
        except Exception as error:  # noqa: BLE001 - a fault of telemetry must not cost the trial
            traceback.print_exc()
            return observed.Telemetry(status="lost", reason=f"telemetry failed: {type(error).__name__}: {error}")

    def _cut(self, trial: Trial, result: Blocks, began_s: float, windows: dict[str, Span]) -> observed.Telemetry:
        spans = {name: (float(a), float(b)) for name, (a, b) in windows.items()}
        # A board that does nothing is none of its: nor is any of a trial on the CPU.
        used = [f"gpu{index}" for index in self._gpus[: trial.devices_of_node]] if trial.device == "cuda" else []
        telemetry, recording = self._process.cut(Marks.of(result, spans), gpus=used)
        self._last = (recording, began_s)
        return telemetry

    def keep(self, trial: Trial, *, scale: str, pass_number: int) -> None:
        """Once the trial's record is written: keep its series, and see that telemetry lives for the next."""
        try:
            if self._last is not None:
                recording, zero = self._last
                self._series.put(recording.series, scale=scale, key=trial.key, pass_number=pass_number, zero=zero)
            self._process.revive()
            self._process.forget_before(time.monotonic())
        except Exception as error:  # noqa: BLE001 - a full disk, most likely: the record itself says more
            print(f"The telemetry series of {trial_label(trial)} could not be kept: {error}.", file=sys.stderr)  # noqa: T201
