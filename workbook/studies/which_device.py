"""The study of which device fits a workload: its rate on every device, and what a job on each takes and costs.

A rate is measured on the device, or predicted from devices that measured the workload, or printed by others for a like
workload. A device without any of them is a row with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from labkit.errors import one_of
from workbook.hardware.profile import Profile, Sourced, load_profile, profile_names
from workbook.prediction.device import UNCLASSED, Laws, refused
from workbook.prediction.guarantee import (
    NEWER,
    coverage,
    ended,
    left_out,
    left_out_within_chips,
    published_times,
    rates_of_profile,
)
from workbook.prediction.laws import exponents
from workbook.prediction.published import Network, load_published
from workbook.results import Results, is_report
from workbook.results.columns import copy_reason
from workbook.show.frames import estimates
from workbook.studies import sweeps
from workbook.studies.comparison import ALIKE, CONFIGURATION, in_generations
from workbook.studies.profile import COMPUTE, LAUNCH, MEMORY, NEAR_PEAK, NO_UNIT, PIPES, UNKNOWN, WAITS
from workbook.studies.values import one_of_column, share
from workbook.trials.trial import OWN
from workbook.words import NAN, NOT_MEASURED, in_order, label, listing, number

TASKS = {"training": ("train", "own_training"), "inference": ("infer", "own_prediction")}
MEASURED, PREDICTED, PUBLISHED, NONE = "measured", "predicted", "published", "none"
RATE, ENERGY, HOUR_S = "images_per_s", "energy_per_image_j", 3600.0
OF_OWN = {RATE: "samples_per_s", ENERGY: "energy_per_sample_j"}  # metrics of a network in samples
WH_PER_MILLION = 1e6 / HOUR_S  # of a joule per image
HOST_DECIDES = "its host would set the speed of this eager loop"
ITS_GENERATION = "its chip generation"
NO_TRACE = "no GPU has recorded this workload with a trace"
YES, NO, PERHAPS = "yes", "no", "perhaps"
PLACES = {YES: 0, PERHAPS: 1}  # of devices in the answer; others follow
ACTIVITIES = ["step_s", "busy_step_s", "host_share", "memory_bytes", "dram_activity", *PIPES]


def devices() -> list[Profile]:
    """Return the device files of one device, CPUs first, then GPUs from the oldest on."""
    return in_generations(profile for profile in map(load_profile, profile_names()) if profile.device.count == 1)


def of_network(results: Results, task: str, model: str) -> Results:
    """Return the records of a network in "training" or "inference" on device files of one device.

    A network of the user, or of today, is recorded in samples. In a report, a network without records is replaced by
    the first that has some. Raise UserError for another task, and outside a report for a network without records.
    """
    images, samples = TASKS[one_of("task", task, TASKS)]
    single = [part for part in results.selected if part.profile.device.count == 1]
    trials = [record.trial for part in single for record in part.records]
    workloads = {trial["model"]: name for name in (samples, images) for trial in trials if trial["workload"] == name}
    models = in_order(workloads, "model")
    if models and model not in models:
        model = models[0] if is_report() else one_of("network", model, models)
    asked = {"workload": workloads.get(model), "model": model, "devices": 1}
    parts = [
        replace(part, records=[record for record in part.records if asked.items() <= record.trial.items()])
        for part in single
    ]
    return Results([part for part in parts if part])


def workload(frame: pd.DataFrame, **asked: Any) -> pd.DataFrame:
    """Return the rows of one configuration with the `asked` values: of those that most devices ran, the fastest.

    An empty value asks for nothing, and in a report so does a value that no row has. Outside a report it raises
    UserError. Rows of energy windows stay; they repeat the configuration. A sample of a network in samples, which has
    one size, stands as an image.
    """
    rows = frame[(frame["framework"] == "torch") & (frame["epochs"] == 0) & (frame["arrangement"] == "alone")]
    if len(rows) and rows["workload"].isin(OWN).all():
        rows = rows.assign(**{image: rows[sample] for image, sample in OF_OWN.items()})
        for image, sample in OF_OWN.items():
            rows = copy_reason(rows, sample, image)
        asked["image_px"] = 0
    for name, value in asked.items():
        same = rows[rows[name] == one_of_column(rows, name, value)] if value else rows
        rows = same if len(same) else rows
    timed = sweeps.timed(rows[rows["status"] == "ok"])
    means = timed.groupby([*ALIKE, "profile"], dropna=False)[RATE].mean().dropna().reset_index()
    counts = means.groupby(ALIKE, dropna=False)["profile"].transform("nunique")
    best = means.assign(devices_with=counts).sort_values(["devices_with", RATE]).tail(1)
    fields = [name for name in ALIKE if name not in ("study", "energy_windows")]
    return rows.merge(best[fields], on=fields)


def once(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of each device's first study, each run once."""
    first = rows.sort_values("study").drop_duplicates("profile")[["profile", "study"]]
    return rows.merge(first, on=["profile", "study"]).drop_duplicates([*CONFIGURATION, "pass_number"])


