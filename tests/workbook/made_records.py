"""Hand-made records for the pages of engines: timed blocks of any speed, training runs of any loss, failures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from workbook.hardware.profile import load_profile
from workbook.records import Blocks, Epoch, Epochs, Planned, Process, Record, short_hash
from workbook.registry import find_study
from workbook.results.study_records import StudyRecords as Results
from workbook.trials.trial import Trial

HOST = "0123456789ab"
PASSES = (1, 2, 3)
TRAIN_IMAGES = 50_000
NOISE = (1.0, 1.02, 0.99)  # a factor per pass, which gives an interval of a few per cent


def record_of(study: str, trial: Trial, number: int, /, **other: Any) -> Record:
    """Return a record without a result. `other` overrides its fields."""
    values: dict[str, Any] = {
        "study": study,
        "scale": "quick",
        "key": trial.key,
        "trial": trial.as_dict(),
        "pass_number": number,
        "planned": Planned(passes={short_hash(trial.key): 3}, order_seed=1),
        "process": Process(id=f"p{number}", position=0, startup_s=2.0),
        "host": HOST,
        "devices_used": 1,
        "versions": {"torch": "2.11", "commit": "0123456789ab"},
        "status": "ok",
        "started_at": "2026-01-01T00:00:00+00:00",
        "wall_s": 20.0,
        "phases_s": {"idle": 0.5, "build": 0.5, "first_step": 0.5, "warmup": 1.0, "timed": 5.0},
        "facts": {
            "train_images": TRAIN_IMAGES,
            "memory_bytes": 2**30,
            "data_description": "A made-up set.",
            "threads": 2,
        },
    }
    return Record(**(values | other))


def blocks(study: str, trial: Trial, number: int, images_per_s: float, **other: Any) -> Record:
    """Return a record of ten timed blocks at a throughput. A tuned trial also has preparations and a gate."""
    images = trial.batch_of_step * (1 if trial.arrangement == "alone" else 2)
    block_s = 5 * images / images_per_s
    made = record_of(study, trial, number)
    tuned = trial.engine != "eager"
    phases = {**made.phases_s, **(once(trial, number) if tuned else {})}
    facts = {**made.facts, **({"gate": gate()} if tuned else {})}
    result = Blocks(
        steps_per_block=5,
        images_per_step=images,
        host_s=[block_s] * 10,
        warmup_s=[block_s],
        warmup_steps=[5],
        steady=True,
        stopped_by="time",
        loss=[6.0] * 10,
        warmup_loss=[6.9],
    )
    return record_of(study, trial, number, **({"phases_s": phases, "facts": facts, "result": result} | other))


def once(trial: Trial, number: int) -> dict[str, float]:
    """Return the seconds of an engine's preparations. The first pass compiles, and later passes find the cache."""
    compiling = {"compile": 45.0 if number == 1 else 12.0} if "compile" in trial.engine else {}
    capturing = {"capture": 0.5} if "graph" in trial.engine else {}
    return {"reference": 1.0, **compiling, **capturing}


def gate() -> dict[str, float]:
    """Return the facts of a gate over three steps."""
    differences = {"loss_difference": 0.0012, "change_difference": 0.031}
    return {"steps": 3, **differences, "loss_tolerance": 0.02, "change_tolerance": 0.2}


def run(study: str, trial: Trial, number: int, losses: Sequence[float | None], top1: float, **other: Any) -> Record:
    """Return a training run with one loss per epoch and one seed per pass. Accuracy rises evenly to `top1`."""
    epoch_s, count = 2.0 * 64 / trial.batch + 1.0, len(losses)
    epochs = [
        Epoch(
            steps=TRAIN_IMAGES // trial.batch_of_step,
            images=TRAIN_IMAGES,
            train_s=epoch_s,
            train_loss=loss,
            learning_rate=trial.learning_rate,
            val_s=0.3,
            val_images=10_000,
            val_loss=loss,
            top1=top1 * place / count,
            top5=min(1.0, 2 * top1 * place / count),
        )
        for place, loss in enumerate(losses, start=1)
    ]
    phases = {"build": 0.5, "first_step": 0.5, "timed": count * epoch_s, "validation": count * 0.3}
    made = {"phases_s": phases, "result": Epochs(seed=number - 1, epochs=epochs)}
    return record_of(study, trial, number, **(made | other))


def failed(study: str, trial: Trial, number: int, status: str = "oom", reason: str = "CUDA out of memory") -> Record:
    """Return the record of a trial without a result."""
    return record_of(study, trial, number, status=status, reason=reason, facts={}, phases_s={})


def of_records(study: str, records: Iterable[Record], hw: str = "h200") -> Results:
    """Return the records of a study as its page reads them."""
    records_of_study, profile = list(records), load_profile(hw)
    host: dict[str, Any] = {"cpu": "a CPU"}
    if profile.device.kind == "cuda":
        host["gpus"] = [{"name": "NVIDIA H200"}]
    return Results(
        study=find_study(study),
        profile=profile,
        scale="quick",
        host_id=HOST if records_of_study else None,
        host=host if records_of_study else {},
        records=records_of_study,
        lines={(record.key, record.pass_number): line for line, record in enumerate(records_of_study, start=1)},
    )
