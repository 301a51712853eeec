"""What INT8 buys in inference and what it loses: the answer in words, the tables, and what they do not say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from labkit.analysis import engines, summary
from labkit.analysis.format import MISSING, listing, number, with_interval
from labkit.analysis.results import Results
from labkit.analysis.speed import name_of, title
from labkit.analysis.studies.precision import PublishedRatio
from labkit.analysis.table import Table, Text
from labkit.analysis.verdicts.by_image import ByImage, compare_images, of_passes
from labkit.analysis.verdicts.evidence import Side
from labkit.analysis.verdicts.words import shown_effect
from labkit.papers import Paper
from labkit.recipes import engine_name
from labkit.registry import METRICS
from labkit.statistics import Interval
from labkit.trial import Trial

BYTES = ("u8", "i8")  # as engines name what multiplies bytes
TWIN = ("workload", "model", "image_px", "batch", "copies", "weights", "scored", "threads", "device")


def timed(results: Results) -> list[Trial]:
    """The trials at initial weights, whose throughput is the question."""
    return engines.in_order(results.trials(workload="infer", weights="initial"))


def scored(results: Results) -> list[Trial]:
    """The trials at trained weights, whose answers are scored."""
    return engines.in_order(results.trials(workload="infer", weights="trained"))


def fastest_fp32(results: Results, trial: Trial) -> Trial | None:
    """The FP32 trial with the most images/s that is of the same network and batch, whatever its engine."""
    alike = results.trials(**{name: getattr(trial, name) for name in TWIN}, precision="fp32")
    rates = {other: rate.point for other in alike if (rate := results.interval(other, "images_per_s"))}
    return max(rates, key=lambda other: rates[other]) if rates else None


def over_fastest_fp32(results: Results, trials: Sequence[Trial]) -> list[tuple[Trial, Trial]]:
    """Each trial in another precision with the fastest FP32 one beside it."""
    pairs = [(trial, fastest_fp32(results, trial)) for trial in trials if trial.precision != "fp32"]
    return [(trial, single) for trial, single in pairs if single is not None]


def headline(results: Results, papers: Sequence[Paper]) -> Text:
    """The answer first: what INT8 gains over the fastest FP32, and what it loses on how many images."""
    if not any(results.ok(trial) for trial in (*timed(results), *scored(results))):
        return engines.nothing(results)
    said = [_gains(results), _losses(results, papers), _missing(results)]
    return Text("\n\n".join(part for part in said if part))


def _gains(results: Results) -> str:
    data = engines.ratios(results, over_fastest_fp32(results, timed(results)), "images_per_s").dropna(subset=["value"])
    said = []
    for precision, one in data.groupby("precision", sort=False):
        rows = [one.loc[one["value"].astype(float).idxmin()], one.loc[one["value"].astype(float).idxmax()]]
        told = [f"{engines.ratio_words(row)} ({_size(row)})" for row in (rows if len(one) > 1 else rows[:1])]
        said.append(f"{precision} {' to '.join(told)}")
    return f"Images/s over those of the fastest FP32 engine: {'; '.join(said)}." if said else ""


def _size(row: Any) -> str:
    return f"{row['model']}, {row['image_px']} px, batch {row['batch']:,}, {row['engine']}"


def _losses(results: Results, papers: Sequence[Paper]) -> str:
    found = [(trial, one.effect) for trial, one in losses(results, "top1") if one.effect]
    if not found:
        return ""
    told = [f"{title(trial)} {shown_effect(effect, 'top1', 'difference')}" for trial, effect in found]
    data = listing(sorted({trial.data for trial, _ in found}))
    line = tolerated(papers, "top1")
    beside = f" The largest loss that the claim allows is {number(line * 100)} points." if line else ""
    return (
        f"Top-1 accuracy lost by INT8 (FP32's minus INT8's, paired over {found[0][1].n:,} images of {data}): "
        f"{'; '.join(told)}.{beside}"
    )


def _missing(results: Results) -> str:
    reasons: dict[str, dict[str, list[str]]] = {}
    every = [*timed(results), *scored(results)]
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


def int8_pairs(results: Results) -> list[tuple[Trial, Trial]]:
    """Each scored INT8 trial with the FP32 one that it is compared with: the fastest, else any."""
    pairs = []
    for trial in scored(results):
        if trial.precision != "int8":
            continue
        alike = results.trials(**{name: getattr(trial, name) for name in TWIN}, precision="fp32")
        single = fastest_fp32(results, trial) or next(iter(alike), None)
        if single is not None:
            pairs.append((trial, single))
    return pairs


def losses(results: Results, metric: str) -> list[tuple[Trial, ByImage]]:
    """What each network loses in INT8: FP32's accuracy minus INT8's over the same images, or why it is not known."""
    return [
        (int8, compare_images(Side(results, single), Side(results, int8), metric, as_ratio=False))
        for int8, single in int8_pairs(results)
    ]


def printed_loss(papers: Sequence[Paper], model: str, metric: str) -> float | None:
    """FP32's accuracy minus INT8's as a paper's table has them, a fraction of 1; None where none prints the model."""
    for paper in papers:
        for table in paper.tables:
            of_precisions = table.columns_are == "precision" and {"fp32", "int8"} <= set(table.columns)
            if of_precisions and table.metric == metric and model in table.rows:
                return table.si(model, "fp32") - table.si(model, "int8")
    return None


