"""The same configurations on several machines of a device file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import pandas as pd

from labkit.errors import UserError
from workbook.results import Results, estimate, load, ratio
from workbook.results.columns import QUANTITY, RECORDS, WHAT_RAN
from workbook.results.estimates import EQUAL
from workbook.results.intervals import HOSTS, interval_of, numbers_of, ratio_of_passes
from workbook.show import frames
from workbook.studies.sweeps import OPTIMISED, beside_references
from workbook.studies.values import as_fast, if_measured, span_of
from workbook.trials.trial import ASKED_AFTER, WINDOWS, windows_alike
from workbook.words import VAGUE_DIGITS, heading, plural

HERE, ELSEWHERE = "this page", "other machines"
# The headline numbers: these metrics of the configurations of 01_training at `quick`. The list was fixed before a
# second machine of protocol 3 was measured. Energy has windows of its own.
ENERGY = "energy_per_image_j"
HEADLINES = ("images_per_s", "busy_step_s", ENERGY)
RELATIVE = "relative_energy_s"
SAME_CLOCK = 0.99  # of the highest clock: a board below it is slowed, by its power limit for example
# What makes a metered training of its own; every machine makes the same images.
_METERED = ["profile", "device", "model", "image_px", "batch", "mode"]
_TRAINED = "workload == 'train' and epochs == 0 and status == 'ok'"
# The loader does not count: every loader makes the same images.
_ALIKE = [name for name in WHAT_RAN if name not in (*ASKED_AFTER, "loader", "data_checksum")]
_APART = ["apart", "apart_low", "apart_high"]
_MACHINE = ["device file", "machine", "device", "CPU", "cores", "driver", "PyTorch", "studies", "measured"]


def same_configurations(frame: pd.DataFrame, profile: str) -> pd.DataFrame:
    """Return the rows of every study and machine of a device file that ran configurations of `frame` by its protocol.

    `whose` says from where. The loader may differ: in older records the studies had different loaders.
    """
    alike = frame[[*_ALIKE, "protocol"]].drop_duplicates()
    same = everywhere(frame, profile).merge(alike).copy()  # one block, not one per column
    here = same["host"].isin(frame["host"])
    return same.assign(whose=here.map({True: HERE, False: ELSEWHERE}))


def everywhere(frame: pd.DataFrame, profile: str, *studies: str, hosts: str = "all") -> pd.DataFrame:
    """Return the rows of all machines of a device file, of some studies or of all; `frame` if there are no records.

    With `hosts="selected"`, the machines are those that pages show. Records that several studies share count once.
    """
    loaded = []
    for study in studies or ("",):
        with suppress(UserError):
            loaded.append(load(profile, study).frame(hosts=hosts))
    return pd.concat(loaded, ignore_index=True).drop_duplicates("record") if loaded else frame


def of_equals(rows: pd.DataFrame, here: pd.DataFrame) -> pd.DataFrame:
    """Return those of `rows` on the page's machine and its equals that are of the page's configurations.

    `here` are the page's rows, and `rows` those of `Results.frame(hosts="all")`. A configuration may have had other
    energy windows elsewhere, which change no metric of a step (`windows_alike`).
    """
    windows = partial(windows_alike, of_step=True)
    configuration = [*(name for name in _ALIKE if name != WINDOWS), *EQUAL, "windows"]
    every, of_page = (table.assign(windows=table[WINDOWS].map(windows)) for table in (rows, here))
    return every.merge(of_page[configuration].drop_duplicates()).drop(columns="windows")


def pool(rows: pd.DataFrame, metric: str, by: Sequence[str], *, here: pd.DataFrame, sides: str = "") -> pd.DataFrame:
    """Return the rows that a metric of each group of `by` is formed from: of `HOSTS` or more machines, or the page's.

    `rows` are of `of_equals`, and `here` of the page's machine, which decides alone if fewer machines have the metric.
    With `sides`, a machine counts if it has each value of that column that its group has. The metric is one of a step,
    so the number of energy windows, which may differ, is left out.

    >>> rows = pd.DataFrame({"model": "vgg16", "host": ["a", "b", "c"], "step_s": [1.0, 1.1, 1.2]})
    >>> pool(rows, "step_s", ["model"], here=rows[:1])["host"].tolist()
    ['a', 'b', 'c']
    >>> pool(rows[:2], "step_s", ["model"], here=rows[:1])["host"].tolist()
    ['a']
    """
    measured = rows.dropna(subset=[metric])
    if sides:
        of_machine = measured.groupby([*by, "host"])[sides].transform("nunique")
        measured = measured[of_machine == measured.groupby(list(by))[sides].transform("nunique")]
    several = measured.groupby(list(by))["host"].transform("nunique") >= HOSTS
    is_used = rows.index.isin(several.index[several]) | rows["host"].isin(here["host"])
    return rows[is_used].drop(columns=WINDOWS, errors="ignore")


def basis(shown: pd.DataFrame) -> str:
    """Return what means of rows of `pool` are over, for a caption."""
    return frames.basis(shown["host"].nunique())


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
        of_newest = rows[rows["protocol"] == rows["protocol"].max()]
        runs = sorted(
            _equal(of_newest).groupby("host")[metric].agg(list),
            key=lambda values: numbers_of(interval_of(values, metric)),
        )
        shown.append(_shown(of_newest))
        highest, lowest = (dict(enumerate(runs[place])) for place in (-1, 0))
        ends.append((*key, len(runs), *numbers_of(ratio_of_passes(highest, lowest, paired=False))))
    table = pd.DataFrame(ends, columns=[*by, "machines", *_APART]).astype(dict.fromkeys(_APART, float))
    return estimate(pd.concat(shown), metric, by).merge(table, on=by)


def gains(frame: pd.DataFrame, reference: str, by: Sequence[str], metric: str = "images_per_s") -> pd.DataFrame:
    """Return optimised over a reference in training, on the equal machines of the newest protocol that ran both.

    `frame` has rows of `Results.frame(hosts="all")`, `reference` is a side of `beside_references`. The execution modes
    of both sides are the fastest of each machine, for an energy too. Columns: those of `ratio`, and `machines`, their
    number. The interval is over machines from three on; with fewer, it is that of the newest machine.
    """
    trained = frame.query(_TRAINED)
    newest = trained[trained["protocol"] == trained["protocol"].max()]
    tried = newest[(newest["energy_windows"] > 0) == (metric == ENERGY)]
    of_machine, measured = [*by, "host"], tried.dropna(subset=[metric])
    timed = newest[newest["energy_windows"] == 0].merge(tried[[*of_machine, "mode"]].drop_duplicates())
    modes = beside_references(timed, by=of_machine)[[*of_machine, "mode", "side"]].drop_duplicates()
    sides = measured.merge(modes[modes["side"].isin([OPTIMISED, reference])])
    both = sides[sides.groupby([*by, "host"])["side"].transform("nunique") == 2]
    shown = [_shown(rows).assign(machines=lambda of: of["host"].nunique()) for _, rows in both.groupby(list(by))]
    if not shown:
        return pd.DataFrame(columns=[*by, "side", *frames.INTERVAL, "machines"])
    every = pd.concat(shown)
    ratios = ratio(every, metric, over={"side": reference}, by=[*by, "side"])
    return ratios.merge(every[[*by, "machines"]].drop_duplicates(), on=list(by))


def _equal(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the largest group of equal machines."""
    return max((group for _, group in rows.groupby(list(EQUAL))), key=lambda group: group["host"].nunique())


