"""A machine's id is derived: equal hardware has an equal fingerprint, and no machine's records take another's name."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest

from labkit.devices import Gpu
from labkit.errors import LabkitError, UserError
from tests.faulty.campaign import HOST
from workbook.hardware import host as host_module
from workbook.hardware import identity, limits
from workbook.hardware.host import Host, read_host, this_host, write_host
from workbook.hardware.identity import fingerprint

GPU = Gpu("NVIDIA L4", "a" * 12, 24 * 2**30, "8.9", 72.0)
SYSTEM, BOARD = "5f1c" * 8, "9E2A4C10-77F0-11EE-8C99-0242AC120002"
NEOVERSE = (
    "processor\t: 0\nFeatures\t: fp asimd sve bf16\nCPU implementer\t: 0x41\n"
    "CPU variant\t: 0x0\nCPU part\t: 0xd4f\nCPU revision\t: 1\n"
)


class Machine:
    """What this process sees of the machine that it is on. `describe` is `this_host` there."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.patch = folder, patch
        patch.setattr(identity, "MACHINE_ID", folder / "machine-id")
        patch.setattr(identity, "BOARD_ID", folder / "product_uuid")
        patch.delenv("SLURM_JOB_ID", raising=False)
        self.sees()

    def sees(
        self, *, system: str = "", board: str = "", container: bool = False, home: str = "home", **hardware: Any
    ) -> None:
        (self.folder / "machine-id").write_text(f"{system}\n")
        (self.folder / "product_uuid").write_text(f"{board}\n")
        self.patch.setattr(identity, "in_container", lambda: container)
        self.patch.setenv("XDG_STATE_HOME", str(self.folder / home))
        self.patch.setattr(host_module, "nvidia", lambda: (hardware.get("gpus", ()), None, ()))
        self.patch.setattr(host_module, "_cpuinfo", lambda: hardware.get("cpuinfo", NEOVERSE))
        self.patch.setattr(host_module, "usable_cores", lambda: hardware.get("cores", 8))
        self.patch.setattr(host_module, "usable_threads", lambda: hardware.get("threads", 16))
        self.patch.setattr(host_module.psutil, "cpu_count", lambda logical=True: 16)

    def describe(self, **seen: Any) -> Host:
        self.sees(**seen)
        return this_host()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setenv("LABKIT_REPORTS", str(tmp_path / "reports"))
    return Machine(tmp_path, monkeypatch)


# ---- what decides speed ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changed",
    [
        {"cpu": "POWER9, altivec supported"},
        {"cpu_family": "family 25, model 17"},
        {"cpu_features": ("sve",)},
        {"cpu_cores": 1},
        {"cpu_threads": 4},
        {"usable_threads": 1},
        {"cpu_quota": 1.5},
        {"memory_bytes": 2**32},
        {"gpus": (GPU,)},
        {"gpus": (GPU, GPU)},
        {"gpus": (replace(GPU, power_limit_w=60.0),)},
    ],
)
def test_other_hardware_has_another_fingerprint(changed: dict[str, Any]) -> None:
    assert replace(HOST, **changed).fingerprint != HOST.fingerprint
    assert len({replace(HOST, gpus=gpus).fingerprint for gpus in ((), (GPU,), (GPU, GPU))}) == 3


def test_software_and_what_a_kernel_keeps_of_the_memory_are_no_other_hardware() -> None:
    of_gpus = replace(HOST, gpus=(GPU, replace(GPU, name="NVIDIA T4")), memory_bytes=16 * 2**30)
    for changed in (
        {"driver": "1.2", "packages": {}, "commit": "1" * 12, "os": "Linux 7", "id": "f" * 12},
        {"gpus": tuple(reversed(of_gpus.gpus))},
        {"gpus": (replace(GPU, uuid_hash="b" * 12), of_gpus.gpus[1])},
        {"memory_bytes": int(15.4 * 2**30)},
    ):
        assert replace(of_gpus, **changed).fingerprint == of_gpus.fingerprint
    assert fingerprint(json.loads(json.dumps(of_gpus.as_dict()))) == of_gpus.fingerprint, "a file gives the same one"


