"""Tests of what a user is told to type where the installed PyTorch does not run on the card."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from workbook.hardware import builds
from workbook.hardware.builds import Card, Torch, has_code, why_not

CU126 = "https://download.pytorch.org/whl/cu126"
NOW, LAST, CPU = Torch("2.15.0+cu130", "13.0"), Torch("2.14.1+cu126", "12.6"), Torch("2.13.0+cpu", None)
OTHER = Torch("2.11.0+cu128", "12.8")
OURS = f"`rm -r .venv && make setup TORCH_INDEX={CU126}`"
DEFAULT = "`rm -r .venv && make setup`"
NO_BUILD = "`make report HW=cpu`"
TABLE = [  # the card's compute capability, its driver, the installed PyTorch, and what the sentence must tell to type
    ((6, 1), "550.54", NOW, OURS),
    ((6, 1), "550.54", OTHER, OURS),
    ((6, 1), "550.54", CPU, OURS),
    ((6, 1), "550.54", LAST, ""),
    ((7, 0), "580.95", NOW, OURS),
    ((7, 0), "580.95", LAST, ""),
    ((5, 2), "535.10", NOW, OURS),
    ((5, 2), "470.57", LAST, "driver 580, the last for this card"),
    ((5, 2), "470.57", CPU, "driver 580, the last for this card"),
    ((3, 7), "470.57", NOW, NO_BUILD),
    ((3, 7), "470.57", CPU, NO_BUILD),
    ((8, 6), "535.10", NOW, OURS),
    ((8, 6), "535.10", OTHER, ""),
    ((8, 6), "580.95", NOW, ""),
    ((8, 6), "580.95", CPU, DEFAULT),
    ((12, 0), "580.95", LAST, DEFAULT),
    ((12, 0), "570.10", LAST, f"driver 580 or later, then type {DEFAULT}"),
    ((12, 0), "570.10", NOW, "driver 580 or later, then type the same command"),
    (None, "580.95", NOW, ""),
    ((6, 1), "N/A", LAST, ""),
    ((8, 6), "", NOW, ""),
]


@pytest.mark.parametrize(("capability", "driver", "torch", "typed"), TABLE)
def test_a_card_that_the_installed_pytorch_does_not_serve_gets_one_command(
    capability: builds.Capability | None, driver: str, torch: Torch, typed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builds, "installed", lambda: torch)
    monkeypatch.setattr(builds, "_runs", lambda _: False)
    monkeypatch.setattr(sys, "prefix", str(Path(builds.__file__).parents[2] / ".venv"))
    said = why_not(Card("a card", capability, driver))
    assert typed in said and bool(said) == bool(typed)
    if typed in (OURS, DEFAULT):
        assert torch.version in said and said.count("make setup") == 1


def test_an_environment_of_the_user_is_not_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builds, "installed", lambda: NOW)
    monkeypatch.setattr(builds, "_runs", lambda _: False)
    monkeypatch.setattr(sys, "executable", "/opt/my conda/bin/python")
    monkeypatch.setattr(sys, "prefix", "/opt/my conda")
    said = why_not(Card("NVIDIA TITAN V", (7, 0), "550.54"))
    assert "rm -r" not in said and "'/opt/my conda/bin/python' -m pip" in said and f"--index-url {CU126}" in said


def test_a_build_of_the_user_that_runs_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A PyTorch built for an old card, or CUDA's compatibility package for an old driver, is no published build."""
    monkeypatch.setattr(builds, "installed", lambda: NOW)
    for flags, sees, runs in (("sm_70 sm_80", True, True), ("sm_75", True, False), ("sm_70", False, False)):
        builds._runs.cache_clear()
        monkeypatch.setattr(builds, "ASK", f"print('noise'); print('[{str(sees).lower()}, \"{flags}\"]')")
        assert (why_not(Card("NVIDIA TITAN V", (7, 0), "550.54")) == "") == runs
    builds._runs.cache_clear()


def test_the_installed_pytorch_is_read_without_importing_it() -> None:
    import torch

    here = builds.installed()
    assert here == Torch(torch.__version__, torch.version.cuda)


def test_machine_code_runs_on_later_minor_versions_and_an_intermediate_form_on_all_later() -> None:
    assert has_code(["sm_50", "sm_60"], (5, 2)) and has_code(["sm_90a"], (9, 0))
    assert not has_code(["sm_61"], (6, 0)) and not has_code([], (6, 0))
    assert has_code(["sm_75", "compute_120"], (15, 0)) and not has_code(["compute_75"], (7, 0))


def test_the_pins_are_of_the_last_release_for_cuda_12() -> None:
    pins = (Path(builds.__file__).parents[2] / "constraints-cu126.txt").read_text()
    assert f"--extra-index-url {CU126}" in pins and builds.LEGACY.index == CU126
    conda = (Path(builds.__file__).parents[2] / "environment.yml").read_text()
    assert "-r constraints-cu126.txt" in conda, "conda's users read it there"
    assert sorted(line.partition("==")[0] for line in pins.splitlines() if line.endswith("+cu126")) == [
        "torch",
        "torchvision",
    ]
