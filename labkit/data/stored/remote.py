"""Shards on a web server: `https://host/folder/name-{000000..000007}.tar`, with WebDataset's braces.

The number of images is in the index.json of the form `shards`, if the server has it beside the shards. Otherwise the
shards are read once and counted, and the index of this machine keeps the counts. They hold <key>.jpg and <key>.cls.
"""

from __future__ import annotations

import hashlib
import math
import re
import tarfile
from collections.abc import Sequence
from typing import Self
from urllib.parse import urlsplit

from labkit.data.cache import cache_dir
from labkit.data.stored.forms import INDEX, Index, StoredSet, open_stored, read_index, write_index
from labkit.data.stored.make import Progress, making
from labkit.data.stored.over_http import ServerError, open_file, read_if_there, sizes_bytes
from labkit.errors import DataError, UserError

FORM = "shards"
EXAMPLE = "https://host/folder/name-{000000..000007}.tar"
MOST_SHARDS = 100_000
LONGEST = 2_000  # characters of an address
LONGEST_HEADER, LARGEST_MEMBER = 1 << 20, 1 << 30  # bytes; a header holds a long name or times
LONGEST_LABEL, MOST_CLASSES = 20, 2**31  # characters of a .cls, and a bound for its number


def is_remote(name_or_path: str) -> bool:
    """Return whether DATA= names files on a web server."""
    return name_or_path.lower().startswith(("http://", "https://"))


def shards_of(pattern: str) -> tuple[str, list[str]]:
    """Return the address of a pattern's folder, and the names of its shards.

    Raise UserError for a pattern that is no address, and for one that may hold a password or a key: records, messages
    and the cache must not hold secrets.
    """
    from braceexpand import braceexpand

    if set("@?#") & set(pattern):
        raise UserError(
            f"the address in DATA= has an @, ? or #, so it may hold a secret; give one like {EXAMPLE}, and put the "
            "user and password for an https server into ~/.netrc."
        )
    try:
        parts = urlsplit(pattern)
        if not parts.hostname or not parts.path.strip("/"):
            raise ValueError("no shard is named")
        if len(pattern) > LONGEST or re.search(r"\{[^}]*\{", pattern):
            raise ValueError(f"it has more than {LONGEST:,} characters, or braces within braces")
        if math.prod(map(_choices, re.findall(r"\{([^}]*)\}", pattern))) > MOST_SHARDS:
            raise ValueError(f"it names more than {MOST_SHARDS:,} shards")
        urls = list(braceexpand(pattern))
    except ValueError as error:  # urllib's messages and those of braceexpand
        raise UserError(f"DATA= is no address of shards ({error}); give one like {EXAMPLE}.") from error
    root = pattern[: pattern.rindex("/", 0, (pattern + "{").index("{"))]
    return root, [url.removeprefix(f"{root}/") for url in urls]


def _choices(braces: str) -> int:
    """Return how many texts the inside of braces stands for: a list, or a range of numbers or letters."""
    if ends := re.match(r"(-?\d+|[A-Za-z])\.\.(-?\d+|[A-Za-z])", braces):
        first, last = (ord(end) if end.isalpha() else int(end) for end in ends.groups())
        return abs(last - first) + 1
    return braces.count(",") + 1


def open_remote(pattern: str, *, progress: Progress | None = None) -> StoredSet:
    """Return the shards that a pattern of addresses names. The first call counts their images.

    Raise UserError as `shards_of`, DataError for shards that cannot be read or hold no images, and UserError for a
    cache that cannot be written.
    """
    root, names = shards_of(pattern)
    urls = [f"{root}/{name}" for name in names]
    files = list(zip(names, sizes_bytes(urls), strict=True))
    folder = cache_dir() / f"stored-remote-{hashlib.sha256(pattern.encode()).hexdigest()[:12]}"
    with making(folder, (FORM,)):
        try:
            if read_index(folder, FORM).files == files:
                return open_stored(folder, FORM)
        except UserError:
            pass  # the first call
        index = _published(root, files) or _counted(root, files, progress)
        # The address is part of the checksum: what was read from one server is not done for another.
        checksum = hashlib.sha256(f"{pattern}\n{index.checksum}".encode()).hexdigest()[:12]
        (folder / FORM).mkdir(exist_ok=True)
        write_index(folder, index.model_copy(update={"url": root, "checksum": checksum}))
        return open_stored(folder, FORM)


def _published(root: str, files: Sequence[tuple[str, int]]) -> Index | None:
    """Return the index on the server; None if it has none for these shards. Raise ServerError for other sizes."""
    try:
        index = Index.model_validate_json(read_if_there(f"{root}/{INDEX}") or b"")
    except ValueError:
        return None
    if index.form != FORM or [name for name, _ in index.files] != [name for name, _ in files]:
        return None
    for (name, expected), (_, found) in zip(index.files, files, strict=True):
        if found != expected:
            raise ServerError(
                f"{root}/{name}: the file has {found:,} bytes, and {expected:,} by {INDEX} on the server; copy both "
                "there again."
            )
    return index


class _Member(tarfile.TarInfo):
    """A member of a shard. tarfile reads the names and records before a member into memory, whatever their size."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        member = super().frombuf(buf, encoding, errors)
        if member.type in b"LKxgX" and not 0 <= member.size <= LONGEST_HEADER:
            raise tarfile.ReadError(f"a header claims {member.size:,} bytes")
        return member


def _counted(root: str, files: Sequence[tuple[str, int]], progress: Progress | None) -> Index:
    """Read all shards, and return their index."""
    digest = hashlib.sha256()
    images, classes, read_bytes, all_bytes = 0, 0, 0, sum(size for _, size in files)
    for name, size in files:
        try:
            with (
                open_file(f"{root}/{name}", size) as stream,
                tarfile.open(fileobj=stream, mode="r|*", tarinfo=_Member) as shard,
            ):
                for member in shard:
                    shard.members = []  # type: ignore[attr-defined]  # which would hold every member in memory
                    # tarfile would read so many bytes also behind the end of the file, which takes for ever.
                    if (claimed := shard.offset - member.offset_data) > LARGEST_MEMBER:
                        raise ValueError(f"{member.name[:80]} claims {claimed:,} bytes")
                    ending = member.name.rpartition("/")[2].partition(".")[2].lower()
                    digest.update(f"{member.name}\t{member.size}\n".encode(errors="surrogateescape"))
                    if not member.isfile():  # such as a link: readers skip it
                        continue
                    images += ending == "jpg"
                    if ending == "cls" and (content := shard.extractfile(member)):
                        label = content.read(LONGEST_LABEL)
                        if not label.strip().isdigit() or int(label) >= MOST_CLASSES:
                            raise ValueError(f"{member.name[:80]} holds {label!r}, and a class is a number from 0 on")
                        classes = max(classes, int(label) + 1)
                        digest.update(label)
        except (tarfile.TarError, ValueError, RecursionError) as error:
            raise DataError(f"{root}/{name} is no whole shard ({error}); copy it to the server again.") from error
        read_bytes += size
        if progress:
            progress(FORM, images, round(images * all_bytes / read_bytes))  # an estimate until the last shard
    if not images or not classes:
        raise DataError(f"{root} has shards without images; each sample needs <key>.jpg, and its class in <key>.cls.")
    return Index(form=FORM, classes=classes, images=images, checksum=digest.hexdigest(), files=list(files))
