"""Telemetry beside a study's trials: the process, the windows of each trial, the series kept in Parquet.

Whatever happens here costs telemetry and never a trial.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable

from labkit import observed
from labkit.host import Host
from labkit.matching import device_indices
from labkit.profile import Profile
from labkit.records import Blocks, Store
from labkit.series import Span
from labkit.telemetry.process import TelemetryProcess
from labkit.telemetry.windows import Marks
from labkit.trial import Trial

# Before a pass whose energy counts: the devices without any process of ours, after the last one's context is gone.
SETTLE_S, UNATTACHED_S = 3.0, 3.0


class Watch:
    """The telemetry of one call of `measure`. Use as a context."""

    def __init__(self, study: str, profile: Profile, host: Host, store: Store) -> None:
        from labkit.series_store import SeriesStore  # with pandas: here, not between trials, not to import labkit.run

        self._on_gpu = profile.device.kind == "cuda"
        gpus = device_indices(profile, host) if self._on_gpu else []
        self._process = TelemetryProcess(gpus, log=store.report / "logs" / f"{study}-telemetry.log")
        self._series = SeriesStore(store.report, host.id, study)
        self._unattached: Span | None = None

    def __enter__(self) -> Watch:
        self._process.__enter__()
        self._process.ready()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.end()

    def begin_pass(self, pending: Iterable[Trial]) -> None:
        """Before the pass's first process: telemetry lives, and where energy counts it sees the devices left alone."""
        self._process.revive()
        self._unattached = None
        if self._on_gpu and any(trial.energy_windows for trial in pending):
            time.sleep(SETTLE_S)
            began = time.monotonic()
            time.sleep(UNATTACHED_S)
            self._unattached = (began, time.monotonic())
            self._alone = self._process.window(self._unattached)

    def of_trial(
        self, trial: Trial, *, scale: str, pass_number: int, result: Blocks | None, windows: dict[str, Span]
    ) -> observed.Telemetry | None:
        """The telemetry of a trial that has just ended; None for one without blocks, which has no windows."""
        if result is None or result.began_s is None or not windows:
            self._process.revive()  # what ended the worker may have ended it too
            return None
        spans = {name: (float(a), float(b)) for name, (a, b) in windows.items()}
        telemetry, recording = self._process.cut(Marks.of(result, spans))
        if self._unattached is not None and self._alone is not None and telemetry.status == "ok":
            alone = self._alone.model_copy(update={"start_s": self._unattached[0] - result.began_s})
            telemetry = telemetry.model_copy(update={"windows": {"unattached": alone, **telemetry.windows}})
        try:
            self._series.put(recording.series, scale=scale, key=trial.key, pass_number=pass_number, zero=result.began_s)
        except OSError as error:  # a full disk, most likely: the record itself says more
            print(f"The telemetry series of {trial.label()} could not be kept: {error}.", file=sys.stderr)  # noqa: T201
        self._process.revive()
        self._process.forget_before(time.monotonic())
        return telemetry
