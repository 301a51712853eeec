"""Matches hosts with profiles, so that no number is labelled with hardware that did not produce it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from labkit.devices import SILENT, Gpu, visible, why_hidden
from labkit.errors import UserError
from workbook.hardware.builds import LEGACY, build_for, card_of, cards_on_bus, why_not
from workbook.hardware.host import Host
from workbook.hardware.profile import PARAMS, Profile, load_profile, profile_names

SAME_MEMORY = 0.9  # the least share of a card's memory that a framework shows of a whole card


def mismatch(profile: Profile, host: Host) -> str | None:
    """Return why this host cannot measure the profile: other hardware, or a PyTorch that does not run on it."""
    return other_hardware(profile, host) or _no_build(profile, host) or None


def _no_build(profile: Profile, host: Host) -> str:
    indices = device_indices(profile, host) if profile.device.kind == "cuda" else []
    return why_not(card_of(host.gpus[indices[0]], host.driver)).rstrip(".") if indices else ""


def other_hardware(profile: Profile, host: Host) -> str | None:
    """Return why this host's hardware is not the profile's; None if it is."""
    device = profile.device
    if not profile.runnable:
        reason = profile.reason.rstrip(".")
        return f"profile {profile.name!r} ({profile.title}) can't be measured by current frameworks: {reason}"
    if device.kind == "cpu":
        return None
    matching = _matching(profile, host)
    if why := why_hidden(host.gpus):
        return f"profile {profile.name!r} expects {profile.title}, and {why}"
    if len(matching) < device.count:
        return f"profile {profile.name!r} expects {profile.title}, and this machine has {host.summary()}"
    capability = host.gpus[matching[0]].compute_capability
    if device.compute_capability and capability not in (device.compute_capability, None):
        return (
            f"profile {profile.name!r} expects compute capability {device.compute_capability}, and the device here has "
            f"{capability}"
        )
    return None


class SeenDevice(NamedTuple):
    """A GPU as a framework sees it. Memory in bytes."""

    name: str
    uuid_hash: str
    memory_bytes: int


def why_another_device(seen: Sequence[SeenDevice], chosen: Sequence[Gpu]) -> str | None:
    """Return how a framework's GPUs differ from those that were chosen by the driver's list; None if they are the same.

    They differ on a slice of a card, on a virtual GPU, and where another order of the devices holds. `seen` is empty
    for a process without GPUs.
    """
    for number, (device, gpu) in enumerate(zip(seen, chosen, strict=False)):
        has = f"device {number} of PyTorch is {device.name} with {device.memory_bytes / 2**30:.0f} GiB"
        same_name = device.name.startswith(gpu.name)
        if same_name and gpu.memory_bytes and device.memory_bytes < SAME_MEMORY * gpu.memory_bytes:
            return f"{has}, a part of the {gpu.name} with {gpu.memory_bytes / 2**30:.0f} GiB that the driver lists"
        if device.uuid_hash != gpu.uuid_hash:
            return f"{has}, and not the card that the driver lists at this place ({gpu.name})"
    return None


def _matching(profile: Profile, host: Host) -> list[int]:
    if not profile.device.pattern:
        return []
    return [index for index in visible(host.gpus) if profile.device.fits(host.gpus[index].name)]


def detect(host: Host, params: Path = PARAMS) -> Profile | None:
    """Return the matching profile with the most devices, `cpu` without GPUs; None for NVIDIA GPUs without a profile.

    Raise UserError if the only GPU is of another vendor, does not answer, is hidden by CUDA_VISIBLE_DEVICES, or has a
    profile that cannot run.
    """
    if not host.gpus:
        if host.foreign_gpus:
            raise UserError(
                f"found {', '.join(host.foreign_gpus)}; labkit measures NVIDIA GPUs and CPUs only. To measure this "
                f"machine's CPU instead, run `make report HW=cpu`."
            )
        if any(SILENT in note for note in host.notes):
            older = " ".join({build_for(card)[1]: card for card in cards_on_bus() if card.capability})
            raise UserError(
                f"{host.notes[0]} {older or 'Repair the driver (`nvidia-smi` must work).'} Or measure this machine's "
                f"CPU instead: `make report HW=cpu`."
            )
        return load_profile("cpu", params)
    if why := why_hidden(host.gpus):
        raise UserError(f"{why}. Or measure the CPU instead: `make report HW=cpu`.")
    profiles = [load_profile(name, params) for name in profile_names(params)]
    cuda = [profile for profile in profiles if profile.device.kind == "cuda"]
    fitting = [profile for profile in cuda if other_hardware(profile, host) is None]
    if not fitting:
        for profile in cuda:
            if not profile.runnable and len(_matching(profile, host)) >= profile.device.count:
                raise UserError(f"{other_hardware(profile, host)}. Type `make report HW=cpu` to measure the CPU.")
        newest = max(
            (card_of(host.gpus[i], host.driver) for i in visible(host.gpus)),
            key=lambda card: card.capability or (99, 0),
        )
        if newest.capability and newest.capability < LEGACY.lowest:
            raise UserError(build_for(newest)[1])
    return max(fitting, key=lambda profile: profile.device.count, default=None)


def require_match(profile: Profile, host: Host) -> None:
    """Raise UserError, with the commands to use instead, if this host does not match the profile."""
    if problem := other_hardware(profile, host):
        raise UserError(
            f"{problem}. Nothing was measured. {_instead(host)}; `make render HW={profile.name}` shows the recorded "
            f"and published results of {profile.title}."
        )
    if problem := _no_build(profile, host):
        raise UserError(f"{problem}. Nothing was measured.")


def _instead(host: Host) -> str:
    """Return what to type on this host."""
    try:
        own = detect(host)
    except UserError:
        return "`make report HW=cpu` measures this machine's CPU"
    return f"`make report HW={own.name}` measures {own.title}" if own else "`make report` measures this machine's GPU"


def device_indices(profile: Profile, host: Host) -> list[int]:
    """Return the driver's numbers of the devices that a profile uses: the first `count` visible ones that match."""
    return _matching(profile, host)[: profile.device.count]
