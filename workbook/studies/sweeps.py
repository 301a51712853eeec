"""Rules of a sweep over batch sizes: the batch at which throughput levels off, and the fastest mode per batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from workbook.words import AS_INSTALLED, CAREFUL, EAGER_LOOPS, NOT_MEASURED, STRICT, listing

NEAR_PEAK = 0.9
ORDINARY, OPTIMISED = "ordinary PyTorch", "optimised"
_WAYS = {OPTIMISED: "with an optimised step", ORDINARY: f"with {ORDINARY}", STRICT: f"in {STRICT}"}


def by_side(texts: Mapping[str, str]) -> str:
    """Return what was measured of each side of `beside_references` for a sentence; "not measured" without any.

    >>> by_side({OPTIMISED: "340 W", ORDINARY: "not measured", STRICT: "about 300 W"}), by_side({})
    ('340 W with an optimised step and about 300 W in strict FP32', 'not measured')
    """
    known = [f"{text} {_WAYS[side]}" for side, text in texts.items() if NOT_MEASURED not in text]
    return listing(known) if known else NOT_MEASURED


def levels_off(rates: pd.DataFrame, by: str = "mode") -> pd.Series:
    """Return the smallest batch within 10 % of the largest measured throughput, per value of `by`.

    `rates` has the columns `by`, `batch` and `value` (images/s), as `estimate` returns them. If the result is the
    largest batch of the sweep, a larger batch might gain more.

    >>> rates = pd.DataFrame({"mode": "strict FP32", "batch": [64, 256, 2048], "value": [40.0, 95.0, 100.0]})
    >>> levels_off(rates).to_dict()
    {'strict FP32': 256}
    """
    peak = rates.groupby(by)["value"].transform("max")
    return rates[rates["value"] >= NEAR_PEAK * peak].groupby(by)["batch"].min()


def timed(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows whose rates pages show: those without energy windows, and traced ones, whose windows time them.

    Other rows with energy windows repeat a configuration.

    >>> timed(pd.DataFrame({"energy_windows": [0, 1, 1], "traced_iterations": [5, 0, 5]})).index.tolist()
    [0, 2]
    """
    return frame[(frame["energy_windows"] == 0) | (frame["traced_iterations"] > 0)]


def fastest(frame: pd.DataFrame, by: Sequence[str], of: Sequence[str], rate: str = "images_per_s") -> pd.DataFrame:
    """Return the rows of the fastest configuration, which the columns `of` identify, in each group of `by`.

    It has the largest geometric mean of the column `rate` over runs, as in the verdicts. If no configuration of a group
    has a value, a failed one stays, with its reason.

    >>> rows = pd.DataFrame({"batch": 64, "mode": ["strict FP32", "CUDA graph"], "images_per_s": [40.0, 90.0]})
    >>> fastest(rows, ["batch"], ["mode"])["mode"].tolist()
    ['CUDA graph']
    >>> fastest(rows.assign(samples_per_s=[9.0, 4.0]), ["batch"], ["mode"], "samples_per_s")["mode"].tolist()
    ['strict FP32']
    """
    rates = frame.assign(rate=np.log(frame[rate])).groupby([*by, *of], sort=False, as_index=False)
    ranked = rates["rate"].mean().sort_values("rate", ascending=False, kind="stable")
    return frame.merge(ranked.drop_duplicates(list(by))[[*by, *of]])


def beside_references(frame: pd.DataFrame, by: Sequence[str] = ("batch",)) -> pd.DataFrame:
    """Return the rows of the references and of the fastest other mode in each group of `by`; `side` says which.

    `STRICT` is strict FP32, as the papers ran it. `ORDINARY` is the fastest eager loop where PyTorch as installed or a
    tuned loop was measured too; on a CPU the first is strict FP32. A group has no `ORDINARY` if the rates of an eager
    loop were withdrawn, because that loop may be the fastest. `OPTIMISED` is the fastest of all other modes. `frame` is
    a table of results with the columns `mode`, `device`, `images_per_s` and `by`, and of trials that failed `status`.

    >>> rates = {"strict FP32": 12.9, "tuned eager": 9.5, "CUDA graph": 74.1}
    >>> rows = pd.DataFrame({"batch": 64, "device": "cuda", "mode": rates.keys(), "images_per_s": rates.values()})
    >>> beside_references(rows)[["side", "images_per_s"]].values.tolist()
    [['strict FP32', 12.9], ['ordinary PyTorch', 12.9], ['optimised', 74.1]]
    >>> beside_references(rows[rows["mode"] != "tuned eager"])["side"].tolist()
    ['strict FP32', 'optimised']
    """
    of = [name for name in ("mode", "precision") if name in frame and name not in by]
    is_eager, has_rate = frame["mode"].isin(EAGER_LOOPS), frame["images_per_s"].notna()
    eager = frame[is_eager & has_rate]
    is_reference = eager["mode"].isin([AS_INSTALLED, CAREFUL]) | (eager["device"] == "cpu")
    references = eager[is_reference][[*by]].drop_duplicates()
    rates = frame[is_eager & (frame.get("status", "ok") == "ok")].groupby([*by, *of], as_index=False)["images_per_s"]
    withdrawn = rates.count().query("images_per_s == 0")[[*by]].drop_duplicates()
    known = references.merge(withdrawn, how="left", indicator=True).query("_merge == 'left_only'")[[*by]]
    return pd.concat(
        [
            frame[frame["mode"] == STRICT].assign(side=STRICT),
            fastest(eager.merge(known), by, of).assign(side=ORDINARY),
            fastest(frame[~is_eager & has_rate], by, of).assign(side=OPTIMISED),
        ],
        ignore_index=True,
    )
