"""A configuration that this machine has no means for."""

from labkit.errors import Unsupported


def build(trial, data):
    raise Unsupported("no such engine on this machine")
