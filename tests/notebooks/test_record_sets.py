"""Tests that every page is right at every moment of a report, on any machine: it is made, and shows no empty value.

`cuts` makes the record sets. `make test-all` runs a tenth of the pairs of record set and page of one profile: each
record set meets a few pages, and each page a few record sets. LABKIT_SLOW=1 runs all pairs of all profiles.
"""

from __future__ import annotations

import ast
import json
import math
import os
import re
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from bs4 import BeautifulSoup, Tag
from pandas.api.types import is_numeric_dtype

from labkit.errors import UserError
from tests.conftest import SLOW
from tests.notebooks.cuts import CUTS, EVERY, RecordSet, shown_records, write_records
from workbook import study
from workbook.hardware.host import this_host
from workbook.hardware.profile import Profile, load_profile
from workbook.paths import ROOT
from workbook.records import Record, short_hash
from workbook.registry import METRICS, OF_ALL, STUDIES, WHICH_DEVICE, YOUR_NETWORK
from workbook.report.pages import write_site
from workbook.results import Results, reports_folder
from workbook.results.load import REPORT_VARIABLE
from workbook.trials.trial import SUSTAINED_WINDOWS

NOTEBOOKS = [path for path in sorted((ROOT / "notebooks").glob("*.ipynb")) if path.stem in STUDIES]
STUDY_WORDS = 420  # that a study's page may have in sight
SHORT_WORDS = 24  # of its answer on the index, a fifth above the 20 that `report.answer` asks for
CUT_WORDS = 460  # of a set of records in which rounds are missing
OF_ONE_DEVICE = ("cpu", "h100", "h200")  # on several GPUs, all records are such a set
SITE = "site"  # index, claims, papers, and machines and software
PROFILES = ("cpu", "h100", "h100_x2", "h100_x4", "h200", "h200_x2", "h200_x4")
OFTEN, ONE_IN = "h200", 10  # the profile of `make test-all`, and the share of its pairs

SLOW_TOO = os.environ.get(SLOW) == "1"

EMPTY = re.compile(r"\b(nan|None(?! of)|NaT|<NA>|inf)\b")  # a claim begins with "None of the GPUs"
WRONG = (
    EMPTY,
    re.compile(
        r"not measured (of|over|reaches|waiting|the|is)\b|\b(After|takes|batch|are) not measured|Batch –"
    ),  # needs a value
    re.compile(r"\bof 0\b(?! or |[.,]\d)"),
    re.compile(r"(?<![\d.,–])(\d[\d.,]*\d|\d)( \S+)? (to|over) \1(?![\d.,]*\d)"),  # a value beside itself
)
SENTENCES = ".lk-answer li, .lk-title, figcaption, caption, [data-scrap]"
WITHOUT_SUBJECT = re.compile(r"^not measured \w|\(not measured\)|not measured,? not measured|(^|\s)–($|[\s.,:)])")


def wrong_in(html: str) -> list[str]:
    """Return the wrong texts of an output, each with the text around it."""
    page = BeautifulSoup(html, "html.parser")
    text = said(page)
    found = [match for form in WRONG for match in form.finditer(text)]
    return [
        *(f"empty: {part}" for part in page.select("strong, h1, h2, h3, caption") if not said(part)),
        *(f"without subject: {said(part)}" for part in page.select(SENTENCES) if WITHOUT_SUBJECT.search(said(part))),
        *(f"{match[0]}: {text[max(0, match.start() - 90) : match.end() + 60]}" for match in found),
    ]


def said(part: Any) -> str:
    return re.sub(r" (?=[.,:])", "", " ".join(part.get_text(" ").split()))


def shown_by(
    notebook: Path, change: Callable[[str], str] = lambda source: source, **parameters: str
) -> dict[str, list[str]]:
    """Run a notebook's cells, as `change` returns them, and return what they show, as HTML or text, by tag or ""."""
    names: dict[str, Any] = {"__name__": "notebook"}
    outputs: dict[str, list[str]] = {}
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] != "code":
            continue
        tags = cell["metadata"].get("tags", [])
        tree = ast.parse(change("".join(cell["source"])))
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, notebook.name, "exec"), names)
        if "parameters" in tags:
            names |= parameters
        if last is not None:
            value = eval(compile(ast.Expression(last.value), notebook.name, "eval"), names)
            outputs.setdefault(tags[0] if tags else "", []).append(_text(value))
    return outputs


def _text(value: Any) -> str:
    if hasattr(value, "_repr_mimebundle_"):
        bundle = value._repr_mimebundle_()
        return str(bundle.get("text/html", bundle.get("text/plain", "")))
    return value.to_html() if hasattr(value, "to_html") else "" if value is None else str(value)


