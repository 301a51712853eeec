"""`make collect` takes records made elsewhere, and refuses those that are unsafe, foreign, edited or out of date.

The archives are made of committed records, so all that is refused here was taken before something in it was changed.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import shutil
import stat
import sys
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.committed import committed_reports
from tests.workbook.test_cli import assert_refused, labkit
from workbook.collect import archive, merge
from workbook.collect.plausible import contradiction_of_starts as starts
from workbook.collect.plausible import contradictions
from workbook.hardware.host import read_host
from workbook.hardware.profile import load_profile
from workbook.records import parse_line
from workbook.records.series_store import SeriesStore
from workbook.records.store import Store
from workbook.registry import STUDIES
from workbook.results import load, reports_folder
from workbook.trials.trial import Trial

HW, HOST, STUDY = "h100", "5986c7f97bad", "01_training"
OLDER = "ec8fd15af31b"  # measured by protocol 2
FILES = (f"hosts/{HOST}.json", f"records/{HOST}/{STUDY}.jsonl.gz", f"telemetry/{HOST}/{STUDY}.parquet")
Change = Callable[[dict[str, Any]], object]


def made(folder: Path, *, host: str = HOST, change: Change = lambda record: None, hw: str = HW) -> Path:
    """Return a folder with the committed records of a study on one machine, each of them changed."""
    report = folder / "sent" / hw
    for name in FILES:
        path = report / name.replace(HOST, host)
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(committed_reports() / HW / name.replace(HOST, host), path)
    path = report / "records" / host / f"{STUDY}.jsonl.gz"
    records = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    for record in records:
        change(record)
    path.write_bytes(gzip.compress("".join(json.dumps(record) + "\n" for record in records).encode()))
    return report


def packed(report: Path, name: str = "from elsewhere.tar.gz") -> Path:
    """Return an archive of a report's folder."""
    path = report.parent.parent / name
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as file:
            for member in sorted(report.rglob("*")):
                file.write(member, member.relative_to(report.parent))
    else:
        with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as file:
            file.add(report, report.name)
    return path


def here() -> dict[str, bytes]:
    return {str(path.relative_to(reports_folder())): path.read_bytes() for path in reports_folder().rglob("*.*")}


def faster(record: dict[str, Any]) -> None:
    for name in ("host_s", "device_s"):
        record["result"][name] = [seconds / 10 for seconds in record["result"][name]]


@pytest.mark.parametrize("name", ["sent.tar.gz", "sent.tar", "sent.zip", ""])
def test_records_of_an_archive_are_merged_as_they_were_measured(tmp_path: Path, name: str) -> None:
    report = made(tmp_path)
    done = labkit("collect", "--from", str(packed(report, name) if name else report))
    assert (done.returncode, done.stderr) == (0, "")
    first, last = done.stdout.splitlines()
    assert first == f"Taken: {STUDY} of machine {HOST} for {HW}, 78 records."
    assert last == "See them by `make render HW=h100`, beside others by `make compare`."
    merged, sent = reports_folder() / HW, committed_reports() / HW
    assert Store(merged).read(STUDY, HOST) == Store(sent).read(STUDY, HOST)
    assert sorted(here()) == sorted(f"{HW}/{name}" for name in FILES), "nothing else is left"
    assert SeriesStore(merged, HOST, STUDY).read().equals(SeriesStore(sent, HOST, STUDY).read())
    assert len(load(HW, STUDY).frame())


def test_records_that_are_here_are_counted_and_skipped(tmp_path: Path) -> None:
    source = str(packed(made(tmp_path)))
    labkit("collect", FROM=source)
    before = here()
    done = labkit("collect", FROM=source, HW=HW)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"Skipped: {STUDY} of machine {HOST} for {HW}, 78 records here already.\n"
    assert here() == before


def test_further_records_of_a_machine_take_their_place_in_time(tmp_path: Path) -> None:
    report = made(tmp_path)
    path = report / FILES[1]
    lines = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
    for part, said in ((lines[::2], "39 records."), (lines, "39 records.")):
        path.write_bytes(gzip.compress(b"".join(part)))
        assert said in labkit("collect", FROM=str(report)).stdout.splitlines()[0]
    assert Store(reports_folder() / HW).read(STUDY, HOST) == Store(committed_reports() / HW).read(STUDY, HOST)


