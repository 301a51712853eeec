"""From trials to records: passes of fresh worker processes, resumed, watched and isolated from each other."""

from labkit.run.plan import estimate_s, order_of_pass
from labkit.run.runner import Outcome, measure

__all__ = ["Outcome", "estimate_s", "measure", "order_of_pass"]
