"""The measured ceiling of arithmetic: C = A B for square matrices of edge `trial.size` with random entries."""

from __future__ import annotations

import torch

from labkit.data import DataSet
from workbook.errors import GateError
from workbook.trials.rules import Rule
from workbook.trials.trial import Trial
from workbook.workloads import Workload

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
# Relative error in the Frobenius norm against float64: unit roundoff of the inputs, with room for the accumulation.
TOLERANCE = {"fp32": 1e-5, "tf32": 1e-3, "fp16": 2e-3, "bf16": 1e-2}

# fmt: off
RULES = (
    Rule("never", lambda t: t.precision not in DTYPES or (t.precision == "tf32" and t.device == "cpu"),
        "no {precision} matrix product on {device}"),
)
# fmt: on


def build(trial: Trial, data: DataSet | None) -> MatmulWorkload:
    """Return the matrix product workload of a trial."""
    return MatmulWorkload(trial)


class MatmulWorkload(Workload):
    """Two random matrices and the output of their product."""

    def __init__(self, trial: Trial) -> None:
        torch.backends.cuda.matmul.allow_tf32 = trial.precision == "tf32"
        torch.manual_seed(trial.seed)
        shape = (trial.size, trial.size)
        dtype = DTYPES[trial.precision]
        # Random, never zeros: a matrix product of zeros draws less power and runs faster than a product of data.
        self.a, self.b = (torch.randn(shape, device=trial.device).to(dtype) for _ in range(2))
        self.out = torch.empty(shape, device=trial.device, dtype=dtype)
        self.precision = trial.precision
        self.flop_per_step = 2 * trial.size**3
        self.bytes_per_step = 3 * self.out.nbytes
        self.facts = {"threads": torch.get_num_threads()}

    def step(self) -> torch.Tensor:
        """Queue one matrix product and return its output."""
        return torch.mm(self.a, self.b, out=self.out)

    def check(self) -> None:
        """Compare sixteen rows with float64. The output is filled with NaN before. Raise GateError if they differ."""
        self.out.fill_(float("nan"))
        self.step()
        expected = self.a[:16].double() @ self.b.double()
        error = float((self.out[:16].double() - expected).norm() / expected.norm())
        if not error < TOLERANCE[self.precision]:
            raise GateError(f"the {self.precision} product differs from float64's by {error:.1e}")
