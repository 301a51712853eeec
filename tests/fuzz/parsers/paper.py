"""`papers/<id>.yaml`: citation, printed tables and claims."""

from labkit.claims.papers import load_papers
from tests.fuzz.check import documented, written
from tests.fuzz.mutate import of_yaml as mutate

__all__ = ["mutate", "run"]


def run(data: bytes) -> None:
    path = written("papers/wisconsin.yaml", data)
    with documented():
        load_papers(path.parent)
