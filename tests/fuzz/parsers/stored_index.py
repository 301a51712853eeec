"""`index.json` of a stored set: shards, TFRecord, JPEG files or decoded pixels."""

from labkit.data.stored.forms import FORMS, open_stored
from tests.fuzz.check import documented, written
from tests.fuzz.mutate import of_json as mutate

__all__ = ["mutate", "run"]


def run(data: bytes) -> None:
    for form in FORMS:
        written(f"set/{form}/a.tar", b"tar")
        folder = written(f"set/{form}/index.json", data).parent.parent
        with documented():
            opened = open_stored(folder, form)
            assert (
                opened.folder.is_absolute()
                and opened.images >= 1
                and all(path.is_relative_to(opened.folder) for path in opened.files)
            )
