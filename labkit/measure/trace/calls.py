"""What calls of CUDA's runtime and driver are for, by their names; HIP's, which have the same words, likewise.

The classes are the NYU paper's: launching, cleaning up (its cudaEventDestroy), and memory and device calls (it names
cuDeviceGetAttribute and cuDeviceTotalMem beside the copies). Waiting is a class of its own here: how long the host
waits says how long the device works, and nothing of the call. A stream that is told to wait for an event lets the host
go on, so that is none.
"""

from __future__ import annotations

import re
from functools import lru_cache

from labkit.records.traced import CallClass

# By what follows `cuda`, `cu` or `hip`; the first that fits.
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
    """The class of a call; `other` where its name says nothing."""
    bare = _PREFIX.sub("", name.lower())
    return next((kind for pattern, kind in _PATTERNS if pattern.match(bare)), "other")
