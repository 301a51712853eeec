"""Describes this machine. `identity.py` gives it an id. No host name, user name or raw UUID enters a record."""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import re
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import psutil
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from labkit import __version__
from labkit.devices import Gpu, nvidia, pci_device, visible
from labkit.errors import LabkitError, UserError
from labkit.files import replacing
from workbook.hardware import identity
from workbook.hardware.frameworks import KNOWN, installed, interpreter_of, is_keras, packages_of, version_of
from workbook.hardware.limits import cpu_quota, memory_limit, usable_cores, usable_threads
from workbook.paths import ROOT, reports_folder

SOURCE = ("labkit", "workbook", "notebooks")  # folders of the code that measures
CODE = (".py", ".ipynb")
FRAMEWORKS = ("torch", "tensorflow", "jax", "keras")
PACKAGES = (
    *(*FRAMEWORKS, "jaxlib"),
    *("torchvision", "numpy", "pandas", "papermill", "nbconvert", "scrapbook", "nvidia-ml-py", "jupyterlab", "seaborn"),
    "torchao",
)


@dataclass(frozen=True)
class Host:
    """A machine: its hardware, software and state of the code. Memory in bytes."""

    __pydantic_config__ = ConfigDict(strict=True, allow_inf_nan=False)  # of a file that may come from somebody else

    id: str
    gpus: tuple[Gpu, ...]
    driver: str | None
    cpu: str
    cpu_cores: int
    cpu_threads: int
    cpu_features: tuple[str, ...]
    memory_bytes: Annotated[int, Field(ge=0, lt=2**63)]
    os: str
    python: str
    packages: dict[str, str]
    commit: str | None = None
    source: str = ""
    foreign_gpus: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    # Packages and `python` by framework, for frameworks with an interpreter of their own.
    elsewhere: dict[str, dict[str, str]] = field(default_factory=dict)
    cpu_family: str | None = None  # numbers of a processor whose name may stand for several kinds
    usable_threads: int | None = None  # where an affinity mask or a quota leaves fewer than `cpu_threads`
    cpu_quota: float | None = None  # processors' time that control groups allow, such as 1.5
    recognised_by: str = ""  # what lasts in this machine, from which its id is derived
    node: str | None = None  # hash of a Slurm job's own node, which its records carry
    unknown_commits: tuple[str, ...] = ()  # of collected records: no history of the project here has their code

    @property
    def fingerprint(self) -> str:
        """The hash of what decides speed: equal machines have equal ones."""
        return identity.fingerprint(self.as_dict())

    def versions(self, framework: str = "torch") -> dict[str, str]:
        """Return a record's versions: frameworks, Python, driver, commit and the hash of the code.

        For a framework of Keras, list only the packages that it needs, from its own interpreter.
        """
        packages = {"python": self.python, **self.elsewhere.get(framework, self.packages)}
        own = KNOWN[framework].packages if is_keras(framework) else (*FRAMEWORKS, "torchvision")
        values = {"labkit": self.packages.get("labkit"), **{name: packages.get(name) for name in own}}
        values |= {"python": packages["python"], "driver": self.driver, "commit": self.commit, "source": self.source}
        return {name: value for name, value in values.items() if value}

    def framework_versions(self) -> dict[str, str]:
        """Return, by installed framework, the version that decides which records are pooled.

        A framework that only a user's own workload uses has the name of its package.
        """
        versions = {name: version_of(name, self.versions(name)) for name in KNOWN}
        return self.versions() | {name: version for name, version in versions.items() if version}

    def as_dict(self) -> dict[str, Any]:
        """Return all fields but the node, for `hosts/<id>.json`, which may stand for several nodes."""
        return {name: value for name, value in asdict(self).items() if name != "node"}

    def summary(self) -> str:
        """Return one line for readers: the devices that are visible here, cores, memory and driver."""
        chosen = Counter(self.gpus[index].name for index in visible(self.gpus) or range(len(self.gpus)))
        device = " and ".join(f"{number} x {name}" for name, number in chosen.items()) or self.cpu
        cores = f"{self.cpu_cores} cores, {self.memory_bytes / 2**30:.0f} GiB memory"
        return f"{device} ({cores}{f', driver {self.driver}' if self.driver else ''})"


# The instruction sets that decide how fast a CPU trains.
CPU_FEATURES = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8", "sve", "bf16")


