"""ON=slurm against executables that answer as Slurm's do: what is submitted, what is said, how it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from labkit.cluster import report_on_slurm
from labkit.cluster.follow import StoppedFollowing, last_line, result_of
from labkit.cluster.script import render_script
from labkit.cluster.slurm import parse_job, seconds_of
from labkit.errors import LabkitError, UserError
from labkit.places import ROOT
from labkit.profile import Cluster, load_profile
from labkit.report.make import Request

FAKE = """#!{python} -IS
import json, os, pathlib, sys
folder = pathlib.Path({folder!r})
name = pathlib.Path(sys.argv[0]).name
if name == "sbatch":
    said = {{"arguments": sys.argv[1:], "folder": os.getcwd(), "environment": dict(os.environ)}}
    with (folder / "submitted").open("a") as file:
        file.write(json.dumps(said) + "\\n")
    answers = [folder / "sbatch.answer"]
elif name == "squeue":
    answers = [folder / "squeue.answer"]
else:  # one answer after the other, the last for ever
    answers = sorted(folder.glob("job.*"))
text = answers[0].read_text() if answers and answers[0].exists() else ""
if len(answers) > 1:
    answers[0].unlink()
if text.startswith("!"):
    sys.exit(text[1:])
sys.stdout.write(text)
"""

# As `scontrol show job` of Slurm 22.05 prints it, shortened.
JOB = """JobId=12 JobName=labkit-cpu
   UserId=user(1000) GroupId=user(1000) MCS_label=N/A
   JobState={state} Reason={reason} Dependency=(null)
   Requeue=1 Restarts={restarts} BatchFlag=1 Reboot=0 ExitCode={code}
   RunTime=00:01:05 TimeLimit=02:00:00 TimeMin=N/A
   SubmitTime=2026-01-01T10:00:00 EligibleTime=2026-01-01T10:00:00
   NodeList={nodes}
   NumNodes=1 NumCPUs=2 NumTasks=1 CPUs/Task=1 ReqB:S:C:T=0:0:*:*
   Comment=make report HW=cpu DATA='JobState=FAILED ExitCode=7:0'
   StdOut={log}
