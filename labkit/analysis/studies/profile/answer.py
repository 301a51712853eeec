"""Where the time goes, in words: what bounds each network, what of it a tuned engine removes, and what is not known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from labkit.analysis import engines, summary
from labkit.analysis.format import listing, percent
from labkit.analysis.observations import label
from labkit.analysis.results import Results
from labkit.analysis.studies.profile import gpus, limits, seen
from labkit.analysis.studies.profile.limits import COMPUTE, COPY, DRAM, LATENCY, LAUNCH, OPEN, PYTHON, Limit
from labkit.analysis.table import Text
from labkit.analysis.verdicts import Findings
from labkit.analysis.verdicts.words import shown_effect
from labkit.recipes import is_plain
from labkit.trial import Trial

KeyNumbers = list[list[str]]
MEMORY_BOUND = "wisconsin-memory-bound"
WORDS = {
    LAUNCH: "launching kernels",
    COPY: "copies",
    DRAM: "memory",
    COMPUTE: "arithmetic",
    LATENCY: "the latency of small kernels",
    PYTHON: "what lies between operators",
}
UNDECIDED = "something that no counter here tells"
MANY_BATCHES = 3  # in a row are named by their ends


def headline(results: Results, verdicts: Findings | None = None) -> Text:
    """The answer first: what bounds how many trainings, whether memory does, and what tuned engines remove."""
    if not any(results.ok(trial) for trial in results.by_trial):
        return engines.nothing(results)
    trials = seen.alone(results)
    found = limits.limits(results, trials)
    if not found:
        return Text(f"Where the time goes can't be said here: {seen.why_none(results, seen.trainings(results))}.")
    loop = {trial: limit for trial, limit in found.items() if is_plain(trial)}
    first, on_gpu = [_counted(loop), _most_of_all(results, loop)], any(trial.device == "cuda" for trial in loop)
    said = [
        " ".join(part for part in (first if on_gpu else first[::-1]) if part),
        memory_bound(results, loop, verdicts),
        removed(results, list(found)),
    ]
    return Text("\n\n".join(part for part in said if part))


def networks(results: Results) -> Text:
    """Each network over its batches; several GPUs where there are any; and what has no trace."""
    trials = seen.alone(results)
    said = [
        *_networks(results, limits.limits(results, seen.plain(results))),
        gpus.sentence(results),
        seen.lacking_sentence(results, trials).strip(),
    ]
    return Text("\n\n".join(part for part in said if part))


def _counted(found: dict[Trial, Limit]) -> str:
    """How many of the papers' trainings are bound by what, and which share of their steps that is."""
    if not found:
        return ""
    words = Counter(limit.word for limit in found.values())
    ordered = [word for word in (*WORDS, OPEN) if words[word]]
    told = [_how_many(word, words[word], [one for one in found.values() if one.word == word]) for word in ordered]
    whole = f"Of {len(found)} plain FP32 trainings" if len(found) > 1 else "Of one plain FP32 training"
    return f"{whole} {listing(told)}."


def _how_many(word: str, count: int, alike: Sequence[Limit]) -> str:
    what = WORDS.get(word, UNDECIDED)
    return f"{count} {'is' if count == 1 else 'are'} bound by {what}{_because(sorted(alike, key=_by_share))}"


def _by_share(limit: Limit) -> float:
    return limit.share or 0.0


def _because(alike: Sequence[Limit]) -> str:
    """` (the device waits for launches for 72 % to 31 % of the step)`: the first and the last of some limits."""
    shares = [one.share for one in (alike[0], alike[-1]) if one.share is not None]
    said = list(dict.fromkeys(percent(share) for share in shares))
    sentences = {one.because for one in alike}
    if not said:
        return ""
    return f" ({(sentences.pop() if len(sentences) == 1 else '{}').format(' to '.join(said))})"


def memory_bound(results: Results, found: dict[Trial, Limit], verdicts: Findings | None) -> str:
    """Whether training ResNet-50 is bound by memory, as the Wisconsin paper concludes: verdict and numbers."""
    claim = next((one for one in verdicts.findings if one.claim.id == MEMORY_BOUND), None) if verdicts else None
    selected = claim.tests[0].test.select if claim else {"model": "resnet50", "image_px": 32}
    trials = [trial for trial in found if all(getattr(trial, name) == selected[name] for name in ("model", "image_px"))]
    told = [_memory_words(results, trial, found[trial]) for trial in trials]
    if claim is None:
        return ""
    why = f" ({claim.reason})" if claim.reason else ""
    said = f"That memory bounds training, as the Wisconsin paper concludes: {claim.verdict}{why}"
    return f"{said}; {'; '.join(told)}." if told else f"{said}."


def _memory_words(results: Results, trial: Trial, limit: Limit) -> str:
    shown = [
        f"{label(metric)} {percent(value.point)}"
        for metric in ("dram_activity", "fp32_activity", "sm_activity")
        if (value := seen.metric(results, trial, metric))
    ]
    waits = seen.metric(results, trial, "launch_gap_share")
    shown += [f"waiting for launches {percent(waits.point)}"] if waits else []
    numbers = f"{', '.join(shown)}, so " if shown else ""
    return f"{seen.name(trial)}: {numbers}bound by {WORDS.get(limit.word, UNDECIDED)}"


