"""Hand-made tables of results, and random ones with failures, single passes, missing values and zeros."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from hypothesis import strategies as st

MODES = ("strict FP32", "CUDA graph", "compiled + CUDA graph")
MODELS = ("resnet50", "vgg16")
BATCHES = (16, 64, 256, 2048)
COLUMNS = ["model", "batch", "mode", "host", "pass_number", "status", "reason", "images_per_s", "utilisation"]


def made(configurations: Sequence[tuple[str, int, str, Sequence[float] | str]]) -> pd.DataFrame:
    """Return rows of results from images/s of each pass, or from `status: reason` of a failed configuration."""
    rows = []
    for model, batch, mode, values in configurations:
        about = {"model": model, "batch": batch, "mode": mode, "host": "a" * 12}
        if isinstance(values, str):
            status, reason = values.split(": ", 1)
            rows.append(about | {"pass_number": 1, "status": status, "reason": reason})
            continue
        for number, value in enumerate(values, start=1):
            measured = {"images_per_s": value, "utilisation": 0.5}
            rows.append(about | {"pass_number": number, "status": "ok", "reason": ""} | measured)
    return pd.DataFrame(rows, columns=COLUMNS).astype({"images_per_s": float, "utilisation": float})


@st.composite
def frames(draw: st.DrawFn, failing: bool = True, zeros: bool = True) -> pd.DataFrame:
    """Draw a table of results with up to a dozen configurations."""
    keys = draw(st.lists(st.tuples(*map(st.sampled_from, (MODELS, BATCHES, MODES))), unique=True, max_size=12))
    value = st.floats(1e-3, 1e7) | st.sampled_from([np.nan, 0.0] if zeros else [1.0])
    failure = st.sampled_from(["oom: out of <memory>", "unsupported: needs a GPU", "crashed: `exit` 1"])
    values = st.lists(value, min_size=1, max_size=3)
    return made([(*key, draw(values | failure if failing else values)) for key in keys])
