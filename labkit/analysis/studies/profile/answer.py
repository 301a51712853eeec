"""Where the time goes, in words: what bounds each network, what of it a tuned engine removes, and what is not known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from labkit.analysis import engines, summary
from labkit.analysis.format import listing, percent
from labkit.analysis.speed import title
from labkit.analysis.studies import host_time
from labkit.analysis.studies.profile import gpus, limits, memory, removed, sample, seen
from labkit.analysis.studies.profile.grids import SMALL_PX
from labkit.analysis.studies.profile.limits import (
    COMPUTE,
    COPY,
    DRAM,
    LAUNCH,
    NO_UNIT,
    OPEN,
    PYTHON,
    UNDECIDED,
    Limit,
)
from labkit.analysis.table import Text
from labkit.analysis.verdicts import Findings
from labkit.recipes import is_plain
from labkit.results import from_trace as traced
from labkit.results.from_telemetry import why_not
from labkit.results.study_records import StudyRecords as Results
from labkit.trial import Trial

KeyNumbers = list[list[str]]
MEMORY_BOUND = "wisconsin-memory-bound"
WORDS = {
    LAUNCH: "launching kernels",
    COPY: "copies",
    DRAM: "memory",
    COMPUTE: "arithmetic",
    PYTHON: "what lies between operators",
}
# Of the rest nothing is said that bounds them.
OTHERS = {
    NO_UNIT: "not determined",
    UNDECIDED: "undecided",
    OPEN: "not told",
}
SMALLER = {
    "alexnet": "AlexNet's first stride is 1",
    "vgg16": "VGG-16's last features, one pixel, are repeated for its large layers",
}
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
    first = [_counted(loop), _near_the_roof(results, loop), _most_of_all(results, loop)]
    on_gpu = any(trial.device == "cuda" for trial in loop)
    said = [
        " ".join(part for part in (first if on_gpu else first[::-1]) if part),
        memory_bound(results, loop, verdicts),
        removed.sentence(results, list(found)),
        host_time.sentence(results, loop, seen.name),
        sample.short(results),
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
    if _untold_on_cpu(found):
        because = _because(sorted(found.values(), key=_by_share))
        return f"What bounds them is not known: a CPU has no counters here{because}."
    words = Counter(limit.word for limit in found.values())
    ordered = [word for word in (*WORDS, *OTHERS) if words[word]]
    told = [_how_many(word, words[word], [one for one in found.values() if one.word == word]) for word in ordered]
    whole = f"Of {len(found)} plain FP32 trainings" if len(found) > 1 else "Of one plain FP32 training"
    return f"{whole} {listing(told)}."


def _near_the_roof(results: Results, found: dict[Trial, Limit]) -> str:
    """Trainings without a busy unit whose images/s come near what the ceilings allow, or pass it: why that can be."""
    idle = [trial for trial, limit in found.items() if limit.word == NO_UNIT]
    near = [share for trial in idle if (share := limits.of_roofline(results, trial)) and share >= limits.NEAR_PEAK]
    if not near:
        return ""
    told = " to ".join(dict.fromkeys(limits.of_roof(share) for share in (min(near), max(near))))
    return (
        f"Of those that are {OTHERS[NO_UNIT]} {len(near)} {'reach' if len(near) > 1 else 'reaches'} {told} of what "
        "the roofline allows all the same: it counts the arithmetic of direct convolutions, and bytes that a cache may "
        "save."
    )


def _untold_on_cpu(found: dict[Trial, Limit]) -> bool:
    return all(trial.device == "cpu" and limit.word == OPEN for trial, limit in found.items())


def _how_many(word: str, count: int, alike: Sequence[Limit]) -> str:
    because = _because(sorted(alike, key=_by_share))
    if word in OTHERS:
        return f"for {count} it is {OTHERS[word]}{because}"
    return f"{count} {'is' if count == 1 else 'are'} bound by {WORDS[word]}{because}"


def _by_share(limit: Limit) -> float:
    return limit.share or 0.0


def _because(alike: Sequence[Limit], batches: Sequence[str] = ()) -> str:
    """` (the device waits for launches for 31 % to 72 % of the step)`: the first and the last of some limits.

    With the batches of these: `for 72 % at batch 4 and 31 % at 16 of the step`. Of several reasons each.
    """
    sentences = dict.fromkeys(one.because for one in alike)
    if len(sentences) > 1:
        parts = [_because([one for one in alike if one.because == because]) for because in sentences]
        return f" ({'; '.join(part.removeprefix(' (').removesuffix(')') for part in parts if part)})"
    shares = [one.share for one in (alike[0], alike[-1]) if one.share is not None]
    said = list(dict.fromkeys(percent(share) for share in shares))
    if not said:
        return ""
    told = " to ".join(said)
    if batches and len(said) > 1:
        told = f"{said[0]} at batch {batches[0]} and {said[-1]} at {batches[-1]}"
    return f" ({alike[0].because.format(told)})"


def memory_bound(results: Results, found: dict[Trial, Limit], verdicts: Findings | None) -> str:
    """Whether memory bounds the training from which the Wisconsin paper concludes that it does: verdict and numbers."""
    claim = next((one for one in verdicts.findings if one.claim.id == MEMORY_BOUND), None) if verdicts else None
    if claim is None:
        return ""
    selected = claim.tests[0].test.select
    trials = [trial for trial in found if all(getattr(trial, name) == selected[name] for name in ("model", "image_px"))]
    asked = Trial(model=str(selected["model"]), image_px=int(str(selected["image_px"])))
    said = (
        f"That memory bounds {title(asked)} at {asked.image_px} px, which the Wisconsin paper trained: {claim.verdict}"
    )
    if not trials:
        return f"{said}; {_why_not_traced(results)}."
    at = f" at batch {listing([f'{trial.batch:,}' for trial in trials])}" if claim.cases else ""
    why = f" ({claim.reason})" if claim.reason and not claim.cases else ""
    told = _memory_words(results, trials)
    return f"{said}{at}{why}. {told}".strip() if told else f"{said}{at}{why}."


def _why_not_traced(results: Results) -> str:
    """Why nothing can be said of it: there is no trace, and maybe no counter either."""
    uncounted = not any(seen.metric(results, trial, "dram_activity") for trial in seen.plain(results))
    on_cpu = results.profile.device.kind == "cpu"
    also = f", and DRAM activity is not counted ({why_not(results, 'dram_activity')})" if uncounted else ""
    also = ", and its DRAM activity is not counted at all" if uncounted and on_cpu else also
    return f"it is not traced at this scale{' on a CPU' if on_cpu else ''}{also}"


def _memory_words(results: Results, trials: Sequence[Trial]) -> str:
    """`DRAM 13 % and 22 %, FP32 pipes 15 % and 25 %; the device waits for launches for 57 % and 34 % of the step.`"""
    told = []
    for metric, what in (("dram_activity", "DRAM"), ("fp32_activity", "FP32 pipes")):
        if values := [seen.metric(results, trial, metric) for trial in trials]:
            shares = [percent(one.point) for one in values if one]
            told += [f"{what} {listing(shares)}"] if len(shares) == len(trials) else []
    waits = [one for trial in trials if (one := seen.metric(results, trial, "launch_gap_share"))]
    said = [", ".join(told)] if told else []
    if len(waits) == len(trials):
        said.append(f"the device waits for launches for {listing([percent(one.point) for one in waits])} of the step")
    words = "; ".join(said)
    return f"{words[:1].upper()}{words[1:]}." if words else ""


def _most_of_all(results: Results, found: dict[Trial, Limit]) -> str:
    """Which class of kernels takes most of a step, in how many trainings: where it does in every pass."""
    most: dict[str, list[float]] = {}
    unclear = []
    for trial in found:
        leads = _leading(results, trial)
        if len(leads) > 1:
            unclear.append(f"{listing(leads)} ({seen.name(trial)})")
        elif leads:
            share = seen.shares(results, trial, seen.step_parts)[leads[0]]
            most.setdefault(leads[0], []).append(share.point)
    told = [
        f"{group} in {len(shares)} training{'s' if len(shares) > 1 else ''} "
        f"({' to '.join(dict.fromkeys(map(percent, (min(shares), max(shares)))))} of the step)"
        for group, shares in sorted(most.items(), key=lambda pair: -len(pair[1]))
    ]
    also = f"not separated by the passes: {'; '.join(unclear)}" if unclear else ""
    if not told:
        return f"Which class of {seen.ran(list(found))}s takes most time is {also}." if also else ""
    said = f"Of all classes of {seen.ran(list(found))}s most time goes to {listing(told)}"
    return f"{said}; {also}." if also else f"{said}."


def _leading(results: Results, trial: Trial) -> list[str]:
    """The classes that take most of the step in any pass: one where the passes agree."""
    leads = []
    for record, trace in seen.traces(results, trial):
        parts = {name: share for name, share in seen.step_parts(record, trace).items() if name not in seen.REST}
        leads += [max(parts, key=lambda name: parts[name])] if parts else []
    return list(dict.fromkeys(leads))


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
    """`batch 4 to 16 bound by copies (nothing but copies runs for 71 % at batch 4 and 34 % at 16 of the step)`."""
    batches = [f"{trial.batch:,}" for trial, _ in run]
    where = listing(batches) if len(batches) < MANY_BATCHES else f"{batches[0]} to {batches[-1]}"
    word = run[0][1].word
    bound = OTHERS[word] if word in OTHERS else f"bound by {WORDS[word]}"
    return f"batch {where} {bound}{_because([limit for _, limit in run], batches)}"


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
        if earlier := traced.earlier_rules(results.records):
            said.append(earlier)
        if any(trial.device == "cuda" for trial in trials):
            said.append(memory.LOADER)
        at_both = {trial.model for trial in trials if trial.image_px == SMALL_PX}
        at_both &= {trial.model for trial in trials if trial.image_px != SMALL_PX}
        changed = [words for name, words in SMALLER.items() if name in at_both]
        if changed:
            said.append(
                f"Networks at {SMALL_PX} px are not those of the larger images: {' and '.join(changed)}, so arithmetic "
                "does not shrink as pixels do."
            )
        if any("graph" in trial.engine for trial in trials):
            said.append(
                "A captured step has no operators: a matrix product that does a convolution counts as one, as its name "
                "says nothing else."
            )
    said.append(summary.limitations(results, trials, memory=False).body)
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
