"""Start the telemetry process, collect its readings, cut them to a measurement, survive its death."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from labkit.errors import signal_name
from labkit.files import python_path
from labkit.sensors import KINDS, RAPL, RAPL_PERIOD_S
from labkit.telemetry.series import Series, Span
from labkit.telemetry.summary import Telemetry
from labkit.telemetry.windows import Marks, Recording, summarise

KEEP_S = 30.0  # of readings before a measurement that are kept for it
CATCH_UP_S = 1.5  # how long the end of a measurement waits for its last readings
STARTUP_S = 20.0
MAX_RESTARTS = 3
SILENT_S = 10.0  # a process without a message for this long counts as dead

Row = tuple[float, float]


class TelemetryProcess:
    """A process that samples some devices and the host. Use as a context manager.

    With `one_device` it does not sample traffic between devices, which costs as much as all other metrics together.
    Its failures affect only the telemetry: every method still works when the process is dead.
    """

    def __init__(self, gpus: Sequence[int], *, log: Path, one_device: bool = False) -> None:
        self._gpus, self._log, self._one_device = list(gpus), log, one_device
        self._uuids: dict[str, str] = {}  # number -> UUID, by which a restarted process finds the same devices
        self._lock = threading.Condition()
        self._rows: dict[tuple[str, str], deque[Row]] = {}
        self._gaps: list[tuple[str, list[str], float, float, str]] = []
        self._open_gaps: list[tuple[str, list[str], float, float, str]] = []
        self._missing: dict[str, dict[str, str]] = {}
        self._heard_s = 0.0  # the sampler's time of its last message
        self._cpu: tuple[float, float] | None = None  # (time, cpu seconds) at its first readings
        self._cpu_share: float | None = None
        self._dead: list[tuple[float, str]] = []  # (last message, reason) of each process that ended
        self._process: subprocess.Popen[bytes] | None = None
        self._listener: threading.Thread | None = None
        self._ending = False
        self.restarts = 0

    def __enter__(self) -> TelemetryProcess:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def pid(self) -> int | None:
        """Process id while the process lives, else None."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def ready(self, timeout_s: float = STARTUP_S) -> bool:
        """Wait for the first readings. Return whether they came within `timeout_s`."""
        with self._lock:
            return self._lock.wait_for(lambda: self._cpu is not None or self.pid is None, timeout_s) and (
                self._cpu is not None
            )

    def revive(self) -> None:
        """Restart the process if it died or fell silent, at most `MAX_RESTARTS` times."""
        if self.pid is not None and self._cpu is not None and time.monotonic() - self._heard_s > SILENT_S:
            self._kill()  # the process hangs in the driver, or was stopped
        if self.pid is None and self.restarts < MAX_RESTARTS:
            self._hear_out()
            self.restarts += 1
            self._start()
            self.ready()

    def end(self) -> None:
        """Kill the process and close its pipes."""
        self._ending = True
        self._kill()
        if self.pid is None and self._process is not None:
            for stream in (self._process.stdin, self._process.stdout):
                if stream:
                    stream.close()

    def _kill(self) -> None:
        """Kill the process and wait a moment: a process that hangs in a driver dies only when the driver lets it."""
        if self._process is not None:
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(CATCH_UP_S)

    def _start(self) -> None:
        arguments = []
        for index in map(str, self._gpus):
            uuid = self._uuids.get(index)
            arguments += ["--gpu", f"{index}={uuid}" if uuid else index]
        arguments += ["--one-device"] if self._one_device else []
        with self._lock:
            self._cpu = None
        try:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            with self._log.open("ab") as errors:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "labkit.telemetry.sampler", *arguments],
                    stdin=subprocess.PIPE,  # held open: the sampler ends when its stdin closes
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    env={**os.environ, "PYTHONPATH": python_path()},
                )
        except OSError as error:
            self._dead.append((time.monotonic(), f"the telemetry process could not be started: {error}"))
            return
        assert self._process.stdout is not None
        heard_from = (self._process, self._process.stdout)
        self._listener = threading.Thread(target=self._listen, args=heard_from, daemon=True)
        self._listener.start()

    def _hear_out(self) -> None:
        """Wait until the listener has stored the last messages of a dead process and its cause of death."""
        if self._listener is not None and self.pid is None:
            self._listener.join(CATCH_UP_S)

    def _listen(self, process: subprocess.Popen[bytes], stream: BinaryIO) -> None:
        for line in stream:
            try:
                event = json.loads(line)
            except ValueError:
                continue  # a line cut short by the death of the process
            with self._lock:
                self._take(event)
                self._lock.notify_all()
        code = process.wait()
        why = f"killed by signal {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
        with self._lock:
            if not self._ending:
                self._dead.append((self._heard_s, f"the telemetry process was {why}"))
            self._lock.notify_all()

    def _take(self, event: dict[str, Any]) -> None:
        self._heard_s = event["at_s"]
        if event["event"] != "sampled":
            self._uuids |= event["uuids"]
            return
        for source, metric, at, value in event["readings"]:
            self._rows.setdefault((source, metric), deque()).append((at, value))
        self._gaps += [tuple(gap) for gap in event["gaps"]]
        self._open_gaps = [tuple(gap) for gap in event["open_gaps"]]
        for source, metric, reason in event["missing"]:
            self._missing.setdefault(source, {}).setdefault(metric, reason)
        if self._cpu is None:
            self._cpu = (event["at_s"], event["cpu_s"])
        elif event["at_s"] > self._cpu[0]:
            self._cpu_share = (event["cpu_s"] - self._cpu[1]) / (event["at_s"] - self._cpu[0])

    def forget_before(self, moment_s: float) -> None:
        """Discard readings that no measurement from `moment_s` on needs."""
        with self._lock:
            for rows in self._rows.values():
                while len(rows) > 1 and rows[1][0] < moment_s - KEEP_S:
                    rows.popleft()
            self._gaps = [gap for gap in self._gaps if gap[3] > moment_s - KEEP_S]
            self._dead = [death for death in self._dead if death[0] > moment_s - KEEP_S or death is self._dead[-1]]

    def cut(self, marks: Marks, *, gpus: Sequence[str] | None = None) -> tuple[Telemetry, Recording]:
        """Return the telemetry of a measurement, and the readings behind it (from its first window to its last).

        `gpus` are the devices that it used (`gpu0`, …); other devices are left out. None keeps all devices.
        """
        first = min(start for start, _ in marks.windows.values())
        last = max(end for _, end in marks.windows.values())
        recording = self.recording(first, last)
        if gpus is not None:
            recording = recording.of_gpus(gpus)
        reason = self._why_lost(first, last)
        if reason is not None:
            return Telemetry(status="lost", reason=reason, missing=recording.missing), recording
        return summarise(recording, marks), recording

    def recording(self, start_s: float, end_s: float) -> Recording:
        """Return everything read in a span, after waiting a moment for the readings of its end."""
        with self._lock:
            self._lock.wait_for(lambda: self._heard_s >= end_s or self.pid is None, CATCH_UP_S)
        self._hear_out()
        with self._lock:
            gaps = [gap for gap in (*self._gaps, *self._open_gaps) if gap[3] > start_s and gap[2] < end_s]
            rows = {name: [row for row in rows if row[0] <= end_s + 1.0] for name, rows in self._rows.items()}
            missing = {source: dict(reasons) for source, reasons in self._missing.items()}
            share = self._cpu_share
        series = {}
        for (source, metric), readings in rows.items():
            if metric not in KINDS or not readings:
                continue
            spans: list[Span] = [(a, b) for of, metrics, a, b, _ in gaps if of == source and metric in metrics]
            times, values = zip(*readings, strict=True)
            period_s = RAPL_PERIOD_S if source.startswith(RAPL) else None
            part = Series(metric, times, values, spans, period_s=period_s).between(start_s - 2.0, end_s + 1.0)
            if len(part):
                series[source, metric] = part
        return Recording(series, gaps, missing, share)

    def _why_lost(self, first: float, last: float) -> str | None:
        """Return why the process did not cover a whole span, None if it did."""
        with self._lock:
            died = [(at, why) for at, why in self._dead if at < last]
            heard, started = self._heard_s, self._cpu
        if died and died[-1][0] >= first:
            return f"{died[-1][1]} during the measurement, {died[-1][0] - first:.1f} s after it began"
        if self.pid is None and heard < last:
            return died[-1][1] if died else "the telemetry process does not run"
        if started is None or started[0] > first + 1.0:
            return (
                f"{died[-1][1]} before the measurement" if died else "the telemetry process began after the measurement"
            )
        if heard < last - 1.0:
            return f"the telemetry process was silent for the last {last - heard:.1f} s of the measurement"
        return None