def tolerated(papers: Sequence[Paper], metric: str) -> float | None:
    """The loss of accuracy that a claim allows INT8 at most, a fraction of 1; None without such a claim."""
    bounds = [
        test.at_most
        for paper in papers
        for claim in paper.claims
        for test in claim.tests
        if test.shape == "difference" and test.metric == metric and test.under.get("precision") == "int8"
    ]
    return next((bound for bound in bounds if bound is not None), None)


def table(results: Results, published: Sequence[PublishedRatio]) -> Table | Text:
    """Images/s of every trial at initial weights, over the fastest FP32 one; a failure is a row."""
    trials = timed(results)
    if not trials:
        return Text(f"There are no such trials of {results.profile.title} yet: nothing to show here.")
    pairs, memory = dict(over_fastest_fp32(results, trials)), METRICS["memory_bytes"]
    rows = []
    for trial in trials:
        ratio = engines.ratio(results, trial, pairs.get(trial), "images_per_s")
        used = results.fact(trial, "memory_bytes")
        rows.append(
            {
                "model": title(trial),
                "px": trial.image_px,
                "batch": trial.batch,
                "engine": engine_name(trial),
                "precision": trial.precision.upper(),
                "images/s": with_interval(results.interval(trial, "images_per_s"), "images_per_s", unit=False),
                "over the fastest FP32": shown_effect(ratio, "images_per_s", "ratio") if ratio else None,
                "memory (GiB)": used * memory.scale if used is not None else None,
                "n": len(results.ok(trial)),
                "no result": engines.status_without_result(results, trial),
            }
        )
    frame = pd.DataFrame(rows, dtype=object)
    return Table(
        engines.concise(frame, ("over the fastest FP32", "memory (GiB)", "no result")),
        f"{engines.conditions(results, trials)}. 95 % intervals over passes; ratios are formed within each pass first, "
        f"over the FP32 engine that is fastest at that size. {published_words(published)}",
    )


def published_words(published: Sequence[PublishedRatio]) -> str:
    """The published ratios in a sentence."""
    told = [
        f"{one.over} over {one.under} {number(one.low)}x on {listing(one.hardware)} ({one.where})" for one in published
    ]
    return f"Published: {'; '.join(told)}." if told else ""


def accuracy_table(results: Results, papers: Sequence[Paper]) -> Table | Text:
    """Top-1 and top-5 in FP32 and INT8, their paired difference, and the published one beside it."""
    pairs = int8_pairs(results)
    if not pairs:
        return Text("No network was scored both in FP32 and in INT8, so there is no accuracy to compare.")
    rows = []
    for (int8, single), (_, first), (_, five) in zip(
        pairs, losses(results, "top1"), losses(results, "top5"), strict=True
    ):
        rows.append(
            {
                "model": title(int8),
                "FP32 top-1 (%)": _share(results, single, "top1"),
                "INT8 top-1 (%)": _share(results, int8, "top1"),
                "top-1 lost (points)": _points(first.effect),
                "top-5 lost (points)": _points(five.effect),
                "images that change": _changed(results, single, int8),
                "published, top-1": _printed(papers, int8.model, "top1"),
                "published, top-5": _printed(papers, int8.model, "top5"),
                "no result": first.reason.split(":")[0] if first.reason else None,
                "note": first.note or None,
            }
        )
    images = {one.images for int8, _ in pairs for one in of_passes(Side(results, int8)).values()}
    counted = f"{max(images):,} validation images" if images else "validation images"
    return Table(
        engines.concise(pd.DataFrame(rows, dtype=object), ("no result", "note")),
        f"Accuracy of the same weights on the same {counted}, scored by the engine that is timed. Lost: FP32's minus "
        f"INT8's, with the paired 95 % interval over images (Agresti & Min 2005); the passes have the same weights, so "
        f"they add nothing to it. Published: differences of the accuracies as printed, on ImageNet, in points. "
        f"{engines.conditions(results, [trial for pair in pairs for trial in pair])}.{_images_of(results, pairs)}",
    )