def _shown(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of equal machines, of the newest alone if they are fewer than an interval needs."""
    equal = _equal(rows)
    newest = equal.loc[equal["started_at"].idxmax(), "host"]
    return equal if equal["host"].nunique() >= HOSTS else equal[equal["host"] == newest]


def metered(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the trainings with a measured energy, of the newest protocol of each configuration, on all machines.

    `frame` has rows of `Results.frame(hosts="all")`. The column `RELATIVE` is the energy of an image over the power of
    the FP32 matrix product with edge 8,192 in the same records, in seconds: boards of a kind differ less in it. It is
    NaN where that power was not recorded.
    """
    products = frame.query("workload == 'matmul' and precision == 'fp32' and size == 8192")
    power = products.groupby(RECORDS, observed=True)["power_w"].mean().rename("product_w").reset_index()
    trained = frame.query(_TRAINED).dropna(subset=[ENERGY]).merge(power, on=RECORDS, how="left")
    newest = trained["protocol"] == trained.groupby(_METERED)["protocol"].transform("max")
    return trained.assign(**{RELATIVE: trained[ENERGY] / trained["product_w"]})[newest]


def spans(rows: pd.DataFrame, metric: str, by: Sequence[str], fewest: int = 1) -> pd.DataFrame:
    """Return the lowest and the highest mean of a machine (`low`, `high`) per group of `by`, and how many `machines`.

    Machines of fewer than `fewest` runs are left out.

    >>> runs = pd.DataFrame({"model": "vgg16", "host": ["a", "a", "b"], "images_per_s": [1.0, 3.0, 5.0]})
    >>> spans(runs, "images_per_s", ["model"]).values.tolist()
    [['vgg16', 2.0, 5.0, 2]]
    >>> spans(runs, "images_per_s", ["model"], fewest=2).values.tolist()
    [['vgg16', 2.0, 2.0, 1]]
    """
    means = rows.groupby(["host", *by], observed=True)[metric].agg(["mean", "count"])
    enough = means[means["count"] >= fewest].groupby(list(by), observed=True)["mean"]
    return enough.agg(low="min", high="max", machines="size").reset_index()


def apart_at_same_clock(measured: pd.DataFrame, metric: str = ENERGY) -> float:
    """Return the highest board over the lowest minus 1, of the CUDA graph in which boards differ most; NaN with one.

    `measured` is from `metered`. A CUDA graph waits for no host, and a board whose clock is slowed does not count.
    """
    clocks = measured.groupby([*_METERED, "host"])["sm_clock_hz"].transform("mean")
    fastest = clocks.groupby([measured[name] for name in _METERED]).transform("max")
    captured = measured[measured["engine"].str.contains("graph") & (clocks >= SAME_CLOCK * fastest)]
    boards = spans(captured, metric, _METERED).query("machines > 1")
    return float((boards["high"] / boards["low"]).max() - 1)


def of_boards(frame: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Return `energy` and `relative`, the energy over a matrix product's power, of CUDA graphs per group of `by`.

    `frame` has rows of `Results.frame(hosts="all")`. Both are texts, from the lowest to the highest of `machines`.
    """
    measured = metered(frame)
    captured = measured[measured["engine"].str.contains("graph")]
    shown, relative = spans(captured, ENERGY, by), spans(captured, RELATIVE, by)
    texts = {
        name: table.assign(**{name: [_ends(row, "", scale) for row in table.to_dict("records")]})
        for name, table, scale in (("energy", shown, 1e3), ("relative", relative, 1e6))
    }
    both = texts["energy"].merge(texts["relative"][[*by, "relative"]], on=list(by), how="left")
    return both.fillna({"relative": "not measured: no power of the matrix product"})


def span_text(table: pd.DataFrame, unit: str, scale: float = 1.0, **where: object) -> str:
    """Return a row of `spans` for a sentence; empty if fewer than two machines have it.

    >>> table = pd.DataFrame({"side": ["optimised"], "low": [0.00326], "high": [0.00356], "machines": [6]})
    >>> span_text(table, "mJ", 1e3, side="optimised"), span_text(table, "mJ", side="strict FP32")
    ('3.3 to 3.6 mJ (6 machines)', '')
    """
    rows = (row for row in table.to_dict("records") if where.items() <= row.items() and row["machines"] > 1)
    texts = (f"{_ends(row, unit, scale)} ({plural(row['machines'], 'machine')})" for row in rows)
    return next(texts, "")


def _ends(row: Mapping[str, Any], unit: str, scale: float = 1.0) -> str:
    return span_of(scale * pd.Series([row["low"], row["high"]]), unit, VAGUE_DIGITS)


def gain_text(gained: pd.DataFrame, names: Mapping[str, str], reference: str, **where: Any) -> str:
    """Return ratios over a reference's speed as the end of a sentence, by the names of networks; empty without any.

    >>> gained = pd.DataFrame({"model": ["vgg16", "vgg19"], "value": 3.2, "low": 3.1, "high": 3.3})
    >>> gain_text(gained, {"vgg16": "VGG-16", "vgg19": "VGG-19"}, "strict FP32")
    'VGG-16 3.20 times and VGG-19 3.20 times as fast as strict FP32'
    >>> gain_text(gained.assign(passes=2), {"vgg16": "VGG-16", "vgg19": "VGG-19"}, "strict FP32")
    'VGG-16 3.20 times and VGG-19 3.20 times as fast as strict FP32 (2 runs)'
    """
    texts = [f"{name} {as_fast(gained, reference, model=model, **where)}" for model, name in names.items()]
    measured, middle = [*filter(if_measured, texts)], " as fast as "
    ends = {text.partition(middle)[2] for text in measured}
    end = middle + ends.pop() if len(ends) == 1 else ""
    return " and ".join([*(text.removesuffix(end) for text in measured[:-1]), *measured[-1:]])


def columns(headline: Mapping[str, pd.DataFrame]) -> dict[str, tuple[pd.DataFrame, str] | pd.DataFrame]:
    """Return the columns of a table of `headlines`: each metric, and its highest over its lowest machine."""
    shown: dict[str, tuple[pd.DataFrame, str] | pd.DataFrame] = {}
    for metric, rows in headline.items():
        shown[heading(metric)] = (rows, metric)
        shown[f"{heading(metric).partition(', ')[0]}, machines apart"] = between(rows)
    return shown


def between(headline: pd.DataFrame) -> pd.DataFrame:
    """Return the highest machine over the lowest, or a `reason`, for each row of a table of `headlines`."""
    ends = zip(frames.INTERVAL, _APART, strict=True)
    apart = {name: headline[end].where(headline["machines"] > 1) for name, end in ends}
    quantity = f"ratio of {headline[QUANTITY].iloc[0]}" if len(headline) else None
    return headline.assign(**apart, **{QUANTITY: quantity}, reason="one machine alone ran this configuration")


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
