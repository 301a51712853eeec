"""Turns trials into records: runs passes of fresh, isolated worker processes, samples telemetry and resumes."""

from labkit.run.nodes import nodes_here
from labkit.run.plan import estimate_s, lacked, order_of_pass
from labkit.run.runner import Outcome, measure

__all__ = ["Outcome", "estimate_s", "lacked", "measure", "nodes_here", "order_of_pass"]
