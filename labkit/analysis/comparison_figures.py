"""Pictures of the comparison: images/s by network, ratios beside those of the nominal peaks, published beside measured.

Measured values are filled and solid; what papers published is hollow and hatched, so that nobody takes one for the
other.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from labkit.analysis.comparison import AGAIN, POWER, TRAINING, describe, plain, profiles, ratio_rows
from labkit.analysis.draw import log_axis
from labkit.analysis.figure import MARKERS, Figure, Theme
from labkit.analysis.format import listing, number
from labkit.analysis.observations import mean_interval, power_kind, spread
from labkit.analysis.speed import title
from labkit.analysis.table import Text
from labkit.analysis.verdicts.evidence import Evidence, Side, level
from labkit.papers import Paper, PublishedTable
from labkit.registry import find_metric

NOTHING = Text("No two profiles have such records yet, so there is no picture.")


def throughput(seen: Evidence) -> Figure | Text:
    """Images/s of each network on each profile and batch, with intervals."""
    rows = []
    for side in plain(seen, TRAINING):
        rate = level(side, "images_per_s")
        if rate:
            about = {"model": title(side.trial), "profile": side.results.profile.title, "batch": side.trial.batch}
            rows.append({**about, "images/s": rate.point, "low": rate.low, "high": rate.high, "n": rate.n})
    if not rows:
        return NOTHING
    data = pd.DataFrame(rows)
    models, names, batches = (list(dict.fromkeys(data[name])) for name in ("model", "profile", "batch"))
    batches = sorted(batches)

    def draw(figure: Any, theme: Theme) -> None:
        axes = figure.add_subplot()
        for row in data.itertuples(name="Row"):
            place = models.index(row.model) + (names.index(row.profile) - (len(names) - 1) / 2) * 0.7 / len(names)
            colour = theme.palette[names.index(row.profile) % len(theme.palette)]
            marker = MARKERS[batches.index(row.batch) % len(MARKERS)]
            rate = float(row[data.columns.get_loc("images/s") + 1])
            if row.low is not None and not pd.isna(row.low):
                axes.plot([row.low, row.high], [place, place], color=colour, lw=2, alpha=0.6)
            axes.plot(rate, place, marker, color=colour, ms=7)
        for index, name in enumerate(names):
            axes.plot([], [], "o", color=theme.palette[index % len(theme.palette)], ls="none", label=name)
        for index, batch in enumerate(batches):
            axes.plot([], [], MARKERS[index % len(MARKERS)], color=theme.ink, ls="none", label=f"batch {batch}")
        log_axis(axes, "x")
        axes.set_xlabel("images/s (log scale); line: 95 % interval")
        axes.set_yticks(range(len(models)), models)
        axes.invert_yaxis()
        axes.grid(axis="x", color=theme.faint, linewidth=0.6)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.2), ncols=4, fontsize=8.5)
        axes.spines[["top", "right"]].set_visible(False)

    fastest = data.loc[data["images/s"].idxmax()]
    return Figure(
        name="comparison-throughput",
        draw=draw,
        caption=f"Training throughput by network: plain loop (eager, FP32, contiguous, 32 px). A colour a profile, a "
        f"mark a batch size. {_hosts(seen, TRAINING)}",
        alt=f"Dot plot of images per second by network for {listing(names)}, log scale. Fastest: "
        f"{fastest['model']} on {fastest['profile']}, {number(fastest['images/s'])} images/s.",
        data=data,
        size_in=(8.0, 1.6 + 0.62 * len(models)),
        again=AGAIN,
    )


def ratios(seen: Evidence, baseline: str = "") -> Figure | Text:
    """The ratio of two profiles' images/s trial by trial, beside the ratios of their nominal peaks."""
    found = ratio_rows(seen, baseline)
    if not found:
        return NOTHING
    by_title = {profile.title: profile for profile in profiles(seen)}
    rows = [
        {
            "profiles": f"{newer} over {older}",
            "trial": f"{title(side.trial)}, batch {side.trial.batch}",
            "ratio": effect.point,
            "low": effect.low,
            "high": effect.high,
            "n": effect.n,
        }
        for (newer, older), pairs in found.items()
        for side, effect in pairs
    ]
    data = pd.DataFrame(rows)
    nominal = {couple: nominal_ratios(by_title[couple[0]], by_title[couple[1]]) for couple in found}

    def draw(figure: Any, theme: Theme) -> None:
        panels = figure.subplots(len(found), 1, squeeze=False)[:, 0]
        for axes, (couple, pairs) in zip(panels, found.items(), strict=True):
            for place, (_, effect) in enumerate(pairs):
                if effect.low is not None and effect.high is not None:
                    axes.plot([effect.low, effect.high], [place, place], color=theme.palette[0], lw=2)
                axes.plot(effect.point, place, "o", color=theme.palette[0], ms=7)
            axes.axvline(1, color=theme.ink, lw=1)
            for index, (name, value) in enumerate(nominal[couple].items()):
                colour = theme.palette[(index + 1) % len(theme.palette)]
                axes.axvline(value, color=colour, ls=("--", ":", "-.")[index % 3], lw=1.5, label=f"nominal {name}")
            axes.set_yticks(range(len(pairs)), [f"{title(side.trial)}, batch {side.trial.batch}" for side, _ in pairs])
            axes.invert_yaxis()
            axes.set_title(f"{couple[0]} over {couple[1]}", fontsize=9.5, color=theme.ink, loc="left")
            axes.set_xlabel("ratio of images/s, with its 95 % interval")
            if nominal[couple]:
                axes.legend(loc="upper right", bbox_to_anchor=(1.0, 1.18), ncols=3, fontsize=8.5)
            axes.spines[["top", "right"]].set_visible(False)

    return Figure(
        name="comparison-ratios",
        draw=draw,
        caption=f"Ratio of images/s between profiles, the same trial on both. Passes of two hosts are no pairs, so "
        f"the interval is Welch's on the logarithm. Upright lines: equality, and what the nominal peaks would give. "
        f"{_hosts(seen, TRAINING)}",
        alt="Forest plot: the ratio of images per second of two profiles for each common trial with its interval, "
        "beside the ratios of nominal bandwidth and arithmetic.",
        data=data,
        size_in=(8.0, sum(1.3 + 0.3 * len(pairs) for pairs in found.values())),
        again=f"{AGAIN} BASELINE={baseline}" if baseline else AGAIN,
    )


