"""What goes between devices: messages of every size by each way that is left open, and what a training makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from labkit.analysis import engines
from labkit.analysis.draw import legend_above, log_axis, panels, points, sizes_axis, tidy
from labkit.analysis.figure import MARKERS, Figure, Theme
from labkit.analysis.format import listing, number, quantity, with_interval
from labkit.analysis.speed import title
from labkit.analysis.studies.multi_gpu.scaling import (
    best_rate,
    counted,
    scaled,
    sent_bytes,
    setting_name,
    share_words,
    wire_rate,
)
from labkit.analysis.table import Table, Text
from labkit.analysis.verdicts.evidence import Side, level
from labkit.analysis.verdicts.words import shown_effect
from labkit.recipes import exchanged_in
from labkit.registry import METRICS
from labkit.results.from_trace import why_no_trace
from labkit.results.study_records import StudyRecords as Results
from labkit.statistics import Interval
from labkit.trial import GRADIENT_PRECISIONS, INTERCONNECTS, Trial

WAYS = {"direct": "directly", "host": "through the host's memory", "sockets": "by sockets"}
NETWORKS = {"any": "over the network", "ethernet": "over Ethernet", "infiniband": "over InfiniBand"}
MESSAGES = {"all_reduce": "sum over all devices", "peer_copy": "copy to the next device"}
LINES = ("-", "--", ":", "-.")


def way(trial: Trial) -> str:
    """By which way a trial's devices reach each other, for people; a CPU's processes have sockets."""
    if trial.nodes > 1:
        return f"{NETWORKS[trial.network]} of {trial.nodes} nodes"
    return WAYS[trial.interconnect if trial.device == "cuda" else "sockets"]


def messages(results: Results) -> list[Trial]:
    """The trials that only send, by kind, way and size."""
    found = [trial for workload in MESSAGES for trial in results.trials(workload=workload)]
    kinds = list(MESSAGES)

    def place(trial: Trial) -> tuple[int, int, int, int]:
        return kinds.index(trial.workload), trial.nodes, INTERCONNECTS.index(trial.interconnect), trial.size

    return sorted(found, key=place)


def bandwidth(results: Results) -> Figure | Text:
    """Bytes/s on the wire against the size of a message, a panel a kind, a line a way."""
    trials = [trial for trial in messages(results) if results.ok(trial)]
    if not trials:
        return Text("No message was sent between devices, so there is no picture of their links.")
    data = pd.DataFrame(
        [
            {
                "kind": MESSAGES[trial.workload],
                "way": way(trial),
                "bytes": trial.size,
                **engines.ends(_in_gigabytes(wire_rate(results, trial))),
            }
            for trial in trials
        ]
    )
    kinds, ways = (list(dict.fromkeys(data[name])) for name in ("kind", "way"))
    link = results.profile.peaks.link_bytes_per_s

    def draw(figure: Any, theme: Theme) -> None:
        grid = panels(figure, len(kinds), 2, sharey=True)
        for axes, kind in zip(grid, kinds, strict=True):
            for index, name in enumerate(ways):
                one = data[(data["kind"] == kind) & (data["way"] == name)].sort_values("bytes")
                style: dict[str, Any] = {
                    "colour": theme.palette[index % len(theme.palette)],
                    "marker": MARKERS[index % len(MARKERS)],
                    "line": LINES[index % len(LINES)],
                }
                points(axes, list(one["bytes"]), one, label=name, **style)
            if link:
                axes.axhline(link.value / 1e9, color=theme.ink, lw=1, ls=(0, (5, 2)), label="the links' nominal rate")
            sizes_axis(axes, [int(size) for size in data["bytes"]], "bytes a message")
            axes.set_xticks(*_size_ticks(data["bytes"]))
            axes.set_title(kind, fontsize=9.5, color=theme.ink)
            tidy(axes, theme, grid="y")
        for axes in grid:
            log_axis(axes, "y")
        figure.supylabel("GB/s that each device sends (log scale)", fontsize=9, color=theme.ink)
        legend_above(figure, grid)

    best = data.loc[data["value"].astype(float).idxmax()]
    return Figure(
        name="links",
        draw=draw,
        again=results.again,
        caption="Bytes/s that each device sends while all of them do, against the size of a message, between "
        f"{listing(list(dict.fromkeys(counted(trial) for trial in trials)))}. Of a sum a device sends 2 (n - 1) / n of "
        f"what is summed (a ring; nccl-tests call this rate busbw). {results.describe()}. Bars: 95 % interval.",
        alt=f"Log-log line plots of the rate on the wire against the size of a message, a line a way. The most: "
        f"{number(best['value'])} GB/s, {best['kind']}, {best['way']}.",
        data=data,
        size_in=(8.0, 3.6),
    )


def messages_table(results: Results) -> Table | Text:
    """The time of each message and both rates of it, as nccl-tests have them."""
    trials = [trial for trial in messages(results) if results.ok(trial)]
    if not trials:
        return Text("Nor is there a table of messages.")
    rows = []
    for trial in trials:
        time, rate, wire = (
            results.interval(trial, "step_s"),
            results.interval(trial, "bytes_per_s"),
            wire_rate(results, trial),
        )
        rows.append(
            {
                "message": MESSAGES[trial.workload],
                "way": way(trial),
                "size": size_words(trial.size),
                "time (us)": number(time.point * 1e6) if time else None,
                "algbw (GB/s)": number(rate.point * METRICS["bytes_per_s"].scale) if rate else None,
                "busbw (GB/s)": with_interval(wire, "bytes_per_s", unit=False),
            }
        )
    versions = sorted({f"NCCL {one.versions['nccl']}" for one in results.records if "nccl" in one.versions})
    library = "Gloo" if trials[0].device == "cpu" else listing(versions) if versions else "NCCL"
    return Table(
        pd.DataFrame(rows, dtype=object),
        "Messages in the terms of nccl-tests: algbw is the size over the time, busbw what each device sends. "
        f"{library}, one message after the other: one that takes no longer than the smallest says what starting it "
        f"costs, and nothing of the way. {results.describe()}.",
    )


def _in_gigabytes(rate: Interval | None) -> Interval | None:
    return None if rate is None else rate.scaled(METRICS["bytes_per_s"].scale)


def _size_ticks(sizes: Sequence[int]) -> tuple[list[int], list[str]]:
    """Places and names in powers of 1,024, as many as fit."""
    ordered = sorted(set(map(int, sizes)))
    every = -(-len(ordered) // 6)
    return ordered[::every], [size_words(size) for size in ordered[::every]]


def size_words(size: int) -> str:
    """`4 KiB`, `256 MiB`."""
    for name, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 2**power:
            return f"{size / 2**power:.4g} {name}"
    return f"{size} B"


def trainings(results: Results) -> list[Trial]:
    """Timed trainings of one job that differ in the way or in what gradients are sent in, with the usual one first."""
    usual = [trial for trial in scaled(results) if trial.devices > 1 and trial.scaling == "weak"]
    others = [trial for trial in engines.timed(results) if trial not in usual and usual_of(results, trial) in usual]
    kept = list(dict.fromkeys(usual_of(results, trial) for trial in others))

    def place(trial: Trial) -> tuple[int, int, int]:
        return (
            kept.index(usual_of(results, trial)),
            INTERCONNECTS.index(trial.interconnect),
            GRADIENT_PRECISIONS.index(trial.gradient_precision),
        )

    return sorted([*(trial for trial in kept if trial is not None), *others], key=place)


def usual_of(results: Results, trial: Trial) -> Trial | None:
    """The same training by the way and with the gradients that it has unless asked otherwise."""
    return engines.like(results, trial, interconnect="direct", network="any", gradient_precision=exchanged_in(trial))


def over_usual(results: Results, trial: Trial) -> Interval | None:
    """Images/s over those of the usual way; None of the usual one itself."""
    usual = usual_of(results, trial)
    return None if usual == trial else engines.ratio(results, trial, usual, "images_per_s")


def table(results: Results) -> Table | Text:
    """What a training has of each way and of narrower gradients: images/s, and the bytes that it sent."""
    trials = trainings(results)
    if not trials:
        return Text("No training was run by another way between its devices, or with narrower gradients.")
    rows = []
    for trial in trials:
        ratio = over_usual(results, trial)
        sent = level(Side(results, trial), "gradient_bytes")
        rows.append(
            {
                "network": setting_name(trial, trials),
                "way": way(trial),
                "gradients": trial.gradient_precision.upper(),
                "images/s": with_interval(results.interval(trial, "images_per_s"), "images_per_s", unit=False),
                "of the usual": shown_effect(ratio, "images_per_s", "ratio") if ratio else None,
                "must (MB)": number(_must_send(results, trial) * METRICS["gradient_bytes"].scale),
                "sent (MB)": number(sent.point * METRICS["gradient_bytes"].scale) if sent else None,
                "n": len(results.ok(trial)),
                "no result": engines.status_without_result(results, trial),
            }
        )
    return Table(
        engines.concise(pd.DataFrame(rows, dtype=object), ("of the usual", "sent (MB)", "no result")),
        f"The same training on {listing(list(dict.fromkeys(map(counted, trials))))} by other ways between the devices, "
        "and with gradients rounded before they are sent. What each device must send in a step (must) follows from the "
        "network (a ring's 2 (n - 1) / n of its gradients); beside it what the way's own counters say that it sent, "
        "where it has any, wrong by 5 % at most: protocols for small messages and trees send more than a ring. "
        f"{engines.conditions(results, trials)}. 95 % intervals.",
    )


def _must_send(results: Results, trial: Trial) -> float:
    """Bytes of a device in a step: as the training itself counted, else from the network."""
    counted_there = results.fact(trial, "exchanged_bytes_per_step")
    return sent_bytes(trial) if counted_there is None else float(counted_there)


def hidden_table(results: Results) -> Table | Text:
    """How much of the exchange lies behind the backward pass, from traces, on the most devices."""
    traced = [trial for trial in results.trials(workload="train") if trial.traced_iterations]
    most = max((trial.devices for trial in traced), default=1)
    known = [
        trial
        for trial in engines.in_order([trial for trial in traced if trial.devices == most and trial.scaling == "weak"])
        if level(Side(results, trial), "hidden_exchange_share")
    ]
    if not known:
        reasons = [why_no_trace(record) for trial in traced for record in results.ok(trial)]
        why = f": {reasons[0]}" if reasons else " on these records"
        return Text(f"How much of the exchange is hidden behind computation, no trace says{why}.")
    rows = [
        {
            "network": setting_name(trial, known),
            "way": way(trial),
            "gradients": trial.gradient_precision.upper(),
            "exchange a step (ms)": _ms(level(Side(results, trial), "exchange_s")),
            "at the best rate (ms)": _at_best_ms(results, trial),
            "hidden": share_words(share) if (share := level(Side(results, trial), "hidden_exchange_share")) else None,
            "n": len(results.ok(trial)),
        }
        for trial in known
    ]
    ran = (
        "kernels of the exchange ran, which is also while they wait for the slowest device, and the share of it during "
        "which kernels that compute ran too"
    )
    if known[0].device == "cpu":
        ran = (
            "Gloo exchanged, in threads of its own, and the share of it during which PyTorch's operators ran too: on "
            "the same cores, so that what is hidden there is time and not work"
        )
    return Table(
        engines.concise(pd.DataFrame(rows, dtype=object)),
        f"From a trace of a few steps of the first of {counted(known[0])}, after everything timed: the time in which "
        f"{ran}; beside it what the bytes would take at the best rate that was measured that way. What is hidden is "
        "not free, since both share the device; and the profiler slows the host down, so where launching takes longest "
        f"less is hidden in a trace than without one. {engines.conditions(results, known)}. 95 % intervals.",
    )


def _ms(interval: Interval | None) -> str | None:
    return None if interval is None else with_interval(interval, "exchange_s", unit=False)


def _at_best_ms(results: Results, trial: Trial) -> str | None:
    rate = best_rate(results, trial)
    return number(_must_send(results, trial) / rate * 1e3) if rate else None


def sentence(results: Results) -> str:
    """The fastest message of each way, and what the ways are to a training."""
    said = []
    for workload, words in MESSAGES.items():
        best: dict[str, Interval] = {}
        for trial in messages(results):
            rate = wire_rate(results, trial) if trial.workload == workload else None
            if rate and (way(trial) not in best or rate.point > best[way(trial)].point):
                best[way(trial)] = rate
        rates = "; ".join(f"{name} {quantity(rate.point, 'bytes_per_s')}" for name, rate in best.items())
        said += [f"At best a device sends, {words}: {rates}."] if rates else []
    gains = [
        f"{title(trial)} {way(trial)} {shown_effect(ratio, 'images_per_s', 'ratio')}"
        for trial in trainings(results)
        if (trial.interconnect, trial.network) != ("direct", "any") and (ratio := over_usual(results, trial))
    ]
    said += [f"Of the images/s that trainings have by the usual way: {'; '.join(gains)}."] if gains else []
    return " ".join(said)
