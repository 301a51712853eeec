"""Documents on a site: links lead to pages of the site or to the web, and nothing else of the repository is linked."""

from __future__ import annotations

import math
import re
import statistics
from pathlib import Path

import pytest
from bs4 import BeautifulSoup

from benchmarks.between_hosts import SAME, host_pairs, recorded
from labkit.models import open_network
from tests.committed import committed_reports
from workbook.paths import ROOT
from workbook.records.store import Store
from workbook.report.documents import DOCUMENTS, HELPERS, OWN_NETWORK, anchor_of, documents, title_and_text
from workbook.results.from_result import value_of
from workbook.words import number


@pytest.mark.parametrize("page", DOCUMENTS)
def test_a_document_becomes_a_page_whose_links_exist_on_a_site(page: str) -> None:
    heading, text = title_and_text(page)
    source = (ROOT / DOCUMENTS[page][0]).read_text(encoding="utf-8")
    made = BeautifulSoup(text, "html.parser")
    assert source.startswith(f"# {heading}\n") and not made.find("h1")
    assert len(made.find_all("h2")) == len(re.findall(r"^## ", source, re.M))
    assert len(made.find_all("table")) == len(re.findall(r"^\|[-:|]+\|$", source, re.M)) > 0
    links = [str(link["href"]).partition("#")[0] for link in made.find_all("a")]
    assert {link for link in links if not link.startswith("https://")} <= {*DOCUMENTS, "glossary.html", ""}
    sections = {f"#{heading['id']}" for heading in made.find_all(["h2", "h3"])}
    assert {str(link["href"]) for link in made.find_all("a") if str(link["href"]).startswith("#")} <= sections
    assert not any("`" in piece.get_text() for piece in made.find_all(["p", "li", "td", "th"]))


def test_the_options_begin_with_links_to_all_of_their_sections() -> None:
    made = BeautifulSoup(title_and_text("options.html")[1], "html.parser")
    before = made.find("h2").find_all_previous("a")  # type: ignore[union-attr]
    linked = [str(link["href"]) for link in reversed(before) if str(link["href"]).startswith("#")]
    assert linked == [f"#{heading['id']}" for heading in made.find_all("h2")]
    assert anchor_of("Slurm: device files and jobs") == "slurm-device-files-and-jobs"


def test_a_document_that_is_not_in_the_navigation_is_linked_from_others() -> None:
    assert {HELPERS} == {*DOCUMENTS} - {page for page, _ in documents()}
    for page in (OWN_NETWORK, "options.html"):
        assert f'href="{HELPERS}"' in title_and_text(page)[1]


def test_numbers_are_aligned_to_the_right_and_markup_in_a_text_is_escaped() -> None:
    _, text = title_and_text("reviewing.html")
    assert '<td class="n">100 %</td>' in text and "<th scope=" in text
    _, text = title_and_text(OWN_NETWORK)
    assert "<script" not in text and "&quot;&quot;&quot;The network.&quot;&quot;&quot;" in text


def test_the_file_that_the_document_shows_can_be_measured(tmp_path: Path) -> None:
    source = (ROOT / "docs/own_network.md").read_text(encoding="utf-8")
    shown = re.search(r"^    from torch.+?(?=^\S)", source, re.M | re.S)
    assert shown
    (tmp_path / "mine.py").write_text(re.sub(r"^    ", "", shown[0], flags=re.M), encoding="utf-8")
    network = open_network(str(tmp_path / "mine.py"))
    assert network.loss and network.loss(network.build(), network.batch(2, "cpu")).ndim == 0


def test_the_names_that_the_document_gives_open_a_network() -> None:
    source = (ROOT / "docs/own_network.md").read_text(encoding="utf-8")
    _, _, table = source.partition("| name or file |")
    named = [name for row in re.findall(r"^\| (`.+?) \|", table, re.M) for name in re.findall(r"`(.+?)`", row)]
    assert {"torchvision:vit_b_16", "resnet50", "examples/gpt2.py"} <= {*named}
    for name in named:
        if name != "timm:name":
            open_network(str(ROOT / name) if name.endswith(".py") else name)


def test_the_rates_of_cpus_for_reviewers_are_those_of_the_records() -> None:
    text = (ROOT / "docs" / "reviewing.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w{12})`.*\| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", text, re.MULTILINE)
    assert len(rows) == 4
    for host, *written in rows:
        rates: dict[str, list[float]] = {"resnet50": [], "resnet152": []}
        for record in Store(committed_reports() / "cpu").read("01_training", host):
            if record.trial["workload"] == "train" and record.trial["model"] in rates and record.scale == "quick":
                rates[record.trial["model"]].append(value_of(record, "images_per_s") or math.nan)
        large, small = (statistics.geometric_mean(rates[model]) for model in ("resnet50", "resnet152"))
        assert written == [number(value) for value in (large, small, large / small)]


COMPARED = {  # words of the table -> class of steps and metric of `benchmarks/between_hosts.py`
    "images/s in a CUDA graph": ("captured", "throughput"),
    "images/s of eager loops that fill the GPU": ("eager, device-bound", "throughput"),
    "images/s of launch-bound eager loops": ("eager, launch-bound", "throughput"),
    "time in which kernels ran, launch-bound eager loops": ("eager, launch-bound", "busy_step_s"),
    "rate of matrix products, copies and launches": ("ceiling", "throughput"),
    "board power in a CUDA graph": ("captured", "power_w"),
    "energy per image in a CUDA graph": ("captured", "energy_per_image_j"),
}


@pytest.mark.parametrize(("gpu", "rows"), [("H200", 7), ("H100", 2)])
def test_the_differences_between_machines_for_reviewers_are_those_of_the_records(
    gpu: str, rows: int, committed: None
) -> None:
    text = (ROOT / "docs" / "reviewing.md").read_text(encoding="utf-8")
    written = re.findall(rf"^\| (.+) \| {gpu} \| (\d+) \| (\d+ %) \| ([\d.]+ %) \|$", text, re.MULTILINE)
    pairs = host_pairs(recorded(gpu.lower()), SAME).set_index(["class", "metric"])
    assert len(written) == rows
    for quantity, *numbers in written:
        row = pairs.loc[COMPARED[quantity]]
        assert [str(row["pairs"]), row["<= 5%"], row["largest"]] == [number.replace(" %", "%") for number in numbers]


def test_the_differences_between_cpus_for_reviewers_are_those_of_the_records(committed: None) -> None:
    text = (ROOT / "docs" / "reviewing.md").read_text(encoding="utf-8")
    written = re.search(r"Of (\d+) pairs .* (\d+ %) agree within 5 % and (\d+ %) within 20 %", text)
    row = host_pairs(recorded("cpu"), SAME).set_index(["class", "metric"]).loc[("CPU", "throughput")]
    assert written and written.groups() == tuple(row[["pairs", "<= 5%", "<= 20%"]].astype(str).str.replace("%", " %"))
