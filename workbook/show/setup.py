"""The setup line at the top of a page: networks, task, images, device and number of runs."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from workbook.results.columns import check_columns
from workbook.show.templates import drawn
from workbook.trials.trial import OF_NETWORKS, OWN
from workbook.words import label, listing

MOST_NAMES = 5


@dataclass(frozen=True)
class SetupLine:
    """The setup of a study in one line, for display in a notebook."""

    text: str

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {"text/plain": self.text, "text/html": drawn("setup", self.text)}


def setup_line(frame: pd.DataFrame) -> SetupLine:
    """Return the setup of a table of results in one line: networks, task, images, device, runs.

    >>> import workbook
    >>> workbook.setup_line(workbook.load("h200", "inference").frame())  # doctest: +SKIP
    """
    check_columns(frame, ["workload", "model", "image_px", "data", "device_name", "pass_number"])
    networks = frame[frame["workload"].isin(OF_NETWORKS)]
    if networks.empty:
        return SetupLine("not measured on this device")
    models = list(dict.fromkeys(networks["model"]))
    named = ", ".join(label("model", model) for model in models)
    of_images = networks[~networks["workload"].isin(OWN)]
    sizes = listing(f"{size} px" for size in sorted(of_images["image_px"].dropna().unique()))
    images = listing(label("data", name) for name in of_images["data"].unique())
    parts = [
        named if len(models) <= MOST_NAMES else f"{len(models)} networks",
        listing(label("workload", task) for task in dict.fromkeys(networks["workload"])),
        f"{sizes} {images}{_sizes(of_images)}" if len(of_images) else "random samples",
        listing(dict.fromkeys(networks["device_name"].dropna())),
        _runs(networks),
    ]
    return SetupLine(" · ".join(parts))


def _sizes(frame: pd.DataFrame) -> str:
    """Return the sizes of a user's sets of images in parentheses; an empty text without any."""
    sizes = sorted({*frame.get("image_set", [])} - {""})
    return f" ({'; '.join(sizes)})" if sizes else ""


def _runs(frame: pd.DataFrame) -> str:
    """Return the fewest and the most runs of a configuration on a machine.

    >>> _runs(pd.DataFrame({"host": ["a", "a", "b"], "key_hash": "k", "pass_number": [1, 2, 1]}))
    '1 to 2 fresh processes'
    """
    of_machine = [name for name in ("host", "key_hash") if name in frame]
    counts = frame.groupby(of_machine)["pass_number"].nunique() if of_machine else frame["pass_number"]
    least, most = int(counts.min()), int(counts.max())
    if most > 1:
        return f"{least} to {most} fresh processes" if least < most else f"{most} fresh processes"
    return "smoke: one short run, no intervals" if (frame["scale"] == "smoke").all() else "one process"
