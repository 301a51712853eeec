"""Which trials have a trace, what a step of them consists of, and how they are named in this study."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from statistics import fmean

from labkit.analysis import engines
from labkit.analysis.format import listing, percent
from labkit.analysis.speed import title
from labkit.analysis.verdicts.evidence import Side, level
from labkit.models import MODELS, count
from labkit.recipes import engine_name, is_plain
from labkit.records import Record
from labkit.results import from_trace as traced
from labkit.results.from_result import value_of
from labkit.results.study_records import StudyRecords as Results
from labkit.statistics import Interval, share_interval
from labkit.traced import KernelClass, Traced
from labkit.trial import ASKED_AFTER, Trial

Shares = dict[str, float]

# Classes of kernels (of a CPU: of operators) as pictures put them together, in the order in which they are drawn.
GROUPS: dict[str, tuple[KernelClass, ...]] = {
    "convolution": ("convolution",),
    "matrix product": ("matrix_product",),
    "batch norm": ("batch_norm",),
    "pooling": ("pooling",),
    "element-wise": ("element_wise", "reduction"),
    "optimiser": ("optimiser",),
    "between devices": ("collective",),
    "loss, layout, loader": ("loss", "layout", "loader"),
    "unknown": ("other",),
}
# What is no kernel: copies and fills while no kernel ran; waiting though something was launched already; waiting for
# a launch. Of a CPU the last is Python and the framework between operators.
COPIES, QUEUED, WAITING, BETWEEN = "copies alone", "queued", "waiting for launches", "between operators"
LEAST = 0.001  # differences of shares below this are not told
REST = (COPIES, QUEUED, WAITING, BETWEEN)


def trainings(results: Results) -> list[Trial]:
    """The trials of this study that train and ask for a trace, in order; those that only test samples are left out."""
    asked = [trial for trial in engines.timed(results) if trial.traced_iterations]
    usual = Counter((trial.traced_iterations, trial.steps_before) for trial in asked).most_common(1)
    kept = [trial for trial in asked if (trial.traced_iterations, trial.steps_before) == usual[0][0]]
    return sorted(kept, key=lambda trial: _place(trial, kept))


def _place(trial: Trial, among: Sequence[Trial]) -> tuple[bool, int, bool, int]:
    """Large images first, and within a size by arithmetic; networks of one size after those of several."""
    sizes = {other.image_px for other in among if other.model == trial.model}
    known = trial.model in MODELS
    work = count(trial.model, image_px=MODELS[trial.model].native_px).flop_forward if known else 0
    return not known, -trial.image_px, len(sizes) < 2, work


def alone(results: Results) -> list[Trial]:
    """Of these the ones on one device at the usual learning rate: what tables and pictures compare."""
    default = Trial().learning_rate
    return [one for one in trainings(results) if one.devices == 1 and one.learning_rate == default]


def plain(results: Results) -> list[Trial]:
    """Of these the papers' loop."""
    return [trial for trial in alone(results) if is_plain(trial)]


def setting(trial: Trial) -> str:
    """A network and its input: `AlexNet, 224 px`."""
    return f"{title(trial)}, {trial.image_px} px"


def name(trial: Trial) -> str:
    """A trial in this study: `AlexNet, 224 px, batch 4`, and its engine where it is not the papers'."""
    how = "" if is_plain(trial) else f", {engine_name(trial)} in {trial.precision.upper()}"
    return f"{setting(trial)}, batch {trial.batch:,}{how}"


def without_questions(trial: Trial) -> Trial:
    """The trial whatever is asked of it once it was timed."""
    default = Trial()
    return replace(trial, **{field: getattr(default, field) for field in ASKED_AFTER})


def traces(results: Results, trial: Trial) -> list[tuple[Record, Traced]]:
    """The passes of a trial that have a trace, with it."""
    return [
        (record, found)
        for record in results.ok(trial)
        if (found := traced.trace_of(record)) is not None and found.steps
    ]