def _most_of_all(results: Results, found: dict[Trial, Limit]) -> str:
    """Which class of kernels takes most of a step, in how many trainings."""
    most: dict[str, list[float]] = {}
    for trial in found:
        parts = seen.shares(results, trial, seen.step_parts)
        kernels = {name: share.point for name, share in parts.items() if name not in seen.REST}
        group = max(kernels, key=lambda name: kernels[name])
        most.setdefault(group, []).append(kernels[group])
    told = [
        f"{group} in {len(shares)} training{'s' if len(shares) > 1 else ''} "
        f"({' to '.join(dict.fromkeys(map(percent, (min(shares), max(shares)))))} of the step)"
        for group, shares in sorted(most.items(), key=lambda pair: -len(pair[1]))
    ]
    return f"Of all classes of {seen.ran(list(found))}s most time goes to {listing(told)}." if told else ""


def _networks(results: Results, found: dict[Trial, Limit]) -> list[str]:
    """Each network and input over its batches: what bounds it where, and which kernels take most."""
    said = []
    for setting in dict.fromkeys(seen.setting(trial) for trial in found):
        mine = sorted((trial for trial in found if seen.setting(trial) == setting), key=lambda trial: trial.batch)
        runs: list[list[Trial]] = []
        for trial in mine:
            alike = runs and found[runs[-1][0]].word == found[trial].word
            runs[-1].append(trial) if alike else runs.append([trial])
        told = [_run_words([(trial, found[trial]) for trial in run]) for run in runs]
        said.append(f"{setting}: {'; '.join(told)}.{_most(results, mine)}")
    return said


def _run_words(run: Sequence[tuple[Trial, Limit]]) -> str:
    """`batch 4 to 16 bound by launching kernels (the device waits for launches for 71 % to 34 % of the step)`."""
    batches = [f"{trial.batch:,}" for trial, _ in run]
    where = listing(batches) if len(batches) < MANY_BATCHES else f"{batches[0]} to {batches[-1]}"
    bound = WORDS.get(run[0][1].word, UNDECIDED)
    return f"batch {where} bound by {bound}{_because([limit for _, limit in run])}"


def _most(results: Results, trials: Sequence[Trial]) -> str:
    """Which kernels (or operators) take most of a step, at the smallest and at the largest batch."""
    said: dict[str, list[str]] = {}
    for trial in dict.fromkeys((trials[0], trials[-1])):
        parts = seen.shares(results, trial, lambda _, trace: seen.groups(trace))
        if parts:
            group = max(parts, key=lambda name: parts[name].point)
            said.setdefault(group, []).append(f"{percent(parts[group].point)} at batch {trial.batch:,}")
    told = "; to ".join(f"{group} ({', '.join(where)})" for group, where in said.items())
    return f" Of the time of its {seen.ran(trials)}s most goes to {told}." if told else ""


def removed(results: Results, trials: Sequence[Trial]) -> str:
    """Of each tuned trial the part that it takes most from the step of the papers' loop, and what that buys."""
    told = []
    for trial, before in engines.over_plain(results, trials):
        after, first = (seen.shares(results, one, seen.step_parts) for one in (trial, before))
        ratio = engines.ratio(results, trial, before, "images_per_s")
        if not after or not first or not ratio:
            continue
        left = {name: after[name].point if name in after else 0.0 for name in first}
        part = max(first, key=lambda name: first[name].point - left[name])
        gain = shown_effect(ratio, "images_per_s", "ratio")
        told.append(
            f"{seen.name(trial)}: {part} {percent(left[part])} instead of {percent(first[part].point)} of the step, "
            f"{gain} images/s"
        )
    if not told:
        return ""
    narrower = any(trial.precision != "fp32" for trial in trials)
    part_of = " Part of the gain is precision and layout." if narrower else ""
    return f"What a tuned engine removes most: {'; '.join(told)}.{part_of}"


def limitations(results: Results) -> Text:
    """What these numbers do not say."""
    trials = seen.trainings(results)
    said = []
    if seen.any_trace(results, trials):
        said += [
            "A profiler slows the host. The kernels' durations are the device's own and hold; gaps under the profiler "
            "are longer than without it, so only how they divide is taken from the trace. What is launched without "
            "the profiler just in time may be counted as waiting."
            if any(trial.device == "cuda" for trial in trials)
            else "A profiler slows the operators themselves, small ones most: shares on a CPU are of the traced time.",
            "Kernels are sorted by their names (what no rule in the code knows is 'unknown'). A kernel that a "
            "compiler fused does several things and is counted as one.",
            "Bounds go by thresholds: a step just above and one just below are alike. They are of whole steps, in "
            "which single kernels may be bound otherwise.",
        ]
    said.append(summary.limitations(results, trials).body)
    return Text("\n\n".join(part for part in said if part))


def key_numbers(results: Results) -> KeyNumbers:
    """For the index: the most and the least waiting, and the largest share of time in one class of kernels."""
    found = []
    parts = {trial: seen.shares(results, trial, seen.step_parts) for trial in seen.plain(results)}
    rest = {
        trial: (name, share[name].point)
        for trial, share in parts.items()
        for name in (seen.WAITING, seen.BETWEEN)
        if name in share
    }
    if rest:
        for which, pick in (("most", max), ("least", min)):
            trial = pick(rest, key=lambda one: rest[one][1])
            found.append([percent(rest[trial][1]), f"of the step {rest[trial][0]}, the {which}: {seen.name(trial)}"])
    kernels = [
        (share.point, group, trial)
        for trial, one in parts.items()
        for group, share in one.items()
        if group not in seen.REST
    ]
    if kernels:
        share, group, trial = max(kernels, key=lambda one: one[0])
        found.append([percent(share), f"of the step in {group}, the most of a class: {seen.name(trial)}"])
    return found if len(rest) > 1 else found[-1:]
