"""The lock that allows one measurement at a time on a machine: two at once would slow each other down."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from labkit.errors import UserError


def lock_path() -> Path:
    """Return the path of the lock file, one per machine and user; LABKIT_LOCK overrides it."""
    return Path(os.environ.get("LABKIT_LOCK") or Path(tempfile.gettempdir()) / f"labkit-measuring-{os.getuid()}.lock")


_held = False  # by this process: a report holds the lock over all its rounds


@contextmanager
def only_measurement(wait_s: float = 5.0) -> Iterator[None]:
    """Hold the machine's lock. The kernel frees the lock when the process ends, however it ends.

    Within a context that holds the lock, a further context does nothing. Raise UserError if the lock file cannot be
    opened, or if another measurement holds the lock for `wait_s` seconds.
    A killed measurement needs a moment to end.
    """
    global _held
    if _held:
        yield
        return
    path = lock_path()
    try:
        # Private, and no link: another user may have put one into the folder of temporary files.
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+")
    except OSError as error:
        raise UserError(
            f"the lock {path} can't be opened ({error.strerror}): set LABKIT_LOCK to a file that can be written."
        ) from error
    with file:
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    file.seek(0)
                    holder = file.read().strip() or "unknown"
                    raise UserError(
                        f"another labkit measurement is running on this machine (process {holder}), and two at once "
                        f"would slow each other down. Wait for it to end, or stop it, and run this again."
                    ) from None
                time.sleep(0.2)
        file.seek(0)
        file.truncate()
        file.write(str(os.getpid()))
        file.flush()
        _held = True
        try:
            yield
        finally:
            _held = False