def any_trace(results: Results, trials: Sequence[Trial]) -> bool:
    """Whether any of these has a trace."""
    return any(traces(results, trial) for trial in trials)


def why_none(results: Results, trials: Sequence[Trial]) -> str:
    """Why there is no trace of any of these, or not of some, in words."""
    if not results:
        return "nothing was measured"
    reasons: list[str] = []
    for trial in trials:
        lacking = [record for record in results.ok(trial) if traced.trace_of(record) is None]
        reasons += [traced.why_no_trace(record) for record in lacking]
        failed = engines.failure(results, trial)
        reasons += [failed] if failed else []
    return "; ".join(dict.fromkeys(reasons)) or "there is no such training among these records"


def engine_words(trials: Sequence[Trial]) -> dict[Trial, str]:
    """`plain`, `graph`; with the precision where an engine has several of them: one alone is among the conditions."""
    of_engine: dict[str, set[str]] = {}
    for trial in trials:
        of_engine.setdefault(engine_name(trial), set()).add(trial.precision)
    return {
        trial: f"{name}, {trial.precision.upper()}" if len(of_engine[name := engine_name(trial)]) > 1 else name
        for trial in trials
    }


def metric(results: Results, trial: Trial, name_: str) -> Interval | None:
    """A metric of a trial over its passes, whatever it comes from: trace, clock or telemetry."""
    return level(Side(results, trial), name_)


def shares(results: Results, trial: Trial, of: Callable[[Record, Traced], Shares]) -> dict[str, Interval]:
    """Shares over the passes of a trial, each a mean with its interval; what a pass lacks is none of its time."""
    found = [of(record, trace) for record, trace in traces(results, trial)]
    names = list(dict.fromkeys(one for share in found for one in share))
    return {one: share_interval([_within(share.get(one, 0.0)) for share in found]) for one in names}


def _within(share: float) -> float:
    """A share that rounding put beyond 1."""
    return min(max(share, 0.0), 1.0)


def step_parts(record: Record, trace: Traced) -> Shares:
    """What a step consists of, as shares that add up to 1: of a timed step, on a CPU of a traced one.

    Kernels that ran at the same time share that time by their durations.
    """
    busy = value_of(record, "compute_utilisation")
    if busy is None or not trace.kernel_s:
        return {}
    busy = min(busy, 1.0)
    found = {group: busy * share for group, share in groups(trace).items()}
    if trace.of == "operators":
        return {**found, BETWEEN: 1 - busy}
    beside = min(busy * (trace.active_s - trace.busy_s) / trace.busy_s, 1 - busy) if trace.busy_s else 0.0
    gaps = traced.idle_shares(record, trace)
    waiting, queued = gaps if gaps else (1 - busy - beside, 0.0)
    return {**found, COPIES: beside, QUEUED: queued, WAITING: waiting}


def of_step(share: float | None) -> str | None:
    """A share for a table: `12 %`, and `< 0.1 %` where it is less than what passes tell apart."""
    if share is None:
        return None
    return f"< {100 * LEAST:g} %" if 0 < share < LEAST else percent(share)


def groups(trace: Traced) -> Shares:
    """Each group's share of the kernels' time."""
    of_class = traced.class_shares(trace)
    found = {group: sum(of_class.get(kind, 0.0) for kind in kinds) for group, kinds in GROUPS.items()}
    return {group: share for group, share in found.items() if share}


def ran(trials: Sequence[Trial]) -> str:
    """What a trace of these is of: kernels, or on a CPU operators."""
    return "operator" if trials and all(trial.device == "cpu" for trial in trials) else "kernel"