def main_of_study(notebook: Path, shown: dict[str, list[str]]) -> BeautifulSoup:
    """Return what a page shows without opening a fold, from what its cells show by tag, and the text of its limits."""
    limits = "".join(
        "".join(cell["source"])
        for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        if "limits" in cell["metadata"].get("tags", [])
    )
    parts = [part for tag in ("answer", "figure", "table", "verdicts") for part in shown.get(tag, [])]
    return BeautifulSoup("".join([*parts, limits]), "html.parser")


def words_in_sight(main: Tag) -> int:
    """Return the number of words outside figures and closed folds, which are taken out."""
    for folded in main.select("details:not([open])"):
        for part in folded.find_all(recursive=False):
            if part.name != "summary":
                part.extract()
    for unseen in main.select("svg, .lk-shown"):
        unseen.extract()
    return len(re.findall(r"\S*\w\S*", said(main)))  # a lone mark such as ✓ or – is no word


def pairs() -> Iterator[Any]:
    """Yield each profile, cut and page that shows records of the profile. Skipping a thousand tests takes long."""
    for hw in PROFILES if SLOW_TOO else (OFTEN,):
        recorded = {path.name.partition(".")[0] for path in (ROOT / "reports" / hw / "records").glob("*/*.jsonl*")}
        pages = [notebook.stem for notebook in NOTEBOOKS if notebook.stem in {*recorded, *OF_ALL}] + [SITE]
        for place, cut in enumerate(CUTS):
            for number, page in enumerate(pages):
                if SLOW_TOO or cut == EVERY or (place + number) % ONE_IN == 0:
                    yield pytest.param(hw, cut, page, id=f"{hw}-{cut}-{page}")


@pytest.fixture(scope="module")
def record_set_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], RecordSet]:
    """Return the record set of a profile and a cut, which is written once."""
    return cache(lambda hw, cut: RecordSet.written(tmp_path_factory.mktemp("reports"), hw, CUTS[cut]))


