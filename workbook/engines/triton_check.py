"""Find out whether Triton works here. Triton requires a device of Volta or later and, at first use, a C compiler."""

from __future__ import annotations

from functools import cache

import torch

CAPABILITY = (7, 0)


def works(device: torch.device) -> bool:
    """Return whether Triton's kernels run on the device."""
    return device.type == "cuda" and not too_old() and not fault()


def too_old() -> str | None:
    """Return the device's compute capability, such as 6.1, if Triton has no code for it; else None."""
    has = torch.cuda.get_device_capability()
    return None if has >= CAPABILITY else "{}.{}".format(*has)


@cache
def fault() -> str | None:
    """Return why Triton's kernels cannot run now, without a full stop, or None if they can. Runs a kernel."""
    try:
        from workbook.engines.batch_kernel import probe

        seen = torch.zeros(1, dtype=torch.int32, device="cuda")
        probe[(1,)](seen)
        return None if int(seen) == 1 else "Triton's kernels give wrong results here"
    except Exception as error:  # noqa: BLE001 - any obstacle counts: no Triton, no compiler, no headers
        return f"Triton does not work here ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''})"
