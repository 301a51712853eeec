"""The answer of frameworks in words: how far they lie apart, what an engine buys instead, what is not known here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from labkit.analysis import engines, summary
from labkit.analysis.format import listing, percent
from labkit.analysis.observations import spread
from labkit.analysis.studies.frameworks import holding, lacking
from labkit.analysis.studies.frameworks.compared import (
    NATIVE,
    Cell,
    Gain,
    Setting,
    apart,
    contested,
    engine,
    framework,
    gains,
    how,
    is_own,
    over_native,
    side_by_side,
)
from labkit.analysis.studies.frameworks.plan import ON_A_GPU_ONLY
from labkit.analysis.table import Text
from labkit.analysis.verdicts.words import shown_effect
from labkit.results.study_records import StudyRecords as Results
from labkit.statistics import Interval
from labkit.trial import Trial

KeyNumbers = list[list[str]]
TENSORFLOW = "keras-tensorflow"


class Widest(NamedTuple):
    """The cell in which the frameworks lie furthest apart: its ratio, and the two of them."""

    cell: Cell
    ratio: Interval
    fastest: Trial
    slowest: Trial


def headline(results: Results) -> Text:
    """The answer first: how much the framework matters, and how much the engine; who is ahead; what is absent."""
    if not any(results.ok(trial) for trial in results.by_trial):
        return engines.nothing(results)
    trials = side_by_side(results)
    said = [
        matters(results, trials),
        ahead(results, trials),
        own(results, trials),
        " ".join(part for part in (lacking.sentence(results, list(results.by_trial)), untested(results)) if part),
    ]
    return Text("\n\n".join(part for part in said if part))


def widest(results: Results, trials: Sequence[Trial]) -> Widest | None:
    """Where frameworks differ most; None where no two share a pass."""
    found = [
        Widest(cell, ratio, ranked[0], ranked[-1])
        for cell, ranked in contested(results, trials).items()
        if (ratio := apart(results, ranked))
    ]
    return max(found, key=lambda one: one.ratio.point, default=None)


def matters(results: Results, trials: Sequence[Trial]) -> str:
    """How far frameworks lie apart at most where all else is alike, and what the engine makes in one framework."""
    most = widest(results, trials)
    if most is None:
        return "Whether the framework matters can't be said here: no two of them have results alike in all else."
    said = (
        f"At equal engine class, precision and batch frameworks lie apart by {_ratio(most.ratio)} at most: "
        f"{how(most.fastest)} over {how(most.slowest)} ({most.cell.name}){_idle(results, most.slowest)}."
    )
    best: dict[str, Gain] = {}
    for gain in gains(results, trials):
        name = framework(gain.over)
        if not is_own(gain.over) and (name not in best or gain.ratio.point > best[name].ratio.point):
            best[name] = gain
    if best:
        told = {name: f"{name} {_ratio(gain.ratio)}{_of_gain(gain)}" for name, gain in best.items()}
        said += f" Within one framework, compiling makes of the eager images/s at most: {'; '.join(told.values())}."
    return said


def _idle(results: Results, trial: Trial) -> str:
    """`; under the slower one some kernel runs in 18 % of the time`, of one that the host holds back."""
    busy = spread(results, trial, "utilisation")
    waits = busy is not None and busy.mean < holding.WAITING
    return f"; under the slower one some kernel runs in {percent(busy.mean)} of the time" if busy and waits else ""


def _of_gain(gain: Gain) -> str:
    return f" ({engine(gain.over)}, {Setting.of(gain.over).name}, {gain.over.precision.upper()})"


def ahead(results: Results, trials: Sequence[Trial]) -> str:
    """For each class of engine and precision: the fastest framework of each network, and the others over PyTorch."""
    said = []
    ways = list(dict.fromkeys((cell.kind, cell.precision) for cell in contested(results, trials)))
    for kind, precision in ways:
        of_way = {c: t for c, t in contested(results, trials).items() if (c.kind, c.precision) == (kind, precision)}
        over = _over_native(results, of_way)
        beside = f" Images/s over PyTorch's: {'; '.join(over)}." if over else ""
        alike = _not_told_apart(results, of_way)
        said.append(f"{kind.capitalize()} in {precision.upper()}, {_fastest(of_way)}{alike}.{beside}")
    return "\n\n".join(said)


def _fastest(of_way: dict[Cell, list[Trial]]) -> str:
    """`PyTorch is fastest with VGG-16, 32 px, batch 256 and Keras on JAX is fastest with ...`."""
    winners: dict[str, list[str]] = {}
    for cell, ranked in of_way.items():
        winners.setdefault(framework(ranked[0]), []).append(cell.setting.name)
    if len(winners) == 1:
        (name, settings), *_ = winners.items()
        return f"{name} is fastest {'with every network' if len(settings) > 1 else f'({settings[0]})'}"
    return listing([f"{name} is fastest with {listing(settings)}" for name, settings in winners.items()])


def _not_told_apart(results: Results, of_way: dict[Cell, list[Trial]]) -> str:
    """Where the interval of the first over the second holds 1: there nobody is ahead for certain."""
    found = []
    for cell, (first, second, *_) in of_way.items():
        ratio = apart(results, [first, second])
        if ratio and ratio.low is not None and ratio.low <= 1:
            where = f" with {cell.setting.network}" if len(of_way) > 1 else ""
            found.append(f"{framework(first)} from {framework(second)}{where}")
    return f" (not to be told apart here: {'; '.join(found)})" if found else ""


def _over_native(results: Results, of_way: dict[Cell, list[Trial]]) -> list[str]:
    """Each framework's ratio to native PyTorch, of several networks the lowest and the highest."""
    found: dict[str, list[tuple[Interval, Trial]]] = {}
    for ranked in of_way.values():
        for trial in ranked:
            if ratio := over_native(results, trial):
                found.setdefault(framework(trial), []).append((ratio, trial))
    said = []
    for name, ratios in found.items():
        ordered = sorted(ratios, key=lambda pair: pair[0].point)
        ends = [ordered[0], ordered[-1]] if len(ordered) > 1 else ordered
        told = [f"{_ratio(ratio)}{_which(trial, several=len(of_way) > 1)}" for ratio, trial in ends]
        said.append(f"{name} {' to '.join(told)}")
    return said


