"""A network that the user brings: its trials, and its rates beside the references."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from labkit.models import open_network
from workbook.studies.planner import Sweep
from workbook.trials import recipes
from workbook.trials.own_module import source_hash_of_file
from workbook.trials.recipes import Recipe
from workbook.trials.trial import NO_DATA, Trial

TASKS = {"own_training": "training", "own_prediction": "prediction"}
# In half precision a user's network takes autocast and the fused kernels of its own optimiser.
_HALF: Recipe = {"precision": "bf16", "memory_format": "channels_last"}
_ON_GPU: tuple[Recipe, ...] = (
    dict(recipes.PLAIN),
    dict(recipes.INSTALLED),
    dict(_HALF),
    {**_HALF, "engine": "graph"},
    {**_HALF, "engine": "compile+graph"},
)
_ON_CPU: tuple[Recipe, ...] = (dict(recipes.PLAIN), {"engine": "compile"})


def sizes(text: str, usual: Sequence[int]) -> list[int]:
    """Return the batch sizes that BATCH= names; the usual ones without it. Raise UserError for another text.

    >>> sizes("32, 256", [8]), sizes("", [8])
    ([32, 256], [8])
    """
    from labkit.errors import UserError

    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise UserError(f"BATCH={text} is no list of batch sizes; valid: whole numbers with commas, such as 32,256.")
    return list(dict.fromkeys(map(int, parts))) or list(usual)


def trials(network: str, batches: Sequence[int], sweep: Sweep, *, kind: str, has_bf16: bool = True) -> list[Trial]:
    """Return the trials of a network: each mode at each batch size, in training and in prediction as its file allows.

    The largest batch is traced, and on a GPU its energy is measured. `kind` is `cuda` or `cpu`. Raise UserError as
    `labkit.models.open_network` does.
    """
    opened = open_network(network)
    source = source_hash_of_file(opened.path) if opened.path else ""
    half: list[Recipe] = [{**_HALF, "memory_format": "contiguous"}] if has_bf16 else []
    modes = _ON_GPU if kind == "cuda" else (*_ON_CPU, *half)
    about = {"model": opened.name, "workload_source": source, "device": kind, "data": NO_DATA}
    made = []
    for workload, function in (("own_training", opened.loss), ("own_prediction", opened.predict)):
        for batch in batches if function else ():
            asked = {"traced_iterations": sweep["traced_iterations"]} if batch == max(batches) else {}
            for mode in modes:
                is_tuned = workload == "own_training" and mode.get("precision") == "bf16"
                fused = {"optimizer": "sgd_fused"} if is_tuned else {}
                made.append(Trial(workload=workload, batch=batch, **about, **mode, **fused, **asked))
                if batch == max(batches) and sweep["energy_windows"]:
                    made.append(
                        Trial(
                            workload=workload,
                            batch=batch,
                            **about,
                            **mode,
                            **fused,
                            **{"energy_windows": sweep["energy_windows"]},
                        )
                    )
    return made


def rates(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the timed rows of the network, with the column `task`: training or prediction."""
    own = frame[frame["workload"].isin(TASKS) & (frame["energy_windows"] == 0)]
    return own.assign(task=own["workload"].map(TASKS))
