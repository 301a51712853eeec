"""The options of a report or a notebook: the one place that turns what a user typed into a session."""

from __future__ import annotations

from collections.abc import Sequence

from labkit.errors import UserError
from labkit.files import users_path
from labkit.models.networks import is_file
from workbook.datasets import check_use
from workbook.engines.weights_files import check_folder
from workbook.hardware.host import Host
from workbook.hardware.profile import Profile
from workbook.paths import reports_folder
from workbook.records.store import Store
from workbook.registry import check_scale
from workbook.session import Session


def open_session(
    profile: Profile,
    host: Host,
    studies: Sequence[str],
    *,
    scale: str = "quick",
    data: str = "",
    weights: str = "",
    reuters: str = "",
    network: str = "",
    batches: str = "",
    keeps_traces: bool = False,
) -> Session:
    """Return the session of the options that a user typed; an empty text is an option that was not given.

    Its paths are absolute, because a notebook's kernel has another folder. Raise UserError for an unknown scale, a
    folder without weights, images that none of the `studies` can use, and batch sizes without a network.
    """
    if batches and not network:
        raise UserError("BATCH= has the batch sizes of NETWORK=, which was not given: NETWORK=mine.py BATCH=32,256.")
    check_use(data, studies)
    path = users_path(data)
    return Session(
        profile=profile,
        host=host,
        store=Store(reports_folder() / profile.name),
        scale=check_scale(scale),
        data=str(path.resolve()) if data and path.exists() else data,
        weights=check_folder(weights) if weights else None,
        reuters=users_path(reuters).absolute() if reuters else None,
        network=str(users_path(network).absolute()) if is_file(network) else network or None,
        batches=batches or None,
        keeps_traces=keeps_traces,
    )
