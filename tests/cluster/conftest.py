"""Fixtures of the cluster tests, which need LABKIT_CLUSTER=1, root and Debian's packages."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from tests.cluster.link import linked_hosts
from tests.cluster.slurm_here import SlurmHere

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "ip", "tc", "nsenter", "unshare", "ps")
PACKAGES = ("munge", "slurmctld", "slurmd", "slurm-client", "iproute2", "util-linux", "procps")


@pytest.fixture(scope="session", autouse=True)
def _programs_are_installed() -> None:
    if os.environ.get("LABKIT_CLUSTER") != "1":
        pytest.skip("tests of clusters take minutes; LABKIT_CLUSTER=1 asks for them (and installs Debian's packages)")
    if os.geteuid() != 0:
        pytest.skip("daemons and network namespaces are for root only")
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    if all(map(shutil.which, PROGRAMS)):
        return
    if shutil.which("apt-get") is None:
        pytest.skip(f"{', '.join(PACKAGES)} are not installed, and there is no apt-get to install them with")
    for arguments in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *PACKAGES]):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        done = subprocess.run(["apt-get", *arguments], env=environment, capture_output=True, text=True, timeout=280)
        if done.returncode:
            pytest.skip(f"{', '.join(PACKAGES)} could not be installed: {' '.join(done.stderr.split())[:200]}")


@pytest.fixture
def hosts() -> Iterator[list[list[str]]]:
    """Join two hosts by a link, and yield for each the prefix of a command that runs there."""
    try:
        with linked_hosts(1e9) as inside:
            yield inside
    except subprocess.CalledProcessError as error:
        pytest.skip(f"this kernel or container permits no shaped link: {error.cmd}: {error.stderr}")


@pytest.fixture
def slurm() -> Iterator[SlurmHere]:
    with SlurmHere() as here:
        yield here
