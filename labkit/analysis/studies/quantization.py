"""What INT8 buys in inference and what it loses: the answer in words, the tables, and what they do not say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from labkit.analysis import engines, summary
from labkit.analysis.format import least_to_most, listing
from labkit.analysis.speed import name_of, title
from labkit.analysis.studies import accuracy
from labkit.analysis.studies.by_precision import PublishedRatio, published_words, throughput_table
from labkit.analysis.table import Table, Text
from labkit.analysis.verdicts.words import shown_effect
from labkit.papers import Paper
from labkit.recipes import engine_name
from labkit.results.study_records import StudyRecords as Results
from labkit.trial import Trial

BYTES = ("u8", "i8")  # as engines name what multiplies bytes


def timed(results: Results) -> list[Trial]:
    """The trials at initial weights, whose throughput is the question."""
    return engines.in_order(results.trials(workload="infer", weights="initial"))


def over_fastest_fp32(results: Results, trials: Sequence[Trial]) -> list[tuple[Trial, Trial]]:
    """Each trial in another precision with the fastest FP32 one beside it."""
    pairs = [(trial, accuracy.fastest_fp32(results, trial)) for trial in trials if trial.precision != "fp32"]
    return [(trial, single) for trial, single in pairs if single is not None]


def headline(results: Results, papers: Sequence[Paper]) -> Text:
    """The answer first: what INT8 gains over the fastest FP32, and what it loses on how many images."""
    if not any(results.ok(trial) for trial in (*timed(results), *accuracy.scored(results))):
        return engines.nothing(results)
    said = [_gains(results), accuracy.sentence(results, papers), _missing(results)]
    return Text("\n\n".join(part for part in said if part))


def _gains(results: Results) -> str:
    data = engines.ratios(results, over_fastest_fp32(results, timed(results)), "images_per_s").dropna(subset=["value"])
    said = []
    for precision, one in data.groupby("precision", sort=False):
        told = [(row["value"], f"{engines.ratio_words(row)} ({_size(row)})") for _, row in one.iterrows()]
        said.append(f"{precision} {least_to_most(told)}")
    return f"Images/s over those of the fastest FP32 engine: {'; '.join(said)}." if said else ""


def _size(row: Any) -> str:
    return f"{row['model']}, {row['image_px']} px, batch {row['batch']:,}, {row['engine']}"


def _missing(results: Results) -> str:
    reasons: dict[str, dict[str, list[str]]] = {}
    every = [*timed(results), *accuracy.scored(results)]
    for trial in every:
        if why := engines.failure(results, trial):
            of_network = reasons.setdefault(why.split(" for ")[0], {}).setdefault(title(trial), [])
            of_network.append(trial.precision.upper())
    told = []
    for why, networks in reasons.items():
        by_precisions: dict[str, list[str]] = {}
        for network, precisions in networks.items():
            by_precisions.setdefault(listing(sorted(set(precisions))), []).append(network)
        names = [f"{listing(found)} in {precisions}" for precisions, found in by_precisions.items()]
        told.append(f"{'; '.join(names)} ({why})")
    return f"Without a result: {'; '.join(told)}." if told else ""


def table(results: Results, published: Sequence[PublishedRatio]) -> Table | Text:
    """Images/s of every trial at initial weights, over the fastest FP32 one."""
    trials = timed(results)
    return throughput_table(
        results,
        trials,
        over_fastest_fp32(results, trials),
        over="the fastest FP32",
        said="Ratios are formed within each pass first, over the FP32 engine that is fastest at that size. "
        f"{published_words(published)}",
    )


def layers_table(results: Results) -> Table | Text:
    """How many layers that multiply do so in bytes, of each INT8 trial that says so."""
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    for trial in [*timed(results), *accuracy.scored(results)]:
        layers = results.fact(trial, "layers")
        if trial.precision != "int8" or not layers:
            continue
        in_bytes = {kind: sum(n for of, n in types.items() if of in BYTES) for kind, types in layers.items()}
        all_of = {kind: sum(types.values()) for kind, types in layers.items()}
        said = [f"{in_bytes[kind]} of {all_of[kind]} {kind}" for kind in layers]
        others = sorted({of for types in layers.values() for of in types} - set(BYTES))
        row = {
            "model": title(trial),
            "px": trial.image_px,
            "engine": engine_name(trial),
            "multiply bytes": ", ".join(said),
            "others in": ", ".join(others) or None,
        }
        rows.setdefault(tuple(map(str, row.values())), row)
    if not rows:
        return Text("No INT8 trial says which of its layers multiply bytes.")
    every = [*timed(results), *accuracy.scored(results)]
    versions: dict[str, str] = next((found for t in every if (found := results.fact(t, "engine_versions"))), {})
    named = listing([f"{name} {version}" for name, version in versions.items()]) if versions else "not recorded"
    protocols = [found["protocol"] for trial in every if (found := results.fact(trial, "calibration"))]
    calibrated = listing(list(dict.fromkeys(protocols))) or "not recorded"
    return Table(
        engines.concise(pd.DataFrame(list(rows.values()), dtype=object), ("others in",)),
        f"Which layers multiply bytes, as the engine says of the network that it compiled. Packages: {named}. Ranges "
        f"were calibrated on: {calibrated}.",
    )


def limitations(results: Results) -> Text:
    """What these numbers do not say."""
    said = []
    at = [trial for trial in accuracy.scored(results) if results.ok(trial)]
    if any(results.ok(trial) for trial in timed(results)):
        said.append(
            "Throughput is of initial weights, whose activations are not those of a trained network; the arithmetic is "
            "the same, and the record says which layers do it in bytes."
        )
    if at and accuracy.is_torchvisions(results):
        said.append(
            f"Accuracy is of torchvision's networks on {at[0].data}; the Dell paper's pre-trained networks were "
            f"others, so its accuracies may lie beside these: what is compared is what INT8 loses."
        )
    elif at:
        said.append(
            f"Accuracy is of networks that were trained for minutes on {at[0].data} at {at[0].image_px} px, not of "
            f"ImageNet's: what INT8 costs there is what this page cannot say. Networks that are less sure of their "
            f"answers have more of them near a boundary, where rounding decides."
        )
    said.append(
        "INT8 here is after training, with symmetric ranges from their extremes, one way of many; the Dell paper's "
        "TensorRT chooses them by entropy."
    )
    rest = summary.limitations(results, [*timed(results), *accuracy.scored(results)]).body
    return Text("\n\n".join([*said, *([rest] if rest else [])]))


def key_numbers(results: Results) -> list[list[str]]:
    """For the index: the largest gain of INT8, the fastest INT8, the largest loss."""
    found = []
    int8 = [pair for pair in over_fastest_fp32(results, timed(results)) if pair[0].precision == "int8"]
    gains = [(ratio, over) for over, under in int8 if (ratio := engines.ratio(results, over, under, "images_per_s"))]
    if gains:
        ratio, trial = max(gains, key=lambda pair: pair[0].point)
        what = f"INT8 over the fastest FP32, the most: {name_of(trial, [over for over, _ in int8])}"
        found.append([shown_effect(ratio, "images_per_s", "ratio"), what])
    lost = [(one.effect, trial) for trial, one in accuracy.losses(results, "top1") if one.effect]
    if lost:
        effect, trial = max(lost, key=lambda pair: pair[0].point)
        what = f"top-1 lost by INT8 on {effect.n:,} images, the most: {title(trial)}"
        found.append([shown_effect(effect, "top1", "difference"), what])
    return found
