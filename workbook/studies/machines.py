"""The same configurations on several machines of a device file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from labkit.errors import UserError
from workbook.results import Results, estimate, load
from workbook.results.columns import QUANTITY, WHAT_RAN
from workbook.results.estimates import EQUAL
from workbook.results.intervals import HOSTS, interval_of, numbers_of, ratio_of_passes
from workbook.show.frames import INTERVAL
from workbook.studies.sweeps import OPTIMISED, beside_references
from workbook.trials.trial import ASKED_AFTER
from workbook.words import VAGUE_DIGITS, heading, number, plural

HERE, ELSEWHERE = "this page", "other machines"
# The headline numbers: these metrics of the configurations of 01_training at `quick`. The list was fixed before a
# second machine of protocol 3 was measured. Energy has windows of its own.
ENERGY = "energy_per_image_j"
HEADLINES = ("images_per_s", "busy_step_s", ENERGY)
# The loader does not count: every loader makes the same images.
_ALIKE = [name for name in WHAT_RAN if name not in (*ASKED_AFTER, "loader", "data_checksum")]
_APART = ["apart", "apart_low", "apart_high"]
_MACHINE = ["device file", "machine", "device", "CPU", "cores", "driver", "PyTorch", "studies", "measured"]


def same_configurations(frame: pd.DataFrame, profile: str) -> pd.DataFrame:
    """Return the rows of every study and machine of a device file that ran configurations of `frame`.

    `whose` says from where. The loader may differ: in older records the studies had different loaders.
    """
    same = everywhere(frame, profile).merge(frame[_ALIKE].drop_duplicates()).copy()  # one block, not one per column
    here = same["host"].isin(frame["host"])
    return same.assign(whose=here.map({True: HERE, False: ELSEWHERE}))


def everywhere(frame: pd.DataFrame, profile: str, study: str = "") -> pd.DataFrame:
    """Return the rows of all machines of a device file, of one study or of all; `frame` if there are no records.

    Records that several studies share count once.
    """
    try:
        return load(profile, study).frame(hosts="all").drop_duplicates("record")
    except UserError:
        return frame


def headlines(frame: pd.DataFrame, by: Sequence[str]) -> dict[str, pd.DataFrame]:
    """Return each metric of `HEADLINES` in training, a row per configuration in `by`.

    `frame` has rows of `Results.frame(hosts="all")`. Only the largest group of equal machines of the newest protocol
    counts, `machines` in number. `value`, `low` and `high` are over machines from three on; with fewer, they are those
    of the newest machine. `apart` is the mean of the highest machine over that of the lowest, with the interval
    `apart_low` to `apart_high` over their runs.
    """
    trained = frame.query("workload == 'train' and epochs == 0")
    return {metric: _headline(trained, metric, list(by)) for metric in HEADLINES}


def _headline(trained: pd.DataFrame, metric: str, by: list[str]) -> pd.DataFrame:
    measured = trained.dropna(subset=[metric])
    if metric != ENERGY:  # a run over energy windows has a throughput too, but a configuration has one number
        measured = measured[measured["energy_windows"] == 0]
    shown, ends = [measured.iloc[:0]], []
    for key, rows in measured.groupby(by, sort=False, observed=True):
        groups = rows[rows["protocol"] == rows["protocol"].max()].groupby(list(EQUAL))
        equal = max((group for _, group in groups), key=lambda group: group["host"].nunique())
        newest = equal.loc[equal["started_at"].idxmax(), "host"]
        runs = sorted(
            equal.groupby("host")[metric].agg(list), key=lambda values: numbers_of(interval_of(values, metric))
        )
        shown.append(equal if len(runs) >= HOSTS else equal[equal["host"] == newest])
        highest, lowest = (dict(enumerate(runs[place])) for place in (-1, 0))
        ends.append((*key, len(runs), *numbers_of(ratio_of_passes(highest, lowest, paired=False))))
    table = pd.DataFrame(ends, columns=[*by, "machines", *_APART]).astype(dict.fromkeys(_APART, float))
    return estimate(pd.concat(shown), metric, by).merge(table, on=by)


def gains(frame: pd.DataFrame, reference: str, by: Sequence[str], metric: str = "images_per_s") -> pd.DataFrame:
    """Return optimised over a reference in training, from the lowest to the highest machine of the newest protocol.

    `frame` has rows of `Results.frame(hosts="all")`, `reference` is a side of `beside_references`. Columns: `by`,
    `low`, `high` and `machines`, their number. A machine counts if it ran both sides.
    """
    trained = frame.query("workload == 'train' and epochs == 0 and status == 'ok'").dropna(subset=[metric])
    newest = trained[trained["protocol"] == trained["protocol"].max()]
    sides = beside_references(newest, by=["host", *by])
    means = sides.groupby(["host", *by, "side"], observed=True)[metric].mean().unstack("side")
    if not {OPTIMISED, reference} <= {*means}:
        return pd.DataFrame(columns=[*by, "low", "high", "machines"])
    ratios = (means[OPTIMISED] / means[reference]).dropna().groupby(list(by))
    return ratios.agg(low="min", high="max", machines="size").reset_index()


def gain_text(gained: pd.DataFrame, names: Mapping[str, str], **where: object) -> str:
    """Return a table of `gains` as text, by the names of networks; empty without any of them.

    >>> gained = pd.DataFrame({"model": ["vgg16"], "batch": [256], "low": [3.14], "high": [3.26], "machines": [2]})
    >>> gain_text(gained, {"vgg16": "VGG-16", "vgg19": "VGG-19"}, batch=256)
    'VGG-16 3.1 to 3.3 times (2 machines)'
    """
    chosen = [row for row in gained.to_dict("records") if where.items() <= row.items() and row["model"] in names]
    if not chosen:
        return ""
    texts = []
    for row in sorted(chosen, key=lambda row: list(names).index(row["model"])):
        ends = dict.fromkeys(number(row[end], VAGUE_DIGITS) for end in ("low", "high"))
        texts.append(f"{names[row['model']]} {' to '.join(ends)} times")
    return f"{', '.join(texts)} ({plural(min(row['machines'] for row in chosen), 'machine')})"


def columns(headline: Mapping[str, pd.DataFrame]) -> dict[str, tuple[pd.DataFrame, str] | pd.DataFrame]:
    """Return the columns of a table of `headlines`: each metric, and its highest over its lowest machine."""
    shown: dict[str, tuple[pd.DataFrame, str] | pd.DataFrame] = {}
    for metric, rows in headline.items():
        shown[heading(metric)] = (rows, metric)
        shown[f"machines apart, {heading(metric)}"] = between(rows)
    return shown


def between(headline: pd.DataFrame) -> pd.DataFrame:
    """Return the highest machine over the lowest, with its interval, where a table of `headlines` has several."""
    several = headline[headline["machines"] > 1]
    apart = several.assign(**{name: several[end] for name, end in zip(INTERVAL, _APART, strict=True)})
    return apart.assign(**{QUANTITY: f"ratio of {several[QUANTITY].iloc[0]}" if len(several) else None})


def listed(results: Results) -> pd.DataFrame:
    """Return a row per measured machine, as texts: its hardware, its software, and the studies that it ran.

    Columns: `device file`, `machine`, `device`, `CPU`, `cores`, `driver`, `PyTorch`, `studies`, and the newest day as
    `measured`.
    """
    rows = [
        {
            "device file": records.profile.name,
            "machine": str(records.host_id),
            "device": records.device_name,
            "CPU": str(records.host.get("cpu") or ""),
            "cores": str(records.host.get("cpu_cores") or ""),
            "driver": records.host.get("driver") or "none",
            "PyTorch": ", ".join(sorted({record.versions.get("torch_build", "") for record in records.records} - {""})),
            "studies": records.study.id[:2],
            "measured": max(record.started_at[:10] for record in records.records),
        }
        for records in results.selected
        if records
    ]
    frame = pd.DataFrame(rows, columns=_MACHINE)
    texts = dict.fromkeys(_MACHINE[2:-1], lambda cells: ", ".join(dict.fromkeys(filter(None, cells))))
    return frame.groupby(_MACHINE[:2], sort=False, as_index=False).agg({**texts, "measured": "max"})
