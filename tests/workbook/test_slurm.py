"""Tests of ON=slurm with executables that answer like Slurm's: the submission, messages and exit codes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from labkit.errors import LabkitError, UserError
from workbook import slurm as commands
from workbook.cli import app
from workbook.hardware.profile import Cluster, load_profile
from workbook.paths import ROOT
from workbook.report.make import Request
from workbook.slurm import END, FIELD, QUEUE_FORMAT, render_script, report_on_slurm, submit

FAKE = """#!{python} -IS
import json, os, pathlib, sys
folder, name = pathlib.Path({folder!r}), pathlib.Path(sys.argv[0]).name
if name == "sbatch":
    with (folder / "submitted").open("a") as file:
        file.write(json.dumps([os.getcwd(), *sys.argv[1:]]) + "\\n")
answers = sorted(folder.glob(name + ".*"))  # answers in turn; the last is repeated
text = answers[0].read_text() if answers else ""
if len(answers) > 1:
    answers[0].unlink()
if text.startswith("!"):
    sys.exit(text[1:])
sys.stdout.write(text)
"""

# Shortened output of `scontrol show job` of Slurm 22.05.
JOB = """JobId=12 JobName=labkit-cpu
   JobState={state} Reason={reason} Dependency=(null)
   Requeue=1 Restarts={restarts} BatchFlag=1 Reboot=0 ExitCode={code}
   NodeList={nodes}
   Comment=make report HW=cpu 'DATA=JobState=FAILED ExitCode=7:0 StdOut=/elsewhere'
   StdOut={log}
