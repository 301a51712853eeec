"""What a trial is called in plans, in progress and in sentences: as little as tells it from those beside it."""

from __future__ import annotations

from collections.abc import Iterable

from labkit.trial import OF_NETWORKS, Trial

_TOLD = (
    *("image_px", "precision", "engine", "optimizer", "learning_rate", "schedule"),
    *("memory_format", "copies", "weights", "threads", "devices", "placement"),
    *("nodes", "network", "scaling", "arrangement", "updates", "interconnect"),
    *("gradient_precision", "parallel", "constraint", "traced_iterations", "steps_before", "device"),
    *("framework",),
)
# Only where they are not what a trial has by default: most trials leave them.
_TOLD_IF_UNUSUAL = frozenset(
    {
        *("learning_rate", "schedule", "devices", "placement", "nodes", "network", "scaling", "arrangement"),
        *("updates", "interconnect", "gradient_precision", "parallel"),
    }
)
_USUAL = Trial()


def trial_label(trial: Trial, *, beside: Iterable[Trial] = ()) -> str:
    """A short name for people: model and batch, and whatever differs among `beside`."""
    parts = [f"{trial.model} batch {trial.batch}"] if trial.workload in OF_NETWORKS else [trial.workload]
    if trial.size:
        parts.append(f"size {trial.size}")
    if trial.epochs:
        parts.append(f"{trial.epochs} epochs")
    others = list(beside)
    for name in _TOLD:
        if any(getattr(other, name) != getattr(trial, name) for other in others):
            parts.append(_part(trial, name))
    return " ".join(filter(None, parts))


def _part(trial: Trial, name: str) -> str:
    """A field in a label; empty where it is what is usual."""
    if name in _TOLD_IF_UNUSUAL and getattr(trial, name) == getattr(_USUAL, name):
        return ""
    if name == "devices":
        return f"{trial.devices} {'devices' if trial.placement == 'apart' else 'learners'}"
    if name == "placement":
        return "on 1 device"
    if name == "memory_format" and trial.framework != "torch":
        return ""  # Keras's networks have their own
    if name == "learning_rate":
        return f"rate {trial.learning_rate:g}"
    if name == "threads":
        return f"{trial.threads or 'default'} threads"
    if name == "traced_iterations":
        return f"{trial.traced_iterations} traced" if trial.traced_iterations else ""
    if name == "steps_before":
        return f"after {trial.steps_before:,} steps" if trial.steps_before else ""
    if name == "nodes":
        return f"on {trial.nodes} nodes"
    return str(getattr(trial, name))
