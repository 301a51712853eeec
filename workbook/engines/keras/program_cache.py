"""Keep JAX's compiled programs on the disk, as PyTorch's compiler keeps its own: a later pass takes them from there.

For GPUs only. XLA names a GPU's programs by its kind, but a CPU's loosely: if several machines share a folder, a
machine could get instructions that it does not have.
"""

from __future__ import annotations

from collections import Counter

import jax

from labkit.data import cache_dir

# JAX's names of the events that its listeners get.
_EVENTS = {
    "/jax/compilation_cache/cache_hits": "from the cache",
    "/jax/compilation_cache/cache_misses": "compiled",
}
_seen: Counter[str] = Counter()


def keep_programs() -> None:
    """Keep programs in labkit's cache from now on, unless the user named a folder (JAX_COMPILATION_CACHE_DIR)."""
    if jax.config.jax_compilation_cache_dir is None:
        jax.config.update("jax_compilation_cache_dir", str(cache_dir() / "xla"))


def programs() -> dict[str, int] | None:
    """Return how many programs this process took from the disk, and how many it compiled; None if none are kept.

    JAX keeps programs that took a second or more to compile, and counts no others.
    """
    if jax.config.jax_compilation_cache_dir is None or not jax.config.jax_enable_compilation_cache:
        return None
    return {name: _seen[name] for name in _EVENTS.values()}


def _listen(event: str, **_details: object) -> None:
    if name := _EVENTS.get(event):
        _seen[name] += 1


jax.monitoring.register_event_listener(_listen)
