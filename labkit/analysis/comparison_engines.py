"""What hosts add to a comparison of devices: the same trainings launched by the host, and captured without it.

A loop that launches kernel by kernel is as fast as the processor beside the device where kernels are short. A captured
step leaves the host out, so the ratio of two devices by both is what the host has of the plain one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd

from labkit.analysis.comparison import AGAIN, describe, profiles, ratio_rows
from labkit.analysis.comparison_figures import nominal_ratios
from labkit.analysis.draw import legend_above
from labkit.analysis.figure import MARKERS, Figure, Theme
from labkit.analysis.format import listing, number, with_interval
from labkit.analysis.observations import mean_interval
from labkit.analysis.speed import title
from labkit.analysis.table import Table, Text
from labkit.analysis.verdicts.evidence import Evidence, Side, level
from labkit.analysis.verdicts.words import shown_effect
from labkit.recipes import engine_name
from labkit.statistics import Interval
from labkit.trial import ENGINES, Trial

STUDY = "07_precision"  # the same networks in several engines and precisions, at one batch
NOTHING = Text("No two profiles have the same captured trainings, so what their hosts add is not seen.")

Setting = tuple[str, int, int, str]
Rows = dict[tuple[str, str], dict[Setting, list[tuple[Side, Interval]]]]


def is_captured(trial: Trial) -> bool:
    """Whether the device replays the step, so that the host launches nothing in it."""
    return "graph" in trial.engine


def setting(trial: Trial) -> Setting:
    """What trials of different engines share."""
    return trial.model, trial.image_px, trial.batch, trial.precision


def setting_name(trial: Trial) -> str:
    """`ResNet-50, 32 px, batch 256, BF16`."""
    return f"{title(trial)}, {trial.image_px} px, batch {trial.batch:,}, {trial.precision.upper()}"


def rows(seen: Evidence, baseline: str = "") -> Rows:
    """(profile, profile it is compared with) -> setting -> the ratio by each engine that both have.

    Only settings that were run both ways, launched and captured, on both profiles.
    """
    found: Rows = {}
    for couple, pairs in ratio_rows(seen, baseline, sides=_timed(seen)).items():
        by_setting: dict[Setting, list[tuple[Side, Interval]]] = {}
        for side, effect in pairs:
            by_setting.setdefault(setting(side.trial), []).append((side, effect))
        both = {
            one: sorted(known, key=lambda pair: ENGINES.index(pair[0].trial.engine))
            for one, known in by_setting.items()
            if len({is_captured(side.trial) for side, _ in known}) == 2
        }
        if both:
            found[couple] = both
    return found


def _timed(seen: Evidence) -> list[Side]:
    """The timed trainings on one device, profiles in order."""
    order = [profile.name for profile in profiles(seen)]
    sides = [
        side
        for side in seen.sides(STUDY, across=True)
        if (side.trial.workload, side.trial.devices, side.trial.epochs) == ("train", 1, 0)
    ]
    return sorted(sides, key=lambda side: order.index(side.results.profile.name))


def sentence(seen: Evidence, baseline: str = "") -> Text:
    """How far two devices are apart with their hosts and without them."""
    said = []
    for (newer, older), found in rows(seen, baseline).items():
        apart = [
            max(known, key=lambda pair: pair[1].point)[1].point / min(known, key=lambda pair: pair[1].point)[1].point
            for known in found.values()
        ]
        furthest = list(found.values())[apart.index(max(apart))]
        captured = [effect for known in found.values() for side, effect in known if is_captured(side.trial)]
        ends = [
            shown_effect(pick(captured, key=lambda effect: effect.point), "images_per_s", "ratio")
            for pick in (min, max)
        ]
        by_engine = ", ".join(
            f"{engine_name(side.trial)} {shown_effect(effect, 'images_per_s', 'ratio')}" for side, effect in furthest
        )
        said.append(
            f"{newer} over {older}, {len(found)} training{'s' * (len(found) != 1)} run both launched kernel by kernel "
            f"and captured, so that neither waits for its host: captured {' to '.join(dict.fromkeys(ends))}. The two "
            f"are furthest apart in {setting_name(furthest[0][0].trial)}: {by_engine}."
        )
    return Text("\n\n".join(said)) if said else NOTHING


def ratios(seen: Evidence, baseline: str = "") -> Figure | Text:
    """The ratio of two profiles' images/s by each engine, a line a training."""
    found = rows(seen, baseline)
    if not found:
        return NOTHING
    by_title = {profile.title: profile for profile in profiles(seen)}
    data = pd.DataFrame(
        {
            "profiles": f"{newer} over {older}",
            "training": setting_name(side.trial),
            "engine": engine_name(side.trial),
            "ratio": effect.point,
            "low": effect.low,
            "high": effect.high,
            "n": effect.n,
        }
        for (newer, older), settings in found.items()
        for known in settings.values()
        for side, effect in known
    )
    names = list(dict.fromkeys(data["engine"]))

    def draw(figure: Any, theme: Theme) -> None:
        panels = figure.subplots(len(found), 1, squeeze=False)[:, 0]
        for axes, ((newer, older), settings) in zip(panels, found.items(), strict=True):
            for place, known in enumerate(settings.values()):
                for index, (side, effect) in enumerate(known):
                    kind = names.index(engine_name(side.trial))
                    style = {"color": theme.palette[kind % len(theme.palette)]}
                    at = place + (index - (len(known) - 1) / 2) * 0.24
                    if effect.low is not None and effect.high is not None:
                        axes.plot([effect.low, effect.high], [at, at], lw=2, alpha=0.7, **style)
                    axes.plot(effect.point, at, MARKERS[kind % len(MARKERS)], ms=6.5, **style)
            axes.axvline(1, color=theme.ink, lw=1)
            for name, value in nominal_ratios(by_title[newer], by_title[older]).items():
                if value != 1:
                    axes.axvline(value, color=theme.ink, ls=":", lw=1.2, label=f"nominal {name}")
            axes.set_yticks(range(len(settings)), [setting_name(known[0][0].trial) for known in settings.values()])
            axes.invert_yaxis()
            axes.set_title(f"{newer} over {older}", fontsize=9.5, color=theme.ink, loc="left")
            axes.set_xlabel("ratio of images/s, with its 95 % interval")
            axes.grid(axis="x", color=theme.faint, linewidth=0.6)
            axes.spines[["top", "right"]].set_visible(False)
        for kind, name in enumerate(names):
            style = {"color": theme.palette[kind % len(theme.palette)], "ls": "none"}
            panels[0].plot([], [], MARKERS[kind % len(MARKERS)], label=name, **style)
        legend_above(figure, panels, ncols=5)

    return Figure(
        name="comparison-engines",
        draw=draw,
        caption=f"Ratio of images/s between profiles by engine, the same training on both, {_layouts(found)}. "
        f"{_engines(found, captured=False)}: launched by the host, kernel by kernel; "
        f"{_engines(found, captured=True)}: captured, the host launches one graph a step. Welch's interval on the "
        f"logarithm, since passes of two hosts are no pairs. {_hosts(seen, found)}",
        alt="Forest plot: the ratio of images per second of two profiles for each training, by launched and by "
        "captured engines, with intervals.",
        data=data,
        size_in=(8.0, sum(1.6 + 0.42 * len(settings) for settings in found.values())),
        again=f"{AGAIN} BASELINE={baseline}" if baseline else AGAIN,
    )


