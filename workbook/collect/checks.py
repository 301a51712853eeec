"""The checks of the records of one file before they are taken, each with the sentence that refuses them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from labkit.errors import LabkitError, one_of
from workbook.collect.plausible import contradiction_of_starts, contradictions
from workbook.hardware.host import is_in_history
from workbook.hardware.identity import fingerprint
from workbook.hardware.profile import Profile
from workbook.records import PROTOCOL, Record
from workbook.records.store import Store
from workbook.registry import SCALES, SMALL, STUDIES
from workbook.results.study_records import measured_gpus
from workbook.results.table import checks_of
from workbook.words import configuration_name, listing, plural

GATED = ("train", "infer", "gan")  # workloads whose tuned steps are compared with the baseline
Identity: TypeAlias = tuple[str, str, int, str]  # scale, key, pass and process


@dataclass
class Examined:
    """What is taken of one file of records, and why the rest is not. Sentences have no subject: the file is it."""

    taken: list[Record] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    @property
    def unknown_commits(self) -> list[str]:
        """The commits of the taken records that name code which the project's history does not hold."""
        named = {(record.versions.get("commit", ""), record.versions.get("source", "")) for record in self.taken}
        clean = {(commit, source) for commit, source in named if commit and not commit.endswith("+")}
        return sorted({commit for commit, source in clean if not is_in_history(commit, source)})

    @property
    def of_unknown_code(self) -> int:
        """The number of taken records that are never pooled with those of other machines."""
        unclean = {"", *self.unknown_commits}
        return sum((named := record.versions.get("commit", "")) in unclean or named[-1] == "+" for record in self.taken)


def why_other_hardware(profile: Profile, described: dict[str, Any]) -> str:
    """Return why a described machine is not of the profile's hardware; an empty text if it is."""
    device, gpus = profile.device, measured_gpus(profile, described)
    has = listing(gpu["name"] for gpu in described["gpus"]) if described["gpus"] else described["cpu"]
    capabilities = {gpu.get("compute_capability") for gpu in described["gpus"] if gpu["name"] in gpus}
    if device.kind == "cpu" or (len(gpus) >= device.count and capabilities <= {None, device.compute_capability}):
        return ""
    return (
        f"Its machine has {has}, and the profile {profile.name} is of {profile.title}. Name the right profile with "
        "HW=, or write one with `make profile`."
    )


def examine(staged: Store, here: Store, described: Mapping[str, Any], study: str, profile: Profile) -> Examined:
    """Return what may be taken of a study's records of one described machine.

    A file with a record that contradicts itself is refused whole: its other records can't be trusted where nothing in
    them can be checked. Records of round 0 and those that are here already are skipped. Records of an older protocol
    are refused: none of today's could be pooled with them.
    """
    examined, host = Examined(), described["id"]
    try:
        records = staged.read(one_of("study", study, STUDIES), host)
    except LabkitError as error:
        what = str(error).replace(f"{staged.report.parent}/", "").partition(" Restore")[0]
        examined.refused.append(f"{what} Ask for the file as labkit wrote it.")
        return examined
    kept = {_identity(record): record for record in here.read(study, host)}
    gates = {_process(of, of.process.id): not _gate_fault(of, {}) for of in _of_host(staged, here, host)}
    small = [record for record in records if record.scale == SMALL]
    present = [record for record in records if kept.get(_identity(record)) == record]
    new = [record for record in records if record.scale != SMALL and kept.get(_identity(record)) != record]
    faults = [fault for record in new if (fault := _fault(record, kept, gates, profile))]
    # A description that is older than the processor's family has another fingerprint than later records.
    hardware = {None, fingerprint(described)} if described.get("cpu_family") else {of.fingerprint for of in new}
    if not {of.fingerprint for of in new} <= hardware:
        faults += [f"Its records name other hardware than hosts/{host}.json describes."] * len(new)
    if new and not faults and (part := contradiction_of_starts(records)):
        faults = [f"It contradicts itself: {part}. Ask for the file as it was measured."] * len(new)
    examined.skipped += [f"{plural(len(small), 'record')} of round 0, whose sizes are small"] if small else []
    examined.skipped += [f"{plural(len(present), 'record')} here already"] if present else []
    if faults:
        examined.refused.append(
            f"{faults[0]} Of its {plural(len(new), 'record')}, {len(faults):,} are at fault and none is taken."
        )
        return examined
    examined.taken = [record for record in new if record.protocol == PROTOCOL]
    if older := [record for record in new if record.protocol < PROTOCOL]:
        examined.refused.append(
            f"{plural(len(older), 'record')} of protocol {older[0].protocol}: this labkit measures by protocol "
            f"{PROTOCOL}, and the two are never pooled. Measure again with this code."
        )
    return examined


def _fault(
    record: Record, kept: Mapping[Identity, Record], gates: Mapping[tuple[str, str], bool], profile: Profile
) -> str:
    """Return why a record makes its file untrustworthy, as a sentence; an empty text if nothing does."""
    if record.protocol > PROTOCOL:
        return (
            f"A newer labkit measured it (protocol {record.protocol}, this one knows {PROTOCOL}): update this labkit."
        )
    trial = record.as_trial
    about = f"{configuration_name(trial)}, run {record.pass_number}"
    if record.scale not in SCALES:
        return f"{about} is of the unknown scale {record.scale!r}; valid: {', '.join(SCALES)}."
    if trial.key != record.key:
        return f"{about} has the key of another configuration: one of the two was edited."
    if parts := contradictions(record, profile):
        return f"{about}, contradicts itself: {'; '.join(parts[:2])}. Ask for the file as it was measured."
    if fault := _gate_fault(record, gates):
        return f"{about}, {fault}. Measure it again with this code, which compares each tuned step."
    if _identity(record) in kept:
        return f"{about}, is here already with other content: keep the file of the two that labkit wrote."
    return ""


def _gate_fault(record: Record, gates: Mapping[tuple[str, str], bool]) -> str:
    """Return what is wrong with a record's correctness check; an empty text if it passed or none is needed.

    `gates` has the outcomes by configuration and process. Later runs name the process of the first, whose record may be
    one of round 0 that was not sent.
    """
    gate, earlier = list(checks_of(record)), record.facts.get("gate_passed_in")
    for check, difference, tolerance in gate:
        if not (isinstance(difference, float | int) and isinstance(tolerance, float | int) and difference <= tolerance):
            return f"failed its correctness check: {check} differs by {difference}, and {tolerance} is tolerated"
    trial, tuned = record.trial, record.trial.get("engine") != "eager" or record.framework != "torch"
    needed = record.status == "ok" and trial["workload"] in GATED and (tuned or trial["workload"] == "infer")
    if needed and not gate and not (earlier and gates.get(_process(record, str(earlier)), True)):
        return "has no correctness check that it passed"
    return ""


def _of_host(staged: Store, here: Store, host: str) -> list[Record]:
    """Return all records of a machine that have a correctness check, sent and here; a file that is none has none."""
    records: list[Record] = []
    for store in (staged, here):
        for study in store.studies(host):
            with suppress(LabkitError):
                records += store.read(study, host)
    return [record for record in records if record.facts.get("gate")]


def _process(record: Record, process: str) -> tuple[str, str]:
    return record.key, process


def _identity(record: Record) -> Identity:
    return record.scale, record.key, record.pass_number, record.process.id
