"""One network on more and more devices: speed-up over one, efficiency, and how busy each device is.

Weak scaling: each device's batch stays, so that n devices do n times the work of a step. Strong: the total batch stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from labkit.analysis import engines
from labkit.analysis.format import listing, number, percent, with_interval
from labkit.analysis.observations import spread
from labkit.analysis.speed import input_words, takes_words, title
from labkit.analysis.table import Table, Text
from labkit.analysis.verdicts.evidence import BETWEEN_DEVICES, Side, level
from labkit.analysis.verdicts.words import shown_effect
from labkit.recipes import engine_name, exchanged_in
from labkit.results.study_records import StudyRecords as Results
from labkit.statistics import Interval
from labkit.trial import Trial

FEW = 3  # numbers of devices named one by one in a sentence


class Setting(NamedTuple):
    """What stays while devices are added: a network, its input, an engine, a batch (a device's, or in strong all's)."""

    model: str
    image_px: int
    engine: str
    precision: str
    batch: int

    @classmethod
    def of(cls, trial: Trial) -> Setting:
        """The setting that a trial belongs to."""
        return cls(trial.model, trial.image_px, engine_name(trial), trial.precision, trial.batch)

    @property
    def name(self) -> str:
        """`ResNet-50, 224 px, graph in BF16`."""
        return f"{self.network}, {self.engine} in {self.precision.upper()}"

    @property
    def network(self) -> str:
        """`ResNet-50, 224 px`."""
        about = Trial(model=self.model, image_px=self.image_px)
        return f"{title(about)}, {input_words([about])}"


def setting_name(trial: Trial, beside: Sequence[Trial]) -> str:
    """A trial's setting; its engine only where others have another, since captions name what all have."""
    others = {(Setting.of(one).engine, one.precision) for one in beside}
    return Setting.of(trial).name if len(others) > 1 else Setting.of(trial).network


def counted(trial: Trial) -> str:
    """`4 GPUs`, `2 processes`, `8 GPUs of 2 nodes`, `4 learners on 1 GPU`."""
    if trial.placement == "together":
        return f"{trial.devices} learners on 1 {'GPU' if trial.device == 'cuda' else 'CPU'}"
    thing = "GPU" if trial.device == "cuda" else "process"
    plural = "s" if thing == "GPU" else "es"
    of_nodes = f" of {trial.nodes} nodes" if trial.nodes > 1 else ""
    return f"{trial.devices} {thing}{plural if trial.devices != 1 else ''}{of_nodes}"


def is_usual(trial: Trial) -> bool:
    """Whether a trial's devices exchange as they do unless asked otherwise: no way closed, gradients as they are."""
    open_ways = (trial.interconnect, trial.network) == ("direct", "any")
    return open_ways and (trial.devices == 1 or trial.gradient_precision == exchanged_in(trial))


def is_scaled(trial: Trial) -> bool:
    """Whether a trial is a timed training of one job of images, exchanging as usual."""
    one_job = trial.workload == "train" and not trial.epochs and trial.arrangement == "alone"
    return one_job and is_usual(trial) and trial.updates == "synchronous" and not takes_words(trial)


def scaled(results: Results) -> list[Trial]:
    """The trials that scaling is read off, in order: setting, scaling, devices."""
    found = [trial for trial in engines.timed(results) if is_scaled(trial)]
    order = list(dict.fromkeys(Setting.of(trial) for trial in found))
    return sorted(found, key=lambda trial: (order.index(Setting.of(trial)), trial.scaling == "strong", trial.devices))


def on_one(results: Results, trial: Trial) -> Trial | None:
    """The same training on one device; None where it was not asked for."""
    alone = {name: getattr(Trial(), name) for name in BETWEEN_DEVICES}
    return engines.like(results, trial, devices=1, **alone)


def speed_up(results: Results, trial: Trial) -> Interval | None:
    """Images/s over those of one device, formed within each pass first."""
    return engines.ratio(results, trial, on_one(results, trial), "images_per_s")


def efficiency(results: Results, trial: Trial) -> Interval | None:
    """The speed-up over the number of devices."""
    ratio = speed_up(results, trial)
    return None if ratio is None else ratio.scaled(1 / trial.devices)


def share_words(share: Interval) -> str:
    """`80 % [78, 82]`."""
    said = percent(share.point, 3)
    return said if share.low is None else f"{said} [{number(share.low * 100)}, {number((share.high or 0) * 100)}]"


def without_hiding(results: Results, trial: Trial) -> float | None:
    """The efficiency if nothing of the exchange hid: one device's step, and then the bytes at the best measured rate.

    The step is one device's of the same setting, of which a device has its part in strong scaling. None where no sum
    over so many devices was measured.
    """
    one = on_one(results, trial)
    step = results.interval(one, "step_s") if one else None
    rate = best_rate(results, trial)
    if step is None or rate is None:
        return None
    step_s = step.point / (trial.devices if trial.scaling == "strong" else 1)
    return step_s / (step_s + sent_bytes(trial) / rate)


