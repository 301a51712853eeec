"""A real Slurm of two nodes on this host, without systemd: its own key, folders and ports, and nothing left behind."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel", "sinfo")
PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge")
NODES = ("n1", "n2")
WANTED = "LABKIT_CLUSTER"

CONFIGURATION = """ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
SlurmctldPort={port}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket
MpiDefault=none
ReturnToService=2
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
SchedulerType=sched/backfill
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
KillWait=5
SlurmdTimeout=5
InactiveLimit=0
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
"""


def why_not() -> str | None:
    """Why no Slurm is started here; None when it is."""
    if reason := not_asked_for():
        return reason
    if os.geteuid() != 0:
        return "a Slurm of two nodes is started by root only"
    return None if all(map(found, PROGRAMS)) else install(PACKAGES, PROGRAMS)


def not_asked_for() -> str | None:
    """Why the tests of this folder do not run: they take minutes, so they are asked for."""
    if os.environ.get(WANTED) == "1":
        return None
    return f"tests of clusters take minutes, and {WANTED}=1 asks for them (it installs Debian's packages where needed)"


def found(program: str) -> str | None:
    """Where a program is; None where it is not installed."""
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def install(packages: Sequence[str], programs: Sequence[str]) -> str | None:
    """Why packages can't be installed; None when their programs are there."""
    if shutil.which("apt-get") is None:
        return f"{', '.join(packages)} are not installed, and there is no apt-get to install them with"
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *packages]):
        done = subprocess.run(["apt-get", *arguments], env=environment, capture_output=True, text=True, timeout=280)
        if done.returncode:
            return f"{', '.join(packages)} could not be installed: {' '.join(done.stderr.split())[:200]}"
    lacking = [program for program in programs if not found(program)]
    return f"the packages lack {', '.join(lacking)}" if lacking else None


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


@dataclass
class SlurmHere:
    """The daemons of one cluster in one short folder (a socket's path has 107 characters at most)."""

    folder: Path
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """What every command of this cluster needs; also the mark of every process that it started."""
        path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
        return {**os.environ, "PATH": path, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def start(self) -> None:
        """Write the configuration, start the daemons, wait until both nodes are idle."""
        port, *node_ports = _free_ports(1 + len(NODES))
        host = socket.gethostname().split(".")[0]
        lines = [CONFIGURATION.format(host=host, port=port, folder=self.folder)]
        for node, node_port in zip(NODES, node_ports, strict=True):
            lines.append(
                f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={node_port} CPUs=2 RealMemory=2000\n"
            )
            (self.folder / f"spool.{node}").mkdir()
        lines.append(f"PartitionName=main Nodes={','.join(NODES)} Default=YES MaxTime=INFINITE State=UP\n")
        (self.folder / "state").mkdir()
        (self.folder / "slurm.conf").write_text("".join(lines))
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        files = {"socket": "munge.socket", "key-file": "munge.key", "pid-file": "munge.pid", "seed-file": "munge.seed"}
        files["log-file"] = "munge.log"
        options = [f"--{option}={self.folder / name}" for option, name in files.items()]
        self._daemon("munged", "munged", "--foreground", "--force", *options)
        self._wait("munged's socket", lambda: (self.folder / "munge.socket").exists())
        self._daemon("slurmctld", "slurmctld", "-D")
        for node in NODES:
            self.start_node(node)
        self._wait("two idle nodes", lambda: self.ask("sinfo", "-hN", "-o", "%T").split() == ["idle"] * len(NODES))

    def start_node(self, node: str) -> None:
        """Start the daemon of a node."""
        self._daemon(node, "slurmd", "-D", "-N", node)

    def ask(self, *command: str, limit_s: float = 60) -> str:
        """What one of Slurm's commands prints; "" when it fails."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=limit_s)
        return done.stdout if done.returncode == 0 else ""

    def kill_node(self, node: str) -> None:
        """A node dies with all that it runs, at once. The other must run nothing: both are this host."""
        self.daemons[node].kill()
        self.daemons[node].wait(timeout=20)
        for process in self.of_jobs():
            _kill(process)

    def stop(self) -> None:
        """End everything: daemons, jobs, and whatever still carries this cluster's mark."""
        for daemon in self.daemons.values():
            daemon.terminate()  # asked first: the controller has a child of its own to end
        for daemon in self.daemons.values():
            try:
                daemon.wait(timeout=5)
            except subprocess.TimeoutExpired:
                daemon.kill()
        for process in [*self.of_jobs(), *self._started()]:
            _kill(process)
        for daemon in self.daemons.values():
            daemon.wait(timeout=20)

    def _daemon(self, name: str, program: str, *arguments: str) -> None:
        path = found(program)
        assert path is not None
        with (self.folder / f"{name}.out").open("wb") as out:
            # A session of its own: what is typed at the terminal is not for the daemons.
            self.daemons[name] = subprocess.Popen(
                [path, *arguments], stdout=out, stderr=out, env=self.environment, start_new_session=True
            )

    def _started(self) -> list[psutil.Process]:
        """The processes whose environment names this cluster's configuration, but not this one."""
        mark, found = str(self.folder / "slurm.conf"), []
        for process in psutil.process_iter():
            try:
                if process.environ().get("SLURM_CONF") == mark and process.pid != os.getpid():
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def of_jobs(self) -> list[psutil.Process]:
        """The processes of jobs, and before them those that watch over them (whose environment their title hides)."""
        jobs, watchers = [], {}
        for process in self._started():
            try:
                if "SLURM_JOB_ID" not in process.environ():
                    continue
                jobs.append(process)
                parent = process.parent()
                if parent is not None and "slurmstepd" in parent.name():
                    watchers[parent.pid] = parent
            except psutil.Error:
                continue
        return [*watchers.values(), *jobs]

    def _wait(self, what: str, there: Callable[[], object], *, limit_s: float = 40) -> None:
        deadline = time.monotonic() + limit_s
        while not there():
            if time.monotonic() > deadline:
                logs = [log.read_text(errors="replace")[-600:] for log in sorted(self.folder.glob("*.log"))]
                raise AssertionError(f"{what} did not come:\n" + "\n".join(logs))
            time.sleep(0.2)


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        pass
