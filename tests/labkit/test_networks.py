"""Tests of networks from a file or by a name."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch

import labkit
from labkit.errors import UserError
from labkit.models import open_network
from workbook.paths import ROOT

LINE = """
import torch
from torch import nn
from beside import WIDTH
def build(): return nn.Linear(WIDTH, 1)
def batch(size, device): return torch.randn(size, WIDTH, device=device)
def loss(network, batch): return network(batch).square().mean()
"""


@pytest.fixture(autouse=True)
def _path_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo that opening a file makes its folder importable."""
    monkeypatch.setattr(sys, "path", [*sys.path])


def written(folder: Path, text: str, name: str = "mine.py") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def test_a_file_is_built_fed_and_trained_with_the_files_beside_it(tmp_path: Path) -> None:
    written(tmp_path, "WIDTH = 3\n", "beside.py")
    name = written(tmp_path, LINE)
    step = open_network(name).training_step(4, "cpu")
    losses = [float(step()) for _ in range(20)]
    assert losses[-1] < losses[0]
    assert isinstance(labkit.build(name), torch.nn.Linear)
    timing = labkit.time_step(Path(name), batch=4, device="cpu", warmup_s=0.01, timed_s=0.05)
    assert timing.raw.images_per_step == 4
    with pytest.raises(UserError, match="has `batch` images"):
        labkit.time_step(name, batch=4, images_per_step=8, device="cpu")


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        ("torch.randn(3, WIDTH)", "gives 9 numbers for size=4, 9 for 1 and 9 for 2"),
        ("[size]", "returned no tensor"),
        ("{'x': torch.randn(size, WIDTH, device='meta')}", "left a tensor on meta"),
    ],
)
def test_a_batch_of_other_samples_is_not_timed(tmp_path: Path, batch: str, said: str) -> None:
    written(tmp_path, "WIDTH = 3\n", "beside.py")
    name = written(tmp_path, LINE + f"def batch(size, device): return {batch}\n")
    with pytest.raises(UserError, match=re.escape(said)):
        labkit.time_step(name, batch=4, device="cpu")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def build(:", "(mine.py, line 1)"),
        ("import not_there_at_all", "mine.py (line 1) cannot be executed: ModuleNotFoundError"),
        ("import json\n\njson.loads('{')", "mine.py (line 3) cannot be executed: JSONDecodeError"),
        ("raise SystemExit(0)", "SystemExit"),
        ("def batch(size, device): ...\ndef loss(network, batch): ...", "lacks build()"),
        ("def build(): ...\ndef batch(size, device): ...", "loss(network, batch) or predict(network, batch)"),
        (
            "def build(width): ...\ndef batch(size, device): ...\ndef loss(n, b): ...",
            "build of mine.py cannot be called",
        ),
        (
            "tokens_per_sample = 'many'\ndef build(): ...\ndef batch(s, d): ...\ndef loss(n, b): ...",
            "tokens_per_sample",
        ),
    ],
)
def test_a_file_that_is_no_network_gets_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UserError) as raised:
        open_network(written(tmp_path, text))
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["nowhere.py", "torchvision:resnet51", "keras:resnet50", "wgan", "timm:no_such_model"])
def test_an_unknown_name_gets_one_sentence(name: str) -> None:
    with pytest.raises(UserError):
        open_network(name)


@pytest.mark.parametrize(("name", "shape"), [("resnet50", (2, 3, 224, 224)), ("mlp512", (2, 10_000))])
def test_a_name_is_fed_at_the_size_that_it_was_made_for(name: str, shape: tuple[int, ...]) -> None:
    samples, labels = open_network(name).batch(2, torch.device("cpu"))
    assert (tuple(samples.shape), tuple(labels.shape)) == (shape, (2,))


@pytest.mark.parametrize("file", sorted(path.name for path in (ROOT / "examples").glob("*.py")))
def test_an_example_is_a_network(file: str) -> None:
    opened = open_network(str(ROOT / "examples" / file))
    assert opened.loss or opened.predict


def test_what_cannot_be_meant_gets_one_sentence() -> None:
    with pytest.raises(UserError, match="leave out the other"):
        labkit.build("torchvision:vit_b_16", image_px=32)
    with pytest.raises(UserError, match="batch is for"):
        labkit.time_step(lambda: None, batch=3)
    with pytest.raises(UserError, match="batch is"):
        labkit.time_step("resnet50")
