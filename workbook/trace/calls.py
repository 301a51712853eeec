"""Classes of CUDA runtime and driver calls by their names. HIP uses the same words, so its calls get the same classes.

The classes follow the NYU paper: launching, cleaning up (the paper's cudaEventDestroy), and memory and device calls (it
names cudaGetDeviceProperties, cuDeviceGetAttribute, cuDeviceTotalMem and cudaSetDevice; copies count too). Here,
waiting is a separate class: the host's waiting time shows how long the device works, and nothing about the call.
cudaStreamWaitEvent makes only the stream wait, not the host, so its class is not `wait`.
"""

from __future__ import annotations

import re
from functools import lru_cache

from workbook.records.traced import CallClass

# Patterns of the name after `cuda`, `cu` or `hip`; the first match counts.
_RULES: tuple[tuple[str, CallClass], ...] = (
    (r"(graph|module|extmodule)?launch", "launch"),
    (r".*(destroy|unload|unregister|release|free)|devicereset", "clean_up"),
    (r".*synchronize", "wait"),
    (r".*(mem|alloc)|pointergetattribute|(get)?device(get|can|total|compute)|getdevice", "memory"),
)
_PATTERNS = [(re.compile(pattern), kind) for pattern, kind in _RULES]
_PREFIX = re.compile(r"^(cuda|cu|hip)")


@lru_cache(maxsize=1024)
def class_of_call(name: str) -> CallClass:
    """Return the class of a call, `other` if no pattern matches its name."""
    bare = _PREFIX.sub("", name.lower())
    return next((kind for pattern, kind in _PATTERNS if pattern.match(bare)), "other")
