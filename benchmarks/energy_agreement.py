"""The energy of a 10 s load agrees within 3 % with the integral of polled power and within 2 % with Zeus.

    python benchmarks/energy_agreement.py [--rounds 3]        (needs an NVIDIA GPU and `pip install zeus`)

Trains VGG-16 at batch 256 for 10 s and measures the energy in three ways at once. The first is the workbook's record:
the energy counter read by the telemetry process, with polled power at the window's edges. The second is the trapezoid
over the power that the same process polled. The third is Zeus's ZeusMonitor in this process. All three read the same
sensor, so they check the windows and the arithmetic, not the sensor. The exit code is 1 if a bound is broken.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch

from labkit.data import open_data
from labkit.telemetry.process import TelemetryProcess
from labkit.telemetry.series import energy
from workbook.trials.trial import Trial
from workbook.workloads import build_workload

LOAD_S = 10.0
POLLED_BOUND, ZEUS_BOUND = 0.03, 0.02


def main() -> int:
    """Measure and print every round. Return 1 if a bound is broken, 2 without a GPU or Zeus, else 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("This benchmark needs an NVIDIA GPU; there is none here.")
        return 2
    try:
        from zeus.monitor import ZeusMonitor
    except ImportError as error:
        print(f"This benchmark compares with Zeus, which is not installed ({error}): pip install zeus")
        return 2
    zeus = ZeusMonitor(gpu_indices=[0], approx_instant_energy=False)
    images = open_data("synthetic32", train_images=2_000, val_images=500)
    workload = build_workload(Trial(model="vgg16", batch=256, data=images.name, data_checksum=images.checksum), images)
    workload.check()
    fine = True
    with TelemetryProcess([0], log=Path("/dev/null")) as telemetry:
        telemetry.ready()
        run(workload, 3.0)
        for number in range(options.rounds):
            torch.cuda.synchronize()
            zeus.begin_window("load")
            began = time.monotonic()
            run(workload, LOAD_S)
            ended = time.monotonic()
            theirs = zeus.end_window("load").gpu_energy[0]
            run(workload, 0.5)  # the load continues, so that the window's edge lies in a steady load
            recording = telemetry.recording(began, ended)
            counter, power = recording.get("gpu0", "energy_j"), recording.get("gpu0", "power_w")
            ours, polled = energy(counter, power, began, ended), energy(None, power, began, ended)
            assert ours.energy_j and polled.energy_j
            to_polled, to_zeus = ours.energy_j / polled.energy_j - 1, ours.energy_j / theirs - 1
            print(
                f"round {number + 1}: {ended - began:.2f} s, {ours.energy_j:.1f} J by {ours.method}; polled power "
                f"{polled.energy_j:.1f} J ({to_polled:+.2%}); Zeus {theirs:.1f} J ({to_zeus:+.2%})"
            )
            fine &= abs(to_polled) <= POLLED_BOUND and abs(to_zeus) <= ZEUS_BOUND
    return 0 if fine else 1


def run(workload: object, seconds: float) -> None:
    """Train for `seconds` and wait for the device."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(5):
            workload.step()  # type: ignore[attr-defined]
        torch.cuda.synchronize()
    workload.read_loss()  # type: ignore[attr-defined]


if __name__ == "__main__":
    sys.exit(main())
