"""The measured ceiling of arithmetic: C = A B for square matrices of edge `trial.size` with random entries.

In FP8 (E4M3) and INT8 the factors are narrow and the products are added in a wider type: BF16's and INT32's.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from labkit.data import DataSet
from workbook.engines.support import GPU
from workbook.errors import GateError
from workbook.trials.rules import Rule
from workbook.trials.trial import Trial
from workbook.workloads import Workload

DTYPES = {
    **{"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16},
    **{"fp8": torch.float8_e4m3fn, "int8": torch.int8},
}
ON_A_CPU = ("fp32", "fp16", "bf16", "int8")
# Relative error in the Frobenius norm against float64: unit roundoff of the inputs, with room for the accumulation.
TOLERANCE = {"fp32": 1e-5, "tf32": 1e-3, "fp16": 2e-3, "bf16": 1e-2, "fp8": 1e-2, "int8": 0.0}

# fmt: off
RULES = (
    Rule("never", lambda t: t.precision not in (ON_A_CPU if t.device == "cpu" else DTYPES),
        "no {precision} matrix product on {device}"),
    *GPU,
)
# fmt: on


def build(trial: Trial, data: DataSet | None) -> MatmulWorkload:
    """Return the matrix product workload of a trial."""
    return MatmulWorkload(trial)


class MatmulWorkload(Workload):
    """Two random matrices and their product."""

    def __init__(self, trial: Trial) -> None:
        torch.backends.cuda.matmul.allow_tf32 = trial.precision == "tf32"
        torch.manual_seed(trial.seed)
        shape = (trial.size, trial.size)
        dtype = DTYPES[trial.precision]
        # Random, never zeros: a matrix product of zeros draws less power and runs faster than a product of data.
        self.a, self.b = (_random(shape, trial.device, dtype) for _ in range(2))
        if dtype.itemsize == 1:
            self.b = self.b.t().contiguous().t()  # by columns, which tensor cores need for bytes
        self._product = _product_of(self.a, self.b)
        self.out = self._product()
        self.precision = trial.precision
        self.flop_per_step = 2 * trial.size**3
        self.bytes_per_step = self.a.nbytes + self.b.nbytes + self.out.nbytes
        self.facts = {"threads": torch.get_num_threads()}

    def step(self) -> torch.Tensor:
        """Queue one matrix product and return its output."""
        self.out = self._product()
        return self.out

    def check(self) -> None:
        """Compare sixteen rows of a new product with float64. Raise GateError if they differ."""
        if self.out.is_floating_point():
            self.out.fill_(float("nan"))
        self.step()
        expected = self.a[:16].double() @ self.b.double()
        error = float((self.out[:16].double() - expected).norm() / expected.norm())
        if not error <= TOLERANCE[self.precision]:
            raise GateError(f"the {self.precision} product differs from float64's by {error:.1e}")


def _random(shape: tuple[int, int], device: str, dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.int8:
        return torch.randint(-127, 128, shape, device=device, dtype=dtype)
    return torch.randn(shape, device=device).to(dtype)


def _product_of(a: torch.Tensor, b: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Return the call that multiplies the matrices, in the library that PyTorch takes for their type."""
    if a.dtype == torch.int8:
        return lambda: torch._int_mm(a, b)
    if a.dtype == torch.float8_e4m3fn:
        unscaled = torch.ones((), device=a.device)
        return lambda: torch._scaled_mm(a, b, scale_a=unscaled, scale_b=unscaled, out_dtype=torch.bfloat16)
    out = torch.empty((len(a), b.shape[1]), device=a.device, dtype=a.dtype)
    return lambda: torch.mm(a, b, out=out)
