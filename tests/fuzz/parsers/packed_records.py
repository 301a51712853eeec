"""`records/<host>/<study>.jsonl.gz`: packed lines of records."""

from labkit.records.store import Store
from tests.fuzz.check import documented, folder, written
from tests.fuzz.mutate import of_json, packed

__all__ = ["mutate", "run"]

HOST, STUDY = "0123456789ab", "01_training"
mutate = packed(of_json)


def run(data: bytes) -> None:
    written(f"packed/h200/records/{HOST}/{STUDY}.jsonl.gz", data)
    with documented():
        Store(folder() / "packed" / "h200").read(STUDY, HOST)