def rates(rows: pd.DataFrame, kernels: pd.DataFrame, profiles: Sequence[Profile]) -> pd.DataFrame:
    """Return a row per device: images/s as `value`, `low`, `high`, its `basis`, `bound_by`, and a `reason` without it.

    `rows` are of `workload`, and `kernels` those of its traces by class. Intervals are 95 % over runs where measured,
    and 80 % where predicted. A published rate is of another loop and batch, so it has no interval.
    """
    timed = once(sweeps.timed(rows))
    of_energy = once(rows[rows["energy_windows"] > 0])
    measured = estimates(timed, RATE, ["profile"]).set_index("profile")
    energy = estimates(of_energy, ENERGY, ["profile"]).set_index("profile")
    printed = published(rows)
    known, made = _Sources(timed, kernels), []
    for profile in profiles:
        own = measured.loc[profile.name].to_dict() if profile.name in measured.index else {}
        if own.get("value", NAN) > 0:
            row = {**own, "basis": MEASURED, "bound_by": known.bound_of_source(profile)}
        elif own:
            row = {**own, "value": NAN, "basis": NONE, "reason": own["reason"] or NOT_MEASURED}
        else:
            row = known.predicted(profile)
        like = printed[printed["profile"] == profile.name]
        if row["basis"] == NONE and len(like) and not own:
            row |= {"basis": PUBLISHED, "value": like["value"].iloc[0], "low": NAN, "high": NAN}
        joules = energy.loc[profile.name].to_dict() if profile.name in energy.index else {}
        ends = {"energy": "value", "energy_low": "low", "energy_high": "high"}
        row |= {name: WH_PER_MILLION * joules.get(end, NAN) for name, end in ends.items()}
        made.append({"device_name": profile.title, "profile": profile.name, **row})
    made += printed[printed["profile"].isna()].to_dict("records")
    columns = ["device_name", "profile", "basis", "value", "low", "high", "passes", "reason", "bound_by"]
    frame = pd.DataFrame(made).reindex(columns=[*columns, "energy", "energy_low", "energy_high"])
    return frame.fillna({"reason": "", "bound_by": ""})


