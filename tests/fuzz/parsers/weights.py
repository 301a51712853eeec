"""WEIGHTS=: a file of trained weights, and torchvision's own file of a network."""

import hashlib
import io
import random
import zipfile

from labkit.engines.torchvision_files import read_state
from labkit.engines.weights_files import check_folder, read_weights
from tests.fuzz.check import documented, folder, written
from tests.fuzz.mutate import of_bytes

__all__ = ["mutate", "run"]


def run(data: bytes) -> None:
    with documented(by_library=True):
        read_weights(written("weights/alexnet-32px-0123456789abcdef.pt", data))
    path = written(f"weights/alexnet-{hashlib.sha256(data).hexdigest()[:8]}.pth", data)
    try:
        with documented(by_library=True):
            read_state(path, "alexnet", classes=1000)
        with documented():
            check_folder(str(folder() / "weights"))
    finally:
        path.unlink()


def mutate(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    """Change the file, or a member of its archive with a fresh checksum, as torch.save stores it."""
    try:
        if rng.random() < 0.3:
            raise zipfile.BadZipFile
        file = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as new:
            names = old.namelist()
            changed = next((name for name in names if name.endswith("data.pkl")), names[0])
            changed = changed if rng.random() < 0.8 else rng.choice(names)
            for name in names:
                content = old.read(name)
                new.writestr(name, of_bytes(content, [], rng) if name == changed else content)
        return file.getvalue()
    except Exception:  # noqa: BLE001 - a damaged archive
        return of_bytes(data, others, rng)
