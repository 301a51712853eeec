"""The samples that a network takes: images, or documents as bags of words."""

from __future__ import annotations

from labkit.errors import UserError
from labkit.models.catalogue import MODELS, ModelEntry, find_model


def check_data(name: str, *, words: int) -> ModelEntry:
    """Return the entry of a model. Raise UserError unless it takes bags of `words` words, or images if `words` is 0."""
    entry = find_model(name)
    if entry.words == words:
        return entry
    takes, given = (f"bags of {count:,} words" if count else "images" for count in (entry.words, words))
    fitting = [model.name for model in MODELS.values() if model.words == words and not model.noise]
    raise UserError(f"{entry.title} takes {takes}, but the data are {given}; models for them: {', '.join(fitting)}.")


def input_bytes(name: str, image_px: int) -> int:
    """Return the stored bytes of one input: one byte per pixel and colour, or one bit per word."""
    entry = find_model(name)
    return -(-entry.words // 8) if entry.words else 3 * image_px**2
