"""Rules of the table of free speed: eager loops that differ from the baseline in one change, with the same model."""

from __future__ import annotations

import pandas as pd

from labkit.recipes import HOST_SETTING_TITLES, TUNED_FIELDS, which_change
from labkit.studies.lab import Sweep
from labkit.studies.sweeps import BASELINE

# Names of the changes for readers, in the order of the table.
TITLES = {
    "": BASELINE,
    **HOST_SETTING_TITLES,
    "fused": "fused SGD",
    "channels_last": "channels last",
    "tf32": "TF32",
}


def change_of(frame: pd.DataFrame) -> pd.Series:
    """Return the title of each row's change, `baseline` without one; None for rows with several changes."""
    changes = [which_change(row) for row in frame[list(TUNED_FIELDS)].to_dict("records")]
    titles = [None if change is None else TITLES[change] for change in changes]
    return pd.Series(titles, index=frame.index, dtype=object)


def is_changed(frame: pd.DataFrame) -> pd.Series:
    """Return whether each row differs from the baseline in exactly one change."""
    changes = change_of(frame)
    return changes.notna() & (changes != BASELINE)


def changed(frame: pd.DataFrame, sweep: Sweep) -> pd.DataFrame:
    """Return the loops of the sweep's network in the order of `TITLES`, each named by `change`, at its two sizes.

    A size at which only the baseline was measured has no rows. `frame` is a table of results.
    """
    of_network = (frame["workload"] == "train") & (frame["model"] == sweep["free_model"]) & (frame["devices"] == 1)
    rows = frame[of_network & (frame["batch"] == sweep["free_batch"]) & (frame["image_px"] != sweep["free_large_px"])]
    large = (frame["batch"] == sweep["free_large_batch"]) & (frame["image_px"] == sweep["free_large_px"])
    rows = pd.concat([rows, frame[of_network & large]])
    rows = rows.assign(change=change_of(rows)).dropna(subset=["change"])
    several = rows.groupby("image_px")["change"].transform("nunique") > 1
    return rows[several].sort_values("change", key=lambda names: names.map(list(TITLES.values()).index), kind="stable")