def _which(trial: Trial, *, several: bool) -> str:
    """` (XLA, VGG-16, 32 px)`: the engine where a framework may have two, the network where there are several."""
    said = [engine(trial)] if trial.engine != "eager" else []
    said += [Setting.of(trial).network] if several else []
    return f" ({', '.join(said)})" if said else ""


def own(results: Results, trials: Sequence[Trial]) -> str:
    """What the workbook's own engines for PyTorch make of the same network, beside the fastest of the frameworks."""
    said = []
    for setting in dict.fromkeys(Setting.of(trial) for trial in trials if is_own(trial)):
        alike = [trial for trial in trials if Setting.of(trial) == setting and results.ok(trial)]
        rates = {trial: rate.point for trial in alike if (rate := results.interval(trial, "images_per_s"))}
        tuned, others = ([t for t in rates if is_own(t) == mine] for mine in (True, False))
        if tuned and others:
            best, next_to = (max(part, key=lambda one: rates[one]) for part in (tuned, others))
            ratio = engines.ratio(results, best, next_to, "images_per_s")
            if ratio:
                pair = f"{engine(best)} in {best.precision.upper()} over {how(next_to)} in {next_to.precision.upper()}"
                said.append(f"{_ratio(ratio)} with {setting.network} ({pair})")
    if not said:
        return ""
    return f"Over the fastest of all these, PyTorch by the workbook's own engines comes to {'; '.join(said)}."


def untested(results: Results) -> str:
    """That TensorFlow's way on a GPU is untested, where no record has it; of a CPU, that GPUs are another question."""
    if not results:
        return ""
    if results.profile.device.kind == "cpu":
        return ON_A_GPU_ONLY
    if lacking.ran_on(results, TENSORFLOW, "cuda"):
        return ""
    return "TensorFlow's way on a GPU is untested here: no record on this page has it, so nothing is said of its speed."


