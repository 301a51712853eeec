"""Checks that the nodes of a trial are alike: a number measured on two kinds of device describes neither."""

from __future__ import annotations

import os
from functools import cache

from workbook.hardware.host import cpu_model, source_hash
from workbook.ranks import Team
from workbook.runner.nodes.allocation import nodes_here, too_few_nodes
from workbook.runner.nodes.network import why_not_over
from workbook.trials.trial import Trial


@cache
def describe(device: str) -> dict[str, str]:
    """Return the properties that must be equal on every node: devices, PyTorch's version, the hash of labkit's code."""
    import torch

    devices = [cpu_model()]
    if device == "cuda":
        devices = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    kinds = sorted(set(devices))
    text = ", ".join(f"{devices.count(kind)} x {kind}" for kind in kinds) if device == "cuda" else devices[0]
    return {"devices": text or "none", "PyTorch": torch.__version__, "labkit's code": source_hash()}


def difference(of_nodes: dict[str, dict[str, str]]) -> str | None:
    """Return a sentence on the first property in which a node differs from the first node; None if all are alike."""
    first, *later = sorted(of_nodes, key=int)
    for node in later:
        for name, value in of_nodes[first].items():
            if of_nodes[node][name] != value:
                return (
                    f"the nodes differ in {name}: {value} on the first, {of_nodes[node][name]} on another; a trial "
                    f"over several nodes needs identical nodes: set `constraint` under `cluster:` in the profile"
                )
    return None


def why_not_over_nodes(trial: Trial, team: Team | None) -> str | None:
    """Return why the trial cannot run over its nodes; None if it can, and for a trial on one node.

    A collective call: every rank of a team must make it.
    """
    if trial.nodes == 1:
        return None
    if team is None:
        return too_few_nodes(trial, nodes_here())
    descriptions = team.gather((os.environ["GROUP_RANK"], describe(trial.device)))
    of_nodes = dict(descriptions)
    if len(of_nodes) != trial.nodes:
        return f"the configuration asks for {trial.nodes} nodes, and its processes are on {len(of_nodes)}"
    return difference(of_nodes) or why_not_over(trial)
