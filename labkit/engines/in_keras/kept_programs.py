"""JAX's compiled programs, kept on the disk as PyTorch's compiler keeps its own: a later pass takes them from there.

Of GPUs only. XLA names a GPU's programs by its kind, but a CPU's loosely: where several machines share a folder, one of
them could get instructions that it does not have.
"""

from __future__ import annotations

from collections import Counter

import jax

from labkit.data import cache_dir

# JAX's own words for what it tells those who listen.
_EVENTS = {
    "/jax/compilation_cache/cache_hits": "from the cache",
    "/jax/compilation_cache/cache_misses": "compiled",
}
_seen: Counter[str] = Counter()


def keep_programs() -> None:
    """From now on in labkit's cache, unless the user has named a folder (JAX_COMPILATION_CACHE_DIR)."""
    if jax.config.jax_compilation_cache_dir is None:
        jax.config.update("jax_compilation_cache_dir", str(cache_dir() / "xla"))


def programs() -> dict[str, int] | None:
    """Programs that this process took from the disk and programs that it compiled, so far; None where none are kept.

    JAX keeps those that took a second or more, and counts no others.
    """
    if jax.config.jax_compilation_cache_dir is None or not jax.config.jax_enable_compilation_cache:
        return None
    return {name: _seen[name] for name in _EVENTS.values()}


def _listen(event: str, **_details: object) -> None:
    if name := _EVENTS.get(event):
        _seen[name] += 1


jax.monitoring.register_event_listener(_listen)