def test_times_divided_by_ten_are_refused_with_the_contradiction_in_numbers(tmp_path: Path) -> None:
    done = labkit("collect", FROM=str(packed(made(tmp_path, change=faster))))
    assert_refused(done, "nothing was taken")
    (said,) = done.stdout.splitlines()
    assert said.startswith(f"Refused: {STUDY} of machine {HOST} for {HW}. ")
    assert "contradicts itself: " in said and said.endswith("Of its 78 records, 78 are at fault and none is taken.")
    assert "energy over time is 6,510 W, and the boards' limit is 700 W" in said
    assert not here(), "nothing is written"


def test_times_that_agree_with_each_other_contradict_energy_peaks_or_traces() -> None:
    """Also the clocks were edited here, so only what took energy, did arithmetic or was traced can tell."""
    profile = load_profile(HW)
    for study in (STUDY, "09_profile"):
        told = set()
        for record in Store(committed_reports() / HW).read(study, HOST):
            if record.blocks is None:
                continue
            phases = {name: seconds / 10 for name, seconds in record.phases_s.items()}
            blocks = {name: [s / 10 for s in getattr(record.blocks, name) or ()] for name in ("host_s", "device_s")}
            edited = {"result": record.blocks.model_copy(update=blocks), "phases_s": phases, "telemetry": None}
            told |= {part.split(" ")[0] for part in contradictions(record.model_copy(update=edited), profile)}
            assert not contradictions(record, profile)
        assert told & {"a", "kernels"}, study


SECONDS = (
    "host_s",
    "warmup_s",
    "at_s",
    "warmup_at_s",
    "warmup_end_s",
    "train_s",
    "val_s",
    "start_s",
    "length_s",
    "wall_s",
)


def all_faster(values: Any, *, inside: bool = False) -> Any:
    """Return a record with all its times divided by ten."""
    if isinstance(values, dict):
        return {
            name: all_faster(value, inside=inside or name in (*SECONDS, "phases_s")) for name, value in values.items()
        }
    if isinstance(values, list):
        return [all_faster(value, inside=inside) for value in values]
    return values / 10 if inside and isinstance(values, (int, float)) else values


def test_runs_on_a_processor_whose_times_agree_contradict_when_they_began() -> None:
    """A processor has neither device time nor, here, energy; its profile has no peaks."""
    records = Store(committed_reports() / "cpu").read(STUDY, "c8356bb2d1ac")
    edited = [parse_line(json.dumps(all_faster(json.loads(record.line())))) for record in records]
    assert not any(part for record in edited for part in contradictions(record, load_profile("cpu")))
    assert re.fullmatch(r"runs that began \S+ s apart in one process take \S+ s \(medians\)", starts(edited))
    assert starts(records) == starts([]) == starts(records[::2]) == ""


def test_records_of_an_older_protocol_are_refused(tmp_path: Path) -> None:
    done = labkit("collect", FROM=str(packed(made(tmp_path, host=OLDER))))
    assert_refused(done, "nothing was taken")
    assert done.stdout == (
        f"Refused: {STUDY} of machine {OLDER} for {HW}. 30 records of protocol 2: this labkit measures by protocol 3, "
        "and the two are never pooled. Measure again with this code.\n"
    )
    assert not here()


def test_foreign_hardware_is_refused(tmp_path: Path) -> None:
    done = labkit("collect", FROM=str(packed(made(tmp_path))), HW="h200")
    assert_refused(done, "nothing was taken")
    assert done.stdout.startswith(f"Refused: {STUDY} of machine {HOST} for h200. Its machine has NVIDIA H100 80GB HBM3")
    assert "H200 SXM" in done.stdout and not here()


def tar_of(member: tarfile.TarInfo, content: bytes = b"") -> Callable[[Path], None]:
    def write(path: Path) -> None:
        member.size = len(content)
        with tarfile.open(path, "w") as file:
            file.addfile(member, io.BytesIO(content))

    return write


def link_of(kind: bytes) -> tarfile.TarInfo:
    member = tarfile.TarInfo(f"{HW}/{FILES[1]}")
    member.type, member.linkname = kind, "/etc/passwd"
    return member


