"""The description of a machine with a fake driver: its id is stable and anonymous, and numbers get no wrong label."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from labkit import devices
from labkit.devices import Gpu, nvidia_hardware, uuid_hash
from labkit.errors import LabkitError, UserError
from tests.fake_nvml import pynvml as fake
from workbook.hardware import builds, matching
from workbook.hardware import host as host_module
from workbook.hardware.host import Host, foreign_gpus, read_host, source_hash, this_host, write_host
from workbook.hardware.matching import (
    SeenDevice,
    detect,
    device_indices,
    mismatch,
    require_match,
    why_another_device,
)
from workbook.hardware.profile import PARAMS, load_profile, profile_names
from workbook.report.generate import write_profile
from workbook.study import open_study

NO_LIBRARY = {"function": "nvmlInit", "error": "NVML_ERROR_LIBRARY_NOT_FOUND"}
NOT_LOADED = {"function": "nvmlInit", "error": "NVML_ERROR_DRIVER_NOT_LOADED"}
P100 = load_profile("p100_16gb")
LOST = {"function": "nvmlDeviceGetHandleByIndex", "error": "NVML_ERROR_GPU_IS_LOST"}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch):
    """Return a function that gives this machine the named chips (see `tests/fake_nvml`) and describes it."""
    monkeypatch.setattr(host_module, "foreign_gpus", lambda: ())
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setattr(builds, "installed", lambda: None)  # the tests' PyTorch is a build for the CPU

    def with_chips(*chips: str, **settings: Any) -> Host:
        monkeypatch.setenv("FAKE_NVML", json.dumps({"chips": chips, **settings}))
        host = this_host()
        assert fake._nvmlLib_refcount == 0, "the driver was left open"
        return host

    return with_chips


@pytest.fixture
def cpu_machine(machine):
    """Return a function that describes a machine without an NVIDIA driver."""
    return lambda: machine(faults=[NO_LIBRARY])


# ---- hardware and software ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text_is_bytes", [False, True])  # as from new bindings and from old ones
def test_a_gpu_is_described_in_si_units(machine, text_is_bytes: bool) -> None:
    host = machine("pascal", bytes=text_is_bytes)
    (gpu,) = host.gpus
    assert (gpu.name, gpu.compute_capability, gpu.memory_bytes) == ("Tesla P100-PCIE-16GB", "6.0", 17_066_885_120)
    assert (gpu.power_limit_w, gpu.max_sm_clock_hz, gpu.max_memory_clock_hz) == (250.0, 1.48e9, 715e6)
    assert host.driver == "550.54"
    assert f"1 x {gpu.name}" in host.summary() and host.notes == ()


def test_a_metric_that_a_device_lacks_is_missing_and_not_zero(machine) -> None:
    host = machine("hopper", lacking=["nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetMaxClockInfo"])
    (gpu,) = host.gpus
    assert (gpu.power_limit_w, gpu.max_sm_clock_hz, gpu.max_memory_clock_hz) == (None, None, None)
    assert gpu.name == "NVIDIA H200"


def test_a_machine_without_a_driver_library_has_no_gpu_and_no_note(
    cpu_machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "nvidia_hardware", lambda: False)
    host = cpu_machine()
    assert (host.gpus, host.driver, host.notes) == ((), None, ())
    assert detect(host).name == "cpu"


@pytest.mark.parametrize("fault", [NOT_LOADED, LOST])
def test_a_driver_that_does_not_answer_is_reported_and_never_taken_for_a_cpu(
    machine, fault: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "nvidia_hardware", lambda: True)
    host = machine("hopper", faults=[fault])
    assert host.gpus == () and len(host.notes) == 1
    with pytest.raises(UserError, match=r"answer: .*nvidia-smi.*HW=cpu"):
        detect(host)


def test_a_record_carries_the_versions_of_the_software(machine) -> None:
    host = machine("hopper")
    versions = host.versions()
    assert versions["driver"] == "550.54"
    assert versions["source"] == source_hash()
    assert versions["labkit"]
    assert versions["torch"] == host.packages["torch"]
    assert all(isinstance(value, str) and value for value in versions.values())
    assert "driver" not in replace(host, driver=None).versions()


CORE = "processor : {}\nCPU implementer : {}\nCPU variant : {}\nCPU part : {}\nCPU revision : {}\n\n"


def test_arm_processors_are_told_apart_by_their_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    def named(*cores: tuple[str, str, str, str]) -> str:
        text = "".join(CORE.format(number, *core) for number, core in enumerate(cores))
        monkeypatch.setattr(host_module, "_cpuinfo", lambda: text)
        return host_module.cpu_model()

    altra, ampere_one = ("0x41", "0x3", "0xd0c", "1"), ("0xc0", "0x0", "0xac3", "0")
    assert named(altra, altra) == "Neoverse-N1 r3p1"
    assert named(ampere_one).split() == ["ARM", "0xc0/0xac3", "r0p0"]
    both = named(("0x41", "0x0", "0xd8a", "1"), ("0x41", "0x0", "0xd85", "1"))
    assert both.split()[1::4] == ["0x41/0xd85", "0x41/0xd8a"]
    assert named() not in ("", named(altra)), "a kernel that tells nothing"
    monkeypatch.setattr(host_module, "_cpuinfo", lambda: "model name : AMD EPYC 9654\n" + CORE.format(0, *altra))
    assert host_module.cpu_model() == "AMD EPYC 9654"


# ---- the id ---------------------------------------------------------------------------------------------------------


def test_the_id_of_a_machine_depends_on_its_gpus_and_not_on_their_order(machine) -> None:
    host = machine("hopper", "pascal")
    assert machine("hopper", "pascal").id == host.id
    turned = machine("pascal", "hopper", uuids=["GPU-secret-1", "GPU-secret-0"])
    assert [gpu.name for gpu in turned.gpus] == ["Tesla P100-PCIE-16GB", "NVIDIA H200"]
    assert turned.id == host.id
    assert machine("hopper", "pascal", uuids=["GPU-secret-1", "GPU-secret-2"]).id != host.id, (
        "the same models elsewhere are another machine"
    )
    assert machine("hopper").id != host.id
    assert not Path(os.environ["XDG_STATE_HOME"]).exists(), "no random number is needed"


def test_a_description_does_not_tell_whose_machine_it_is(machine, cpu_machine) -> None:
    for host in (machine("hopper", "hopper"), cpu_machine()):
        text = json.dumps(host.as_dict())
        assert "secret" not in text, "no raw UUID"
        for private in {socket.gethostname(), os.environ.get("USER"), str(Path.home())} - {None, "", "root", "/root"}:
            assert private not in text
        assert len(host.id) == 12
        assert int(host.id, 16) >= 0


def test_a_description_is_read_back_as_it_was_written(machine, tmp_path: Path) -> None:
    host = machine("hopper", "pascal")
    write_host(host, tmp_path)
    write_host(host, tmp_path)
    assert [path.name for path in (tmp_path / "hosts").iterdir()] == [f"{host.id}.json"]
    assert read_host(tmp_path, host.id) == json.loads(json.dumps(host.as_dict()))
    for broken in ("[]", "{", None):
        path = tmp_path / "hosts" / f"{host.id}.json"
        path.unlink() if broken is None else path.write_text(broken)
        with pytest.raises(LabkitError, match="version control"):
            read_host(tmp_path, host.id)


# ---- which profile --------------------------------------------------------------------------------------------------


def test_the_profile_of_a_machine_is_the_one_with_most_of_its_devices(machine) -> None:
    for chips, name in (
        (["hopper"], "h200"),
        (["hopper"] * 3, "h200_x2"),
        (["hopper"] * 8, "h200_x8"),
        (["pascal"] * 4, "p100_16gb_x4"),
        (["pascal_12"], "p100_12gb"),
        (["volta"], "v100_sxm2"),
        (["kepler", "hopper"], "h200"),
        (["unheard_of", "pascal"], "p100_16gb"),
    ):
        assert detect(machine(*chips)).name == name
    assert detect(machine("unheard_of")) is None


def test_a_chip_that_no_framework_supports_is_refused_with_the_reason(machine) -> None:
    with pytest.raises(UserError, match=r"k80.*11\.8.*HW=k80") as caught:
        detect(machine("kepler", "kepler"))
    assert ".." not in str(caught.value)


def pci_device(root: Path, address: str, *, kind: str, vendor: str) -> None:
    folder = root / address
    folder.mkdir(parents=True)
    (folder / "class").write_text(f"{kind}\n")
    (folder / "vendor").write_text(f"{vendor}\n")


def test_gpus_of_other_vendors_are_seen_and_built_in_graphics_are_not(tmp_path: Path) -> None:
    assert foreign_gpus(tmp_path) == foreign_gpus(tmp_path / "none") == ()
    pci_device(tmp_path, "0000:00:02.0", kind="0x030000", vendor="0x8086")  # Intel's built-in graphics
    pci_device(tmp_path, "0000:01:00.0", kind="0x030000", vendor="0x1a03")  # a server's VGA chip
    pci_device(tmp_path, "0000:02:00.0", kind="0x020000", vendor="0x8086")  # a network card
    pci_device(tmp_path, "0000:03:00.0", kind="0x030200", vendor="0x10de")  # NVIDIA has its own driver
    (tmp_path / "0000:04:00.0").mkdir()  # a device without a class and a vendor
    assert foreign_gpus(tmp_path) == ()
    pci_device(tmp_path, "0000:c1:00.0", kind="0x038000", vendor="0x1002")
    pci_device(tmp_path, "0000:c2:00.0", kind="0x120000", vendor="0x1002")
    pci_device(tmp_path, "0000:c3:00.0", kind="0x030000", vendor="0x8086")
    named = [(gpu.split()[0], gpu.split()[-1]) for gpu in foreign_gpus(tmp_path)]
    assert named == [("AMD", "0000:c1:00.0"), ("AMD", "0000:c2:00.0"), ("Intel", "0000:c3:00.0")]


def test_a_gpu_of_another_vendor_is_never_silently_taken_for_a_cpu(cpu_machine, machine) -> None:
    amd = replace(cpu_machine(), foreign_gpus=("AMD GPU at PCI 0000:c1:00.0",))
    with pytest.raises(UserError, match=r"0000:c1:00\.0.*HW=cpu"):
        detect(amd)
    assert mismatch(load_profile("cpu"), amd) is None, "its CPU can be measured on request"
    both = replace(machine("hopper"), foreign_gpus=amd.foreign_gpus)
    assert detect(both).name == "h200"


def test_numbers_are_never_labelled_with_absent_hardware(cpu_machine) -> None:
    host = cpu_machine()
    with pytest.raises(UserError) as caught:
        require_match(load_profile("p100_16gb"), host)
    assert caught.value.exit_code == 2
    for part in (P100.title, host.summary(), "`make render HW=p100_16gb`"):
        assert part in str(caught.value)
    assert [name for name in profile_names() if mismatch(load_profile(name), host) is None] == ["cpu"]
    require_match(load_profile("cpu"), host)


H200 = Gpu(name="NVIDIA H200", uuid_hash="a" * 12, memory_bytes=143 * 2**30, compute_capability="9.0")
L4 = Gpu(name="NVIDIA L4", uuid_hash="b" * 12, memory_bytes=None, compute_capability="8.9")


@pytest.mark.parametrize(
    ("seen", "fact"),
    [
        ([], None),
        ([("NVIDIA H200", "a" * 12, 140 * 2**30)], None),
        ([("NVIDIA H200", "a" * 12, 140 * 2**30), ("NVIDIA L4", "b" * 12, 22 * 2**30)], None),
        ([("NVIDIA H200 MIG 3g.71gb", "a" * 12, 70 * 2**30)], "70 GiB, a part"),
        ([("NVIDIA L4", "b" * 12, 22 * 2**30), ("NVIDIA H200", "a" * 12, 140 * 2**30)], "0 of PyTorch is NVIDIA L4"),
        ([("NVIDIA H200", "c" * 12, 140 * 2**30)], "not the card"),
    ],
)
def test_a_framework_on_another_device_than_the_chosen_one_is_noticed(seen: list[Any], fact: str | None) -> None:
    reason = why_another_device([SeenDevice(*device) for device in seen], [H200, L4])
    assert reason is None if fact is None else fact in str(reason)


def test_too_few_devices_or_another_capability_is_no_match(machine) -> None:
    two = machine("hopper", "hopper")
    require_match(load_profile("h200"), two)  # a profile may use fewer devices than the machine has
    require_match(load_profile("h200_x2"), two)
    with pytest.raises(UserError, match=r"4x H200.*2 x NVIDIA H200"):
        require_match(load_profile("h200_x4"), two)
    odd = replace(two, gpus=tuple(replace(gpu, compute_capability="9.9") for gpu in two.gpus))
    with pytest.raises(UserError, match=r"capability 9\.0.*9\.9"):
        require_match(load_profile("h200"), odd)


def card(name: str, capability: str) -> Gpu:
    return Gpu(name=name, uuid_hash=uuid_hash(name), memory_bytes=2**33, compute_capability=capability)


@pytest.mark.parametrize("call", [detect, lambda host: write_profile(host), lambda host: require_match(P100, host)])
def test_a_card_that_is_too_old_is_told_so_and_gets_no_profile(machine, call) -> None:
    host = replace(machine("hopper"), gpus=(card("NVIDIA GeForce GTX 780", "3.5"),))
    with pytest.raises(UserError, match="`make report HW=cpu`"):
        call(host)
    assert detect(replace(host, gpus=(*host.gpus, card("NVIDIA Z9000", "12.0")))) is None, "the newer card counts"


def test_a_pytorch_that_does_not_run_on_the_card_ends_every_way_to_measure(machine, monkeypatch) -> None:
    host = machine("volta", "volta", "volta", "volta")
    profile = detect(host)
    assert mismatch(profile, host) is None
    open_study("training", host=host)
    monkeypatch.setattr(builds, "installed", lambda: builds.Torch("2.15.0+cu130", "13.0"))
    monkeypatch.setattr(builds, "_runs", lambda _: False)
    assert detect(host).name == profile.name, "the hardware is still the profile's"
    needed = r"capability 7\.0: .*/whl/cu126`"
    for call in (partial(require_match, profile, host), partial(open_study, "training", host=host)):
        with pytest.raises(UserError, match=needed):
            call()
    assert re.search(needed, str(mismatch(profile, host)))
    assert not open_study("training", host=host, hw=profile.name).measures_here, "records can be read"
    assert mismatch(load_profile("cpu"), host) is None


def test_hardware_that_is_not_here_is_refused_with_what_to_type_for_what_is_here(machine, cpu_machine) -> None:
    for host, typed in (
        (machine("hopper", "hopper"), "`make report HW=h200_x2`"),
        (cpu_machine(), "`make report HW=cpu`"),
        (machine("kepler"), "`make report HW=cpu`"),
        (machine("unheard_of"), "`make report` "),
    ):
        with pytest.raises(UserError) as caught:
            require_match(load_profile("v100_pcie"), host)
        assert typed in str(caught.value)


def test_a_card_that_its_driver_no_longer_lists_is_named_with_the_driver_that_does(machine, monkeypatch) -> None:
    titan = builds.Card("the NVIDIA card at PCI 1 (Maxwell to Volta)", (5, 0), listed=False)
    monkeypatch.setattr(matching, "cards_on_bus", lambda: [titan])
    monkeypatch.setattr(devices, "_on_bus", lambda: True)
    monkeypatch.setattr(devices, "nvidia_hardware", lambda: True)
    with pytest.raises(UserError, match=r"lists no GPU.*driver 580, the last.*HW=cpu"):
        detect(machine())


def test_a_profile_uses_its_own_devices_of_a_mixed_machine(machine) -> None:
    mixed = machine("pascal", "hopper", "volta", "hopper", "hopper")
    assert device_indices(load_profile("h200"), mixed) == [1]
    assert device_indices(load_profile("h200_x2"), mixed) == [1, 3]
    assert device_indices(load_profile("v100_sxm2"), mixed) == [2]
    assert device_indices(load_profile("p100_16gb"), mixed) == [0]
    assert device_indices(load_profile("cpu"), mixed) == []


# ---- a shared machine, and one whose driver is broken ---------------------------------------------------------------


def test_cuda_visible_devices_decides_which_gpus_are_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = tuple(
        Gpu(name="NVIDIA H200", uuid_hash=uuid_hash(f"GPU-{n}"), memory_bytes=2**37, compute_capability="9.0")
        for n in range(8)
    )
    host = replace(this_host(), gpus=gpus, notes=(), foreign_gpus=())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert detect(host).name == "h200_x8"  # type: ignore[union-attr]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert detect(host).name == "h200"  # type: ignore[union-attr]
    assert device_indices(load_profile("h200"), host) == [3], "not somebody else's first GPU"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-5,GPU-6")
    assert device_indices(load_profile("h200_x2"), host) == [5, 6]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(UserError, match="no GPU of the 8"):
        detect(host)


def test_a_gpu_that_the_driver_does_not_show_is_never_silently_taken_for_a_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    pci_device(tmp_path, "0000:65:00.0", kind="0x030200", vendor="0x10de")
    assert nvidia_hardware(tmp_path)
    monkeypatch.setitem(sys.modules, "pynvml", None)  # nvidia-ml-py is not installed
    monkeypatch.setattr(devices, "nvidia_hardware", lambda: True)
    with pytest.raises(UserError, match=r"nvidia-ml-py.*HW=cpu"):
        detect(this_host())


def test_a_commit_given_by_hand_must_fit_the_code() -> None:
    for given in ("0123456789ab", "0123456789ab@ffffffffffff", "@"):
        with pytest.raises(UserError, match=source_hash()):
            host_module._given_commit(given)
    assert host_module._given_commit(f"0123456789ab@{source_hash()}") == "0123456789ab"
    assert host_module._given_commit("") is None


def test_on_a_mixed_machine_a_profile_is_of_the_chosen_card(machine, tmp_path: Path, monkeypatch) -> None:
    host = machine("pascal", "unheard_of")
    assert all(f"1 x {gpu.name}" in host.summary() for gpu in host.gpus)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert [gpu.name in host.summary() for gpu in host.gpus] == [False, True]
    shutil.copytree(PARAMS / "base", tmp_path / "base")
    shutil.copy(PARAMS / "cpu.yaml", tmp_path)
    assert write_profile(host, tmp_path).stem == "z9000"
    assert detect(host, tmp_path).name == "z9000"  # type: ignore[union-attr]


def test_a_commit_counts_only_in_a_repository_of_this_project(tmp_path: Path, monkeypatch) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    inside = tmp_path / "project"
    inside.mkdir()
    monkeypatch.setattr(host_module, "ROOT", inside)
    monkeypatch.setattr(host_module, "source_hash", lambda: "0")
    monkeypatch.delenv("LABKIT_COMMIT", raising=False)
    assert host_module._commit() is None


def test_the_repository_that_called_git_does_not_count(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("LABKIT_COMMIT", raising=False)
    commit = host_module._commit()
    monkeypatch.setenv("GIT_DIR", str(tmp_path))
    assert host_module._commit() == commit


def test_a_page_needs_no_number_of_the_machine(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))  # no folder can be made there
    assert this_host(numbered=False).id == ""
