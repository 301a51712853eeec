"""Making a stored set is interrupted, raced, or stopped by a full disk, and never leaves a form that looks whole."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from labkit.errors import UserError
from tests.processes import eventually, workers_now
from workbook.storage import FORMS, StoredSet, make, make_set, open_stored, pack

ROOT = Path(__file__).parents[2]
IMAGES, CLASSES = 40, 4


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, StoredSet]:
    """Return a set that nothing interrupted."""
    return make_set(tmp_path_factory.mktemp("stored") / "set", images=IMAGES, classes=CLASSES)


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Report after a few images, so that a test can stop in the middle of each form."""
    monkeypatch.setattr(make, "_AT_ONCE", 8)
    monkeypatch.setattr(pack, "_DECODED_AT_ONCE", 8)


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".json"
    }


def assert_whole_and_equal(folder: Path, made: dict[str, StoredSet]) -> None:
    assert digests(folder) == digests(made["jpeg"].folder.parent)
    for form in FORMS:
        assert open_stored(folder, form).checksum == made[form].checksum


def begun(folder: Path, code: str, *, processes: int = 1) -> subprocess.Popen[str]:
    """Start a process that makes the set. `code` is what it does to report progress."""
    script = f"""
        import os, signal
        from pathlib import Path
        from workbook.storage import make, pack
        make._AT_ONCE = pack._DECODED_AT_ONCE = 8
        make.BYTES_PER_PROCESS, make.usable_threads = 1, lambda: {processes}
        def progress(form, done, images):
            {code}
        make.make_set({str(folder)!r}, images={IMAGES}, classes={CLASSES}, progress=progress)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


@pytest.mark.usefixtures("_nothing_is_left_running")
@pytest.mark.parametrize(("form", "processes"), [("jpeg", 2), ("tfrecord", 1), ("cache", 1)])
def test_a_killed_process_leaves_no_whole_form_and_its_files_are_kept(
    form: str, processes: int, tmp_path: Path, made: dict[str, StoredSet]
) -> None:
    folder = tmp_path / "set"
    killed = begun(folder, f"if form == {form!r}: os.kill(os.getpid(), signal.SIGKILL)", processes=processes)
    assert killed.communicate() and killed.returncode == -signal.SIGKILL
    assert eventually(lambda: not workers_now())  # the processes that drew images end by themselves
    with pytest.raises(UserError, match=f"no whole {form} form"):
        open_stored(folder, form)
    for earlier in FORMS[: FORMS.index(form)]:
        assert open_stored(folder, earlier).checksum == made[earlier].checksum
    (folder / form / ".left.1").write_bytes(b"half a file")
    whole = dict(digests(folder).items() & digests(made["jpeg"].folder.parent).items())
    times_ns = {name: (folder / name).stat().st_mtime_ns for name in whole if name.startswith(f"{form}/")}
    assert times_ns or form == "cache"

    make_set(folder, images=IMAGES, classes=CLASSES)
    assert_whole_and_equal(folder, made)
    assert {name: (folder / name).stat().st_mtime_ns for name in times_ns} == times_ns


def test_a_jpeg_file_that_was_cut_short_is_drawn_again(tmp_path: Path, made: dict[str, StoredSet]) -> None:
    folder = tmp_path / "set"
    make_set(folder, images=IMAGES, classes=CLASSES)
    (folder / "jpeg" / "index.json").unlink()
    cut, empty = (folder / "jpeg" / made["jpeg"].samples[index].path for index in (5, 11))
    os.truncate(cut, 3000)
    os.truncate(empty, 0)
    make_set(folder, images=IMAGES, classes=CLASSES)
    assert_whole_and_equal(folder, made)


@pytest.mark.usefixtures("_nothing_is_left_running")
def test_one_of_several_processes_makes_the_set_and_the_others_wait(tmp_path: Path, made: dict[str, StoredSet]) -> None:
    several = [begun(tmp_path / "set", "print(form, done)") for _ in range(2)]
    printed = [process.communicate()[0] for process in several]
    assert [process.returncode for process in several] == [0, 0]
    assert sorted(map(bool, printed)) == [False, True]
    assert_whole_and_equal(tmp_path / "set", made)


@pytest.mark.parametrize("disk", [4], indirect=True)
def test_a_set_that_does_not_fit_is_refused_before_anything_is_written(disk: Path) -> None:
    with pytest.raises(UserError, match=r"needs 0\.0\d+ GB more, and 0\.00\d+ GB are free on tmpfs on tmpfs; .*jpeg"):
        make_set(disk / "set", images=IMAGES, classes=CLASSES)
    assert [path.name for path in disk.rglob("*")] == ["set", ".lock"]


@pytest.mark.parametrize("disk", [48], indirect=True)
@pytest.mark.parametrize("form", FORMS)
def test_a_disk_that_becomes_full_gives_one_error_and_no_form_that_looks_whole(
    form: str, disk: Path, made: dict[str, StoredSet]
) -> None:
    others = disk / "others"

    def fill(now: str, done: int, images: int) -> None:
        if now == form and not others.exists():
            with others.open("wb", buffering=0) as file:
                try:
                    while file.write(bytes(2**16)):
                        pass
                except OSError:
                    pass

    with pytest.raises(
        UserError, match=r"written \(No space left on device\); set LABKIT_CACHE .*whole files"
    ) as caught:
        make_set(disk / "set", images=IMAGES, classes=CLASSES, progress=fill)
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match=f"no whole {form} form"):
        open_stored(disk / "set", form)
    assert digests(disk / "set").items() < digests(made["jpeg"].folder.parent).items()  # no file is cut short
    others.unlink()
    make_set(disk / "set", images=IMAGES, classes=CLASSES)
    assert_whole_and_equal(disk / "set", made)