def zip_of(name: str, mode: int = stat.S_IFREG) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        entry = zipfile.ZipInfo(name)
        entry.external_attr = (mode | 0o644) << 16
        with zipfile.ZipFile(path, "w") as file:
            file.writestr(entry, "/etc/passwd")

    return write


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (tar_of(tarfile.TarInfo(f"/tmp/{HW}/{FILES[1]}")), "is unsafe"),
        (tar_of(tarfile.TarInfo(f"../{HW}/{FILES[1]}")), "is unsafe"),
        (tar_of(link_of(tarfile.SYMTYPE)), "is unsafe"),
        (tar_of(link_of(tarfile.LNKTYPE)), "is unsafe"),
        (tar_of(link_of(tarfile.FIFOTYPE)), "is unsafe"),
        (zip_of(f"../../{HW}/{FILES[1]}"), "is unsafe"),
        (zip_of(f"..\\{HW}"), "is unsafe"),
        (zip_of(f"{HW}/{FILES[1]}", stat.S_IFLNK), "is unsafe"),
        (zip_of("notes.txt"), "holds no records"),
        (lambda path: path.write_bytes(b"no archive"), "can't be read"),
        (lambda path: path.write_bytes(gzip.compress(b"\0" * 100)[:-9]), "can't be read"),
    ],
)
def test_an_unsafe_or_damaged_archive_is_refused_before_anything_is_written(
    tmp_path: Path, write: Callable[[Path], object], said: str
) -> None:
    write(tmp_path / "sent")
    done = labkit("collect", FROM=str(tmp_path / "sent"))
    assert_refused(done, said)
    assert not done.stdout and not here()


@pytest.mark.parametrize("limit", ["MOST_MEMBERS", "MOST_BYTES", "LARGEST_BYTES"])
def test_an_archive_that_unpacks_to_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(archive, limit, 2)
    assert_refused(labkit("collect", FROM=str(packed(made(tmp_path), "sent.zip"))), "is too large")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda record: record.update(schema=99), "written by a newer labkit (schema 99"),
        (lambda record: record.update(protocol=99), "A newer labkit measured it (protocol 99"),
        (lambda record: record.update(note="x"), "line 1 is not a record"),
        (lambda record: record.update(key="{}"), "has the key of another configuration"),
        (lambda record: record.update(scale="huge"), "unknown scale 'huge'"),
        (lambda record: record.update(study="99_none"), "is not a record"),
        (lambda record: (record["facts"].pop("gate", 0), record["facts"].pop("gate_passed_in", 0)), "no correctness"),
        (lambda record: [record["facts"].get("gate", {}).update({"loss_difference": 9.0})], "loss differs by 9.0"),
        (lambda record: record.update(scale="smoke"), ""),
    ],
)
def test_records_that_are_not_as_labkit_writes_them_are_refused(tmp_path: Path, change: Change, said: str) -> None:
    done = labkit("collect", FROM=str(packed(made(tmp_path, change=change))))
    assert_refused(done, "nothing was taken")
    assert not here()
    assert said in done.stdout and done.stdout.startswith("Refused: " if said else "Skipped: ")
    assert "labkit-" not in done.stdout, "no name of a temporary folder"


def test_another_content_under_the_name_of_a_record_is_refused(tmp_path: Path) -> None:
    labkit("collect", FROM=str(made(tmp_path)))
    before = here()
    edited = made(tmp_path / "edited", change=lambda record: record.update(wall_s=record["wall_s"] + 1))
    done = labkit("collect", FROM=str(edited))
    assert_refused(done, "nothing was taken")
    assert "is here already with other content" in done.stdout and here() == before


def test_records_of_unknown_code_are_taken_and_never_pooled_with_other_machines(tmp_path: Path) -> None:
    done = labkit(
        "collect", FROM=str(made(tmp_path, change=lambda record: record["versions"].update(commit="0123456789ab")))
    )
    assert "78 of uncommitted or unknown code" in done.stdout
    assert read_host(reports_folder() / HW, HOST)["unknown_commits"] == ["0123456789ab"]
    (shown,) = load(HW, STUDY).selected
    assert shown.without_clean_commit == shown.records and "no clean commit" in shown.machine(shown.records[0])


