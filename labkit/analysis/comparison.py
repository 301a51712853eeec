"""All recorded profiles side by side: what was measured on each, ratios between them, where they are not comparable."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pandas as pd

from labkit.analysis.format import listing, with_interval
from labkit.analysis.speed import title
from labkit.analysis.table import Table, Text
from labkit.analysis.verdicts import Finding, Judged
from labkit.analysis.verdicts.evidence import Evidence, Side, families, level, ratio
from labkit.analysis.verdicts.words import (
    COMPARED,
    choice_words,
    kind_of,
    metric_name,
    shown_effect,
    shown_value,
    title_of,
)
from labkit.frameworks import is_keras
from labkit.profile import Profile, load_profile
from labkit.results.study_records import StudyRecords as Results
from labkit.statistics import Interval

AGAIN = "make compare"
TRAINING, POWER = "01_training", "04_power"
PLAIN = {
    "workload": "train",
    "precision": "fp32",
    "engine": "eager",
    "optimizer": "sgd",
    "memory_format": "contiguous",
    "image_px": 32,
    "devices": 1,
    "epochs": 0,
}
NAMED = ("precision", "engine", "memory_format", "image_px", "devices")
# What must be alike for two rates to be of the same work; the device is what is compared.
COMPARABLE = ("data", "data_checksum", "precision", "engine", "memory_format", "framework", "batch", "stem", "head")


def profiles(seen: Evidence) -> list[Profile]:
    """The profiles that have records: CPUs first, then GPUs by generation and nominal bandwidth."""
    found = {}
    for study in sorted(seen.available):
        for name in seen.profiles:
            results = seen.results(name, study)
            if results:
                found[name] = results.profile
    return sorted(found.values(), key=_place)


def _place(profile: Profile) -> tuple[bool, float, float, int]:
    bandwidth, device = profile.peaks.memory_bytes_per_s, profile.device
    capability = float(device.compute_capability or 0)
    return device.kind == "cuda", capability, bandwidth.value if bandwidth else 0.0, device.count


def plain(seen: Evidence, study: str) -> list[Side]:
    """The plain training trials of every profile, profiles in order."""
    sides = [side for side in seen.sides(study, across=True) if all(side.field(n) == v for n, v in PLAIN.items())]
    order = [profile.name for profile in profiles(seen)]
    return sorted(sides, key=lambda side: order.index(side.results.profile.name))


def headline(seen: Evidence, baseline: str = "") -> Text:
    """The answer first: for each network the profile that trains it fastest, and the newest GPU over the one before."""
    sides = [side for side in plain(seen, TRAINING) if level(side, "images_per_s")]
    if not sides:
        return Text("No profile has records of a training study yet: `make report` makes some.")
    best: dict[str, Side] = {}
    for side in sides:
        known = best.get(side.trial.model)
        if known is None or _rate(side).point > _rate(known).point:
            best[side.trial.model] = side
    word = "trains fastest on" if len({side.results.profile.name for side in sides}) > 1 else "trains on"
    said = [
        f"{title(side.trial)} {word} {side.results.profile.title}, "
        f"{with_interval(_rate(side), 'images_per_s')} at batch {side.trial.batch}"
        for side in best.values()
    ]
    text = "; ".join(said) + "."
    rows = ratio_rows(seen, baseline)
    for (newer, older), pairs in rows.items():
        known_ratios = [effect for _, effect in pairs]
        low = min(known_ratios, key=lambda effect: effect.point)
        high = max(known_ratios, key=lambda effect: effect.point)
        text += (
            f"\n\n{newer} over {older}, the same trials: {shown_effect(low, 'images_per_s', 'ratio')} to "
            f"{shown_effect(high, 'images_per_s', 'ratio')} the images/s."
        )
    return Text(text)


def _rate(side: Side) -> Interval:
    found = level(side, "images_per_s")
    assert found is not None
    return found


def overview(seen: Evidence) -> Table | Text:
    """Which profile was measured on which hosts, how, and when."""
    rows = []
    for profile in profiles(seen):
        shown = [found for study in sorted(seen.available) if (found := seen.results(profile.name, study))]
        records = [record for results in shown for record in results.records]
        rows.append(
            {
                "profile": profile.name,
                "device": listing(list(dict.fromkeys(results.device_name for results in shown))),
                "studies": listing([results.study.id for results in shown]),
                "hosts": listing(sorted({str(results.host_id) for results in shown})),
                "scale": listing(sorted({results.scale for results in shown})),
                "measured": max(record.started_at[:10] for record in records),
                "PyTorch": listing(
                    sorted(
                        {one.versions.get("torch_build", "unknown") for one in records if not is_keras(one.framework)}
                    )
                ),
                "driver": _listed({one.host.get("driver") for one in shown}),
            }
        )
    if not rows:
        return Text("No profile has records yet.")
    return Table(
        pd.DataFrame(rows), "The profiles with records. Each shows its own host, else its newest complete one."
    )


def _listed(values: Iterable[str | None]) -> str | None:
    known = sorted({value for value in values if value})
    return listing(known) if known else None


def differences(seen: Evidence) -> Table | Text:
    """A warning for everything in which the compared trials differ beside the device."""
    sides = plain(seen, TRAINING)
    every = [profile for profile in profiles(seen) if seen.results(profile.name, TRAINING)]
    names = [profile for profile in every if any(_is_of(side, profile) for side in sides)]
    otherwise = [profile for profile in every if profile not in names]
    said = "".join(_not_plain(seen, profile) for profile in otherwise)
    if len(names) < 2:
        alone = f"Only {names[0].title} has" if names else "No profile has"
        return Text(f"{alone} records of the plain training trials, so nothing is compared.{said}")
    rows = []
    for what, values in _configurations(sides).items():
        told = [values.get(profile.name, set()) for profile in names]
        if len({frozenset(one) for one in told}) > 1:
            shown = [listing(sorted(one, key=_natural)) for one in told]
            rows.append({"": what, **{p.title: text for p, text in zip(names, shown, strict=True)}})
    if not rows:
        return Text(f"The compared trials differ in nothing but the device and its host.{said}")
    return Table(
        pd.DataFrame(rows),
        "Warning: the compared configurations differ in more than the device. Ratios below are formed only between "
        f"trials that agree in model, batch, data set, precision, engine and memory format.{said}",
    )


def _not_plain(seen: Evidence, profile: Profile) -> str:
    """That a profile was measured otherwise throughout, and how."""
    trials = seen.results(profile.name, TRAINING).trials(workload="train")
    how = [f"{name.replace('_', ' ')} {listing(sorted({str(getattr(t, name)) for t in trials}))}" for name in NAMED]
    return f" {profile.title} has no plain trials and is left out; it has {', '.join(how)}."


def _configurations(sides: Iterable[Side]) -> dict[str, dict[str, set[str]]]:
    """What -> profile -> the values it has there."""
    found: dict[str, dict[str, set[str]]] = {}
    for side in sides:
        record = side.results.by_trial[side.trial][0]
        told = {
            name.replace("_", " "): str(getattr(side.trial, name)) for name in COMPARABLE if name != "data_checksum"
        }
        told |= {
            "content of the data": side.trial.data_checksum[:8],
            "scale": side.results.scale,
            "protocol": str(record.protocol),
            "framework version": str(record.framework_version),
            "cuDNN": record.versions.get("cudnn", "none"),
        }
        for what, value in told.items():
            found.setdefault(what, {}).setdefault(side.results.profile.name, set()).add(value)
    return found


def _natural(value: str) -> tuple[int, float, str]:
    return (0, float(value), "") if value.replace(".", "", 1).isdigit() else (1, 0.0, value)


def _is_of(side: Side, profile: Profile) -> bool:
    return side.results.profile.name == profile.name


def ratio_rows(
    seen: Evidence, baseline: str = "", sides: list[Side] | None = None
) -> dict[tuple[str, str], list[tuple[Side, Interval]]]:
    """(profile, profile it is compared with) -> each common trial with its ratio of images/s.

    `sides` are the trials to compare, profiles in order; without them the plain trainings.

    Every profile beside the one before it in order, or all beside `baseline`. Pairs without a common trial are left
    out.
    """
    compared = plain(seen, TRAINING) if sides is None else sides
    there = {side.results.profile.name for side in compared}
    order = [profile for profile in profiles(seen) if profile.name in there]
    couples = [(newer, older) for older, newer in pairwise(order)]
    if baseline:
        against = next((profile for profile in order if profile.name == baseline), None)
        couples = [(one, against) for one in order if against and one.name != baseline]
    found: dict[tuple[str, str], list[tuple[Side, Interval]]] = {}
    for family in families(compared, ["profile", "device"]):
        by_profile = {side.results.profile.name: side for side in family}
        for newer, older in couples:
            over, under = by_profile.get(newer.name), by_profile.get(older.name)
            effect = ratio(over, under, "images_per_s") if over and under else None
            if over and effect:
                found.setdefault((newer.title, older.title), []).append((over, effect))
    return found


def published_magnitudes(findings: Iterable[Finding]) -> Table | Text:
    """Every magnitude that the papers' claims print, beside the same quantity on the recorded profiles."""
    rows = [
        _magnitude_row(finding, judged) for finding in findings for judged in finding.tests if judged.test.published
    ]
    if not rows:
        return Text("No claim has a published magnitude.")
    return Table(
        pd.DataFrame(rows),
        "Published magnitudes as printed, and the same quantity on the profiles of this page. The papers had other "
        "hardware and frameworks: nothing says that the two should agree.",
    )


def _magnitude_row(finding: Finding, judged: Judged) -> dict[str, str]:
    test = judged.test
    kind = kind_of(test)
    printed = []
    for published in test.published:
        ends = published.value if isinstance(published.value, tuple) else (published.value,)
        said = " to ".join(shown_value(end, test.metric, kind) for end in ends)
        of = [f"{v} px" if name == "image_px" else title_of(str(v)) for name, v in published.select.items()]
        where = listing([load_profile(name).title for name in published.hardware])
        printed.append(f"{said} ({', '.join([*of, where])})")
    compared = f": {choice_words(test.over)} {COMPARED[kind]} {choice_words(test.under)}" if test.over else ""
    measured = "; ".join(f"{case.label}: {case.shown}" for case in judged.cases if case.effect)
    return {
        "claim": finding.claim.id,
        "what": f"{metric_name(test.metric)}{compared}",
        "published": "; ".join(printed),
        "measured": measured or judged.reason or "; ".join(dict.fromkeys(case.reason for case in judged.cases)),
    }


def describe(shown: Iterable[Results]) -> str:
    """Hosts, scales and n of several profiles, for captions."""
    told = {results.profile.name: results for results in shown}
    return "; ".join(f"{results.profile.title}: {results.describe()}" for results in told.values())
