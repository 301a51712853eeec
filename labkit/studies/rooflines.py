"""What the roofline allows before anything is measured."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from labkit.profile import Profile
from labkit.recipes import mode_name
from labkit.results.roofline import bound, nominal_of, planned_work
from labkit.trial import OF_NETWORKS, Trial


def predicted(profile: Profile, trials: Sequence[Trial]) -> pd.DataFrame:
    """The bound on images/s that nominal peaks set: `mode`, `model`, `batch`, `value`, and what it is `limited_by`.

    Trials whose precision has no nominal peak are left out: memory alone would bound them far too high.
    """
    rows = []
    for trial in trials:
        ceilings = nominal_of(profile, trial)
        limit = bound(planned_work(trial), ceilings) if trial.workload in OF_NETWORKS and ceilings.flop_per_s else None
        if limit and not trial.epochs:
            asked = {"mode": mode_name(trial), "model": trial.model, "batch": trial.batch}
            rows.append({**asked, "value": limit.images_per_s, "limited_by": limit.limited_by})
    return pd.DataFrame(rows, columns=["mode", "model", "batch", "value", "limited_by"]).drop_duplicates()
