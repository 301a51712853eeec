"""What the gate saw of captured iterations."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from labkit.analysis.studies.gan.seen import named
from labkit.analysis.table import Table, Text
from labkit.results.study_records import StudyRecords as Results
from labkit.trial import Trial


def table(results: Results, trials: Sequence[Trial]) -> Table | Text:
    """How far captured iterations lay from eager ones, of what is tolerated."""
    rows = []
    for trial in trials:
        gates = [record.facts["gate"] for record in results.ok(trial) if "gate" in record.facts]
        if gates:
            rows.append(
                {
                    "training": named(trial, trials),
                    "estimates": _of_tolerated(gates, "loss"),
                    "squares of gradients": _of_tolerated(gates, "squares"),
                    "movement of the weights": _of_tolerated(gates, "change"),
                }
            )
    if not rows:
        return Text("Nothing was captured here, so there is no gate to report: the eager loop is its own reference.")
    return Table(
        pd.DataFrame(rows, dtype=object),
        "The gate: captured iterations against eager ones from the same weights, images and noise. Each cell has the "
        "largest relative difference of all passes and what is tolerated: of the critic's estimates, of the mean "
        "squares of gradients that the optimisers keep, and of how far the weights moved (RMSProp makes a step of full "
        "length of the smallest gradient, so rounding can turn a weight's direction). 0: the same to the last bit; "
        "some of cuDNN's backward convolutions in FP32 add up in no fixed order, and differ between any two runs.",
    )


def _of_tolerated(gates: Sequence[dict[str, float]], what: str) -> str:
    most = max(gate[f"{what}_difference"] for gate in gates)
    return f"{most:.2g} of {gates[0][f'{what}_tolerance']:.2g}"
