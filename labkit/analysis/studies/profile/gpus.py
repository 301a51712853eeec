"""One process that copies the weights to several GPUs in each step, as the NYU paper's program did: what that takes."""

from __future__ import annotations

import pandas as pd

from labkit.analysis import engines
from labkit.analysis.format import listing, percent, quantity, with_interval
from labkit.analysis.speed import title
from labkit.analysis.studies.profile import seen
from labkit.analysis.table import Table, Text
from labkit.results.study_records import StudyRecords as Results
from labkit.trial import Trial


def trials_of(results: Results) -> list[Trial]:
    """The trainings of one process on several devices, network by network over the batch."""
    found = [trial for trial in seen.trainings(results) if trial.parallel == "one_process" and trial.devices > 1]
    models = list(dict.fromkeys(trial.model for trial in found))
    return sorted(found, key=lambda trial: (models.index(trial.model), trial.devices, trial.batch))


def sentence(results: Results) -> str:
    """The share of broadcasts at the smallest and at the largest batch; empty without such trials."""
    families: dict[tuple[str, int], list[tuple[int, float]]] = {}
    for trial in trials_of(results):
        if share := seen.metric(results, trial, "broadcast_share"):
            families.setdefault((title(trial), trial.devices), []).append((trial.batch, share.point))
    told = []
    for (network, devices), shares in families.items():
        ends = dict.fromkeys((min(shares), max(shares)))
        words = " and ".join(f"{percent(share)} at batch {batch:,}" for batch, share in ends)
        told.append(f"{network} on {devices} GPUs {words}")
    if not told:
        return ""
    return (
        f"Of kernel and copy time one process that has several GPUs spends in broadcasting weights: {'; '.join(told)}."
    )


def table(results: Results) -> Table | Text:
    """Broadcasts and copies of one process on several GPUs, over the batch that they share."""
    trials = trials_of(results)
    if not trials:
        return Text(
            "Broadcasts of weights to several GPUs, which took almost half of the NYU paper's time, are in no trial of "
            "this page: one device has nobody to send to."
        )
    rows = []
    for trial in trials:
        shares = {name: seen.metric(results, trial, f"{name}_share") for name in ("broadcast", "copy")}
        rate = seen.metric(results, trial, "copy_bytes_per_s")
        rows.append(
            {
                "": f"{title(trial)}, {trial.image_px} px",
                "GPUs": trial.devices,
                "batch of all": trial.batch,
                "images/s": with_interval(results.interval(trial, "images_per_s"), "images_per_s", unit=False),
                "in broadcasts": percent(shares["broadcast"].point) if shares["broadcast"] else None,
                "in copies": percent(shares["copy"].point) if shares["copy"] else None,
                "copy rate": quantity(rate.point, "copy_bytes_per_s") if rate else None,
                "no result": engines.status_without_result(results, trial),
            }
        )
    counts = listing([str(count) for count in sorted({trial.devices for trial in trials})])
    return Table(
        engines.concise(pd.DataFrame(rows, dtype=object), ("in broadcasts", "in copies", "copy rate", "no result")),
        f"One process on {counts} GPUs (PyTorch's DataParallel): in each step it sends the weights to all of them and "
        "shares out the batch. Shares are of the time of all kernels and copies on all of them together; a broadcast "
        "waits for its slowest device, and that is in it. Copy rate: between host and device."
        f"{seen.lacking_sentence(results, trials)} {engines.conditions(results, trials)}. 95 % intervals.",
    )
