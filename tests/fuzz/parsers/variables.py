"""Every variable of make: the input is lines `NAME=value`, with any bytes that an environment can hold."""

import os
import random
from types import SimpleNamespace
from typing import Any

import sklearn.datasets  # noqa: F401 - for DATA=digits: its first import takes seconds

from labkit import cli
from labkit.cluster import script, submit
from labkit.data import chosen
from labkit.hardware import frameworks
from labkit.hardware.host import Host
from labkit.registry import SCALES
from labkit.report import compare, make
from labkit.report.status import StudyRun, write_run
from tests.fuzz.check import documented, folder
from tests.fuzz.mutate import of_bytes

__all__ = ["mutate", "run"]

NAMES = (
    *("HW", "STUDY", "SCALE", "DATA", "FORCE", "WEIGHTS", "REUTERS", "KEEP_TRACES", "TIME", "ON", "NODES", "BASELINE"),
    *("TF_PYTHON", "JAX_PYTHON"),
)
HERE = Host("0" * 12, (), None, "a CPU", 2, 2, (), 2**33, "Linux 6.1", "3.12.0", {"labkit": "1"}, "c0ffee", "5eed")


def run(data: bytes) -> None:
    lines = (line.partition(b"=") for line in data.replace(b"\0", b"").split(b"\n"))
    given = {name.decode("latin-1"): os.fsdecode(value) for name, _, value in lines}
    values: dict[str, str] = {name: given.get(name, "") for name in NAMES}
    with only_checks():
        with documented():
            request = cli._request(
                *(values[name] for name in ("HW", "STUDY", "SCALE", "DATA", "FORCE", "WEIGHTS", "REUTERS")),
                values["KEEP_TRACES"],
                values["TIME"],
            )
            profile, _, _ = make.make_plan(request)
            command = request.command("report")
            run = StudyRun("ok", None, 1.0, command, "measure", request.scale, HERE.id, HERE.commit, "2026-01-01")
            write_run(folder(), "01_training", run)
            submit.variables_of(request)
            script.render_script(profile)
        with documented():
            cli._nodes(values["ON"], values["NODES"])
        with documented():
            compare.write_comparison(values["BASELINE"])
        with documented():
            for name in ("keras-tensorflow", "keras-jax"):
                frameworks.interpreter_of(name, given=values)


class only_checks:
    """Run the checks of a command, and nothing that measures, reads records or asks this machine."""

    def __enter__(self) -> None:
        self._old: list[tuple[Any, str, Any]] = []
        self._environment = dict(os.environ)
        changes: list[tuple[Any, str, Any]] = [
            (make, "this_host", lambda: HERE),
            (chosen, "SYNTHETIC_IMAGES", dict.fromkeys(SCALES, (20, 10))),
            (make, "plan_studies", lambda *_, **__: []),
            (make, "print", lambda *_, **__: None),
            (compare, "this_host", lambda: HERE),
            (compare, "evidence", lambda _: None),
            (compare, "recorded", lambda _: SimpleNamespace(selected=[])),
            (compare, "in_generations", lambda _: [SimpleNamespace(name=name) for name in ("h100", "h200")]),
            (compare, "print", _stop),
        ]
        for place, name, instead in changes:
            self._old.append((place, name, getattr(place, name, None)))
            setattr(place, name, instead)

        os.environ |= {"LABKIT_CACHE": str(folder() / "cache"), "LABKIT_REPORTS": str(folder() / "reports")}

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        for place, name, value in self._old:
            if value is None:
                delattr(place, name)
            else:
                setattr(place, name, value)
        os.environ.clear()
        os.environ.update(self._environment)
        return kind is _Stopped


class _Stopped(Exception):
    """The checks are done."""


def _stop(*_: object, **__: object) -> None:
    raise _Stopped


def mutate(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    """Change the value of a variable, or give another variable a value."""
    lines = data.split(b"\n")
    if rng.random() < 0.3:
        lines.append(rng.choice(NAMES).encode() + b"=" + rng.choice(VALUES))
    place = rng.randrange(len(lines))
    name, _, value = lines[place].partition(b"=")
    lines[place] = name + b"=" + (rng.choice(VALUES) if rng.random() < 0.3 else of_bytes(value, [], rng))
    return b"\n".join(lines)


VALUES = (
    *(
        b"",
        b"0",
        b"1",
        b"h200",
        b"cpu",
        b"../h200",
        b"training,01_training",
        b"comparison",
        b"smoke",
        b"full",
        b"digits",
    ),
    *(b"~", b"~root", b"~nobody-here", b"/", b"/proc/self/mem", b"/dev/zero", b"/dev/full", b".", b"..", b"a" * 300),
    *(
        b"/etc",
        b"\xff\xfe",
        b"45m",
        b"9" * 500 + b"h",
        b"9" * 5000 + b"s",
        b"1h30m",
        b"\xd9\xa1m",
        b"slurm",
        b"2",
        b"-1",
    ),
    *(b"9" * 5000, b"\xc2\xb2", b"$(touch marker)", b"`touch marker`", b"'; touch marker; '", b"\x1b[2J", b"<script>"),
    *(b"\xe2\x80\xaex", b"x\ry", b"a/" * 2000, b"%s%n", b"{0}", b",", b" ", b"--help", b"/dev/stdin", b"a" * 100000),
    *(b"https://h/{a,b}{0..9}.tar", b"http://h/" + b"{a,b}" * 40, b"http://h/{-9999999999..0}", b"http://h/{{a,b},c}"),
)
