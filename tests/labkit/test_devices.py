"""The devices of this machine: CUDA_VISIBLE_DEVICES as PyTorch reads it, and drivers that do not answer everything."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import pytest

from labkit import devices
from labkit.devices import UNREADABLE, nvidia, visible, visible_gpus, why_hidden
from labkit.telemetry import nvml
from tests.fake_nvml import pynvml as fake

UUIDS = ["GPU-8932f937", "GPU-11112222", "GPU-11113333"]
CHOICES = (
    *("", "0", "1,0", "0,-1,1", "0,0", " 1 ", "2", "7", "1,7,0", "all", "-1", "1gpu2,2ampere", "0, 1", "0,,1", "None"),
    *("GPU-8932", "GPU-8932f937", "GPU-1111", "GPU-11113,GPU-8", "GPU-8,GPU-8932", "GPU-8932,1", "1,GPU-8932", "GPU-"),
)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch):
    """Return a function that sets what the driver answers."""
    monkeypatch.setitem(__import__("sys").modules, "pynvml", fake)
    monkeypatch.setattr(devices, "nvidia_hardware", lambda: True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def answers(chips: list[str], **settings: object) -> None:
        monkeypatch.setenv("FAKE_NVML", json.dumps({"chips": chips, **settings}))

    return answers


@pytest.mark.parametrize("text", CHOICES)
def test_the_variable_is_read_as_pytorch_reads_it(driver, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = pytest.importorskip("torch").cuda
    driver(["hopper", "volta", "pascal"], uuids=UUIDS)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
    theirs = cuda._parse_visible_devices()
    if theirs and isinstance(theirs[0], str):
        theirs = cuda._transform_uuid_to_ordinals(theirs, UUIDS)
    within = list(itertools.takewhile(lambda number: number < len(UUIDS), theirs))  # CUDA stops at a number too large
    assert visible(nvidia()[0]) == within


def test_a_slice_of_a_card_is_refused_by_name(driver, monkeypatch: pytest.MonkeyPatch) -> None:
    driver(["hopper"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-377e39aa")
    gpus, why = visible_gpus()
    assert gpus == [] and "(MIG)" in why and "`nvidia-smi -mig 0`" in why
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    driver(["hopper"], mig=[0])
    gpus, why = visible_gpus()
    assert gpus == [] and "NVIDIA H200" in why and "slices" in why


def test_a_lost_card_keeps_its_number_and_does_not_take_the_others_away(driver) -> None:
    driver(["hopper", "volta", "volta"], faults=[{"error": "NVML_ERROR_GPU_IS_LOST", "index": 1}])
    gpus, _, notes = nvidia()
    assert [gpu.name == UNREADABLE for gpu in gpus] == [False, True, False]
    assert visible(gpus) == [0, 2] and "GPU 1" in notes[0]


def test_a_name_that_is_no_text_is_a_name(driver, monkeypatch: pytest.MonkeyPatch) -> None:
    driver(["hopper"])

    def undecodable(_handle: object) -> str:
        return b"\xf8".decode()

    monkeypatch.setattr(fake, "nvmlDeviceGetName", undecodable)
    assert nvidia()[0][0].name not in ("", UNREADABLE)
    monkeypatch.setattr(fake, "nvmlDeviceGetName", lambda _handle: b"Tesla \xf8")
    assert nvidia()[0][0].name.startswith("Tesla ")


LACKING = (
    *((), ("nvmlDeviceGetMemoryInfo",), ("nvmlDeviceGetCudaComputeCapability",), ("nvmlDeviceGetEnforcedPowerLimit",)),
    *(("nvmlDeviceGetMaxClockInfo",), ("nvmlSystemGetDriverVersion",), ("nvmlDeviceGetName",), ("nvmlDeviceGetUUID",)),
    ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetCudaComputeCapability"),
)


@pytest.mark.parametrize("lacking", LACKING, ids=lambda lacking: "+".join(lacking) or "nothing")
@pytest.mark.parametrize("chips", [["hopper"], ["pascal", "hopper"], ["unheard_of", "volta", "volta"]], ids=len)
def test_no_answer_of_a_driver_is_a_traceback_or_another_card(
    driver, lacking: tuple[str, ...], chips: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from workbook.hardware.host import this_host

    monkeypatch.setattr("workbook.hardware.host._commit", lambda: None)  # git takes most of the time
    driver(chips, lacking=list(lacking))
    for text in (None, "0", "1", "1,0", "GPU-secret-1", "", "MIG-1", "9"):
        if text is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
        gpus, why = visible_gpus()
        assert bool(gpus) != bool(why)
        assert set(gpus) <= set(range(len(chips)))
        named = this_host(numbered=False).summary()
        if gpus and "nvmlDeviceGetName" not in lacking:
            first = fake.CHIPS[chips[gpus[0]]].name
            assert first in named
            assert (f"{len(chips)} x {first}" in named) == ({chips[index] for index in gpus} == {*chips} == {chips[0]})


def test_a_driver_without_a_card_is_no_card_that_does_not_answer(driver, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = [{"function": "nvmlInit", "error": "NVML_ERROR_DRIVER_NOT_LOADED"}]
    driver([], faults=broken)
    assert len(nvidia()[2]) == 1
    monkeypatch.setattr(devices, "nvidia_hardware", lambda: False)
    assert nvidia() == ((), None, ())
    assert why_hidden(()) == ""


def test_a_card_that_a_container_shows_only_as_a_node_is_hardware(tmp_path: Path) -> None:
    (tmp_path / "nvidiactl").touch()
    assert not devices.nvidia_hardware(tmp_path / "no bus", tmp_path), "of a driver without a card"
    (tmp_path / "nvidia0").touch()
    assert devices.nvidia_hardware(tmp_path / "no bus", tmp_path)


@pytest.mark.parametrize("lacking", [[], ["nvmlDeviceGetUUID"]], ids=["by UUID", "without a UUID"])
def test_no_reading_of_another_card_stands_under_the_name_of_a_lost_card(driver, lacking: list[str]) -> None:
    driver(["kepler", "volta", "pascal"], gone={"index": 1, "from_s": math.inf}, lacking=lacking)
    fake.nvmlInit()
    cards = [nvml.Device(fake, index) for index in range(3)]
    before = [card.answer("nvmlDeviceGetEnforcedPowerLimit") for card in cards]
    fake.machine().settings["gone"]["from_s"] = -math.inf
    for _ in range(2):
        kepler, volta, pascal = (card.answer("nvmlDeviceGetEnforcedPowerLimit") for card in cards)
        assert volta is None
        assert kepler in (before[0], None) and pascal in (before[2], None)
        assert lacking or (kepler and pascal), "cards with a UUID are found again"
    fake.nvmlShutdown()
