"""Free speed: eager loops that differ from the baseline in one change, with the same model."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pandas as pd

from labkit.errors import one_of
from workbook import words
from workbook.studies.planner import Sweep
from workbook.trials.recipes import PLAIN, TUNED_FIELDS, Recipe
from workbook.trials.trial import RETIRED, Trial
from workbook.words import STRICT

# TF32 keeps the baseline's memory format here: `recipes.in_precision` changes both.
_CHANGES: MappingProxyType[str, Recipe] = MappingProxyType(
    {
        "fused": {"optimizer": "sgd_fused"},
        "channels_last": {"memory_format": "channels_last"},
        "tf32": {"precision": "tf32"},
    }
)
_OF_RECORDS: dict[str, Recipe] = {setting: {"host_setting": setting} for setting in RETIRED["host_setting"]}

# Names of the changes for readers, in the order of the table.
TITLES = {
    "": STRICT,
    **words.TITLES["host_setting"],
    "fused": "fused SGD",
    "channels_last": "channels last",
    "tf32": "TF32",
}


def one_change(name: str) -> Recipe:
    """Return the recipe of one change to the baseline, by its name in a profile's sweeps. Raise UserError for others.

    >>> one_change("fused"), one_change("tf32")
    ({'optimizer': 'sgd_fused'}, {'precision': 'tf32'})
    """
    return dict(_CHANGES[one_of("change to the baseline", name, _CHANGES)])


def which_change(fields: Mapping[str, Any]) -> str | None:
    """Return the change that alone tells a trial's fields from the baseline's; "" for the baseline, None for others.

    >>> which_change({**Trial().as_dict(), "precision": "tf32"})
    'tf32'
    """
    default = Trial()
    changed = {name: fields[name] for name in TUNED_FIELDS if fields[name] != getattr(default, name)}
    return next((name for name, recipe in {"": PLAIN, **_OF_RECORDS, **_CHANGES}.items() if recipe == changed), None)


def change_of(frame: pd.DataFrame) -> pd.Series:
    """Return the title of each row's change, `STRICT` without one; None for rows with several changes."""
    changes = [which_change(row) for row in frame[list(TUNED_FIELDS)].to_dict("records")]
    titles = [None if change is None else TITLES[change] for change in changes]
    return pd.Series(titles, index=frame.index, dtype=object)


def is_changed(frame: pd.DataFrame) -> pd.Series:
    """Return whether each row differs from the baseline in exactly one change."""
    changes = change_of(frame)
    return changes.notna() & (changes != STRICT)


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