def test_a_workload_of_a_stranger_is_neither_imported_nor_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def change(record: dict[str, Any]) -> None:
        own = replace(Trial(), workload="strange.steps", workload_source="0" * 12, seed=record["pass"])
        own = replace(own, precision=record["trial"]["precision"])
        record.update(trial=own.as_dict(), key=own.key, facts={})

    (tmp_path / "strange").mkdir()
    for name in ("__init__", "steps"):
        (tmp_path / "strange" / f"{name}.py").write_text("raise SystemExit(99)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    done = labkit("collect", FROM=str(packed(made(tmp_path, change=change))))
    assert (done.returncode, done.stderr) == (0, "") and "78 records" in done.stdout
    assert "strange" not in sys.modules and load(HW, STUDY)


def test_a_machine_without_its_description_is_refused(tmp_path: Path) -> None:
    report = made(tmp_path)
    (report / FILES[0]).unlink()
    done = labkit("collect", FROM=str(report))
    assert_refused(done, "nothing was taken")
    assert f"hosts/{HOST}.json is missing" in done.stdout


def test_records_that_name_other_hardware_than_their_machine_are_refused(tmp_path: Path) -> None:
    report = made(tmp_path, change=lambda record: record.update(fingerprint="0" * 12))
    described = json.loads((report / FILES[0]).read_text())
    (report / FILES[0]).write_text(json.dumps({**described, "cpu_family": "family 6, model 143"}))
    done = labkit("collect", FROM=str(report))
    assert_refused(done, "nothing was taken")
    assert f"Its records name other hardware than hosts/{HOST}.json describes." in done.stdout


def test_a_damaged_series_does_not_keep_its_records_out(tmp_path: Path) -> None:
    report = made(tmp_path)
    (report / FILES[2]).write_bytes(b"PAR1")
    done = labkit("collect", FROM=str(report))
    assert done.returncode == 0 and "78 records, without telemetry over time" in done.stdout
    assert sorted(here()) == sorted(f"{HW}/{name}" for name in FILES[:2])


@pytest.mark.parametrize(
    ("source", "hw", "said"),
    [("", "", "make collect FROM="), ("/no/such", "", "does not exist"), ("sent", "h20", "unknown HW 'h20'; valid: ")],
)
def test_a_mistake_gets_one_sentence(tmp_path: Path, source: str, hw: str, said: str) -> None:
    shutil.copytree(made(tmp_path), tmp_path / "sent" / "other")
    given = source and str(tmp_path / source)
    assert_refused(labkit("collect", "--from", given, "--hw", hw), said)


def test_a_profile_that_is_not_here_is_refused_and_the_others_are_taken(tmp_path: Path) -> None:
    report = shutil.copytree(made(tmp_path), tmp_path / "sent" / "other")
    done = labkit("collect", FROM=str(tmp_path / "sent"))
    taken, refused, _ = done.stdout.splitlines()
    assert done.returncode == 0 and taken.startswith(f"Taken: {STUDY} of machine {HOST} for {HW}, 78 ")
    assert refused.startswith("Refused: all records for other. unknown HW 'other'; valid: ")
    assert "78 records here already" in labkit("collect", FROM=str(report), HW=HW).stdout


def test_a_header_that_does_not_end_is_not_read_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "LARGEST_BYTES", 2**20)
    long = tarfile.TarInfo("x")
    long.pax_headers = {"comment": "x" * 2**21}
    tar_of(long)(tmp_path / "sent.tar")
    assert_refused(labkit("collect", FROM=str(tmp_path / "sent.tar")), "a header without end")


def test_a_full_disk_leaves_the_reports_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    labkit("collect", FROM=str(made(tmp_path)))
    before = here()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(merge, "write_host", full)
    other = made(tmp_path / "other", change=lambda record: record["process"].update(id="other"))
    assert_refused(labkit("collect", FROM=str(other)), "the disk is full")
    assert here() == before


@pytest.mark.thorough
def test_no_committed_record_is_refused_for_what_it_holds() -> None:
    for report in sorted(committed_reports().glob("*")):
        profile, store = load_profile(report.name), Store(report)
        for study in STUDIES:
            for host in store.hosts(study):
                records = store.read(study, host)
                assert not [part for of in records for part in contradictions(of, profile)] and not starts(records)
