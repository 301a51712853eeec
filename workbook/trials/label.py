"""Labels of trials in plans and progress: the shortest text that distinguishes a trial from those beside it."""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType

from workbook.trials.trial import OF_NETWORKS, Trial

# The fields that a label may name, in the label's order, each with its value's format.
_NAMED = MappingProxyType(
    {
        **dict.fromkeys(("image_px", "precision", "engine", "optimizer"), "{}"),
        **{"learning_rate": "rate {:g}", "schedule": "{}", "memory_format": "{}", "copies": "{}", "weights": "{}"},
        **{"threads": "{} threads", "devices": "{} devices", "placement": "{}", "nodes": "on {} nodes"},
        **dict.fromkeys(("network", "scaling", "arrangement", "updates", "interconnect", "gradient_precision"), "{}"),
        **{"parallel": "{}", "constraint": "{}", "host_setting": "{}", "traced_iterations": "{} traced"},
        **{"steps_before": "after {:,} steps", "device": "{}", "framework": "{}", "form": "{}", "reader": "{}"},
        **{"workers": "{} workers", "cache": "{} page cache", "readers": "{} readers", "reader_order": "{} order"},
    }
)
# Fields that a label names at their default too. Most trials leave the remaining fields at their defaults.
_DEFAULT_NAMED = (
    *("image_px", "precision", "engine", "optimizer", "memory_format", "copies", "weights", "threads"),
    *("constraint", "device", "framework", "workers", "cache", "readers"),
)


def trial_label(trial: Trial, *, beside: Iterable[Trial] = ()) -> str:
    """Return a short name: model and batch, or the workload, and the fields that differ among `beside`."""
    parts = [f"{trial.model} batch {trial.batch}"] if trial.workload in OF_NETWORKS else [trial.workload]
    parts += [f"size {trial.size}"] if trial.size else []
    parts += [f"{trial.epochs} epochs"] if trial.epochs else []
    default, neighbours = Trial(), list(beside)
    for name, form in _NAMED.items():
        value = getattr(trial, name)
        differs = any(getattr(neighbour, name) != value for neighbour in neighbours)
        if differs and (value != getattr(default, name) or name in _DEFAULT_NAMED):
            parts.append(form.format("default" if name == "threads" and not value else value))
    return " ".join(parts)
