"""The page of machines, software and code. Only properties that differ stand side by side."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from bs4 import BeautifulSoup, Tag

from tests.workbook.test_site import (
    HERE,
    POWER,
    POWERED,
    TRAINING,
    A,
    B,
    C,
    described,
    passes_of,
    put,
    reporting,
    said_in,
    taken,
)
from workbook.claims.reports import evidence
from workbook.hardware.profile import load_profile
from workbook.records import PROTOCOL
from workbook.registry import STUDIES
from workbook.report.fingerprint import write_fingerprint
from workbook.report.pages import write_site
from workbook.results import Results

RENDERED = {
    "Written": "2026-11-21T01:40:00+00:00",
    "By": "labkit 0.1.0",
    "On": "a small CPU",
    "Reproduce": "make report",
}


def page_of(reports: Path, hw: str = "h200", title: str = "H200 SXM") -> BeautifulSoup:
    """Return the page about the records in this folder."""
    with reporting(reports, []):
        records_shown = evidence(hw)
        shown = [records for study in STUDIES if (records := records_shown.results(hw, study))]
    return page_from(reports, Results(shown), hw, title)


def page_from(reports: Path, shown: Results, hw: str = "h200", title: str = "H200 SXM") -> BeautifulSoup:
    profile = load_profile(hw).model_copy(update={"title": title})
    path = reports / hw / "fingerprint.html"
    write_fingerprint(path, profile, shown, rendered=RENDERED, links=[("claims.html", "Published claims")])
    return BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")


def hosts_of(page: BeautifulSoup) -> dict[str, tuple[list[str], bool]]:
    """Return of each property its values, machine by machine or of all, and whether it is among those that differ."""
    properties = {}
    rows = [
        [said_in(cell) for cell in row.select("th, td")]
        for row in page.select('[aria-label="Properties that differ"] tr')
    ]
    for name, *values in list(zip(*rows, strict=True))[1:]:
        properties[name] = (values, True)
    for fact in page.select(".lk-strip div"):
        assert said_in(fact.dt) not in properties, "a property stands once"
        properties[said_in(fact.dt)] = ([said_in(fact.dd)], False)
    return properties


def studies_of(page: BeautifulSoup) -> dict[str, Tag]:
    """Return the row of each study."""
    return {said_in(row.th): row for row in page.select('[aria-label="Records"] tbody tr')}


def cells_of(page: BeautifulSoup, study: str) -> dict[str, str]:
    """Return the cells of a study's row by their heading."""
    heads = [said_in(head) for head in page.select('[aria-label="Records"] thead th')]
    return dict(zip(heads[1:], (said_in(cell) for cell in studies_of(page)[study].select("td")), strict=True))


def two_hosts(reports: Path, first: dict[str, Any], second: dict[str, Any]) -> BeautifulSoup:
    put(reports, "h200", passes_of(host=A), described(A, **first))
    put(reports, "h200", passes_of(POWERED, host=B, study=POWER), described(B, **second))
    return page_of(reports)


# ---- hosts ----------------------------------------------------------------------------------------------------------


def test_properties_that_differ_stand_side_by_side_and_equal_ones_once(tmp_path: Path) -> None:
    packages = {"labkit": "0.1.0", "torch": "2.11.0"}
    board = described()["gpus"][0]
    page = two_hosts(
        tmp_path,
        {"driver": "580.1", "packages": packages | {"jax": "0.11"}, "gpus": [board]},
        {"driver": "575.0", "packages": packages | {"torch": "2.12.0"}, "memory_bytes": 2**36, "gpus": [board, board]},
    )
    machines = [said_in(cell) for cell in page.select('[aria-label="Properties that differ"] tbody th')]
    assert machines == [A, B]
    rows = hosts_of(page)
    assert rows["Driver"] == (["580.1", "575.0"], True)
    assert rows["Package torch"] == (["2.11.0", "2.12.0"], True)
    assert rows["Package jax"] == (["0.11", "–"], True), "one machine does not have the package"
    assert rows["Host memory"] == (["128 GiB", "64.0 GiB"], True)
    assert (rows["GPU 0"][1], rows["GPU 1 memory"]) == (False, (["–", "150 GiB"], True))
    alike = {name for name, (_, differs) in rows.items() if not differs}
    assert {"Package labkit", "CPU", "Python", "System"} <= alike
    assert "The same on all 2 machines:" in said_in(page.main)