class _Sources:
    """The devices that measured a workload, and what they tell of others."""

    def __init__(self, timed: pd.DataFrame, kernels: pd.DataFrame) -> None:
        self._means = timed[timed["status"] == "ok"].groupby("profile")[ACTIVITIES].mean().astype(float)
        self._batch, self._precision = ([*timed[name].head(1), None][0] for name in ("batch", "precision"))
        traced = timed[["record", "profile"]].merge(
            kernels[["record", "kernel_class", "seconds", "count"]], on="record"
        )
        self._classes = traced.groupby(["profile", "kernel_class"])[["seconds", "count"]].mean().reset_index()

    def bound_of_source(self, profile: Profile) -> str:
        """Return what bounds the step of a device that measured it."""
        row = self._means.loc[profile.name]
        if row["host_share"] >= WAITS:
            return LAUNCH
        busy = share(row["busy_step_s"], row["step_s"])
        return bound(share(row["dram_activity"], busy), share(row[list(PIPES)].max(), busy))

    def predicted(self, target: Profile) -> dict[str, Any]:
        """Return a predicted rate, or the reason why there is none."""
        rows = self._means[self._means["busy_step_s"] > 0]
        sources = [(load_profile(name), self._kernels_of(name)) for name in rows.index]
        case = {"precision": self._precision, "devices": 1, "memory_bytes": float(rows["memory_bytes"].mean())}
        reasons = [refused(case, source, target, kernels) for source, kernels in sources] or [NO_TRACE]
        sources = [source for source, reason in zip(sources, reasons, strict=False) if not reason]
        if not sources:
            reason = reasons[0].removeprefix(f"{target.title} has ")
            return {"basis": NONE, "reason": reason.replace(f"the chip generation of {target.title}", ITS_GENERATION)}
        _, seconds, low_s, high_s = Laws(target).predicted(str(self._precision), sources)
        waits = (rows["host_share"] >= WAITS) | rows["step_s"].isna()  # a withdrawn time, which may have waited
        if waits.any() and not seconds >= rows["step_s"].max(skipna=False):
            return {"basis": NONE, "reason": HOST_DECIDES}
        value, low, high = (self._batch / end for end in (seconds, high_s, low_s))
        shares = [self._shares(source, target, seconds) for source, _ in sources]
        memory, compute = (sum(parts) / len(parts) for parts in zip(*shares, strict=True))
        about = {"value": value, "low": low, "high": high, "bound_by": bound(memory, compute)}
        return {"basis": PREDICTED, **about}

    def _kernels_of(self, profile: str) -> pd.DataFrame:
        classes = self._classes[self._classes["profile"] == profile]
        whole = {"kernel_class": UNCLASSED, "seconds": self._means.loc[profile, "busy_step_s"], "count": 1}
        return classes if len(classes) else pd.DataFrame([whole])

    def _shares(self, source: Profile, target: Profile, seconds: float) -> tuple[float, float]:
        """Return the shares of a target's step that the source's bytes and FLOP take at the target's nominal peaks."""
        row, here, there = self._means.loc[source.name], *(self._peaks(profile) for profile in (source, target))
        scale = row["step_s"] / seconds
        memory = row["dram_activity"] * scale * here[1] / there[1]
        return float(memory), float(row[list(PIPES)].max() * scale * here[0] / there[0])

    def _peaks(self, profile: Profile) -> tuple[float, float]:
        return rates_of_profile(profile, str(self._precision)) or (NAN, NAN)


def bound(memory: float, compute: float) -> str:
    """Return what bounds a step whose kernels use memory and the busiest unit for these shares of their time.

    >>> bound(0.7, 0.3), bound(0.2, 0.8), bound(0.4, 0.3), bound(float("nan"), 0.3)
    ('memory-bound', 'compute-bound', 'no single bottleneck', 'not determined')
    """
    if pd.isna(memory) or pd.isna(compute):
        return UNKNOWN
    return NO_UNIT if max(memory, compute) < NEAR_PEAK else MEMORY if memory > compute else COMPUTE


def bounds_of(answers: pd.DataFrame, most: int = 3) -> str:
    """Return what bounds a step on the first devices of `answers`, as a text.

    >>> bounds_of(pd.DataFrame({"device_name": ["A", "B", "C"], "bound_by": ["memory-bound", "memory-bound", ""]}))
    'memory-bound on A and B'
    """
    told = answers[answers["bound_by"] != ""].head(most).groupby("bound_by", sort=False)["device_name"]
    return "; ".join(f"{word} on {listing(names)}" for word, names in told) or "not measured"


