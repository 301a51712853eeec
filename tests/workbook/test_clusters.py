"""Reports that run elsewhere by a template of `clusters/`, and sweeps over profiles."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from labkit.errors import UserError
from tests.committed import committed_reports
from tests.workbook.test_cli import assert_refused, labkit
from tests.workbook.test_collect import FILES, HOST, HW, STUDY, here
from tests.workbook.test_slurm import Fake, slurm  # noqa: F401 - a fixture
from workbook.clusters import CLUSTERS, archive_of, filled, templates
from workbook.report.make import Request
from workbook.results import reports_folder
from workbook.sweep import sweep

# Answers like `make report`: records of the profile appear in the folder of reports.
STUB = """#!{python} -IS
import os, pathlib, shutil, sys
folder = pathlib.Path({folder!r})
with (folder / "asked").open("a") as file:
    file.write(repr([*sys.argv[1:], os.environ.get("ON"), os.environ.get("MAKEFLAGS")]) + "\\n")
if "HW=h100" in sys.argv:
    for name in {files!r}:
        target = pathlib.Path(os.environ["LABKIT_REPORTS"]) / "h100" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / "h100" / name, target)
sys.exit(0 if "HW=h100" in sys.argv else 2)
"""
HOSTILE = """x'; touch marker; ' "$(touch marker)" `touch marker` $(ARCHIVE): # \\ __PROFILE__"""


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file of what was asked of a `make` that stands before the real one on PATH."""
    for name in FILES:
        copy = tmp_path / HW / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(committed_reports() / HW / name, copy)
    program = tmp_path / "bin" / "make"
    program.parent.mkdir()
    program.write_text(STUB.format(python=sys.executable, folder=str(tmp_path), files=FILES))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return tmp_path / "asked"


def test_a_report_by_a_shell_gives_an_archive_that_collect_takes(
    make: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAKEFLAGS", "n")
    done = labkit("report", ON="shell", HW=HW, STUDY=STUDY, DATA="synthetic32")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"ended with exit code 0. Its archive of records: {archive_of(HW)}" in done.stdout
    (asked,) = make.read_text().splitlines()
    assert asked.startswith(f"['report', 'HW=h100', 'STUDY={STUDY}', 'SCALE=quick', 'DATA=synthetic32', ")
    assert asked.endswith("None, None]"), "the report's make must not run elsewhere again"
    archive = shutil.copy(archive_of(HW), tmp_path / "sent.tar.gz")
    monkeypatch.setenv("LABKIT_REPORTS", str(tmp_path / "comparing"))
    assert labkit("collect", FROM=str(archive)).stdout.startswith(f"Taken: {STUDY} of machine {HOST} for {HW}, 78 ")
    assert sorted(here()) == sorted(f"{HW}/{name}" for name in FILES)


def test_a_sweep_makes_a_report_of_each_profile_and_collects_their_archives(make: Path) -> None:
    done = labkit("sweep", HW="h100 l40s", ON="shell", STUDY=STUDY)
    assert done.returncode == 2 and len(make.read_text().splitlines()) == 2
    *_, first, second = done.stdout.splitlines()
    assert first == f"Skipped: {STUDY} of machine {HOST} for {HW}, 78 records here already."
    assert second == f"Once the archive is there: make collect FROM={archive_of('l40s')} HW=l40s, then make compare"
    assert archive_of("h100").exists() and not archive_of("l40s").exists()


def test_a_sweep_ends_with_the_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbook.sweep.report_by_template", lambda *_: 0)
    monkeypatch.setattr("workbook.sweep.is_comparable", lambda: True)
    monkeypatch.setattr("workbook.sweep.make_compare", lambda: 1)
    assert sweep(Request(hw="h100 l40s", study=STUDY), "shell") == 1, "the comparison's exit code counts"


def test_a_sweep_on_slurm_submits_all_before_it_follows_one(slurm: Fake) -> None:  # noqa: F811
    slurm.job("COMPLETED")
    done = labkit("sweep", HW="h100,l40s,h100", ON="slurm", STUDY=STUDY)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split()[0] for line in done.stdout.splitlines()[:3]] == ["Submitted", "Submitted", "job"]
    assert len(slurm.submitted) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["report", "--hw", "h100", "--on", "nope"], ["unknown ON 'nope'; valid: ", "slurm", "shell", "kubernetes"]),
        (["report", "--on", "shell"], ["ON=shell needs HW="]),
        (["report", "--on", "shell", "--hw", "k80"], ["can't be measured"]),
        (["report", "--on", "shell", "--hw", "h100", "--nodes", "2"], ["NODES= needs ON=slurm"]),
        (["sweep", "--on", "slurm"], ["a sweep needs profiles and a place", "slurm, kubernetes or shell"]),
        (["sweep", "--hw", "h100 l40s"], ["a sweep needs profiles and a place"]),
        (["sweep", "--hw", "h100 nope", "--on", "shell"], ["unknown HW 'nope'"]),
    ],
)
def test_a_mistake_gets_one_sentence_before_anything_runs(make: Path, arguments: list[str], said: list[str]) -> None:
    assert_refused(labkit(*arguments), *said)
    assert not make.exists()


def test_the_manifest_has_what_a_job_needs_and_is_written_only() -> None:
    """The fields are those that the documentation of batch/v1 asks of a Job; no package here has its schema."""
    done = labkit("report", ON="kubernetes", HW=HW)
    assert done.returncode == 0 and "It was not submitted." in done.stdout
    manifest = yaml.safe_load((reports_folder() / HW / "kubernetes.yaml").read_text())
    assert (manifest["apiVersion"], manifest["kind"]) == ("batch/v1", "Job")
    assert manifest["metadata"]["generateName"] == "labkit-"
    pod = manifest["spec"]["template"]["spec"]
    assert pod["restartPolicy"] in ("Never", "OnFailure"), "a Job takes no other"
    (container,) = pod["containers"]
    assert container["name"] and container["image"]
    values = {variable["name"]: variable["value"] for variable in container["env"]}
    assert values["COMMAND"].startswith("make report HW=h100 ") and values["PROFILE"] == HW
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert not {"__COMMAND__", "__PROFILE__", "__ARCHIVE__"} & set(values.values())


def test_a_slot_is_filled_with_one_quoted_text(tmp_path: Path) -> None:
    script = filled(CLUSTERS / "shell.sh", HOSTILE, HW).partition("status=0")[0] + 'printf %s "$command"'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout == HOSTILE and not list(tmp_path.iterdir())
    manifest = yaml.safe_load(filled(CLUSTERS / "kubernetes.yaml", HOSTILE, HW))
    value = manifest["spec"]["template"]["spec"]["containers"][0]["env"][0]["value"]
    assert value.replace("$$", "$") == HOSTILE and "$(" not in value.replace("$$", "")


def test_each_template_is_valid_as_it_stands() -> None:
    for path in templates().values():
        if path.suffix == ".sh":
            assert not subprocess.run(["bash", "-n", path]).returncode
        else:
            assert json.dumps(yaml.safe_load(path.read_text()))
        assert shlex.quote(path.stem) == path.stem


def test_a_template_without_a_slot_is_refused(tmp_path: Path) -> None:
    template = tmp_path / "mine.sh"
    template.write_text("__COMMAND__ __PROFILE__")
    with pytest.raises(UserError, match="lacks __ARCHIVE__; a template has the slots"):
        filled(template, "make report", HW)
