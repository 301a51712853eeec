"""`run.json`: how the studies of a report ended."""

from labkit.report.status import read_runs
from tests.fuzz.check import documented, written
from tests.fuzz.mutate import of_json as mutate

__all__ = ["mutate", "run"]


def run(data: bytes) -> None:
    path = written("run/run.json", data)
    with documented():
        runs = read_runs(path.parent)
        max(runs.values(), key=lambda run: run.finished_at, default=None)
        for one in runs.values():
            assert isinstance(one.status + one.command + one.mode + one.scale + one.host + (one.reason or ""), str)
