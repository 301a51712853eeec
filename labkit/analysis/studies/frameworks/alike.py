"""Whether frameworks train the same: parameters, first losses on the same weights, and nothing traced twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from labkit.analysis.format import MISSING, listing
from labkit.analysis.studies.frameworks.compared import Setting, framework, how
from labkit.analysis.table import Table, Text
from labkit.registry import FRAMEWORK_TITLES
from labkit.results.study_records import StudyRecords as Results
from labkit.trial import FRAMEWORKS, PRECISIONS, Trial

EAGER_LOOP = "the eager loop in the same precision"  # what the gate of native PyTorch's engines compares with


def networks(results: Results, trials: Sequence[Trial]) -> Table | Text:
    """Parameters of each network in each framework: the same layers have the same."""
    rows: dict[str, dict[str, Any]] = {}
    for trial in trials:
        count = results.fact(trial, "parameters")
        if count is not None:
            rows.setdefault(Setting.of(trial).network, {})[framework(trial)] = f"{count:,}"
    if not rows:
        return Text("No record tells the parameters of a network.")
    names = [FRAMEWORK_TITLES[name] for name in FRAMEWORKS]
    there = [name for name in names if any(name in row for row in rows.values())]
    frame = pd.DataFrame([{"": name, **{one: row.get(one, MISSING) for one in there}} for name, row in rows.items()])
    odd = [name for name, row in rows.items() if len(set(row.values())) > 1]
    said = f"They differ in {listing(odd)}: what is compared there is not the same." if odd else "They are the same."
    return Table(frame, f"Parameters that are trained, as each framework counts its own. {said}")


def first_losses(results: Results, trials: Sequence[Trial]) -> Table | Text:
    """How far the first losses lie from PyTorch's, by framework, engine and precision: the most over all networks."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    traced: dict[tuple[str, str], list[int]] = {}
    for trial in sorted(trials, key=lambda one: (FRAMEWORKS.index(one.framework), PRECISIONS.index(one.precision))):
        by = (how(trial), trial.precision.upper())
        for record in results.ok(trial):
            gate, traces = record.facts.get("gate"), record.facts.get("traces")
            if isinstance(gate, dict) and gate.get("loss_difference") is not None:
                found.setdefault(by, []).append(gate)
            if traces is not None:
                traced.setdefault(by, []).append(int(traces))
    if not found and not traced:
        return Text("No record tells how its first loss lay beside PyTorch's.")
    rows = []
    for by in dict.fromkeys([*found, *traced]):
        gates = found.get(by, [])
        rows.append(
            {
                "": ", ".join(by),
                "beside": _beside([gate.get("against", EAGER_LOOP) for gate in gates]),
                "differs by": f"{max(gate['loss_difference'] for gate in gates):.2g}" if gates else None,
                "may by": f"{min(gate['loss_tolerance'] for gate in gates):.2g}" if gates else None,
                "traced": max(traced[by]) if by in traced else None,
                "records": len(gates) or len(traced.get(by, [])),
            }
        )
    frame = pd.DataFrame(rows, dtype=object)
    again = [", ".join(by) for by, counts in traced.items() if max(counts) > 1]
    said = f" Traced more than once: {'; '.join(again)}." if again else ""
    return Table(
        frame.where(frame.notna(), None),
        "The first losses on the same weights and the same images, as relative differences; the largest over networks "
        "and passes. Residual branches are weakened for it, since an untrained network of many layers magnifies the "
        "rounding that frameworks differ in; what is timed has the weights that are each trial's. A trial beyond what "
        "it may has no result. Traced: how often Python ran the function that a compiled step is made from; "
        f"once, unless something is traced anew.{said} {results.describe()}.",
    )


def _beside(against: list[str]) -> str:
    """What losses were held against: what others only add to (`, with nothing dropped`) is not said again."""
    said = list(dict.fromkeys(against))
    alone = [one for one in said if not any(one != other and one.startswith(other) for other in said)]
    added = [one.removeprefix(base) for base in alone for one in said if one != base and one.startswith(base)]
    return listing(alone) + (f" (of some networks{listing(added)})" if added else "")