def test_a_single_host_has_no_differences_and_its_numbers_have_units(tmp_path: Path) -> None:
    put(tmp_path, "h200", passes_of())
    put(tmp_path, "h200", passes_of(POWERED, study=POWER))
    page = page_of(tmp_path)
    assert not page.select('[aria-label="Properties that differ"]')
    assert not any(differs for _, differs in hosts_of(page).values())
    rows = {name: values[0] for name, (values, _) in hosts_of(page).items()}
    assert rows["GPU 0 memory"] == "150 GiB"
    assert rows["GPU 0 enforced power limit"] == "700 W"
    assert rows["GPU 0 highest SM clock"] == "1,980 MHz"
    assert rows["GPU 0 highest memory clock"] == "3,200 MHz"
    assert rows["Cores, threads"] == "16, 32"
    assert rows["CPU features"] == "avx2"


def test_variables_of_the_records_that_may_change_a_step_are_shown(tmp_path: Path) -> None:
    told = [
        record.model_copy(update={"environment": {"NCCL_ALGO": "Ring", "CUDA_VERSION": "13"}})
        for record in passes_of(host=A)
    ]
    put(tmp_path, "h200", told, described(A))
    put(tmp_path, "h200", passes_of(POWERED, host=B, study=POWER), described(B))
    assert hosts_of(page_of(tmp_path))["Environment variables"] == (["NCCL_ALGO=Ring", "none recorded"], True)


def test_properties_that_a_host_lacks_are_shown_as_missing_and_never_as_zero(tmp_path: Path) -> None:
    clocks = ("power_limit_w", "max_sm_clock_hz", "max_memory_clock_hz")
    gpu = described()["gpus"][0] | dict.fromkeys(clocks)
    bare = described(gpus=[gpu], driver=None, cpu_features=[])
    del bare["notes"]  # as in an older host's file
    put(tmp_path, "h200", passes_of(), bare)
    rows = {name: values[0] for name, (values, _) in hosts_of(page_of(tmp_path)).items()}
    for name in ("enforced power limit", "highest SM clock", "highest memory clock"):
        assert rows[f"GPU 0 {name}"] == "–"
    assert rows["GPU 0"] == "NVIDIA H200"
    assert (rows["Driver"], rows["Notes"], rows["CPU features"]) == ("none", "none", "–")
    assert "None" not in " ".join(rows.values())


def test_a_machine_without_a_gpu_has_no_rows_of_gpus(tmp_path: Path) -> None:
    put(tmp_path, "cpu", passes_of(), described(gpus=[], driver=None))
    assert not [name for name in hosts_of(page_of(tmp_path, "cpu")) if name.startswith("GPU")]


# ---- records --------------------------------------------------------------------------------------------------------


def test_each_study_says_on_which_host_how_often_and_when_it_was_measured(tmp_path: Path) -> None:
    times = {1: "2026-11-21T06:33:10+00:00", 2: "2026-11-21T06:40:59+00:00", 3: "2026-11-22T00:01:02+00:00"}
    records = [taken(made.as_trial, made.pass_number, started_at=times[made.pass_number]) for made in passes_of()]
    put(tmp_path, "h200", records[::-1])
    put(tmp_path, "h200", passes_of(POWERED, host=B, study=POWER, scale="full", passes=2))
    page = page_of(tmp_path)
    assert list(studies_of(page)) == [TRAINING, POWER]
    training, power = cells_of(page, TRAINING), cells_of(page, POWER)
    assert (training["Machine"], training["scale"], training["runs"]) == (f"{A} shown", "quick", "3")
    assert training["Measured"] == "2026-11-21 06:33 to 2026-11-22 00:01 UTC"
    assert (power["Machine"], power["scale"], power["runs"]) == (f"{B} shown", "full", "2")
    assert "protocol" not in training and f"protocol {PROTOCOL}" in said_in(page.main), (
        "all records have the same protocol"
    )


def test_every_commit_and_build_behind_the_records_is_named(tmp_path: Path) -> None:
    builds = {"torch": "2.11", "torch_build": "2.11+cu130", "cuda": "13.0", "cudnn": "9.1"}
    newer = builds | {"commit": "222222222222", "source": "bbbb", "cudnn": "9.2"}
    first = passes_of(passes=3, versions=builds | {"commit": "111111111111", "source": "aaaa"})
    records = [made if made.pass_number < 3 else taken(made.as_trial, 3, versions=newer) for made in first]
    put(tmp_path, "h200", records)
    put(tmp_path, "h200", passes_of(POWERED, study=POWER, versions={"torch": "2.11"}))
    page = page_of(tmp_path)
    training, power = cells_of(page, TRAINING), cells_of(page, POWER)
    assert training["Commit, code"] == "111111111111, 222222222222 aaaa, bbbb"
    assert [training[name] for name in ("PyTorch", "CUDA", "cuDNN")] == ["2.11+cu130", "13.0", "9.1, 9.2"]
    assert power["Commit, code"] == "unknown unknown"
    assert [power[name] for name in ("PyTorch", "CUDA", "cuDNN")] == ["unknown"] * 3


