"""What a trial is called in plans and progress: as little as tells it from those beside it."""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType

from labkit.trial import OF_NETWORKS, Trial

# The fields that a label may name, in its order, each with how its value is said.
_NAMED = MappingProxyType(
    {
        **dict.fromkeys(("image_px", "precision", "engine", "optimizer"), "{}"),
        **{"learning_rate": "rate {:g}", "schedule": "{}", "memory_format": "{}", "copies": "{}", "weights": "{}"},
        **{"threads": "{} threads", "devices": "{} devices", "placement": "{}", "nodes": "on {} nodes"},
        **dict.fromkeys(("network", "scaling", "arrangement", "updates", "interconnect", "gradient_precision"), "{}"),
        **{"parallel": "{}", "constraint": "{}", "traced_iterations": "{} traced", "steps_before": "after {:,} steps"},
        **{"device": "{}", "framework": "{}"},
    }
)
# Of these a default is named too. Most trials leave the others as they are.
_DEFAULT_NAMED = (
    *("image_px", "precision", "engine", "optimizer", "memory_format", "copies", "weights", "threads"),
    *("constraint", "device", "framework"),
)


def trial_label(trial: Trial, *, beside: Iterable[Trial] = ()) -> str:
    """A short name for people: model and batch, and whatever differs among `beside`."""
    parts = [f"{trial.model} batch {trial.batch}"] if trial.workload in OF_NETWORKS else [trial.workload]
    parts += [f"size {trial.size}"] if trial.size else []
    parts += [f"{trial.epochs} epochs"] if trial.epochs else []
    usual, others = Trial(), list(beside)
    for name, form in _NAMED.items():
        value = getattr(trial, name)
        differs = any(getattr(other, name) != value for other in others)
        if differs and (value != getattr(usual, name) or name in _DEFAULT_NAMED):
            parts.append(form.format("default" if name == "threads" and not value else value))
    return " ".join(parts)
