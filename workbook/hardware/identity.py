"""Which machine this is: a fingerprint of what decides its speed, and an id that is derived and not stored.

    fingerprint    hash of the facts of a description that decide speed: equal machines have equal ones
    id of a host   hash of the fingerprint and of something that lasts in the machine: two equal machines are two hosts

What lasts are the GPUs' UUIDs, else the system's machine id, else the board's UUID. A container brings a machine id of
its own, which says nothing. Nodes of a Slurm job go by a number in the user's home folder, which they share: a job on
an equal node goes on. Only hashes leave this module.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from labkit.errors import UserError
from labkit.files import users_path

MACHINE_ID = Path("/etc/machine-id")
BOARD_ID = Path("/sys/class/dmi/id/product_uuid")  # readable for root
# Values that makers leave in boards.
NO_BOARD_IDS = {"0" * 32, "f" * 32, "03000200040005000006000700080009"}
BOOTED_SYSTEM = Path("/run/systemd/system")
CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv", "/.singularity.d")
BY_HOME = "a number in the user's home folder: equal machines that share it count as this machine"
NOT_RECOGNISED = "nothing that lasts: equal machines count as this machine"

# The facts of a host that decide its speed, besides its memory and GPUs. A fact that an older description lacks does
# not count there.
DECIDING = ("cpu", "cpu_family", "cpu_features", "cpu_cores", "cpu_threads", "usable_threads", "cpu_quota")


def fingerprint(host: Mapping[str, Any]) -> str:
    """Return 12 hexadecimal digits that are equal for descriptions of equally fast hardware.

    GPUs count by name and power limit, in any order, and memory by its nominal size.
    """
    facts = {name: host[name] for name in DECIDING if host.get(name) is not None}
    memory_bytes = host.get("memory_bytes") or 0
    unit = 1 << max(memory_bytes.bit_length() - 4, 0)  # an eighth of a power of two: a kernel keeps some memory
    facts["memory"] = -(-memory_bytes // unit) * unit
    facts["gpus"] = sorted([gpu["name"], gpu.get("power_limit_w") or 0.0] for gpu in host.get("gpus") or ())
    return _hash(json.dumps(facts, sort_keys=True))


def identify(of_hardware: str, gpu_hashes: Sequence[str]) -> tuple[str, str | None, str]:
    """Return a host's id, the hash of a Slurm job's own node (else None), and by what this machine is recognised.

    `of_hardware` is the fingerprint. Raise UserError if a number in the home folder is needed and cannot be kept.
    """
    lasting, by = _lasting(gpu_hashes)
    node = None
    if "SLURM_JOB_ID" in os.environ:
        node, lasting = lasting, None
    if lasting is None and not in_container():
        lasting, by = home_number(), BY_HOME
    if lasting is None:
        return _hash(of_hardware), node, NOT_RECOGNISED
    return _hash(f"{of_hardware} {lasting}"), node, by


def earlier_id(gpu_hashes: Sequence[str]) -> str | None:
    """Return the id that this machine had before ids were derived; None if it had none."""
    if gpu_hashes:
        return _of_gpus(gpu_hashes)
    with suppress(UserError):
        return home_number() if _number_file().is_file() else None
    return None


def _of_gpus(gpu_hashes: Sequence[str]) -> str:
    return _hash(" ".join(sorted(gpu_hashes)))


def _lasting(gpu_hashes: Sequence[str]) -> tuple[str | None, str]:
    """Return the hash of what lasts in this machine, and what that is; None without anything."""
    if gpu_hashes:
        return _of_gpus(gpu_hashes), "its GPUs"
    for path, by in ((MACHINE_ID, "its system's machine id"), (BOARD_ID, "its board's UUID")):
        number = _hexadecimal(path)
        if number and number not in NO_BOARD_IDS and not (path == MACHINE_ID and in_container()):
            return _hash(f"labkit {number}"), by
    return None, ""


def _hexadecimal(path: Path) -> str:
    """Return the 32 digits of an id, empty if the file cannot be read or holds something else."""
    try:
        text = path.read_text(encoding="ascii").strip().replace("-", "").lower()
    except (OSError, ValueError):
        return ""
    return text if re.fullmatch(r"[0-9a-f]{32}", text) else ""


def in_container() -> bool:
    """Return whether this process sees the files of a container's image and not those of a system."""
    if any(Path(mark).exists() for mark in CONTAINER_MARKS):
        return True
    if BOOTED_SYSTEM.exists():  # some systems too have an overlay as their root
        return False
    return any(part.mountpoint == "/" and part.fstype == "overlay" for part in psutil.disk_partitions(all=True))


def home_number() -> str:
    """Return the random number in the user's state folder, which is made once. Raise UserError if it cannot be kept."""
    path = _number_file()
    state = path.parent
    try:
        state.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            temporary = state / f".host-id.{os.urandom(4).hex()}"
            temporary.write_text(secrets.token_hex(6), encoding="ascii")
            try:
                path.hardlink_to(temporary)  # whole and exclusive: two first runs at once agree on one number
            except FileExistsError:
                pass
            finally:
                temporary.unlink()
        number = path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise UserError(
            f"this machine's number can't be kept in {state}: {error.strerror}. Set XDG_STATE_HOME to a writable "
            f"folder."
        ) from error
    if not re.fullmatch(r"[0-9a-f]{12}", number):
        raise UserError(f"{path} does not hold a machine id (12 hexadecimal digits); delete it and run again.")
    return number


def _number_file() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or users_path("~/.local/state")) / "labkit" / "host-id"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