def test_records_without_a_clean_commit_are_listed_with_their_number(tmp_path: Path) -> None:
    records = passes_of(passes=3, versions={"torch": "2.11", "commit": "111111111111"})
    listed = "no commit of the project's history"
    put(tmp_path, "h200", records)
    assert listed not in said_in(page_of(tmp_path).main)
    put(
        tmp_path,
        "h200",
        passes_of(POWERED, study=POWER, passes=2, versions={"torch": "2.11", "commit": "2" * 12 + "+"}),
    )
    rows = [said_in(row).replace(" :", ":") for row in page_of(tmp_path).select("h2#records ~ ul li")]
    assert rows == [f"{POWER}, machine {A}: {2 * len(POWERED)} of {2 * len(POWERED)} records, commit {'2' * 12}+"]


def test_builds_of_keras_stand_beside_pytorchs_build(tmp_path: Path) -> None:
    versions: dict[str, dict[str, str]] = {
        "torch": {"torch": "2.13", "torch_build": "2.13+cu130", "cuda": "13.0", "cudnn": "9.20"},
        "keras-jax": {"keras": "3.15.1", "jax": "0.10.2", "jaxlib": "0.10.2", "cuda": "13.1", "cudnn": "9.28.0.42"},
        "keras-tensorflow": {"keras": "3.15.1"},
    }
    trials = [replace(passes_of()[0].as_trial, framework=name) for name in versions]
    put(tmp_path, "h200", [taken(trial, 1, trials, 1, versions=versions[trial.framework]) for trial in trials])
    page = page_of(tmp_path)
    assert "PyTorch 2.13+cu130, CUDA 13.0, cuDNN 9.20" in said_in(page.main)
    cell = cells_of(page, TRAINING)["other frameworks"]
    assert "Keras on JAX: keras 3.15.1, jax 0.10.2, jaxlib 0.10.2, CUDA 13.1, cuDNN 9.28.0.42" in cell
    assert "Keras on TensorFlow: not installed" in cell


def test_packages_of_other_interpreters_are_shown_for_the_host(tmp_path: Path) -> None:
    elsewhere = {"keras-tensorflow": {"python": "3.12.1", "keras": "3.15.1", "tensorflow": "2.21.0"}}
    page = two_hosts(tmp_path, {"elsewhere": elsewhere}, {})
    properties = hosts_of(page)
    assert properties["Python of Keras on TensorFlow: tensorflow"] == (["2.21.0", "–"], True)
    assert properties["Python of Keras on TensorFlow"] == (["3.12.1", "–"], True)


def test_links_to_raw_data_lead_to_existing_files(tmp_path: Path) -> None:
    put(tmp_path, "h200", passes_of())
    put(tmp_path, "h200", passes_of(POWERED, host=B, study=POWER))
    series = tmp_path / "h200" / "telemetry" / B / f"{POWER}.parquet"
    series.parent.mkdir(parents=True)
    series.write_bytes(b"series")
    rows = studies_of(page_of(tmp_path))
    links = {study: {said_in(link): str(link["href"]) for link in row.select("a")} for study, row in rows.items()}
    assert links[TRAINING] == {"18 records": f"../h200/records/{A}/{TRAINING}.jsonl"}
    assert set(links[POWER]) == {"9 records", "series"}
    assert (tmp_path / "h200" / links[POWER]["series"]).resolve() == series
    for of_study in links.values():
        assert all((tmp_path / "h200" / href).is_file() for href in of_study.values())


def test_a_page_without_records_says_so_and_names_the_program_that_wrote_it(tmp_path: Path) -> None:
    page = page_from(tmp_path, Results([]))
    assert "No machine has records for this device yet." in said_in(page.main)
    assert not page.select("table")
    facts = [said_in(fact) for fact in page.select(".lk-facts div")]
    assert facts == [f"{label} {value}" for label, value in RENDERED.items()]


def test_the_site_lists_every_host_of_the_shown_scale_and_no_other(tmp_path: Path) -> None:
    with reporting(tmp_path, []):
        put(tmp_path, "h200", passes_of())
        put(tmp_path, "h200", passes_of(host=B))
        put(tmp_path, "h200", passes_of(host=C, scale="smoke"))
        write_site(tmp_path / "h200", load_profile("h200"), replace(HERE, id=A))
    page = BeautifulSoup((tmp_path / "h200" / "fingerprint.html").read_text(encoding="utf-8"), "html.parser")
    cells = [said_in(row.td) for row in page.select('[aria-label="Records"] tbody tr')]
    assert cells == [f"{A} shown", B]
