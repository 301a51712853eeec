"""`records/<host>/<study>.jsonl`: lines of records, and every metric of the records that are read."""

from functools import cache

from labkit.hardware.profile import Profile, load_profile
from labkit.records import Record
from labkit.records.selection import at_scale, is_complete, scale_to_show
from labkit.records.shared import read_together
from labkit.records.store import Store
from labkit.registry import METRICS, STUDIES
from labkit.results.metrics import metric_of, why_missing
from labkit.results.study_records import StudyRecords
from labkit.trial_label import trial_label
from tests.fuzz.check import documented, folder, written
from tests.fuzz.mutate import of_json as mutate

__all__ = ["mutate", "run"]

HOST, STUDY = "0123456789ab", "01_training"


@cache
def profile() -> Profile:
    return load_profile("h200")


def run(data: bytes) -> None:
    written(f"reports/h200/records/{HOST}/{STUDY}.jsonl", data)
    with documented():
        show(read_together(Store(folder() / "reports" / "h200"), STUDY, HOST).records)


def show(records: list[Record]) -> None:
    """Form what pages form from the records of a study."""
    scale = scale_to_show(records)
    shown = at_scale(records, scale) if scale else []
    is_complete(records, scale or "quick")
    results = StudyRecords(STUDIES[STUDY], profile(), scale or "quick", HOST, {"cpu": "a CPU"}, shown)
    for trial in results.by_trial:
        trial_label(trial)
    for record in shown:
        record.line()
        results.machine(record)
        for metric in METRICS:
            if metric_of(results, record, metric) is None:
                why_missing(results, record, metric)
