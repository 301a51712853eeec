"""Several ranks that say on which node each of them is."""

from __future__ import annotations

import os

from labkit import ranks
from labkit.run.protocol import NODE
from labkit.trial import Trial
from tests.faulty.together import Together


def build(trial: Trial, data: object) -> Together:
    """Nothing goes wrong."""
    together, team = Together(trial), ranks.team()
    assert team is not None
    together.facts["nodes"] = team.gather((os.environ[NODE], os.environ.get("SLURMD_NODENAME")))
    together.facts["interface"] = os.environ.get("GLOO_SOCKET_IFNAME")
    return together