def best_rate(results: Results, trial: Trial) -> float | None:
    """Bytes/s that each of so many devices sends at best in a sum over them, by the trial's way; None: not measured."""
    rates = [
        rate.point
        for other in results.trials(workload="all_reduce", interconnect=trial.interconnect, nodes=trial.nodes)
        if other.devices == trial.devices and (rate := wire_rate(results, other))
    ]
    return max(rates, default=None)


def ring_share(devices: int) -> float:
    """Of what is summed over so many devices the share that each sends in a ring: 2 (n - 1) / n."""
    return 2 * (devices - 1) / devices


def wire_rate(results: Results, trial: Trial) -> Interval | None:
    """Bytes/s that each device sends in a trial of messages: what a link can be held to (nccl-tests call it busbw)."""
    rate = results.interval(trial, "bytes_per_s")
    return None if rate is None else rate.scaled(ring_share(trial.devices) if trial.workload == "all_reduce" else 1.0)


def rows(results: Results, trials: Sequence[Trial]) -> pd.DataFrame:
    """One row a trial: images/s and speed-up with their intervals, or why there are none."""
    found = []
    for trial in trials:
        ratio = speed_up(results, trial)
        found.append(
            {
                "setting": Setting.of(trial).name,
                "scaling": trial.scaling,
                "devices": trial.devices,
                "batch": trial.batch_of_step,
                "images/s": rate.point if (rate := results.interval(trial, "images_per_s")) else None,
                **engines.ends(ratio),
                "efficiency": ratio.point / trial.devices if ratio else None,
                "failed": engines.failure(results, trial),
            }
        )
    return pd.DataFrame(found)


def table(results: Results, trials: Sequence[Trial]) -> Table | Text:
    """Images/s, speed-up, efficiency and utilisation of every number of devices; a failure is a row."""
    if not trials:
        return Text(f"There are no trainings on several devices of {results.profile.title} yet: nothing to show here.")
    shown = []
    for trial in trials:
        several = trial.devices > 1
        ratio = speed_up(results, trial) if several else None
        busy = spread(results, trial, "utilisation")
        first = level(Side(results, trial), "first_device_utilisation_ratio") if several else None
        shown.append(
            {
                "network": setting_name(trial, trials),
                "on": f"{counted(trial)}, {trial.scaling}" if several else counted(trial),
                "batch": trial.batch_of_step,
                "images/s": with_interval(results.interval(trial, "images_per_s"), "images_per_s", unit=False),
                "speed-up": shown_effect(ratio, "images_per_s", "ratio") if ratio else None,
                "of linear": share_words(ratio.scaled(1 / trial.devices)) if ratio else None,
                "bare": percent(hidden) if ratio and (hidden := without_hiding(results, trial)) is not None else None,
                "utilisation": percent(busy.mean) if busy else None,
                "first over others": shown_effect(first, "utilisation", "ratio") if first else None,
                "n": len(results.ok(trial)),
                "no result": engines.status_without_result(results, trial),
            }
        )
    frame = engines.concise(pd.DataFrame(shown, dtype=object), SELDOM)
    predicted = (
        " Bare: what of linear would be left if nothing hid, each step being one device's and then the exchange, at "
        "the best rate that was measured between so many. What stays far below it is held up by something else: where "
        "devices are used little, by the host, which launches for all of them."
        if "bare" in frame
        else ""
    )
    has_several = any(trial.devices > 1 for trial in trials)
    scaling_words = (
        "Weak scaling holds the batch of each device, strong scaling the total; `batch` is that of a step of all. "
        "Speed-up: images/s over those of one device, formed within each pass first; its share of a linear one is the "
        "efficiency."
        if has_several
        else "What several devices would be compared with."
    )
    busy_words = (
        " Utilisation: the share of the time in which any kernel ran"
        + (
            ", also one that waits for another device; mean over the devices, then the first device's over the others'."
            if has_several
            else "."
        )
        if "utilisation" in frame
        else ""
    )
    return Table(
        frame,
        f"{scaling_words}{predicted}{busy_words}{_shared_words(results, trials)} "
        f"{engines.conditions(results, list(trials))}. 95 % intervals.",
    )


def _shared_words(results: Results, trials: Sequence[Trial]) -> str:
    """Where devices share the update out: which networks' weights, and what that makes of a linear speed-up."""
    found = []
    for trial in trials:
        if sizes := results.fact(trial, "shared_buckets_bytes"):
            share = sum(sizes) / sum(results.fact(trial, "gradient_buckets_bytes"))
            found.append(f"{percent(share)} of {title(trial)}'s")
    if not found:
        return ""
    return (
        f" Captured steps share out the update of large layers, {listing(list(dict.fromkeys(found)))} weights: each "
        "device updates its part and sends the new weights, instead of all of them on every device; so a speed-up may "
        "be more than linear."
    )