def this_host(*, numbered: bool = True) -> Host:
    """Return the description of this machine. Raise UserError if its id needs a number that cannot be kept or read.

    Pages of records need no id of the machine that renders them: with `numbered` false, it is empty.
    """
    gpus, driver, notes = nvidia()
    threads = psutil.cpu_count(logical=True) or 1
    # Virtual machines give several kinds of x86 processors the same name.
    family = [*_of_processors("cpu family")[:1], *_of_processors("model")[:1]]
    host = Host(
        id="",
        gpus=gpus,
        driver=driver,
        cpu=cpu_model(),
        cpu_cores=usable_cores(),
        cpu_threads=threads,
        cpu_features=tuple(name for name in CPU_FEATURES if name in _cpuinfo().split()),
        memory_bytes=min(psutil.virtual_memory().total, memory_limit() or 2**63),
        os=f"{platform.system()} {platform.release().split('-')[0]}",
        python=platform.python_version(),
        packages=_packages(),
        commit=_commit(),
        source=source_hash(),
        foreign_gpus=foreign_gpus(),
        notes=notes,
        elsewhere={name: dict(packages_of(name)) for name in KNOWN if interpreter_of(name) != sys.executable},
        cpu_family="family {}, model {}".format(*family) if len(family) == 2 else None,
        usable_threads=usable_threads() if usable_threads() < threads else None,
        cpu_quota=cpu_quota(),
    )
    return _with_id(host) if numbered else host


def _with_id(host: Host) -> Host:
    """Return a host with its id. A machine that has records of equal hardware under an earlier id keeps that one."""
    hashes = [gpu.uuid_hash for gpu in host.gpus]
    host_id, node, by = identity.identify(host.fingerprint, hashes)
    host = replace(host, id=host_id, node=node, recognised_by=by)
    earlier = identity.earlier_id(hashes)
    for path in reports_folder().glob(f"*/hosts/{earlier}.json"):
        described = read_host(path.parents[1], path.stem)
        same = host if described.get("cpu_family") else replace(host, cpu_family=None)  # unknown until 27 November 2026
        if same.fingerprint == identity.fingerprint(described):
            return replace(same, id=path.stem, recognised_by=by if hashes else identity.BY_HOME)
    return host


def lost_gpus(host: Host) -> list[str]:
    """Return the names of the host's GPUs that its driver no longer lists."""
    here = {gpu.uuid_hash for gpu in nvidia()[0]}
    return [gpu.name for gpu in host.gpus if gpu.uuid_hash not in here]


def cpu_model() -> str:
    """Return the processor's name from /proc/cpuinfo, else from the platform. ARM processors have numbers there."""
    for key in ("model name", "cpu model", "cpu", "uarch"):  # of x86, MIPS, POWER and RISC-V
        if names := _of_processors(key):
            return names[0]
    return _arm_cores() or platform.processor() or platform.machine()


# Arm's designs for servers, by their "CPU part": https://github.com/util-linux/util-linux (sys-utils/lscpu-arm.c)
ARMS, NEOVERSE = (
    "0x41",
    {"0xd0c": "Neoverse-N1", "0xd40": "Neoverse-V1", "0xd49": "Neoverse-N2", "0xd4f": "Neoverse-V2"},
)


def _arm_cores() -> str:
    """Return the designs of an ARM processor's cores, such as Neoverse-V2 r0p1, from /proc/cpuinfo; else empty text."""
    columns = [_of_processors(f"CPU {name}") for name in ("implementer", "part", "variant", "revision")]
    cores = []
    for implementer, part, variant, revision in sorted(set(zip(*columns, strict=False))):
        design = NEOVERSE.get(part) if implementer == ARMS else None
        cores.append(f"{design or f'ARM {implementer}/{part}'} r{int(variant, 16)}p{revision}")
    return " and ".join(cores)


def _of_processors(key: str) -> list[str]:
    """Return a property of each processor in /proc/cpuinfo."""
    return re.findall(rf"^{key}[ \t]*:[ \t]*(.*\S)", _cpuinfo(), re.MULTILINE)


def _cpuinfo() -> str:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _packages() -> dict[str, str]:
    versions = installed(PACKAGES)
    versions.pop("python")  # a field of its own
    return {"labkit": __version__, **versions}


def _commit() -> str | None:
    """Return a checked LABKIT_COMMIT if it is given, else the commit from git; `+` marks uncommitted changes."""
    if given := _given_commit(os.environ.get("LABKIT_COMMIT", "")):
        return given

    try:
        if Path(_git("rev-parse", "--show-toplevel").decode().strip()).resolve() != ROOT:
            return None  # a copy within another project's repository, whose commit says nothing about this code
        changed = _git("status", "--porcelain", "--", *SOURCE, "params")
        return _git("rev-parse", "HEAD").decode()[:12] + ("+" if changed.strip() else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(*arguments: str) -> bytes:
    foreign = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")  # of another repository that called this command
    environment = {name: value for name, value in os.environ.items() if name not in foreign}
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, check=True).stdout


def _given_commit(given: str) -> str | None:
    """Return the commit of `COMMIT@SOURCE`; None if nothing is given. Raise UserError if this code has another hash."""
    commit, _, source = given.partition("@")
    if given and source != source_hash():
        raise UserError(
            f"LABKIT_COMMIT={given} is not this code, whose hash is {source_hash()}. Give COMMIT@SOURCE as "
            "`python -m workbook.hardware.host` prints it in a checkout of the same code, or leave it out."
        )
    return commit or None