def unknown_sentence(results: Results, trials: Sequence[Trial]) -> str:
    """How much of the kernels' time no rule knows, where it is most; and whether the rules were earlier ones."""
    earlier = traced.earlier_rules(record for trial in trials for record in results.ok(trial))
    also = f" {earlier}" if earlier else ""
    found = {trial: shares(results, trial, lambda _, trace: groups(trace)) for trial in trials}
    known = {trial: one["unknown"].point for trial, one in found.items() if "unknown" in one}
    if not known:
        return f" Every {ran(trials)}'s name is known to a rule.{also}" if any_trace(results, trials) else ""
    most = max(known, key=lambda trial: known[trial])
    said = f" Unknown to every rule is {percent(known[most])} of the {ran(trials)}s' time at most ({name(most)})."
    return f"{said}{also}"


def lacking_sentence(results: Results, trials: Sequence[Trial]) -> str:
    """Which of these have no trace, and why, for a caption; empty where all have one."""
    by_reason: dict[str, list[str]] = {}
    for trial in trials:
        if not traces(results, trial):
            by_reason.setdefault(why_none(results, [trial]), []).append(name(trial))
    said = [f"{few(names)} ({why})" for why, names in by_reason.items()]
    return f" Without a trace: {'; '.join(said)}." if said else ""


def few(names: Sequence[str]) -> str:
    """Names of trials, or how many there are where they are many."""
    return listing(list(names)) if len(names) <= engines.MANY else f"{len(names)} trials"


def steps_words(results: Results, trials: Iterable[Trial]) -> str:
    """How many steps the traces of these trials have: `20 traced steps a pass`, `18 to 20 traced steps a pass`."""
    counts = sorted({trace.steps for trial in trials for _, trace in traces(results, trial)})
    if not counts:
        return "no traced steps"
    told = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"{told} traced step{'s' if counts[-1] > 1 else ''} a pass"


def first_pass(results: Results, trials: Sequence[Trial]) -> str:
    """The conditions of something that is of one pass, whatever passes there are: with `n = 1`."""
    said = engines.conditions(results, list(trials)).removesuffix(f", n = {len(results.passes())}")
    return f"{said}, n = 1 (the first traced pass)"


def spread_words(results: Results, trials: Iterable[Trial], of: Callable[[Record, Traced], Shares]) -> str:
    """How far apart passes lie in any share: `passes lie apart by 1.2 points at most (AlexNet, …)`."""
    widest, several, where = 0.0, False, ""
    for trial in trials:
        found = [of(record, trace) for record, trace in traces(results, trial)]
        several |= len(found) > 1
        for one in {name_ for share in found for name_ in share}:
            values = [share.get(one, 0.0) for share in found]
            if max(values) - min(values) > widest:
                widest, where = max(values) - min(values), name(trial)
    if not several:
        return "one pass, so no spread"
    return f"passes lie apart by {points(widest)} at most" + (f" ({where})" if widest >= LEAST else "")


def points(share: float) -> str:
    """A difference of shares: `1.2 points`, `less than 0.1 points`."""
    return f"{100 * share:.2g} points" if abs(share) >= LEAST else f"less than {100 * LEAST:g} points"


def ends(trials: Sequence[Trial]) -> list[Trial]:
    """Of each network, input and engine the smallest and the largest batch."""
    by: dict[tuple[str, str], list[Trial]] = {}
    for trial in trials:
        by.setdefault((setting(trial), engine_name(trial)), []).append(trial)
    found: list[Trial] = []
    for alike in by.values():
        ordered = sorted(alike, key=lambda trial: trial.batch)
        found += dict.fromkeys((ordered[0], ordered[-1]))
    return [trial for trial in trials if trial in found]


def largest_input(trials: Sequence[Trial]) -> list[Trial]:
    """Of each network those with its largest images."""
    most = {trial.model: max(one.image_px for one in trials if one.model == trial.model) for trial in trials}
    return [trial for trial in trials if trial.image_px == most[trial.model]]


def mean_of(results: Results, trial: Trial, value: Callable[[Traced], float | None]) -> float | None:
    """The mean over passes of something that a trace says; None where none says it."""
    found = [one for _, trace in traces(results, trial) if (one := value(trace)) is not None]
    return fmean(found) if found else None