SELDOM = ("speed-up", "of linear", "bare", "utilisation", "first over others", "no result")


def sentence(results: Results, trials: Sequence[Trial]) -> str:
    """What adding devices buys at the most devices that gave a result: the best and the worst network and engine.

    As shares of a linear speed-up; all of them, and speed-ups, are in the table. What is too uncertain to stand beside
    others has a paragraph of its own.
    """
    shares = {scaling: _at_most_devices(results, trials, scaling) for scaling in _HELD}
    on = list(dict.fromkeys(counted(trial) for of_scaling in shares.values() for trial in of_scaling))
    placed, vague = [], []
    for scaling, held in _HELD.items():
        certain, wide = (_best_first(shares[scaling], vague=one, with_devices=len(on) > 1) for one in (False, True))
        if certain:
            placed.append(f"{', down to '.join(dict.fromkeys([certain[0], certain[-1]]))}, with the {held} held")
        if wide:
            vague.append(f"{listing(wide)}, with the {held} held")
    who = on[0] if len(on) == 1 else "several devices"
    said = [f"Of a linear speed-up {who} reach {'; '.join(placed)}."] if placed else []
    main = " ".join([*said, *_one_against_several(results, trials)])
    unsure = f"Too uncertain to be placed: {'; '.join(vague)}." if vague else ""
    return "\n\n".join(part for part in (main, unsure) if part)


def _at_most_devices(results: Results, trials: Sequence[Trial], scaling: str) -> dict[Trial, Interval]:
    """The share of linear of each network and engine at the most devices that gave one."""
    found: dict[Setting, tuple[Trial, Interval]] = {}
    for trial in trials:
        if trial.devices > 1 and trial.scaling == scaling and (share := efficiency(results, trial)):
            found[Setting.of(trial)] = trial, share  # the last has the most devices
    return dict(found.values())


_HELD = {"weak": "batch of each device", "strong": "total batch"}
VAGUE = 0.2  # of linear: where an interval is wider, its middle says little beside others


def _best_first(shares: dict[Trial, Interval], *, vague: bool, with_devices: bool) -> list[str]:
    """Those whose interval is wide, or those whose is not (or is unknown), in words."""
    some = [(share, trial) for trial, share in shares.items() if is_vague(share) == vague]
    return [
        f"{share_words(share)} for {Setting.of(trial).name}" + (f" on {counted(trial)}" if with_devices else "")
        for share, trial in sorted(some, key=lambda pair: -pair[0].point)
    ]


def is_vague(share: Interval) -> bool:
    """Whether a share of linear is too uncertain to stand beside others."""
    return share.low is not None and share.high is not None and share.high - share.low > VAGUE


def _one_against_several(results: Results, trials: Sequence[Trial]) -> list[str]:
    """Where a single device with a better engine outdoes all devices with the papers' loop; a sentence an engine."""
    told: dict[tuple[str, str], list[str]] = {}
    for network in dict.fromkeys(Setting.of(trial).network for trial in trials):
        of_network = [trial for trial in trials if Setting.of(trial).network == network and results.ok(trial)]
        plain = [trial for trial in of_network if engine_name(trial) == "plain" and trial.devices > 1]
        alone = [trial for trial in of_network if trial.devices == 1]
        if not plain or not alone:
            continue
        several = max(plain, key=lambda trial: (trial.devices, trial.scaling == "weak"))
        one = max(alone, key=lambda trial: rate.point if (rate := results.interval(trial, "images_per_s")) else 0.0)
        ratio = engines.ratio(results, one, several, "images_per_s")
        if ratio is not None and ratio.low is not None and ratio.low > 1:
            recipes = [f"{counted(of)}, {Setting.of(of).engine} in {of.precision.upper()}" for of in (one, several)]
            effect = shown_effect(ratio, "images_per_s", "ratio")
            told.setdefault((recipes[0], recipes[1]), []).append(f"{network}, {effect}")
    return [f"{one}, trains {listing(found)} as fast as {several}." for (one, several), found in told.items()]


def failed_sentence(results: Results, trials: Sequence[Trial]) -> str:
    """Which numbers of devices gave no result, and why."""
    reasons: dict[str, list[str]] = {}
    for trial in trials:
        if why := engines.failure(results, trial):
            reasons.setdefault(why, []).append(f"{Setting.of(trial).name} on {counted(trial)}")
    return " ".join(f"No result ({why}): {listing(names)}." for why, names in reasons.items())


def sent_bytes(trial: Trial) -> float:
    """Bytes that each device sends for its gradients in a step, in a ring."""
    from labkit.models import count

    facts = count(trial.model, image_px=trial.image_px, stem=trial.stem, head=trial.head)
    size = 4 if trial.gradient_precision == "fp32" else 2
    return ring_share(trial.devices) * facts.parameters * size