def test_processors_without_a_name_are_told_apart(machine: Machine) -> None:
    v2, n1 = (machine.describe(cpuinfo=NEOVERSE.replace("0xd4f", part)) for part in ("0xd4f", "0xd0c"))
    assert v2.cpu == "Neoverse-V2 r0p1" and v2.cpu_features == ("sve", "bf16")
    assert v2.fingerprint != n1.fingerprint
    assert machine.describe(cpuinfo="cpu\t\t: POWER9, altivec\n").cpu == "POWER9, altivec"


def test_two_kinds_of_processor_with_one_name_are_told_apart(machine: Machine) -> None:
    text = "cpu family\t: 6\nmodel\t\t: {}\nmodel name\t: Virtual CPU\nstepping\t: 4\n"
    rapids, lake = (machine.describe(cpuinfo=text.format(model)) for model in (143, 106))
    assert (rapids.cpu, lake.cpu) == ("Virtual CPU", "Virtual CPU")
    assert rapids.fingerprint != lake.fingerprint


# ---- control groups -------------------------------------------------------------------------------------------------

FILES = {
    "version 2, nested": {
        "self": "0::/job/step/task",
        "job/cpu.max": "150000 100000",
        "job/step/cpu.max": "max 100000",
        "job/memory.max": "max",
        "job/step/memory.max": "1073741824",
    },
    "version 2, a container's own root": {
        "self": "0::/",
        "cpu.max": "75000 50000",
        "memory.max": "1073741824",
    },
    "version 1": {
        "self": "4:memory:/job\n3:cpu,cpuacct:/job\n0::/",
        "cpu,cpuacct/job/cpu.cfs_quota_us": "150000",
        "cpu,cpuacct/job/cpu.cfs_period_us": "100000",
        "cpu,cpuacct/cpu.cfs_quota_us": "-1",
        "cpu,cpuacct/cpu.cfs_period_us": "100000",
        "memory/job/memory.limit_in_bytes": "1073741824",
        "memory/memory.limit_in_bytes": "9223372036854771712",
    },
    "version 2 in another namespace, beside version 1": {
        "self": "4:cpu,memory:/a/b\n0::/../of_another_namespace",
        "cpu,memory/a/cpu.cfs_quota_us": "150000",
        "cpu,memory/a/cpu.cfs_period_us": "100000",
        "unified/memory.max": "1073741824",
    },
    "version 1, a path of outside the container": {
        "self": "4:memory:/docker/1f\n3:cpu,cpuacct:/docker/1f",
        "cpu/cpu.cfs_quota_us": "150000",
        "cpu/cpu.cfs_period_us": "100000",
        "memory/memory.limit_in_bytes": "1073741824",
    },
}


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that writes the files of control groups."""
    monkeypatch.setattr(limits, "OWN", tmp_path / "self")
    monkeypatch.setattr(limits, "GROUPS", tmp_path)

    def write(files: dict[str, str]) -> None:
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(f"{text}\n")

    return write


@pytest.mark.parametrize("kind", FILES)
def test_the_least_limit_of_all_groups_around_a_process_counts(kind: str, groups, monkeypatch) -> None:
    groups(FILES[kind])
    assert (limits.cpu_quota(), limits.memory_limit()) == (1.5, 2**30)
    monkeypatch.setattr("joblib.cpu_count", lambda: 64)
    assert limits.usable_threads() == 2
    assert (this_host().cpu_quota, this_host().memory_bytes) == (1.5, 2**30)


def test_without_a_limit_the_whole_machine_is_usable(groups, monkeypatch) -> None:
    groups({"self": "0::/user.slice", "user.slice/cpu.max": "max 100000", "user.slice/memory.max": "max"})
    assert (limits.cpu_quota(), limits.memory_limit()) == (None, None)
    monkeypatch.setattr("joblib.cpu_count", lambda: 64)
    assert limits.usable_threads() == 64


# ---- which machine --------------------------------------------------------------------------------------------------


def test_two_machines_that_share_a_home_are_two_hosts(machine: Machine) -> None:
    first = machine.describe(system=SYSTEM)
    assert machine.describe(system=SYSTEM, home="other").id == first.id
    twin = machine.describe(system="7" * 32)
    assert (twin.fingerprint, twin.id != first.id) == (first.fingerprint, True), "equal hardware, and another machine"
    limited = machine.describe(system=SYSTEM, cores=3)
    assert limited.id != first.id, "with fewer cores it is another machine"
    assert machine.describe(system=SYSTEM, threads=12).id != first.id, "and with fewer threads of as many cores"
    assert not (machine.folder / "home").exists(), "no number is kept where something else lasts"


@pytest.mark.parametrize("has", ["nothing", "a board", "a GPU"])
def test_a_container_start_is_no_new_machine(machine: Machine, has: str) -> None:
    lasting = {"nothing": {}, "a board": {"board": BOARD}, "a GPU": {"gpus": (GPU,)}}[has]
    starts = [
        machine.describe(container=True, system=system, home=f"home {number}", **lasting)
        for number, system in enumerate((uuid4().hex, uuid4().hex, "", "uninitialized"))
    ]
    assert len({host.id for host in starts}) == 1
    assert all((host.recognised_by == identity.NOT_RECOGNISED) is (has == "nothing") for host in starts)
    assert not list(machine.folder.glob("home*"))
    other = {"nothing": {"cores": 4}, "a board": {"board": str(uuid4())}, "a GPU": {"gpus": (GPU, GPU)}}[has]
    assert machine.describe(container=True, **other).id != starts[0].id


def test_a_placeholder_of_a_board_names_no_machine(machine: Machine) -> None:
    for board in (str(UUID(int=0)), "03000200-0400-0500-0006-000700080009", "To be filled by O.E.M."):
        assert machine.describe(container=True, board=board).recognised_by == identity.NOT_RECOGNISED


def test_a_slurm_job_goes_on_on_an_equal_node(machine: Machine) -> None:
    machine.patch.setenv("SLURM_JOB_ID", "17")
    for others in ({"system": "7" * 32}, {"gpus": (replace(GPU, uuid_hash="b" * 12),)}):
        own = {"gpus": (GPU,)} if "gpus" in others else {"system": SYSTEM}
        first, second = machine.describe(**own), machine.describe(**others)
        assert first.id == second.id and first.recognised_by == identity.BY_HOME
        assert len({first.node, second.node, None}) == 3, "records tell the nodes apart"
        assert "node" not in first.as_dict()
        assert machine.describe(**own, cores=16).id != first.id, "an unequal node is another machine"
    assert machine.describe(system=SYSTEM, home="other").id != machine.describe(system=SYSTEM).id


def test_a_system_without_an_id_gets_a_random_number_once(machine: Machine) -> None:
    first = machine.describe().id
    assert machine.describe().id == first
    assert machine.describe(home="other").id != first
    assert [path.name for path in (machine.folder / "home" / "labkit").iterdir()] == ["host-id"]


def test_two_concurrent_first_runs_agree_on_one_number(machine: Machine, monkeypatch) -> None:
    token = identity.secrets.token_hex
    others: list[str] = []

    def overtaken(count: int) -> str:
        monkeypatch.setattr(identity.secrets, "token_hex", token)
        others.append(machine.describe().id)  # another run asks for the number while this run still makes it
        return token(count)

    monkeypatch.setattr(identity.secrets, "token_hex", overtaken)
    assert machine.describe().id == others[0] == machine.describe().id


def test_a_state_folder_that_cannot_be_used_is_reported_where_it_is_needed(machine: Machine) -> None:
    occupied = machine.folder / "file"
    occupied.write_text("")
    with pytest.raises(UserError, match=rf"{occupied}/labkit: .*Set XDG_STATE_HOME"):
        machine.describe(home="file")
    assert machine.describe(home="file", system=SYSTEM).id


def test_an_invalid_number_is_reported_and_not_used(machine: Machine) -> None:
    path = machine.folder / "home" / "labkit" / "host-id"
    path.parent.mkdir(parents=True)
    for broken in ("", "../../etc", "0123456789a", "0123456789AB"):
        path.write_text(broken)
        with pytest.raises(UserError, match="delete it and run again"):
            machine.describe()
        assert machine.describe(system=SYSTEM).id, "a machine with an id of its own does not need the number"


def test_no_raw_id_leaves_the_machine(machine: Machine) -> None:
    machine.describe()  # makes a number in the home folder
    number = (machine.folder / "home" / "labkit" / "host-id").read_text()
    for seen in ({"system": SYSTEM}, {"board": BOARD}, {}):
        for job in ("17", None):
            machine.patch.setenv("SLURM_JOB_ID", job) if job else machine.patch.delenv("SLURM_JOB_ID", raising=False)
            host = machine.describe(**seen)
            text = json.dumps([host.as_dict(), host.fingerprint, host.node]).lower().replace("-", "")
            for private in (SYSTEM, BOARD, number, os.uname().nodename):
                assert private.lower().replace("-", "") not in text


def test_a_system_with_an_overlay_as_its_root_is_no_container(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(identity, "CONTAINER_MARKS", (str(tmp_path / "mark"),))
    monkeypatch.setattr(identity, "BOOTED_SYSTEM", tmp_path / "system")
    for root, in_container in (("overlay", True), ("ext4", False)):
        part = SimpleNamespace(mountpoint="/", fstype=root)
        monkeypatch.setattr(identity.psutil, "disk_partitions", lambda part=part, **_: [part])
        assert identity.in_container() is in_container
    (tmp_path / "mark").touch()
    assert identity.in_container()
    (tmp_path / "mark").unlink()
    (tmp_path / "system").mkdir()
    monkeypatch.setattr(
        identity.psutil, "disk_partitions", lambda **_: [SimpleNamespace(mountpoint="/", fstype="overlay")]
    )
    assert not identity.in_container()


# ---- descriptions ---------------------------------------------------------------------------------------------------


def test_a_later_run_renews_the_software_of_a_description_and_nothing_else(tmp_path: Path) -> None:
    write_host(replace(HOST, memory_bytes=2**33 - 5 * 2**20), tmp_path)
    write_host(replace(HOST, python="3.13", commit="a" * 12), tmp_path)
    described = read_host(tmp_path, HOST.id)
    assert (described["python"], described["commit"]) == ("3.13", "a" * 12)
    assert described["memory_bytes"] == 2**33 - 5 * 2**20


def test_a_description_is_never_overwritten_by_another_machines(tmp_path: Path) -> None:
    write_host(HOST, tmp_path)
    before = (tmp_path / "hosts" / f"{HOST.id}.json").read_bytes()
    with pytest.raises(LabkitError, match="other hardware"):
        write_host(replace(HOST, cpu_quota=0.5), tmp_path)
    assert (tmp_path / "hosts" / f"{HOST.id}.json").read_bytes() == before


@pytest.mark.parametrize("seen", [{"gpus": (GPU,)}, {"system": SYSTEM}])
def test_a_machine_with_records_under_an_earlier_id_keeps_it(machine: Machine, seen: dict[str, Any]) -> None:
    virtual = "cpu family\t: 6\nmodel\t\t: 143\nmodel name\t: Virtual CPU\n"
    host = machine.describe(cpuinfo=virtual, **seen)
    earlier = identity.home_number() if "system" in seen else identity._of_gpus([GPU.uuid_hash])
    unknown_then = ("cpu_family", "usable_threads", "cpu_quota", "recognised_by")
    facts = {name: value for name, value in host.as_dict().items() if name not in unknown_then} | {"id": earlier}
    path = machine.folder / "reports" / "l4" / "hosts" / f"{earlier}.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(facts))
    kept = machine.describe(cpuinfo=virtual, **seen)
    assert kept.id == earlier != host.id
    write_host(kept, path.parents[1])
    assert machine.describe(cpuinfo=virtual, **seen).id == earlier
    assert kept.fingerprint == fingerprint(facts), "old and new records of this host can be pooled"
    assert machine.describe(cpuinfo=virtual, cores=2, **seen).id != earlier