"""
COMMENT = f"make report HW=cpu STUDY=training SCALE=smoke PYTHON={sys.executable}"


@dataclass
class Fake:
    """A Slurm that gives the answers of a test. `!` before an answer makes the command fail."""

    folder: Path
    log: Path

    def answers(self, command: str, *texts: str) -> None:
        first = len(list(self.folder.glob(f"{command}.*")))
        for number, text in enumerate(texts, start=first):
            (self.folder / f"{command}.{number:03}").write_text(text)

    def job(self, state: str, *, reason: str = "None", code: str = "0:0", nodes: str = "n1", restarts: int = 0) -> None:
        text = JOB.format(state=state, reason=reason, code=code, nodes=nodes, restarts=restarts, log=self.log)
        self.answers("scontrol", state if state.startswith("!") else text)

    @property
    def submitted(self) -> list[list[str]]:
        path = self.folder / "submitted"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def variables(self) -> list[str]:
        """Return the script's arguments in the last submission."""
        arguments = self.submitted[-1]
        return arguments[arguments.index(str(own_script())) + 1 :]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    programs, folder = tmp_path / "bin", tmp_path / "slurm"
    programs.mkdir()
    folder.mkdir()
    for name in ("sbatch", "squeue", "scontrol"):
        (programs / name).write_text(FAKE.format(python=sys.executable, folder=str(folder)))
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    for name in ("LABKIT_PYTHON", "TORCH_INDEX", "TF_PYTHON", "JAX_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    fake = Fake(folder, tmp_path / "log of the job")
    fake.answers("sbatch", "12\n")
    return fake


def ask(*, nodes: int = 1, **wanted: object) -> int:
    values = {"hw": "cpu", "study": "training", "scale": "smoke", **wanted}
    return report_on_slurm(Request(**values), nodes=nodes, poll_s=0)  # type: ignore[arg-type]


def in_queue(job: str) -> str:
    """Return a job's line of `squeue`, from its fields with | between them."""
    return job.replace("|", FIELD) + END + "\n"


def own_script() -> Path:
    return Path(os.environ["LABKIT_REPORTS"]) / "cpu" / "slurm.sh"


def test_a_report_is_submitted_and_followed_until_it_completes(
    slurm: Fake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_PYTHON", "/tf/python")
    for state in ("RUNNING", "RUNNING", "COMPLETING", "COMPLETED"):
        slurm.job(state)
    slurm.log.write_text("x" * 9000 + "\n[1/1] 01_training\n")
    assert ask() == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines.count("job 12: RUNNING on n1") == lines.count("[1/1] 01_training") == 1, "each line is printed once"
    assert max(map(len, lines)) < 4100 and lines[-1].endswith("cpu/index.html")
    assert slurm.submitted[0][0] == str(ROOT)
    assert slurm.variables == ["STUDY=training", "SCALE=smoke", "TF_PYTHON=/tf/python", f"PYTHON={sys.executable}"]
    assert (own_script().parent / "logs").is_dir(), "Slurm does not create the log's folder"


def test_several_nodes_are_requested_on_the_command_line(slurm: Fake) -> None:
    slurm.job("COMPLETED")
    ask(nodes=3)
    assert slurm.submitted[0][2:-4] == [f"--comment={COMMENT} NODES=3", "--nodes=3", "--ntasks=3"]


def run_script(slurm: Fake, *arguments: str, **environment: str) -> list[str]:
    """Run the script as Slurm does and return the arguments of `make`, then its environment as text."""
    make, given = slurm.folder.parent / "bin" / "make", slurm.folder / "given"
    make.write_text(f'#!/bin/bash\nprintf "%s\\0" "$@" > "{given}"\nenv >> "{given}"\n')
    make.chmod(0o755)
    subprocess.run(["bash", own_script(), *arguments], cwd=slurm.folder, env=os.environ | environment, check=True)
    return given.read_text().split("\0")


@pytest.mark.parametrize("value", ["$(touch marker)", "`touch marker`", "'; touch marker; '", "a\ntouch marker\n"])
def test_values_are_passed_unchanged_and_never_executed(slurm: Fake, value: str) -> None:
    slurm.job("COMPLETED")
    assert ask(data=value) == 0
    assert f"DATA={value}" in slurm.variables and value not in own_script().read_text()
    *words, environment = run_script(slurm, *slurm.variables, ON="slurm", NODES="2", MAKEFLAGS="-- ON=slurm")
    assert words == ["report", "HW=cpu", *slurm.variables]
    assert not {"ON", "NODES", "MAKEFLAGS"} & {line.partition("=")[0] for line in environment.splitlines()}
    assert not (slurm.folder / "marker").exists() and not (ROOT / "marker").exists()
    for restarts, last in (("0", "FORCE=1"), ("1", "FORCE=")):
        assert run_script(slurm, "FORCE=1", SLURM_RESTART_COUNT=restarts)[-2] == last, "a requeued job resumes"


def test_paths_are_absolute_and_the_makefiles_own_python_is_not_passed(
    slurm: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my images").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LABKIT_PYTHON", ".venv/bin/python")
    slurm.job("COMPLETED")
    ask(study="", data="my images", weights="only/on the node")
    assert slurm.variables == ["SCALE=smoke", f"DATA={tmp_path}/my images", "WEIGHTS=only/on the node"]


def test_an_edited_script_is_submitted_unchanged(slurm: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    slurm.job("COMPLETED")
    ask()
    ask(study="power")
    assert "edited" not in capsys.readouterr().out, "another study has the same script"
    own_script().write_text("#!/bin/bash\n")
    ask()
    assert "was edited and is submitted as it stands; remove it to get a fresh one" in capsys.readouterr().out
    assert own_script().read_text() == "#!/bin/bash\n" and len(slurm.submitted) == 3


def test_the_script_has_the_settings_of_the_profile() -> None:
    cluster = Cluster(partition="gpu", constraint="h100&ib", gpus_per_node=4, account="lab", time_limit_s=3601)
    h100 = load_profile("h100")
    text = render_script(h100.model_copy(update={"cluster": cluster}))
    for line in ("partition=gpu", "constraint=h100&ib", "gres=gpu:4", "account=lab", "time=61", "nodes=1", "exclusive"):
        assert f"#SBATCH --{line}\n" in text
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
    assert "#SBATCH --gres=gpu:1\n" in render_script(h100), "the number of GPUs comes from the profile"
    plain = render_script(load_profile("cpu"))
    assert not [word for word in ("--partition", "--time", "--gres", "--constraint") if word in plain]


@pytest.mark.parametrize("value", ["a\ntouch marker", "a b", "a#b", "'a'", "$(a)"])
def test_a_setting_that_does_not_fit_an_sbatch_line_is_refused(value: str) -> None:
    with pytest.raises(UserError, match=r"partition .*`cluster:` in params/cpu.yaml"):
        render_script(load_profile("cpu").model_copy(update={"cluster": Cluster(partition=value)}))


@pytest.mark.parametrize(
    ("state", "code", "log", "exit_code", "message"),
    [
        ("CANCELLED", "0:15", "", 1, "was cancelled"),
        ("TIMEOUT", "0:15", "", 1, "time limit (`time_limit_s`"),
        ("NODE_FAIL", "0:0", "", 1, "lost its node"),
        ("OUT_OF_MEMORY", "0:125", "", 1, "ran out of memory"),
        ("FAILED", "0:9", "", 1, "killed by a signal"),
        ("FAILED", "2:0", "make: *** [Makefile:48: report] Error 1\n", 1, "failed with exit code 1"),
        ("FAILED", "2:0", "labkit: unknown HW.\nmake: *** [Makefile:48: report] Error 2\n", 2, "exit code 2"),
        ("FAILED", "127:0", "make: not found\n", 127, "exit code 127"),
    ],
)
def test_each_failure_has_a_message_and_an_exit_code(
    slurm: Fake, state: str, code: str, log: str, exit_code: int, message: str
) -> None:
    slurm.log.write_text(log)
    slurm.job(state, code=code)
    with pytest.raises(LabkitError) as error:
        ask()
    text = str(error.value)
    assert text.startswith("job 12 (n1) ") and message in text and error.value.exit_code == exit_code
    assert f"Its log: {slurm.log}." in text and text.endswith("without FORCE=1 resumes the report.")


def test_a_job_is_followed_through_the_queue_and_outages(slurm: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    slurm.job("RUNNING")
    slurm.job("!slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
    slurm.job("PENDING", reason="BeginTime", nodes="(null)", restarts=1)
    slurm.job("COMPLETED")
    assert ask() == 0
    output = capsys.readouterr().out
    assert "job 12: Slurm does not answer (scontrol failed: slurm_load_jobs error: Unable to contact" in output
    assert "job 12: PENDING (BeginTime), requeued after a node failure or preemption\n" in output


def test_the_job_of_a_report_is_followed_and_not_submitted_twice(slurm: Fake) -> None:
    slurm.job("COMPLETED")
    others = ("RUNNING|/elsewhere|labkit-cpu", f"RUNNING|{ROOT}|labkit-h100", f"COMPLETING|{ROOT}|labkit-cpu")
    queue = "".join(in_queue(f"7|{other}|make report HW=cpu") for other in others)
    slurm.answers("squeue", queue + in_queue(f"12|PENDING|{ROOT}|renamed|{COMMENT}"), queue)
    assert ask(force=True) == 0 and not slurm.submitted
    assert ask() == 0 and len(slurm.submitted) == 1, "other jobs do not matter"


@pytest.mark.parametrize("odd", ["100% %j #1", "two\nlines", "a|b|", "%Z;x=y"])
def test_a_job_is_found_whatever_the_names_of_folders_and_jobs_hold(
    slurm: Fake, monkeypatch: pytest.MonkeyPatch, odd: str
) -> None:
    checkout = f"/home/user/{odd}"
    monkeypatch.setattr(commands, "ROOT", checkout)
    jobs = [("7", "RUNNING", f"{checkout}2", odd, COMMENT), ("12", "RUNNING", checkout, odd, COMMENT)]
    queue = "".join(_as_squeue_prints(job) for job in jobs)
    monkeypatch.setattr(commands, "_run", lambda *_command: queue)
    assert commands.queued_number("labkit-cpu", COMMENT) == "12"


def _as_squeue_prints(job: tuple[str, ...]) -> str:
    """Return a job as squeue prints it: each directive of the format is replaced once."""
    fields = dict(zip(("%i", "%T", "%Z", "%j", "%k"), job, strict=True))
    return re.sub("%[iTZjk]", lambda directive: fields[directive[0]], QUEUE_FORMAT) + "\n"


@pytest.mark.parametrize("state", ["PREEMPTED", "BOOT_FAIL"])
def test_a_job_that_slurm_may_requeue_is_followed_to_its_end(slurm: Fake, state: str) -> None:
    for answer in ("RUNNING", state, state, "COMPLETING"):
        slurm.job(answer)
    for answer in ("PENDING", "RUNNING", state, "RUNNING", "COMPLETED"):
        slurm.job(answer, restarts=1)
    assert ask() == 0


def test_a_preempted_job_that_is_not_requeued_ends_with_its_reason(
    slurm: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "REQUEUE_POLLS", 3)
    slurm.job("RUNNING")
    slurm.job("PREEMPTED")
    with pytest.raises(LabkitError, match=r"job 12 .* was preempted .* resumes the report"):
        ask()


@pytest.mark.parametrize(
    ("command", "answer", "message"),
    [
        ("squeue", in_queue(f"12|RUNNING|{ROOT}|labkit-cpu|{COMMENT} NODES=2"), "job 12 makes another .*NODES=2"),
        ("squeue", "!slurm_load_jobs error: Unable to contact slurm controller", "squeue failed: .*Unable to contact"),
        ("sbatch", "!sbatch: error: invalid partition\nsbatch: error: No", "refused the job .*invalid partition; .*No"),
        ("sbatch", "---- Welcome to the site ----\n", "without the number of a job: ---- Welcome"),
        ("scontrol", "!slurm_load_jobs error: Invalid job id specified", "Slurm has forgotten job 12"),
    ],
)
def test_an_obstacle_to_a_report_is_an_error(slurm: Fake, command: str, answer: str, message: str) -> None:
    for earlier in slurm.folder.glob(f"{command}.*"):
        earlier.unlink()
    slurm.answers(command, answer)
    with pytest.raises(LabkitError, match=message):
        ask()
    assert bool(slurm.submitted) is (command != "squeue"), "nothing is submitted unless the queue is known"


@pytest.mark.parametrize(
    ("answer", "number"),
    [("12\n", "12"), ("-- Welcome --\nAllocation: 3 h\n\n12\n", "12"), ("12;north\n", "12;north")],
)
def test_the_number_of_a_job_is_read_from_its_own_line(slurm: Fake, answer: str, number: str) -> None:
    for earlier in slurm.folder.glob("sbatch.*"):
        earlier.unlink()
    slurm.answers("sbatch", answer)
    assert submit("script.sh", [], comment="a", nodes=1) == number


def test_a_machine_without_slurm_is_named_as_such(slurm: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(slurm.folder))
    with pytest.raises(UserError, match=r"Slurm's squeue on PATH.*login node"):
        ask()


def test_ctrl_c_stops_following_and_not_the_job(slurm: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("workbook.slurm._look_up", interrupt)
    with pytest.raises(LabkitError, match=r"job 12 continues.*follows it again, `scancel 12` cancels it") as stopped:
        ask()
    assert stopped.value.exit_code == 130


def test_a_plan_shows_the_script_before_a_job_is_submitted(slurm: Fake) -> None:
    said = CliRunner().invoke(app, ["plan", "--hw", "l40s", "--study", "training", "--on", "slurm"])
    assert said.exit_code == 0 and "slurm.sh, which you may edit first" in said.output
    assert "#SBATCH" in Path(os.environ["LABKIT_REPORTS"], "l40s", "slurm.sh").read_text(encoding="utf-8")
    assert not slurm.submitted
