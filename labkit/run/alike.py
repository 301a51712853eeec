"""Whether the nodes that run a trial together are alike: of two kinds of device no number is true."""

from __future__ import annotations

import os
from functools import cache

from labkit.hardware.host import cpu_model, source_hash
from labkit.ranks import Team
from labkit.run.network import why_not_over
from labkit.run.nodes import nodes_here, too_few_nodes
from labkit.run.protocol import NODE
from labkit.trial import Trial


@cache
def describe(device: str) -> dict[str, str]:
    """What must be the same on every node: the devices, PyTorch, and labkit's own code."""
    import torch

    devices = [cpu_model()]
    if device == "cuda":
        devices = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    kinds = sorted(set(devices))
    said = ", ".join(f"{devices.count(kind)} x {kind}" for kind in kinds) if device == "cuda" else devices[0]
    return {"devices": said or "none", "PyTorch": torch.__version__, "labkit's code": source_hash()}


def difference(of_nodes: dict[str, dict[str, str]]) -> str | None:
    """In what the first node and another differ, in a sentence; None where all are alike."""
    first, *others = sorted(of_nodes, key=int)
    for other in others:
        for what, value in of_nodes[first].items():
            if of_nodes[other][what] != value:
                return (
                    f"the nodes differ in {what}: {value} on the first, {of_nodes[other][what]} on another; a trial "
                    f"over nodes takes nodes that are alike (`constraint` under `cluster:` in the profile)"
                )
    return None


def why_not_over_nodes(trial: Trial, team: Team | None) -> str | None:
    """Why the trial can't be run over its nodes; None for one that can, and for a trial on one node.

    All ranks of a team ask together.
    """
    if trial.nodes == 1:
        return None
    if team is None:
        return too_few_nodes(trial, nodes_here())
    told = team.gather((os.environ.get(NODE, "0"), describe(trial.device)))
    of_nodes = dict(told)
    if len(of_nodes) != trial.nodes:
        return f"the trial asks for {trial.nodes} nodes, and its processes are on {len(of_nodes)}"
    return difference(of_nodes) or why_not_over(trial)