def _trials(found: Rows) -> list[Trial]:
    return [side.trial for settings in found.values() for known in settings.values() for side, _ in known]


def _layouts(found: Rows) -> str:
    return listing(sorted({trial.memory_format.replace("_", " ") for trial in _trials(found)}))


def _engines(found: Rows, *, captured: bool) -> str:
    return listing(list(dict.fromkeys(engine_name(one) for one in _trials(found) if is_captured(one) == captured)))


def table(seen: Evidence, baseline: str = "") -> Table | Text:
    """Of the same trainings the fastest engine on each profile: images/s, board power, images/s per watt."""
    found = rows(seen, baseline)
    if not found:
        return Text("Nor is there a table of the fastest engines.")
    wanted = dict.fromkeys(one for settings in found.values() for one in settings)
    fastest: dict[tuple[Setting, str], tuple[Interval, Side]] = {}
    for side in _timed(seen):
        place, rate = (setting(side.trial), side.results.profile.title), level(side, "images_per_s")
        if rate and (place not in fastest or rate.point > fastest[place][0].point):
            fastest[place] = rate, side
    names = dict.fromkeys(name for _, name in fastest)  # in the profiles' order
    compared = {name for couple in found for name in couple}
    shown = [
        _row(*fastest[one, name]) for one in wanted for name in names if name in compared and (one, name) in fastest
    ]
    return Table(
        pd.DataFrame(shown),
        f"The fastest engine of each profile for the same trainings, among those of {STUDY}; board power in the timed "
        f"part, as the driver reports it. {_hosts(seen, found)}",
    )


def _row(rate: Interval, side: Side) -> dict[str, Any]:
    power, thrift = (mean_interval(side.results, side.trial, metric) for metric in ("power_w", "images_per_s_per_w"))
    return {
        "training": setting_name(side.trial),
        "profile": side.results.profile.title,
        "engine": engine_name(side.trial),
        "images/s": with_interval(rate, "images_per_s", unit=False),
        "W": number(power.point) if power else None,
        "images/s/W": with_interval(thrift, "images_per_s_per_w", unit=False),
    }


def _hosts(seen: Evidence, found: Rows) -> str:
    titles = {name for couple in found for name in couple}
    shown: Iterable[Any] = (side.results for side in _timed(seen) if side.results.profile.title in titles)
    return f"{describe(shown)}."
