"""Turns trials into records: runs passes of fresh, isolated worker processes, samples telemetry and resumes."""

from workbook.runner.nodes.allocation import nodes_here
from workbook.runner.plan import estimate_s, order_of_pass
from workbook.runner.runner import Outcome, measure

__all__ = ["Outcome", "estimate_s", "measure", "nodes_here", "order_of_pass"]