def nominal_ratios(newer: Any, older: Any) -> dict[str, float]:
    """The ratios of two profiles' nominal memory bandwidth and FP32 arithmetic, where both state them."""
    found = {}
    above, below = newer.peaks.memory_bytes_per_s, older.peaks.memory_bytes_per_s
    if above and below:
        found["bandwidth"] = above.value / below.value
    above, below = (one.peaks.flop_per_s.get("fp32") for one in (newer, older))
    if above and below:
        found["FP32"] = above.value / below.value
    return found


def beside_published(seen: Evidence, papers: list[Paper], metric: str, model: str = "resnet50") -> Figure | Text:
    """Lowest, mean and highest reading while a network trains: published devices hollow, recorded profiles filled."""
    about = find_metric(metric)
    rows = [row for paper in papers for table in paper.tables for row in _published_rows(paper, table, metric, model)]
    study, polled = (POWER, "power_smi_w") if metric == "power_w" else (TRAINING, metric)
    for side in plain(seen, study):
        if side.trial.model == model:
            rows += _measured_row(side, polled)
    if not rows:
        return Text(f"Nobody published or measured the {about.label.lower()} of this network.")
    data = pd.DataFrame(rows)

    def draw(figure: Any, theme: Theme) -> None:
        axes = figure.add_subplot()
        for place, row in enumerate(rows):
            low, mean, high = (row[name] * about.scale for name in ("lowest", "mean", "highest"))
            colour = theme.palette[0] if row["kind"] == "measured" else theme.palette[1]
            style = (
                {"color": colour, "alpha": 0.45}
                if row["kind"] == "measured"
                else {"facecolor": "none", "edgecolor": colour, "hatch": "////", "linewidth": 1.2}
            )
            axes.barh(place, high - low, left=low, height=0.5, **style)
            fill = "full" if row["kind"] == "measured" else "none"
            axes.plot(mean, place, "o", color=colour, fillstyle=fill, ms=7.5, markeredgewidth=1.6)
        axes.plot([], [], "o", color=theme.palette[1], fillstyle="none", ls="none", label="published (hatched)")
        axes.plot([], [], "o", color=theme.palette[0], ls="none", label="measured")
        axes.set_yticks(range(len(rows)), [row["device"] for row in rows])
        axes.invert_yaxis()
        axes.set_xlim(0, None)
        axes.set_xlabel(f"{about.label.lower()} ({about.unit}): lowest, mean, highest")
        axes.grid(axis="x", color=theme.faint, linewidth=0.6)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.16), ncols=2, fontsize=8.5)
        axes.spines[["top", "right"]].set_visible(False)

    where = listing(list(dict.fromkeys(row["source"] for row in rows if row["kind"] == "published"))) or "nothing"
    shown = data.assign(**{name: data[name] * about.scale for name in ("lowest", "mean", "highest")})
    return Figure(
        name=f"comparison-{metric.replace('_', '-')}",
        draw=draw,
        caption=f"{about.label} while training ResNet-50, polled about once a second. Published: {where}, as printed, "
        f"with that paper's framework, data and batch. Measured over the timed part only. {_hosts(seen, study)}",
        alt=f"Bars from the lowest to the highest {about.label.lower()} with a dot at the mean: hatched for published "
        f"devices, filled for those measured here.",
        data=shown,
        size_in=(8.0, 1.3 + 0.4 * len(rows)),
        again=AGAIN,
    )