def limitations(results: Results) -> Text:
    """What these numbers do not say."""
    trials = side_by_side(results)
    said = []
    if any(results.ok(trial) for trial in trials):
        said += [
            "Between native PyTorch and Keras two things differ, the framework and the code of the network and its "
            "step; between Keras's back ends the back end and what it compiles of a step. Keras's networks are "
            "channels last, native PyTorch's contiguous in FP32 and channels last in half precision on a GPU, as each "
            "is used.",
            "The loop is the workbook's in all of them: fixed shapes, and losses that are read once a block. "
            "`benchmarks/keras_loop.py` holds it against Keras's fit, `benchmarks/torch_compile.py` against the loop "
            f"of PyTorch's own examples; what they found, and where they have not run, stands in "
            f"`benchmarks/README.md`.{_loaders(results)}",
            _compiled([trial for trial in trials if results.ok(trial)]),
            "Half precision is each framework's own mixed precision, whose lists of operators differ."
            if any(trial.precision != "fp32" for trial in trials)
            else "",
        ]
    said.append(untested(results))
    said.append(summary.limitations(results, trials).body)
    return Text("\n\n".join(dict.fromkeys(part for part in said if part)))


def _compiled(trials: Sequence[Trial]) -> str:
    """What each compiler that is there takes of a step; XLA's options: its `xla_gpu_enable_command_buffer`, 2026."""
    there, on_gpu = {trial.engine for trial in trials}, any(trial.device == "cuda" for trial in trials)
    what = {
        "compile": "TorchInductor of all but the update, which is a few kernels of many tensors each",
        "function": "TensorFlow's graph of all",
        "xla": "XLA of all",
    }
    said = [words for engine_, words in what.items() if engine_ in there]
    if not said:
        return ""
    captured = ""
    if on_gpu and {"xla", "compile"} <= there:
        captured = " By default XLA captures what it can of a step in CUDA graphs, TorchInductor nothing."
        tuned = any(is_own(trial) and "graph" in trial.engine for trial in trials)
        captured += " PyTorch's captured step is among the tuned engines." if tuned else ""
    reserved = ", but that none reserves memory ahead" if on_gpu else ""
    taken = f"Compiled is what each compiler takes of a step: {'; '.join(said)}."
    return f"{taken} Options are at their defaults{reserved}.{captured}"


def _loaders(results: Results) -> str:
    """How images come to the device, where frameworks differ in it."""
    kinds: dict[str, list[str]] = {}
    for trial in side_by_side(results):
        if loader := results.fact(trial, "loader"):
            names = kinds.setdefault(str(loader), [])
            names += [] if framework(trial) in names else [framework(trial)]
    if len(kinds) < 2:
        return ""
    said = [f"{loader} ({listing(names)})" for loader, names in kinds.items()]
    return (
        f" Images come to the device in different ways, which at small images is a part of a step: {'; '.join(said)}."
    )


def key_numbers(results: Results) -> KeyNumbers:
    """How far frameworks lie apart at most, the best ratio over PyTorch, and what compiling makes at most."""
    trials, found = side_by_side(results), []
    if most := widest(results, trials):
        pair = f"{how(most.fastest)} over {how(most.slowest)}"
        found.append([_ratio(most.ratio), f"between frameworks at most: {pair}, {most.cell.name}"])
    over = [
        (ratio, trial, cell)
        for cell, ranked in contested(results, trials).items()
        for trial in ranked
        if trial.framework != NATIVE and (ratio := over_native(results, trial))
    ]
    if over:
        ratio, trial, cell = max(over, key=lambda one: one[0].point)
        found.append([_ratio(ratio), f"over PyTorch at best: {how(trial)}, {cell.name}"])
    if known := [gain for gain in gains(results, trials) if not is_own(gain.over)]:
        best = max(known, key=lambda gain: gain.ratio.point)
        where = f"{Setting.of(best.over).name}, {best.over.precision.upper()}"
        found.append([_ratio(best.ratio), f"compiled over eager at most: {how(best.over)}, {where}"])
    return found


def versions(results: Results) -> Text:
    """Which versions of the frameworks these records are of."""
    found: dict[str, list[str]] = {}
    for record in results.records:
        if record.status == "ok" and record.framework_version:
            told = found.setdefault(framework(record.as_trial), [])
            if record.framework_version not in told:
                told.append(record.framework_version)
    said = [f"{name} ({listing(of)})" for name, of in found.items()]
    return Text(f"Measured with {listing(said)}." if said else "No framework was measured.")


def _ratio(ratio: Interval) -> str:
    return shown_effect(ratio, "images_per_s", "ratio")
