"""Find out whether Triton works here. Triton requires a device of Volta or later and, at first use, a C compiler."""

from __future__ import annotations

from functools import cache

import torch

CAPABILITY = (7, 0)


@cache
def why_no_triton(device: torch.device) -> str | None:
    """Return why Triton kernels cannot run on the device, without a full stop, or None if they can. Runs a kernel."""
    if device.type != "cuda":
        return "Triton kernels need a CUDA device"
    has = torch.cuda.get_device_capability(device)
    if has < CAPABILITY:
        return f"Triton compiles for compute capability 7.0 and later, this device has {has[0]}.{has[1]}"
    try:
        from workbook.engines.batch_kernel import probe

        seen = torch.zeros(1, dtype=torch.int32, device=device)
        probe[(1,)](seen)
        return None if int(seen) == 1 else "Triton's kernels give wrong results here"
    except Exception as error:  # noqa: BLE001 - any obstacle counts: no Triton, no compiler, no headers
        return f"Triton does not work here ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''})"