def _published_rows(paper: Paper, table: PublishedTable, metric: str, model: str) -> list[dict[str, Any]]:
    if (table.metric, table.model, table.columns_are) != (metric, model, "profile"):
        return []
    printed = {device.profile: device.printed for device in paper.devices}
    return [
        {
            "device": printed.get(column, column),
            "kind": "published",
            "lowest": table.si("min", column),
            "mean": table.si("mean", column),
            "highest": table.si("max", column),
            "source": f"'{paper.citation.title}' ({table.where})",
        }
        for column in table.columns
        if {"min", "mean", "max"} <= set(table.rows)
    ]


def _measured_row(side: Side, metric: str) -> list[dict[str, Any]]:
    found = spread(side.results, side.trial, metric, "polled")
    if found is None:
        return []
    device = f"{side.results.profile.title}, batch {side.trial.batch}"
    about = {"device": device, "kind": "measured", "lowest": found.low, "mean": found.mean, "highest": found.high}
    return [{**about, "source": side.results.file()}]


def efficiency(seen: Evidence) -> Figure | Text:
    """Images/s per watt of each network and profile."""
    rows = []
    for side in plain(seen, POWER):
        found = mean_interval(side.results, side.trial, "images_per_s_per_w")
        if found:
            about = {"model": title(side.trial), "profile": side.results.profile.title, "batch": side.trial.batch}
            rows.append({**about, "images/s/W": found.point, "low": found.low, "high": found.high, "n": found.n})
    if not rows:
        return Text("No profile has records of power, so there is no picture of efficiency.")
    data = pd.DataFrame(rows)
    models, names = (list(dict.fromkeys(data[name])) for name in ("model", "profile"))

    def draw(figure: Any, theme: Theme) -> None:
        axes = figure.add_subplot()
        for row in rows:
            index = names.index(row["profile"])
            place = models.index(row["model"]) + (index - (len(names) - 1) / 2) * 0.6 / len(names)
            colour = theme.palette[index % len(theme.palette)]
            if row["low"] is not None:
                axes.plot([row["low"], row["high"]], [place, place], color=colour, lw=2, alpha=0.6)
            axes.plot(row["images/s/W"], place, MARKERS[index % len(MARKERS)], color=colour, ms=7)
        for index, name in enumerate(names):
            colour = theme.palette[index % len(theme.palette)]
            axes.plot([], [], MARKERS[index % len(MARKERS)], color=colour, ls="none", label=name)
        axes.set_xlim(0, None)
        axes.set_xlabel("images/s per W; line: 95 % interval")
        axes.set_yticks(range(len(models)), models)
        axes.invert_yaxis()
        axes.grid(axis="x", color=theme.faint, linewidth=0.6)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.2), ncols=4, fontsize=8.5)
        axes.spines[["top", "right"]].set_visible(False)

    batches = listing([str(batch) for batch in sorted(set(data["batch"]))])
    return Figure(
        name="comparison-efficiency",
        draw=draw,
        caption=f"Efficiency of the plain training loop, batch {batches}: images/s over power, both in the timed part. "
        f"{_kinds(seen)} {_hosts(seen, POWER)}",
        alt=f"Dot plot of images per second per watt by network for {listing(names)}.",
        data=data,
        size_in=(8.0, 1.5 + 0.5 * len(models)),
        again=AGAIN,
    )


def _kinds(seen: Evidence) -> str:
    """Whose power it is on each profile: a board's, or a processor's."""
    kinds = {side.results.profile.title: power_kind(side.results) for side in plain(seen, POWER)}
    return " ".join(f"{title_}: {kind[:1].lower()}{kind[1:]}." for title_, kind in kinds.items())


def _hosts(seen: Evidence, study: str) -> str:
    return f"{describe(side.results for side in plain(seen, study))}."
