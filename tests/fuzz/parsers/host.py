"""`hosts/<id>.json`: a recorded machine, and its properties on the page of machines."""

from functools import cache

from labkit.hardware.host import read_host
from labkit.hardware.profile import Profile, load_profile
from labkit.registry import STUDIES
from labkit.report.fingerprint import _side_by_side
from labkit.results.study_records import StudyRecords
from tests.fuzz.check import documented, folder, written
from tests.fuzz.mutate import of_json as mutate

__all__ = ["mutate", "run"]

HOST = "0123456789ab"


@cache
def profile() -> Profile:
    return load_profile("h200")


def run(data: bytes) -> None:
    written(f"reports/h200/hosts/{HOST}.json", data)
    with documented():
        host = read_host(folder() / "reports" / "h200", HOST)
        results = StudyRecords(STUDIES["01_training"], profile(), "quick", HOST, host, [])
        assert isinstance(results.device_name, str)
        _side_by_side([host])
