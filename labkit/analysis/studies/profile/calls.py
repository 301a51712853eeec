"""What the host does: calls of the CUDA API by class, in the whole step and on its way back; sections of the step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from labkit.analysis import engines
from labkit.analysis.draw import legend_above, panels, tidy
from labkit.analysis.figure import Figure, Theme
from labkit.analysis.format import listing, number, percent
from labkit.analysis.speed import title
from labkit.analysis.studies.profile import seen
from labkit.analysis.table import Table, Text
from labkit.recipes import engine_name
from labkit.results.study_records import StudyRecords as Results
from labkit.traced import SECTIONS, CallClass, Section, Traced
from labkit.trial import Trial

NAMES: dict[CallClass, str] = {
    "launch": "launch",
    "clean_up": "clean-up",
    "memory": "memory, device",
    "wait": "wait",
    "other": "other",
}
BACK = "way back: {}"  # of the calls of a class
BACK_OF = {
    "backward_launch_api_share": BACK.format(NAMES["launch"]),
    "backward_cleanup_api_share": BACK.format(NAMES["clean_up"]),
}
NO_CALL = percent(0.0)
MOST_NAMES = 3  # of calls, in the table
COLUMNS = 4


def table(results: Results, trials: Sequence[Trial]) -> Table | Text:
    """API time by class, of the whole step and of the way back alone, at the smallest and the largest batch."""
    known = seen.ends([one for one in trials if any(trace.calls for _, trace in seen.traces(results, one))])
    if not known:
        why = seen.why_none(results, trials)
        if seen.any_trace(results, trials):
            why = "on a CPU an operator calls the library itself" if _on_cpu(trials) else "their traces hold no calls"
        return Text(f"Of calls of the CUDA API nothing can be said here: {why}.")
    rows = [_row(results, trial) for trial in known]
    frame = pd.DataFrame(rows, dtype=object)
    unused = [name for name in NAMES.values() if frame[name].eq(NO_CALL).all()]
    back = [BACK.format(name) for name in unused if BACK.format(name) in frame]
    frame = frame.drop(columns=[*unused, *back])
    none = f"No step made a call of these: {listing(unused)}. " if unused else ""
    return Table(
        engines.concise(frame.where(frame.notna(), None), tuple(name for name in BACK_OF.values() if name in frame)),
        "Time of the host in calls of the CUDA API, by what they are for: launches (of kernels and graphs), clean-up "
        "(events destroyed, memory given back), memory and device calls (allocation, copies, attributes), waiting for "
        "the device. Way back: the calls of the backward pass and of the optimiser, which is what the NYU paper traced "
        "alone; it found launches to be almost all of them, and at its largest batch clean-up to take over. A launch "
        "that takes long may be one that waits for room in the queue of a busy device. "
        f"{none}"
        f"{seen.steps_words(results, known).capitalize()}, means of passes. {engines.conditions(results, known)}.",
    )


def _row(results: Results, trial: Trial) -> dict[str, Any]:
    row: dict[str, Any] = {
        "": f"{title(trial)}, {trial.image_px} px",
        "batch": trial.batch,
        "engine": engine_name(trial),
        "calls a step": _rounded(seen.mean_of(results, trial, _calls_a_step)),
    }
    whole = seen.shares(results, trial, lambda _, trace: call_shares(trace.calls))
    # A traced step has its calls: of a class without any it made none.
    row |= {
        name: (percent(whole[name].point) if name in whole else NO_CALL) if whole else None for name in NAMES.values()
    }
    for metric, column in BACK_OF.items():
        found = seen.metric(results, trial, metric)
        row[column] = percent(found.point) if found else None
    return row | {"most time in": _longest_calls(results, trial)}


def _on_cpu(trials: Sequence[Trial]) -> bool:
    return all(trial.device == "cpu" for trial in trials)


def _rounded(value: float | None) -> int | None:
    return None if value is None else round(value)


def _calls_a_step(trace: Traced) -> float:
    return sum(one.count for one in trace.calls.values()) / trace.steps


def call_shares(calls: Any) -> seen.Shares:
    """Of the time in calls, by class."""
    whole = sum(one.seconds for one in calls.values())
    return {NAMES[kind]: one.seconds / whole for kind, one in calls.items()} if whole else {}


def _longest_calls(results: Results, trial: Trial) -> str | None:
    """The calls that took most: `cudaLaunchKernel 83 %, …`, means of passes."""
    shares: dict[str, float] = {}
    found = [trace for _, trace in seen.traces(results, trial) if any(one.seconds for one in trace.calls.values())]
    for trace in found:
        whole = sum(one.seconds for one in trace.calls.values())
        for name, one in trace.calls_by_name.items():
            shares[name] = shares.get(name, 0.0) + one.seconds / whole / len(found)
    ordered = sorted(shares.items(), key=lambda pair: -pair[1])[:MOST_NAMES]
    # A number stays beside its sign; between a call and its number a line may end, which is better than within either.
    said = [f"{name} {_unbroken(percent(share))}" for name, share in ordered]
    return ", ".join(said) or None


def _unbroken(text: str) -> str:
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def sections(results: Results, trials: Sequence[Trial]) -> Figure | Text:
    """Each section of the step: how long the host was in it, and how long the device ran what it launched.

    Of each network its largest images, at the smallest and the largest batch.
    """
    shown = seen.ends(seen.largest_input([trial for trial in trials if seen.traces(results, trial)]))
    rows = [row for trial in shown for row in _section_rows(results, trial)]
    if not rows:
        why = seen.why_none(results, trials)
        if seen.any_trace(results, trials):
            why = "their traces hold no sections, as that of a captured step, which is one launch"
        return Text(f"Sections of a step can't be shown: {why}.")
    data = pd.DataFrame(rows)
    of_host = "in operators" if _on_cpu(shown) else "device, in its kernels"
    settings = list(dict.fromkeys(data["network"]))
    names = [section for section in SECTIONS if section in set(data["section"])]

    def draw(figure: Any, theme: Theme) -> None:
        grid = panels(figure, len(settings), COLUMNS)
        for place, (axes, setting) in enumerate(zip(grid, settings, strict=True)):
            panel = data[data["network"] == setting].set_index("section")
            for shift, column, colour, said in (
                (-0.19, "host (ms)", 0, "host, in the section"),
                (0.19, "device (ms)", 1, of_host),
            ):
                there = [name for name in names if name in panel.index]
                places = [names.index(name) + shift for name in there]
                axes.barh(places, panel.loc[there, column], 0.36, color=theme.palette[colour], ec="none", label=said)
            axes.set_yticks(range(len(names)), names if place % COLUMNS == 0 else [""] * len(names), fontsize=8)
            axes.set_ylim(len(names) - 0.5, -0.5)
            axes.set_title(setting, fontsize=7.5, color=theme.ink)
            tidy(axes, theme, grid="x")
        figure.supxlabel("ms of a traced step", fontsize=9, color=theme.ink)
        legend_above(figure, grid)

    longest = data.loc[data["host (ms)"].astype(float).idxmax()]
    return Figure(
        name="profile-sections",
        draw=draw,
        again=results.again,
        caption=f"Sections of one and the same traced step: {_what(on_cpu=_on_cpu(shown))} "
        f"{seen.steps_words(results, shown).capitalize()}, means of passes. "
        f"{engines.conditions(results, shown)}.",
        alt=f"Paired bars, a panel a trial, of the host's and the device's time in {', '.join(names)}. The longest for "
        f"the host: {longest['section']} of {longest['network']}, {number(longest['host (ms)'])} ms.",
        data=data,
        size_in=(8.0, 1.2 + 1.75 * -(-len(settings) // COLUMNS)),
    )


def _what(*, on_cpu: bool) -> str:
    if on_cpu:
        return "how long each took, and how much of that was in operators."
    return (
        "how long the host was in each, and how long the device ran what was launched in it, whenever that was. Host "
        "times are under the profiler and include waiting for the device; whether the device waits is in the "
        "table above."
    )


def _section_rows(results: Results, trial: Trial) -> list[dict[str, Any]]:
    rows = []
    for name in SECTIONS:
        found = [
            (trace.sections[name], trace.steps) for _, trace in seen.traces(results, trial) if name in trace.sections
        ]
        if found:
            rows.append(
                {
                    "network": f"{seen.setting(trial)}, batch {trial.batch:,}",
                    "section": name,
                    "host (ms)": _mean_ms(found, "host_s"),
                    "device (ms)": _mean_ms(found, "busy_s"),
                    "calls": sum(_calls(one) / steps for one, steps in found) / len(found),
                    "n": len(found),
                }
            )
    return rows


def _mean_ms(found: Sequence[tuple[Section, int]], field: str) -> float:
    return float(sum(getattr(one, field) / steps for one, steps in found) / len(found) * 1e3)


def _calls(section: Section) -> int:
    return sum(one.count for one in section.calls.values())