@cache
def source_hash() -> str:
    """Return a hash of labkit/, workbook/ and notebooks/, which identifies the code that measured even without git."""
    paths = (path for folder in SOURCE for kind in CODE for path in (ROOT / folder).rglob(f"*{kind}"))
    return _hash_of((path.relative_to(ROOT), path.read_bytes()) for path in sorted(paths))


@cache
def source_of(commit: str) -> str | None:
    """Return the hash of a commit's code, as `source_hash` gives it; None for a commit that this copy does not have."""
    try:
        folders = _git("ls-tree", "--name-only", commit, "--", *SOURCE).decode().split()  # some are younger than others
        packed = io.BytesIO(_git("archive", "--format=tar", commit, "--", *folders))
    except (OSError, subprocess.CalledProcessError):
        return None
    with tarfile.open(fileobj=packed) as tar:
        members = [(Path(member.name), tar.extractfile(member)) for member in tar]
        return _hash_of(sorted((path, file.read()) for path, file in members if file and path.suffix in CODE))


def is_in_history(commit: str, source: str) -> bool:
    """Return whether code with this hash is that of a commit, by the project's history or this copy itself."""
    return source == source_hash() or bool(re.fullmatch("[0-9a-f]{7,40}", commit) and source == source_of(commit))


def _hash_of(files: Iterable[tuple[Path, bytes]]) -> str:
    digest = hashlib.sha256()
    for path, content in files:
        digest.update(str(path).encode() + b"\0" + content + b"\0")
    return digest.hexdigest()[:12]


VENDORS = {"0x1002": "AMD", "0x8086": "Intel"}
INTEGRATED = "0000:00:02.0"  # PCI address of the graphics in Intel's processors


def foreign_gpus(pci: Path = Path("/sys/bus/pci/devices")) -> tuple[str, ...]:
    """Return the GPUs of vendors that labkit cannot measure, without integrated Intel graphics and server VGA chips."""
    names = []
    for device in sorted(pci.glob("*")) if pci.is_dir() else []:
        vendor, kind = pci_device(device)
        # 0x03 = display controller, 0x12 = processing accelerator
        if kind in ("0x03", "0x12") and vendor in VENDORS and device.name != INTEGRATED:
            names.append(f"{VENDORS[vendor]} GPU at PCI {device.name}")
    return tuple(names)


# What a description says of hardware. It stays as it was first written.
HARDWARE = ("gpus", "memory_bytes", "foreign_gpus", "recognised_by", *identity.DECIDING)


def write_host(host: Host, report: Path) -> None:
    """Write `hosts/<id>.json`: the software of the last run beside the hardware of the first.

    Raise LabkitError if the file describes other hardware, or is broken.
    """
    path = report / "hosts" / f"{host.id}.json"
    facts = host.as_dict()
    if path.exists():
        described = read_host(report, host.id)
        if identity.fingerprint(described) != host.fingerprint:
            raise LabkitError(f"{path} describes other hardware than this machine's: restore it from version control.")
        facts |= {name: described[name] for name in HARDWARE if name in described}
        facts["unknown_commits"] = sorted({*described.get("unknown_commits", ()), *host.unknown_commits})
    with replacing(path) as new:
        new.write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_host(report: Path, host_id: str) -> dict[str, Any]:
    """Return the description of a recorded host. Raise LabkitError if it is missing or broken."""
    path = report / "hosts" / f"{host_id}.json"
    try:
        text = path.read_text(encoding="utf-8")
        TypeAdapter(Host).validate_json(text)
        return dict(json.loads(text))
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(map(str, problem["loc"]))
        raise LabkitError(
            f"{path} does not describe a machine ({place or 'all'}: {problem['msg']}): restore it from version control."
        ) from error
    except (OSError, ValueError) as error:
        raise LabkitError(
            f"{path} is missing or broken: restore it from version control. Or move {report / 'records' / host_id} "
            "elsewhere, to go on without this machine's records."
        ) from error


def host_of(report: Path, host_id: str) -> Host:
    """Return a recorded host. Raise LabkitError as `read_host` does."""
    read_host(report, host_id)
    return TypeAdapter(Host).validate_json((report / "hosts" / f"{host_id}.json").read_bytes())


@cache
def lacks_family(report: Path) -> bool:
    """Return whether a description of the report's hosts is older than the processor's family."""
    return any(not read_host(report, path.stem).get("cpu_family") for path in (report / "hosts").glob("*.json"))


if __name__ == "__main__":
    print(f"{_commit() or 'unknown'}@{source_hash()}")  # noqa: T201 - a command's output