@pytest.mark.parametrize(("hw", "cut", "page"), pairs())
def test_a_page_is_right(
    hw: str, cut: str, page: str, record_set_of: Callable[[str, str], RecordSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    record_set, published = record_set_of(hw, cut), dict[str, str]()
    monkeypatch.setenv("LABKIT_REPORTS", str(record_set.folder))
    monkeypatch.setenv(REPORT_VARIABLE, "1")
    monkeypatch.setattr("scrapbook.glue", published.__setitem__)
    here = replace(this_host(), id=record_set.machines.get(page) or "0" * 12)
    monkeypatch.setattr(study, "this_host", lambda **_: here)
    if page == SITE:
        report = record_set.folder / record_set.hw
        report.mkdir(exist_ok=True)
        write_site(report, load_profile(record_set.hw), here)
        shown = {path.name: [main_of(path)] for path in sorted(report.rglob("*.html"))}
    else:
        parameters = {} if page in OF_ALL else {"hw": record_set.hw, "mode": "render"}
        shown = shown_by(ROOT / "notebooks" / f"{page}.ipynb", **parameters)
        for part in ("setup", "answer", "figure", "table", *(["verdicts"] if page != WHICH_DEVICE else [])):
            assert len(shown.get(part, [])) == 1, part
        most = STUDY_WORDS if cut == EVERY and hw in OF_ONE_DEVICE else CUT_WORDS
        assert words_in_sight(main_of_study(ROOT / "notebooks" / f"{page}.ipynb", shown)) <= most
        assert cut != EVERY or len(published["labkit.short"].split()) <= SHORT_WORDS
        title = BeautifulSoup(shown["figure"][0], "html.parser").select_one(".lk-title")
        if cut == EVERY and page not in OF_ALL:
            assert title and re.search(r"^(?!.*not measured).*(?<![\w-])\d", said(title)), "the title is no finding"
        shown["index"] = [f"<p data-scrap>{published[f'labkit.{name}']}</p>" for name in ("short", "number")]
    wrong = [f"{part}: {text}" for part, outputs in shown.items() for output in outputs for text in wrong_in(output)]
    assert not wrong, "\n".join(wrong)


def wrong_on_page(
    notebook: Path, record_set: RecordSet, monkeypatch: pytest.MonkeyPatch, **parameters: str
) -> list[str]:
    """Run a page of the profile OFTEN, or with other parameters, on a record set, and return its wrong texts."""
    monkeypatch.setenv("LABKIT_REPORTS", str(record_set.folder))
    monkeypatch.setenv(REPORT_VARIABLE, "1")
    monkeypatch.setattr("scrapbook.glue", lambda *_: None)
    here = replace(this_host(), id=record_set.machines.get(notebook.stem) or "0" * 12)
    monkeypatch.setattr(study, "this_host", lambda **_: here)
    shown = shown_by(notebook, **({} if notebook.stem in OF_ALL else {"hw": OFTEN, "mode": "render", **parameters}))
    return [f"{part}: {text}" for part, outputs in shown.items() for output in outputs for text in wrong_in(output)]


# Values that no sensor, clock or network excludes, put in place of those of a quarter of the metrics each.
VALUES = {"0": 0.0, "missing": math.nan}
BASELINES = "0 in the baseline"


def with_values(frame: pd.DataFrame, variant: str) -> pd.DataFrame:
    """Return a table of results with other values: of a quarter of its metrics, or of all in its baseline's rows."""
    metrics = [name for name in METRICS if name in frame and is_numeric_dtype(frame[name])]
    frame = frame.copy()
    if variant == BASELINES:
        rows = frame["mode"] == "strict FP32"
        frame.loc[rows, metrics] = frame.loc[rows, metrics].where(frame.loc[rows, metrics].isna(), 0.0)
        return frame
    word, quarter = variant.split(" ")
    chosen = metrics[int(quarter) :: 4]
    frame[chosen] = frame[chosen].where(frame[chosen].isna(), VALUES[word])
    return frame


def valued_pages() -> Iterator[Any]:
    variants = [f"{word} {quarter}" for word in VALUES for quarter in range(4)] + [BASELINES]
    for place, variant in enumerate(variants):
        for number, notebook in enumerate(NOTEBOOKS):
            if notebook.stem == YOUR_NETWORK:  # its records are of a network that a user gave
                continue
            if SLOW_TOO or (place + number) % (3 * ONE_IN) == 0:
                yield pytest.param(variant, notebook, id=f"{variant}-{notebook.stem}")


@pytest.fixture(scope="module")
def one_round(tmp_path_factory: pytest.TempPathFactory) -> RecordSet:
    return RecordSet.written(tmp_path_factory.mktemp("reports"), OFTEN, CUTS["round 1"])


@pytest.mark.parametrize(("variant", "notebook"), valued_pages())
def test_a_page_takes_any_values(
    variant: str, notebook: Path, one_round: RecordSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def frame(results: Results, **options: Any) -> pd.DataFrame:
        return with_values(of_results(results, **options), variant)

    of_results = Results.frame
    monkeypatch.setattr(Results, "frame", frame)
    assert wrong_on_page(notebook, one_round, monkeypatch) == []


def lists_of_sweeps() -> Iterator[Any]:
    pages = [page for page in NOTEBOOKS if page.stem not in (*OF_ALL, YOUR_NETWORK)]
    sizes = [
        (hw, scale, page, *size)
        for hw, scale in ((OFTEN, "quick"), (OFTEN, "smoke"), ("cpu", "smoke"))
        for page in pages
        for size in load_profile(hw).sweep(page.stem, scale).items()
    ]
    lists = [case for *case, value in sizes if isinstance(value, list) and value]
    for hw, scale, page, name in lists if SLOW_TOO else lists[:: 5 * ONE_IN]:
        yield pytest.param(hw, scale, page, name, id=f"{hw}-{scale}-{page.stem}-{name}")


@pytest.mark.parametrize("records", ["round 1", "none"])
@pytest.mark.parametrize(("hw", "scale", "notebook", "name"), lists_of_sweeps())
def test_a_page_takes_a_sweep_with_an_empty_list(
    hw: str,
    scale: str,
    notebook: Path,
    name: str,
    records: str,
    one_round: RecordSet,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def sweep(profile: Profile, of: str, at: str) -> dict[str, Any]:
        sizes = copy(of_profile(profile, of, at))
        sizes[name] = []
        return sizes

    of_profile = Profile.sweep
    monkeypatch.setattr(Profile, "sweep", sweep)
    of_records = one_round if records != "none" else replace(one_round, folder=tmp_path)
    try:
        wrong = wrong_on_page(notebook, of_records, monkeypatch, hw=hw, scale=scale)
    except UserError as error:  # the list had all that the study measures
        wrong = [] if "the list of configurations is empty" in str(error) else [str(error)]
    assert wrong == []


def main_of(path: Path) -> str:
    main = BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser").main
    assert main is not None
    for code in main.select("pre, code"):
        code.extract()
    return str(main)


def test_a_page_names_the_networks_that_were_measured() -> None:
    def without_the_papers(records: list[Record]) -> list[Record]:
        trials = [(record, record.as_trial) for record in records]
        return [
            record for record, trial in trials if trial.workload != "train" or trial.model in ("resnet152", "vgg19")
        ]

    write_records(reports_folder(), "h200", "01_training", without_the_papers)
    outputs = shown_by(ROOT / "notebooks" / "01_training.ipynb", hw="h200", mode="render")
    text = BeautifulSoup(" ".join(outputs["answer"] + outputs["figure"] + outputs["more"]), "html.parser").get_text(" ")
    assert "ResNet-152" in text and "VGG-19" in text
    assert "ResNet-50" not in text and "VGG-16" not in text


def test_the_comparison_can_name_another_network() -> None:
    for hw in ("h100", "h200"):
        write_records(reports_folder(), hw, "01_training", lambda records: records)

    def named(source: str) -> str:
        return source.replace('model, chosen = "resnet50"', 'model, chosen = "vgg16"')

    outputs = shown_by(ROOT / "notebooks" / "20_comparison.ipynb", named, baseline="h100")
    answer = BeautifulSoup(outputs["answer"][0], "html.parser").get_text(" ")
    answer = re.sub(r"\s+", " ", answer)
    assert re.search(r"H200 SXM trains VGG-16 at 32 px \d\.\d+ times as fast as H100 SXM", answer)
    readings = r"H[12]00 SXM is about \d\d % busy at \d+ W with ResNet-50\. .* Tesla V100 SXM2 was 72 % busy at 170 W"
    assert re.search(readings, answer)


def test_the_batch_size_page_can_name_another_network() -> None:
    write_records(reports_folder(), "h200", "02_batch_size", lambda records: records)

    def named(source: str) -> str:
        return source.replace('one_of_column(timed, "model", *sweep["swept"])', '"resnet152"')

    outputs = shown_by(ROOT / "notebooks" / "02_batch_size.ipynb", named, hw="h200", mode="render")
    answer = BeautifulSoup(outputs["answer"][0], "html.parser").get_text(" ")
    assert re.search(r"strict FP32 trains\s+ResNet-152 .* times .*and VGG-16 .* as fast as at batch 64", answer)


def test_the_power_page_tells_how_a_minute_of_training_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_a_minute(records: list[Record]) -> list[Record]:
        first = next(record for record in records if record.trial["engine"] == "compile+graph")
        trial = replace(first.as_trial, image_px=224, energy_windows=SUSTAINED_WINDOWS)
        planned = {**records[-1].planned.passes, short_hash(trial.key): 1}
        made = first.model_copy(update={"trial": trial.as_dict(), "key": trial.key})
        plan = records[-1].planned.model_copy(update={"passes": planned})
        return [record.model_copy(update={"planned": plan}) for record in [*records, made]]

    write_records(reports_folder(), "h200", "04_power", with_a_minute)
    monkeypatch.setattr("scrapbook.glue", lambda *_: None)
    shown = shown_by(ROOT / "notebooks" / "04_power.ipynb", hw="h200", mode="render")
    (ends,) = [
        said(BeautifulSoup(part, "html.parser")) for part in shown["more"] if "last 15 s over first 15 s" in part
    ]
    assert re.search(r"224 px BF16 (0\.9\d+|1\.0\d*)x$", ends)
    assert "224 px" not in shown["table"][0], "the table of trainings lists no training of a minute"


@pytest.mark.parametrize("page", ["06_cpu_vs_gpu", "09_profile", "10_gan"])
def test_a_peak_in_another_precision_changes_no_number_of_a_page(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    products = [record for record in shown_records("cpu", "01_training") if record.trial["workload"] == "matmul"]
    fp32 = [record.model_copy(update={"study": page}) for record in products if record.trial["precision"] == "fp32"]
    halves = [replace(record.as_trial, precision="bf16") for record in fp32]
    bf16 = [
        record.model_copy(update={"trial": trial.as_dict(), "key": trial.key})
        for record, trial in zip(fp32, halves, strict=True)
    ]

    monkeypatch.setattr("scrapbook.glue", lambda *_: None)
    shown = []
    for name, peaks in (("one", fp32), ("two", [*fp32, *bf16])):
        write_records(tmp_path / name, "cpu", page, peaks.__add__)
        monkeypatch.setenv("LABKIT_REPORTS", str(tmp_path / name))
        outputs = shown_by(ROOT / "notebooks" / f"{page}.ipynb", hw="cpu", mode="render")
        shown.append([said(BeautifulSoup(text, "html.parser")) for text in [*outputs["answer"], *outputs["table"]]])
    assert shown[0] == shown[1]
