"""`telemetry/<host>/<study>.parquet`: series of sensors. Its errors are OSErrors with a sentence."""

from labkit.records.series_store import COLUMNS, SeriesStore
from tests.fuzz.check import check_sentence, documented, folder, written
from tests.fuzz.mutate import of_bytes as mutate

__all__ = ["mutate", "run"]

HOST, STUDY = "0123456789ab", "01_training"


def run(data: bytes) -> None:
    written(f"reports/h200/telemetry/{HOST}/{STUDY}.parquet", data)
    with documented():
        try:
            frame = SeriesStore(folder() / "reports" / "h200", HOST, STUDY).read()
        except OSError as error:
            check_sentence(str(error))
            return
        assert list(frame.columns) == list(COLUMNS)
        frame[frame["scale"] == "quick"].merge(frame.head(1), on=["key", "pass"])
        assert all(frame[name].dtype.kind in "fiu" for name in ("pass", "t_s", "value"))