def published(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the images/s that others printed for the network of `rows`: `device_name`, `profile`, `value`, `title`."""
    parts = [pd.DataFrame(columns=["device", "profile", "value", "title"])]
    networks = rows.loc[~rows["workload"].isin(OWN), ["workload", "model", "image_px"]]
    for case in networks.drop_duplicates().to_dict("records"):
        parts += [part for table in load_published() if len(part := table.rates(Network.model_validate(case)))]
    frame = pd.concat(parts[1:] or parts)[["device", "profile", "value", "title"]]
    titles = [load_profile(name).title if isinstance(name, str) else None for name in frame["profile"]]
    named = [title or device for title, device in zip(titles, frame["device"], strict=True)]
    return frame.assign(device_name=named, basis=PUBLISHED, low=NAN, high=NAN)


def job(
    answers: pd.DataFrame, profiles: Sequence[Profile], images: float, *, budget: float = 0, deadline_h: float = 0
) -> pd.DataFrame:
    """Return the rows of `rates` with the hours and cost of a job, sorted by cost, or by hours where none has a price.

    Devices that keep the limits come first, then those that perhaps do. `fits` says whether the job keeps the budget
    and the deadline: "perhaps" if an interval contains a limit. It is empty without limits, and of published rates,
    which are of another loop.
    """
    prices = {profile.name: profile.price_of(profile.device.kind) for profile in profiles}
    per_hour = answers["profile"].map({name: price.value for name, price in prices.items() if price}).astype(float)
    made = answers.assign(price=per_hour)
    for name, end in (("", "value"), ("_low", "high"), ("_high", "low")):
        hours = images / answers[end] / HOUR_S
        made = made.assign(**{f"hours{name}": hours, f"cost{name}": hours * per_hour})
    limits = {name: limit for name, limit in (("cost", budget), ("hours", deadline_h)) if limit}
    fits = [_fits(row, limits) for row in made.to_dict("records")]
    order = ["place", *(["cost"] if per_hour.notna().any() else []), "hours"]
    made = made.assign(fits=fits, place=[PLACES.get(answer, len(PLACES)) for answer in fits])
    return made.sort_values(order, kind="stable").drop(columns="place").reset_index(drop=True)


def _fits(row: dict[str, Any], limits: dict[str, float]) -> str:
    if not limits or row["basis"] not in (MEASURED, PREDICTED):
        return ""
    answers = set()
    for name, limit in limits.items():
        low, high = (row[name] if pd.isna(row[f"{name}_{end}"]) else row[f"{name}_{end}"] for end in ("low", "high"))
        answers.add("no price" if pd.isna(low) else YES if high <= limit else NO if low > limit else PERHAPS)
    return next(answer for answer in (NO, "no price", PERHAPS, YES) if answer in answers)


def by_reason(answers: pd.DataFrame) -> pd.DataFrame:
    """Return the answers with all devices that lack a rate for the same reason in one row, after the others."""
    lacks = answers["basis"] == NONE
    joined = (
        answers[lacks].groupby("reason", sort=False, as_index=False).agg({"device_name": ", ".join, "basis": "first"})
    )
    return pd.concat([answers[~lacks], joined.assign(bound_by="", fits="")], ignore_index=True)


def metric_of(rows: pd.DataFrame) -> str:
    """Return the metric of the rate of `rows`: images/s, or samples/s of a network in samples.

    >>> metric_of(pd.DataFrame({"workload": ["own_training"]}))
    'samples_per_s'
    """
    return OF_OWN[RATE] if rows["workload"].isin(OWN).any() else RATE


def title_of(rows: pd.DataFrame, model: str, image_px: int) -> str:
    """Return the name of the network of `rows` with the size of its images; without rows, of what was asked.

    >>> title_of(pd.DataFrame({"workload": ["train"], "model": "resnet50", "image_px": 32}), "vgg16", 224)
    'ResNet-50 at 32 px'
    """
    name = label("model", [*rows["model"], model][0])
    return name if metric_of(rows) != RATE else f"{name} at {label('image_px', [*rows['image_px'], image_px][0])}"


def columns(answers: pd.DataFrame, currency: str, metric: str = RATE) -> dict[str, Any]:
    """Return the columns of `job` for a table, with a rate's `metric`; those without any value are left out."""
    named = {
        **{metric.replace("_per_", "/"): "", "hours": "hours"},
        **{f"Wh per million {metric.partition('_per_')[0]}": "energy"},
        **{f"{currency} an hour": "price", f"cost, {currency}": "cost"},
    }
    shown: dict[str, Any] = {}
    for title, name in named.items():
        ends = {end: answers.get(f"{name}_{end}".strip("_"), NAN) for end in ("low", "high")}
        cells = answers[["device_name", "basis", "reason"]].assign(value=answers[name or "value"], **ends)
        if name == "energy":
            cells["reason"] = cells["reason"].mask(cells["basis"] == MEASURED, "not measured in this mode")
        if cells["value"].notna().any() or not name:
            shown[title] = (cells, name or metric)
    texts = {"bound by": "bound_by", "keeps the limits": "fits"}
    return shown | {title: name for title, name in texts.items() if (answers[name] != "").any()}


def points(answers: pd.DataFrame, printed: pd.DataFrame) -> pd.DataFrame:
    """Return the rates for a figure, in the order of `answers`; devices also have their published rates."""
    both = pd.concat([answers.dropna(subset=["value"]), printed.assign(passes=NAN)])
    return both[["device_name", "basis", "value", "low", "high"]].drop_duplicates(["device_name", "basis"])


def listed(profiles: Sequence[Profile], results: Results, printed: pd.DataFrame) -> pd.DataFrame:
    """Return the devices with texts: nominal peaks and their source, studies with records, published rates, price."""
    rows = []
    for profile in profiles:
        studies = {part.study.id[:2] for part in results.selected if part.profile.name == profile.name}
        memory, price = profile.peaks.memory_bytes_per_s, profile.price_of(profile.device.kind)
        names = ("bf16", "fp16", "fp32")
        name, peak = next(((name, of) for name in names if (of := _peak(profile, name))), ("", None))
        texts = {
            "peak": f"{number(peak.value / 1e12)} TFLOP/s, {label('precision', name)}" if peak else "unknown",
            "bandwidth": f"{number(memory.value / 1e9)} GB/s" if memory else "unknown",
            "source": peak.source if peak else "none",
            "records": f"studies {', '.join(sorted(studies))}" if studies else "none",
            "published rates": ", ".join(printed.loc[printed["profile"] == profile.name, "title"]) or "none",
            "price": f"{price.value:g} an hour ({price.source})" if price else "none entered",
        }
        rows.append({"device_name": profile.title, **texts})
    return pd.DataFrame(rows)


def _peak(profile: Profile, precision: str) -> Sourced | None:
    return profile.peaks.flop_per_s.get(precision)  # type: ignore[call-overload, no-any-return]


def guarantee() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the cases of devices that were left out, each with its kind of jump, and their coverage by jump.

    A jump without any case is a row with the reason.
    """
    within = left_out_within_chips()
    widths = {name: Laws(load_profile(name)).width_within for name in within["device"].unique()}
    width = within["device"].map(widths).astype(float)
    cases = pd.concat([left_out(), ended(within.assign(jump="same chip", width=width))], ignore_index=True)
    kinds = coverage(cases)
    absent = [] if NEWER in set(kinds["jump"]) else [{"jump": NEWER, "reason": "no table has a device newer than all"}]
    return cases, pd.concat([kinds.assign(reason=""), pd.DataFrame(absent)], ignore_index=True)


def covered(kinds: pd.DataFrame, by: str) -> dict[str, Any]:
    """Return the columns of a table of coverage: the share covered with its interval over devices, errors, counts."""
    shares = kinds.reindex(columns=[by, "covered", "low", "high", "reason"]).rename(columns={"covered": "value"})
    percent = shares.assign(**{end: 100 * shares[end] for end in ("value", "low", "high")}).fillna({"reason": ""})
    return {"covered, %": (percent, "covered"), "median error": "error", "cases": "count"}


def as_text(kinds: pd.DataFrame) -> pd.DataFrame:
    """Return a table of coverage with its errors and counts as texts: they have no interval."""
    errors = [None if pd.isna(error) else f"{number(100 * error, 2)} %" for error in kinds["median_error"]]
    counts = [
        None if pd.isna(cases) else f"{cases:.0f}{f' on {devices:.0f} devices' if devices > 1 else ''}"
        for cases, devices in zip(kinds["cases"], kinds["devices"], strict=True)
    ]
    return kinds.assign(error=errors, count=counts).astype({"error": object, "count": object})


def by_device(cases: pd.DataFrame) -> pd.DataFrame:
    """Return the coverage of each device of the public tables, the worst first."""
    kinds = coverage(cases[cases["jump"] != "same chip"], by="device")
    return kinds.sort_values("covered", kind="stable").rename(columns={"device": "device_name"})


def savings() -> dict[str, float]:
    """Return the share of a step's time that twice the FLOP/s, or twice the bandwidth, saves in the public tables."""
    compute, memory = exponents(published_times())
    return {"FLOP/s": 1 - 2**-compute, "bandwidth": 1 - 2**-memory}