def _images_of(results: Results, pairs: Sequence[tuple[Trial, Trial]]) -> str:
    """What the scored images are, as the data set itself says, after a space."""
    said = [results.fact(trial, "data_description") for pair in pairs for trial in pair]
    return "".join(dict.fromkeys(f" {one}" for one in said if one))


def _share(results: Results, trial: Trial, metric: str) -> str:
    values = results.values(trial, metric)
    return number(next(iter(values.values())) * 100, 4) if values else MISSING


def _points(effect: Interval | None) -> str | None:
    return shown_effect(effect, "top1", "difference").replace(" points", "") if effect else None


def _changed(results: Results, single: Trial, int8: Trial) -> str | None:
    """Images that only one precision classifies rightly: gained and lost."""
    first, second = (next(iter(of_passes(Side(results, trial)).values()), None) for trial in (single, int8))
    if first is None or second is None or first.images != second.images:
        return None
    a, b = first.hits("top1"), second.hits("top1")
    return f"{int((a & ~b).sum()):,} lost, {int((~a & b).sum()):,} gained"


def _printed(papers: Sequence[Paper], model: str, metric: str) -> str:
    loss = printed_loss(papers, model, metric)
    return MISSING if loss is None else f"{loss * 100:.2f}"


def layers_table(results: Results) -> Table | Text:
    """How many layers that multiply do so in bytes, of each INT8 trial that says so."""
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    for trial in [*timed(results), *scored(results)]:
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
    every = [*timed(results), *scored(results)]
    versions: dict[str, str] = next((found for t in every if (found := results.fact(t, "engine_versions"))), {})
    named = listing([f"{name} {version}" for name, version in versions.items()]) if versions else "not recorded"
    protocols = [found["protocol"] for trial in every if (found := results.fact(trial, "calibration"))]
    calibrated = listing(list(dict.fromkeys(protocols))) or "not recorded"
    return Table(
        engines.concise(pd.DataFrame(list(rows.values()), dtype=object), ("others in",)),
        f"Which layers multiply bytes, as the engine says of the network that it compiled. Packages: {named}. Ranges "
        f"were calibrated on: {calibrated}.",
    )


def weights_table(results: Results) -> Table | Text:
    """Where the weights that are scored come from: how they were trained and how far that took them, or whose file."""
    rows: dict[str, dict[str, Any]] = {}
    for trial in scored(results):
        facts = results.fact(trial, "weights")
        if facts:
            rows[facts["sha256"]] = {
                "model": title(trial),
                "torchvision's file": facts.get("file"),
                "its SHA-256": facts["file_sha256"][:12] if "file_sha256" in facts else None,
                "epochs": facts.get("epochs"),
                "highest learning rate": facts.get("learning_rate"),
                "batch": facts.get("batch"),
                "precision": str(facts.get("precision", "")).upper() or None,
                "training images": facts.get("train_images"),
                "top-1 after training (%)": number(facts["top1"] * 100) if "top1" in facts else None,
                "trained in (s)": number(facts["took_s"]) if "took_s" in facts else None,
                "SHA-256": facts["sha256"][:12],
            }
    if not rows:
        reasons = [record.reason for record in results.failures() if record.trial.get("weights") == "trained"]
        why = next((reason for reason in reasons if reason), "no trial asked for them")
        return Text(f"No trained weights were scored: {why}.")
    frame = pd.DataFrame(list(rows.values()), dtype=object)
    given = "The weights that are scored are torchvision's, from files that the user gave; nothing was trained here."
    trained = (
        "The weights that are scored: where they come from, and the accuracy on the set's own validation images in the "
        "precision of the training. Training them is in no throughput on this page."
    )
    return Table(frame.dropna(axis=1, how="all"), given if _of_torchvision(results) else trained)


def _of_torchvision(results: Results) -> bool:
    """Whether the scored weights are torchvision's own."""
    return any("file" in (results.fact(trial, "weights") or {}) for trial in scored(results))


def limitations(results: Results) -> Text:
    """What these numbers do not say."""
    said = []
    at = [trial for trial in scored(results) if results.ok(trial)]
    if any(results.ok(trial) for trial in timed(results)):
        said.append(
            "Throughput is of initial weights, whose activations are not those of a trained network; the arithmetic is "
            "the same, and the record says which layers do it in bytes."
        )
    if at and _of_torchvision(results):
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
    rest = summary.limitations(results, [*timed(results), *scored(results)]).body
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
    lost = [(one.effect, trial) for trial, one in losses(results, "top1") if one.effect]
    if lost:
        effect, trial = max(lost, key=lambda pair: pair[0].point)
        what = f"top-1 lost by INT8 on {effect.n:,} images, the most: {title(trial)}"
        found.append([shown_effect(effect, "top1", "difference"), what])
    return found
