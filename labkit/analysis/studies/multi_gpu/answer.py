"""The page of several devices: the answer in words, limitations, key numbers."""

from __future__ import annotations

from collections.abc import Sequence

from labkit.analysis import engines, summary
from labkit.analysis.format import percent
from labkit.analysis.studies import convergence
from labkit.analysis.studies.multi_gpu import concurrency, links, plan, scaling, to_target
from labkit.analysis.table import Text
from labkit.analysis.verdicts.words import shown_effect
from labkit.results.study_records import StudyRecords as Results
from labkit.trial import Trial

KeyNumbers = list[list[str]]


def headline(results: Results) -> Text:
    """The answer first: what more devices buy, what they cost in epochs, what two jobs and other links make of it."""
    scaled, runs = scaling.scaled(results), to_target.runs(results)
    if not any(results.ok(trial) for trial in results.by_trial):
        return engines.nothing(results)
    said = [
        scaling.sentence(results, scaled),
        to_target.sentence(results, runs),
        concurrency.sentence(results),
        links.sentence(results),
        scaling.failed_sentence(results, scaled),
        plan.stands_for(results.profile),
    ]
    return Text("\n\n".join(part for part in said if part))


def limitations(results: Results) -> Text:
    """What these numbers do not say."""
    scaled, runs = scaling.scaled(results), to_target.runs(results)
    said = [] if results else [plan.stands_for(results.profile)]  # else it stands in the answer
    if any(results.ok(trial) for trial in runs):
        one = next(trial for trial in runs if results.ok(trial))
        said.append(
            f"The runs to a target have one network, one batch and one target on {one.data}: "
            f"{convergence.NO_ACCURACY}, and another network may order them otherwise. Batch norm, where the network "
            "has it, takes each device's own images, so a total batch held is fewer of them for each. Stale updates "
            "are applied in turns, each exactly as old as there are other devices; a parameter server's age varies. "
            "A validation takes batch norm's running statistics, which follow the weights update by update: where an "
            "epoch has few updates they lag, and a part of the delay in accuracy is theirs; the training loss beside "
            "it is free of that."
            f"{_of_learners(runs)}"
        )
    if concurrency.groups(results):
        said.append(
            "Two jobs at once are two trainings that start together and are timed until both are done; jobs that come "
            "and go as users submit them are another question. A job on half of the devices also has half the total "
            "batch, which by itself may take fewer epochs."
        )
    said.append(summary.limitations(results, [*scaled, *runs], memory=False).body)
    return Text("\n\n".join(part for part in said if part))


def _of_learners(runs: Sequence[Trial]) -> str:
    """What processes that share one device cannot show of a training run."""
    if not any(trial.placement == "together" for trial in runs):
        return ""
    return (
        " Learners that share a device are in step as if each had one of its own, and average the same gradients (by "
        "Gloo where several GPUs have NCCL, so in another order of additions); only their time says nothing."
    )


def key_numbers(results: Results) -> KeyNumbers:
    """The best and the worst efficiency on the most devices, two jobs at once over the two in turns, what learners took
    in epochs.
    """
    several = [
        (share, trial)
        for trial in scaling.scaled(results)
        if trial.devices > 1
        and trial.scaling == "weak"
        and (share := scaling.efficiency(results, trial))
        and not scaling.is_vague(share)
    ]
    found: KeyNumbers = []
    if several:
        most = max(trial.devices for _, trial in several)
        at_most = [(share, trial) for share, trial in several if trial.devices == most]
        ends = [max(at_most, key=lambda pair: pair[0].point), min(at_most, key=lambda pair: pair[0].point)]
        for share, trial in dict.fromkeys(ends):
            name = scaling.Setting.of(trial).name
            found.append([scaling.share_words(share), f"of linear on {scaling.counted(trial)}: {name}"])
    for group in concurrency.groups(results):
        for trial in group:
            effect = concurrency.over_twice_alone(results, trial) if trial.arrangement == "at_once" else None
            if effect and trial.devices == max(g[0].devices for g in concurrency.groups(results)):
                name = f"{scaling.Setting.of(trial).name}, {scaling.counted(trial)}"
                found.append([shown_effect(effect, "run_s", "ratio"), f"two jobs at once over twice one alone: {name}"])
    return found + _of_epochs(results)


def _of_epochs(results: Results) -> KeyNumbers:
    """Epochs to the target over one device's, of several that change nothing else and of several that are stale."""
    runs = to_target.runs(results)
    one = to_target.alone(runs)
    if one is None:
        return []
    chosen = [
        trial
        for trial in runs
        if trial.devices > 1
        and (trial.scaling, trial.learning_rate, trial.schedule) == ("weak", one.learning_rate, one.schedule)
    ]
    return [
        [said, f"of one device's epochs to {percent(trial.target_top1)} top-1: {to_target.named(trial, one)}"]
        for trial in chosen
        if (said := to_target.over_one(results, trial, one))
    ]