"""


@dataclass
class Fake:
    """A Slurm that answers what a test wrote down."""

    folder: Path
    log: Path

    def job(self, *states: str, reason: str = "None", code: str = "0:0", nodes: str = "n1", restarts: int = 0) -> None:
        """The answers of `scontrol show job`, one after the other."""
        first = len(list(self.folder.glob("job.*")))
        for number, state in enumerate(states, start=first):
            text = state
            if not state.startswith("!"):
                text = JOB.format(state=state, reason=reason, code=code, nodes=nodes, restarts=restarts, log=self.log)
            (self.folder / f"job.{number:03}").write_text(text)

    def queue(self, *lines: str) -> None:
        (self.folder / "squeue.answer").write_text("".join(f"{line}\n" for line in lines))

    def sbatch(self, answer: str) -> None:
        (self.folder / "sbatch.answer").write_text(answer)

    @property
    def submitted(self) -> list[dict[str, object]]:
        path = self.folder / "submitted"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    programs, folder = tmp_path / "bin", tmp_path / "slurm"
    programs.mkdir()
    folder.mkdir()
    for name in ("sbatch", "squeue", "scontrol"):
        (programs / name).write_text(FAKE.format(python=sys.executable, folder=str(folder)))
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.delenv("LABKIT_PYTHON", raising=False)
    for name in ("TORCH_INDEX", "TF_PYTHON", "JAX_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    fake = Fake(folder, tmp_path / "of the job.log")
    fake.sbatch("12\n")
    return fake


def ask(**wanted: object) -> int:
    values = {"hw": "cpu", "study": "training", "scale": "smoke", **wanted}
    return report_on_slurm(Request(**values), poll_s=0)  # type: ignore[arg-type]


def own_script() -> Path:
    return Path(os.environ["LABKIT_REPORTS"]) / "cpu" / "slurm.sh"


def variables(fake: Fake) -> list[str]:
    """What the script is given."""
    arguments = fake.submitted[-1]["arguments"]
    assert isinstance(arguments, list)
    return arguments[arguments.index(str(own_script())) + 1 :]


def test_a_report_is_submitted_followed_and_done(slurm: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    slurm.job("PENDING", reason="Priority", nodes="(null)")
    slurm.job("RUNNING", "COMPLETED")
    slurm.log.write_text("[1/1] 01_training: how fast?\n      3/8 trials, resnet50, about 20 s left\n")
    assert ask() == 0
    said = capsys.readouterr().out
    assert "job 12: waiting (Priority)" in said
    assert "job 12: running on n1, 1 min 5 s: 3/8 trials, resnet50, about 20 s left" in said
    assert said.rstrip().endswith("cpu/index.html")
    (submission,) = slurm.submitted
    assert submission["folder"] == str(ROOT), "where the Makefile is"
    assert variables(slurm) == ["STUDY=training", "SCALE=smoke", f"PYTHON={sys.executable}"]
    assert (own_script().parent / "logs").is_dir(), "Slurm makes no folder for the log"


def test_several_nodes_are_asked_for_beside_the_script(slurm: Fake) -> None:
    slurm.job("COMPLETED")
    ask()
    script = own_script().read_text()
    assert report_on_slurm(Request(hw="cpu", study="training", scale="smoke"), nodes=3, poll_s=0) == 0
    one, three = (submission["arguments"] for submission in slurm.submitted)
    assert isinstance(one, list) and isinstance(three, list)
    assert not [word for word in one if word.startswith(("--nodes", "--ntasks"))]
    before = three[: three.index(str(own_script()))]
    assert before[-2:] == ["--nodes=3", "--ntasks=3"], "which Slurm takes before the script's own lines"
    assert own_script().read_text() == script, "one script serves any number of nodes"
    assert "NODES=3" in next(word for word in before if word.startswith("--comment="))
    assert variables(slurm) == ["STUDY=training", "SCALE=smoke", f"PYTHON={sys.executable}"], "the job asks Slurm"


def test_a_report_of_one_node_is_another_than_that_of_two(slurm: Fake) -> None:
    slurm.queue(f"12|labkit-cpu|RUNNING|{ROOT}|make report HW=cpu STUDY=training SCALE=smoke PYTHON={sys.executable}")
    with pytest.raises(UserError, match="job 12 makes another report of cpu"):
        report_on_slurm(Request(hw="cpu", study="training", scale="smoke"), nodes=2, poll_s=0)


HOSTILE = [
    "$(touch marker)",
    "`touch marker`",
    "'; touch marker; '",
    '"; touch marker; "',
    "a\ntouch marker\n",
    "$HOME",
]


@pytest.mark.parametrize("value", HOSTILE)
def test_no_value_is_executed_and_each_arrives_whole(slurm: Fake, value: str, tmp_path: Path) -> None:
    slurm.job("COMPLETED")
    assert ask(data=value) == 0
    assert f"DATA={value}" in variables(slurm)
    assert value not in own_script().read_text()
    # The script itself, as Slurm would run it, with a `make` that writes down what it was given.
    make = tmp_path / "bin" / "make"
    make.write_text('#!/bin/bash\nprintf "%s\\0" "$@" > "$GIVEN"\nenv > "$GIVEN.env"\n')
    make.chmod(0o755)
    given = tmp_path / "given"
    done = subprocess.run(
        ["bash", str(own_script()), *variables(slurm)],
        cwd=tmp_path,
        env={**os.environ, "GIVEN": str(given), "ON": "slurm", "MAKEFLAGS": "-- ON=slurm"},
        check=True,
        capture_output=True,
    )
    assert given.read_text().split("\0")[:-1] == ["report", "HW=cpu", *variables(slurm)], done.stderr
    environment = Path(f"{given}.env").read_text()
    assert "MAKEFLAGS" not in environment and "\nON=" not in environment, "a job must not submit itself"
    assert not (tmp_path / "marker").exists() and not (ROOT / "marker").exists()


def test_a_requeued_job_does_not_begin_anew(slurm: Fake, tmp_path: Path) -> None:
    slurm.job("COMPLETED")
    ask(force=True)
    assert "FORCE=1" in variables(slurm)
    make = tmp_path / "bin" / "make"
    make.write_text('#!/bin/bash\necho "$@"\n')
    make.chmod(0o755)
    for restarts, last in (("", "FORCE=1"), ("0", "FORCE=1"), ("1", "FORCE=")):
        environment = {**os.environ, **({"SLURM_RESTART_COUNT": restarts} if restarts else {})}
        command = ["bash", str(own_script()), "FORCE=1"]
        said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()
        assert said[-1] == last, "make takes the last one"


def test_the_job_does_not_inherit_what_make_was_told(slurm: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"ON": "slurm", "MAKEFLAGS": "-- ON=slurm", "FORCE": "1", "LABKIT_PYTHON": "x", "TF_PYTHON": "/tf/python"}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    slurm.job("COMPLETED")
    ask()
    environment = slurm.submitted[-1]["environment"]
    assert isinstance(environment, dict)
    assert not set(told) & set(environment)
    assert {"PYTHON=x", "TF_PYTHON=/tf/python"} <= set(variables(slurm)) and "LABKIT_REPORTS" in environment


def test_without_python_the_job_takes_the_environment_of_the_makefile(
    slurm: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LABKIT_PYTHON", ".venv/bin/python")
    slurm.job("COMPLETED")
    ask()
    assert variables(slurm) == ["STUDY=training", "SCALE=smoke"]


def test_a_folder_is_named_so_that_it_holds_everywhere(
    slurm: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my images").mkdir()
    monkeypatch.chdir(tmp_path)
    slurm.job("COMPLETED")
    (tmp_path / "reuters.npz").touch()
    ask(data="my images", weights="elsewhere/only there", reuters="reuters.npz")
    assert f"REUTERS={tmp_path}/reuters.npz" in variables(slurm)
    assert f"DATA={tmp_path}/my images" in variables(slurm)
    assert "WEIGHTS=elsewhere/only there" in variables(slurm), "the login node need not have it"


def test_an_edited_script_is_submitted_as_it_stands(slurm: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    slurm.job("COMPLETED")
    ask()
    assert "Wrote " in capsys.readouterr().out
    ask(study="power")
    assert "edited" not in capsys.readouterr().out, "another study is no other script"
    assert "STUDY=power" in variables(slurm)
    edited = own_script().read_text().replace("--requeue", "--no-requeue")
    own_script().write_text(edited)
    ask()
    said = capsys.readouterr().out
    assert "was edited and is submitted as it stands; remove it to get a fresh one" in said
    assert own_script().read_text() == edited and len(slurm.submitted) == 3
    own_script().unlink()
    ask()
    assert "--requeue" in own_script().read_text()


def test_the_script_asks_for_what_the_profile_says() -> None:
    cluster = Cluster(partition="gpu", constraint="h100&ib", gpus_per_node=4, account="lab", time_limit_s=3601)
    text = render_script(load_profile("h100").model_copy(update={"cluster": cluster}))
    for line in ("partition=gpu", "constraint=h100&ib", "gres=gpu:4", "account=lab", "time=61", "nodes=1", "exclusive"):
        assert f"#SBATCH --{line}\n" in text
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0


def test_a_profile_without_a_cluster_leaves_partition_and_time_to_slurm() -> None:
    text = render_script(load_profile("cpu"))
    assert not [word for word in ("--partition", "--time", "--gres", "--constraint") if word in text]
    assert "#SBATCH --gres=gpu:1\n" in render_script(load_profile("h100")), "its devices are known without"


@pytest.mark.parametrize("value", ["a\ntouch marker", "a b", "a#b", "'a'", "$(a)"])
def test_a_setting_that_no_sbatch_line_can_hold_is_refused(value: str) -> None:
    with pytest.raises(UserError, match=r"partition .* `cluster:` in params/cpu.yaml"):
        render_script(load_profile("cpu").model_copy(update={"cluster": Cluster(partition=value)}))


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("CANCELLED", "was cancelled"),
        ("TIMEOUT", "time limit (02:00:00"),
        ("NODE_FAIL", "lost its node (n1)"),
        ("BOOT_FAIL", "lost its node (n1)"),
        ("PREEMPTED", "make room"),
        ("OUT_OF_MEMORY", "more memory"),
        ("DEADLINE", "deadline"),
        ("REVOKED", "taken away"),
        ("SOMETHING_NEW", "ended as SOMETHING_NEW"),
    ],
)
def test_each_way_to_end_early_is_said_with_what_to_do(slurm: Fake, state: str, said: str) -> None:
    slurm.job("RUNNING", state)
    with pytest.raises(LabkitError) as ended:
        ask()
    text = str(ended.value)
    assert said in text and "the same command (without FORCE=1) goes on where it was" in text
    assert str(slurm.log) in text and ended.value.exit_code == 1


@pytest.mark.parametrize(
    ("state", "shown"),
    [
        ("CONFIGURING", "waiting configuring"),
        ("REQUEUE_HOLD", "waiting requeue_hold"),
        ("COMPLETING", "ending on n1"),
        ("SUSPENDED", "suspended on n1"),
    ],
)
def test_states_in_between_are_shown_and_waited_out(
    slurm: Fake, capsys: pytest.CaptureFixture[str], state: str, shown: str
) -> None:
    slurm.job(state, "COMPLETED")
    assert ask() == 0
    assert f"job 12: {shown}" in capsys.readouterr().out


def test_a_job_that_lost_its_node_is_followed_through_the_queue(
    slurm: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm.job("RUNNING")
    slurm.job("PENDING", reason="BeginTime", nodes="(null)", restarts=1)
    slurm.job("RUNNING", nodes="n2", restarts=1)
    slurm.job("COMPLETED")
    assert ask() == 0
    said = capsys.readouterr().out
    assert said.count("stopped on n1 (the node failed, or Slurm needed it) and put back into the queue") == 1
    assert "waiting (BeginTime) (restarted once, goes on where it was)" in said
    assert "running on n2 (restarted once, goes on where it was)" in said


@pytest.mark.parametrize(
    ("exit_code", "log", "code", "said"),
    [
        ("2:0", "      failed: no trial worked\nmake: *** [Makefile:48: report] Error 1\n", 1, "failed studies"),
        ("2:0", "labkit: unknown HW 'x'.\nmake: *** [Makefile:48: report] Error 2\n", 2, "It said: unknown HW 'x'."),
        ("1:0", "", 1, "failed studies"),
        ("127:0", "make: not found\n", 127, "exit code 127"),
    ],
)
def test_the_exit_code_of_the_report_is_that_of_the_command(
    slurm: Fake, capsys: pytest.CaptureFixture[str], exit_code: str, log: str, code: int, said: str
) -> None:
    slurm.log.write_text(log)
    slurm.job("FAILED", code=exit_code)
    assert ask() == code
    error = capsys.readouterr().err
    assert said in error and "goes on where it was" in error and len(error.strip().splitlines()) == 1


def test_a_job_ended_by_a_signal_is_no_exit_code() -> None:
    text = JOB.format(state="FAILED", reason="None", code="0:9", nodes="n1", restarts=0, log="/nowhere")
    with pytest.raises(LabkitError, match="ended by signal 9"):
        result_of(parse_job("12", text), Path("index.html"))


def test_the_job_of_this_report_is_followed_and_not_submitted_twice(
    slurm: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm.job("COMPLETED")
    asked = f"make report HW=cpu STUDY=training SCALE=smoke PYTHON={sys.executable}"
    slurm.queue("7|labkit-cpu|RUNNING|/elsewhere|" + asked, f"8|sleep|RUNNING|{ROOT}|(null)")
    slurm.queue(f"12|renamed|PENDING|{ROOT}|{asked}")
    assert ask() == 0
    assert not slurm.submitted and "Job 12 makes this report already" in capsys.readouterr().out
    assert ask(force=True) == 0 and not slurm.submitted


def test_jobs_of_others_and_jobs_that_ended_are_in_nobodys_way(slurm: Fake) -> None:
    slurm.job("COMPLETED")
    slurm.queue(
        "7|labkit-cpu|RUNNING|/elsewhere|make report HW=cpu",
        f"8|labkit-h100|RUNNING|{ROOT}|make report HW=h100",
        f"9|labkit-cpu|COMPLETING|{ROOT}|make report HW=cpu",
        f"10|sleep|RUNNING|{ROOT}|(null)",
        "",
    )
    assert ask() == 0 and len(slurm.submitted) == 1


def test_another_report_of_the_same_profile_is_not_run_beside(slurm: Fake) -> None:
    slurm.queue(f"12|labkit-cpu|RUNNING|{ROOT}|make report HW=cpu STUDY=power|odd")
    with pytest.raises(UserError, match=r"job 12 makes another report of cpu \(make report HW=cpu STUDY=power\|odd\)"):
        ask()
    assert not slurm.submitted


def test_what_slurm_refuses_is_said_in_its_words(slurm: Fake) -> None:
    slurm.sbatch("!sbatch: error: invalid partition specified: gpu\nsbatch: error: Batch job submission failed: No\n")
    with pytest.raises(UserError) as refused:
        ask()
    assert "Slurm refused the job: invalid partition specified: gpu; Batch job submission failed: No." in str(
        refused.value
    )


@pytest.mark.parametrize("missing", ["sbatch", "squeue", "scontrol"])
def test_a_machine_without_slurm_says_so(slurm: Fake, tmp_path: Path, missing: str) -> None:
    (tmp_path / "bin" / missing).unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(tmp_path / "bin"))
        with pytest.raises(UserError, match=rf"Slurm's {missing} on PATH.*login node"):
            ask()
    assert not own_script().exists()


def test_a_controller_that_does_not_answer_is_asked_again(slurm: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    slurm.job("RUNNING", "!slurm_load_jobs error: Unable to contact slurm controller (connect failure)", "COMPLETED")
    assert ask() == 0
    assert "Slurm does not answer (slurm_load_jobs error: Unable to contact" in capsys.readouterr().out


def test_a_queue_that_can_not_be_read_submits_nothing(slurm: Fake) -> None:
    slurm.queue("!slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
    with pytest.raises(LabkitError, match="can't be asked what is queued"):
        ask()
    assert not slurm.submitted, "it may be queued already"


def test_a_job_that_slurm_forgot_is_not_called_done(slurm: Fake) -> None:
    slurm.job("RUNNING", "!slurm_load_jobs error: Invalid job id specified")
    with pytest.raises(LabkitError, match="no longer knows job 12"):
        ask()


def test_ctrl_c_stops_following_and_not_the_job(slurm: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm.job("RUNNING")

    def interrupted(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("labkit.cluster.follow.look_up", interrupted)
    with pytest.raises(StoppedFollowing, match=r"job 12 goes on.*follows it again, `scancel 12` ends it") as stopped:
        ask()
    assert stopped.value.exit_code == 130


def test_nothing_in_a_log_is_an_order_to_the_terminal(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_line(log) == ""
    log.write_bytes(b"x" * 20_000 + b"\nfirst\r\x1b[2J\x1b[31m 3/8 \x07trials\xff\x1b[0m\n\n  \n")
    assert last_line(log) == "3/8 trials\ufffd"


def test_what_the_user_wrote_in_the_comment_is_not_taken_for_slurms_word() -> None:
    text = JOB.format(state="RUNNING", reason="None", code="0:0", nodes="n1", restarts=0, log="/a log/with space")
    job = parse_job("12", text)
    assert (job.state, job.exit_code, job.log) == ("RUNNING", 0, Path("/a log/with space"))


@pytest.mark.parametrize(("text", "seconds"), [("00:01:05", 65), ("2-01:00:00", 176400), ("INVALID", 0), ("", 0)])
def test_slurms_times_are_read(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds
