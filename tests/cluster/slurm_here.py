"""A real Slurm of two nodes on this host, without systemd, with a private key, folders and ports. It leaves nothing."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

CONFIGURATION = """ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
SlurmctldPort={ports[0]}
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
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 RealMemory=2000
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 RealMemory=2000
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""
# Killing a namespace's first process ends all processes that a daemon started. The first process is a shell, because
# it must reap orphans, which the daemons do not.
NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", '"$@"; exit', "sh")


class SlurmHere:
    """The daemons of a cluster, in a folder with a short path: a socket's path has at most 107 characters."""

    def __enter__(self) -> SlurmHere:
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-"))
        self.environment = {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf")}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._daemons):
            self.kill(name)
        shutil.rmtree(self.folder, ignore_errors=True)

    def ask(self, *command: str, limit_s: float = 60) -> str:
        """Return the output of a Slurm command, or "" if it fails."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=limit_s)
        return done.stdout if done.returncode == 0 else ""

    def kill(self, name: str) -> None:
        """Kill a daemon. A node's daemon takes all processes of the node with it."""
        daemon = self._daemons.pop(name)
        daemon.kill()
        daemon.wait(timeout=20)

    def _start(self) -> None:
        for name in ("state", "spool.n1", "spool.n2"):
            (self.folder / name).mkdir()
        with ExitStack() as stack:
            sockets = [stack.enter_context(socket.socket()) for _ in range(3)]
            for server in sockets:
                server.bind(("127.0.0.1", 0))
            ports = [server.getsockname()[1] for server in sockets]
        text = CONFIGURATION.format(host=socket.gethostname().split(".")[0], ports=ports, folder=self.folder)
        (self.folder / "slurm.conf").write_text(text)
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        files = ("socket", "key", "pid", "seed", "log")
        options = [f"--{name}{'' if name == 'socket' else '-file'}={self.folder}/munge.{name}" for name in files]
        self._daemon("munged", "munged", "--foreground", "--force", *options)
        self._wait("munged's socket", (self.folder / "munge.socket").exists)
        self._daemon("slurmctld", "slurmctld", "-D")
        for node in ("n1", "n2"):
            self._daemon(node, "slurmd", "-D", "-N", node)
        self._wait("two idle nodes", lambda: self.ask("sinfo", "-hN", "-o", "%T").split() == ["idle", "idle"])

    def _daemon(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            # A new session keeps the terminal's signals, such as Ctrl-C, from the daemons.
            self._daemons[name] = subprocess.Popen(
                [*NAMESPACE, *command], stdout=log, stderr=log, env=self.environment, start_new_session=True
            )

    def _wait(self, what: str, there: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 40
        while not there():
            logs = [log.read_text(errors="replace")[-600:] for log in sorted(self.folder.glob("*.log"))]
            assert time.monotonic() < deadline, f"{what} did not come:\n" + "\n".join(logs)
            time.sleep(0.2)
