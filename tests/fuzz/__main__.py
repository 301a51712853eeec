"""Run parsers on changed inputs: `python -m tests.fuzz [PARSER...] [--executions N] [--findings FOLDER]`.

Each parser runs in a process of its own, under a limit of memory, with a limit of time per input. Atheris, if it is
installed, keeps the inputs that reach new code; else the changes are random. A process that ends or hangs is replaced,
and its last input is a finding. Exit code 1 if there is any finding.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import os
import pkgutil
import random
import subprocess
import sys
import tempfile
import time
import warnings
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.fuzz import parsers
from tests.fuzz.check import attempt, limited_memory, watch_actions
from tests.fuzz.mutate import LARGEST

CORPUS = Path(__file__).parent / "corpus"
PATIENCE_S = 90.0  # without a sign of life, in which a process may be stuck in a library's C code


def names() -> list[str]:
    """Return the names of all parsers."""
    return [module.name for module in pkgutil.iter_modules(parsers.__path__)]


def parser(name: str) -> ModuleType:
    """Return the module of a parser."""
    return importlib.import_module(f"{parsers.__name__}.{name}")


def corpus(name: str) -> list[bytes]:
    """Return the committed inputs of a parser."""
    return [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]


def main(arguments: list[str]) -> int:
    """Run the parsers one after the other and print a line for each."""
    options = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    options.add_argument("parsers", nargs="*", help=f"of {', '.join(names())}; all by default")
    options.add_argument("--executions", type=int, default=20_000, help="of each parser")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--findings", type=Path, default=None, help="a folder for the inputs of findings")
    options.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    given = options.parse_args(arguments)
    if unknown := sorted(set(given.parsers) - set(names())):
        options.error(f"unknown parser {unknown[0]}; valid: {', '.join(names())}")
    if given.child:
        return _child(given.parsers[0], given.executions, given.seed, given.child)
    findings = given.findings or Path(tempfile.mkdtemp(prefix="labkit-findings-"))
    found = 0
    for name in given.parsers or names():
        began = time.monotonic()
        done, of_parser = fuzz(name, given.executions, given.seed, findings / name)
        found += of_parser
        print(f"{name}: {done:,} executions, {of_parser} findings, {time.monotonic() - began:.0f} s", flush=True)
    if found:
        print(f"The inputs and what is wrong with each: {findings}")
    return 1 if found else 0


def fuzz(name: str, executions: int, seed: int, findings: Path) -> tuple[int, int]:
    """Run a parser in processes until it has had its executions; return their number and that of findings."""
    findings.mkdir(parents=True, exist_ok=True)
    done, restarts = 0, 0
    while done < executions and restarts < 20:
        command = [sys.executable, "-m", "tests.fuzz", name, "--executions", str(executions - done)]
        command += ["--seed", str(seed + restarts), "--child", str(findings)]
        state, begun = findings / ".state", done
        state.write_text("0", encoding="ascii")
        with (findings / ".log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
            code = _watched(process, state)
        done = begun + int(state.read_text(encoding="ascii") or 0)
        last = findings / ".last"
        if code != 0 and last.exists():
            lines = (findings / ".log").read_text(errors="replace").splitlines()
            said = "\n".join(line[:300] for line in lines if not line.startswith("INFO"))[-4000:]
            keep(findings, last.read_bytes(), f"the process ended with {code}\n{said}")
        restarts += 1
        if code == 0:
            break
    return done, len(list(findings.glob("*.txt")))


def _watched(process: subprocess.Popen[bytes], state: Path) -> int | str:
    while True:
        try:
            return process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            if time.time() - state.stat().st_mtime > PATIENCE_S:
                process.kill()
                process.wait()
                return "no sign of life"


def keep(findings: Path, data: bytes, problem: str) -> None:
    """Keep an input and its problem, one of each kind."""
    last = problem.splitlines()[-1][:200]
    kind = hashlib.sha256((problem.split(":", maxsplit=1)[0][:60] + last).encode()).hexdigest()[:10]
    if not (findings / f"{kind}.txt").exists():
        (findings / f"{kind}.txt").write_text(problem, encoding="utf-8", errors="backslashreplace")
        (findings / f"{kind}.bin").write_bytes(data)


def _child(name: str, executions: int, seed: int, findings: Path) -> int:
    """Run a parser in this process on its corpus, then on changes of it."""
    warnings.simplefilter("ignore")
    atheris: Any = None
    if find_spec("atheris"):
        import atheris

        with atheris.instrument_imports(include=["labkit"]):
            module = parser(name)
    else:
        module = parser(name)
    seeds = corpus(name)
    for data in seeds:  # imports and caches are no growth of an input's
        module.run(data)
    watch_actions()
    done, beat, last = 0, time.monotonic(), findings / ".last"
    file = os.open(last, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)

    def one(data: bytes) -> None:
        nonlocal done, beat
        os.ftruncate(file, 0)
        os.pwrite(file, data, 0)
        if problem := attempt(module.run, data):
            keep(findings, data, problem)
        done += 1
        if (done % 50 == 0 and time.monotonic() - beat > 1) or done >= executions:
            beat = time.monotonic()
            (findings / ".state").write_text(str(done), encoding="ascii")
        if done >= executions:
            os._exit(0)

    with limited_memory():
        if atheris:
            rng = random.Random(seed)

            def mutator(data: bytes, most: int, _seed: int) -> bytes:
                return bytes(module.mutate(data if rng.random() < 0.5 else rng.choice(seeds), seeds, rng))[:most]

            with tempfile.TemporaryDirectory(prefix="labkit-reached-") as reached:
                command = [name, f"-seed={seed + 1}", f"-max_len={LARGEST}", "-timeout=3600", "-rss_limit_mb=0"]
                command += [
                    "-len_control=0",
                    "-mutate_depth=1",
                    "-verbosity=0",
                    "-handle_int=0",
                    f"-artifact_prefix={findings}/",
                    reached,
                    str(CORPUS / name),
                ]
                atheris.Setup(command, one, custom_mutator=mutator)
                atheris.Fuzz()
        rng = random.Random(seed)
        while True:
            one(module.mutate(rng.choice(seeds), seeds, rng))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
