"""Files on a web server: their sizes and contents. A server or link that fails gives one sentence, and no hang.

WebDataset itself starts curl, which waits for hours for a server that stops answering.
"""

from __future__ import annotations

import base64
import http.client
import io
import netrc
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

from labkit.errors import DataError

LARGEST_BYTES = 1 << 26  # of an index: more than 100,000 shards need
ANSWER_S = 10.0  # without a byte in this time, a server has failed

_BUFFER_BYTES = 2**18
_AT_ONCE = 8  # files whose sizes are asked for


class ServerError(DataError):
    """A file on a server that cannot be read: its address, the reason, and what to do.

    WebDataset adds objects to the arguments of exceptions, so the sentence is kept apart from them.
    """

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self._sentence = sentence

    def __str__(self) -> str:
        return self._sentence


def sizes_bytes(urls: Sequence[str]) -> list[int]:
    """Return the sizes of files on a server. Raise ServerError for the first one that the server does not tell."""
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        return list(threads.map(_size_bytes, urls))


def _size_bytes(url: str) -> int:
    with _ask(url, method="HEAD") as response:
        if (length := _length(response)) is None:
            raise ServerError(f"{url}: the server does not say the size of the file; serve it as a plain file.")
        return length


def read_if_there(url: str) -> bytes | None:
    """Return a file's contents, cut off after LARGEST_BYTES; None if the server does not give it.

    Raise ServerError if the server fails.
    """
    try:
        with _ask(url) as response:
            return response.read(LARGEST_BYTES)
    except ServerError as error:
        if isinstance(error.__cause__, urllib.error.HTTPError) and error.__cause__.code < 500:
            return None
        raise
    except (OSError, http.client.HTTPException) as error:
        raise ServerError(f"{url}: {_reason(error)}.") from error


def open_file(url: str, size_bytes: int) -> io.BufferedReader:
    """Return a stream of a file that must have this size. Opening and reading raise ServerError."""
    return io.BufferedReader(_Stream(url, size_bytes), _BUFFER_BYTES)


class _Stream(io.RawIOBase):
    """The bytes of a file. A connection that ends early is continued, since servers close those that pause."""

    def __init__(self, url: str, size_bytes: int) -> None:
        self._url, self._size, self._at = url, size_bytes, 0
        self._connect()

    def _connect(self) -> None:
        self._began, self._response = self._at, _ask(self._url, offset=self._at)
        if (length := _length(self._response)) != self._size - self._at:
            self._response.close()
            if self._at:
                raise self._cut_off()
            raise ServerError(
                f"{self._url}: the file has {length or 0:,} bytes, and {self._size:,} are expected. It is cut off, or "
                "was replaced: copy it to the server again."
            )

    def _cut_off(self) -> ServerError:
        return ServerError(
            f"{self._url}: the file is cut off after {self._at:,} of {self._size:,} bytes; copy it to the server again."
        )

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while self._at < self._size:
            try:
                count = self._response.readinto(buffer)
            except TimeoutError as error:
                raise ServerError(f"{self._url}: {_reason(error)}.") from error
            except (OSError, http.client.HTTPException):
                count = 0
            self._at += count
            if count:
                return count
            if self._at == self._began:
                raise self._cut_off()
            self._response.close()
            self._connect()
        return 0

    def close(self) -> None:
        if not self.closed and hasattr(self, "_response"):
            self._response.close()
        super().close()


def _ask(url: str, *, method: str = "GET", offset: int = 0) -> http.client.HTTPResponse:
    """Return the response to a request for a file, from a byte on. Raise ServerError if there is none."""
    try:
        part = {"Range": f"bytes={offset}-"} if offset else {}
        # `remote.shards_of` permits no other scheme than http and https.
        request = urllib.request.Request(url, method=method, headers=part)  # noqa: S310
        if login := _login(url):
            request.add_unredirected_header("Authorization", login)
        response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=ANSWER_S)  # noqa: S310
    except (OSError, http.client.HTTPException, ValueError) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        raise ServerError(f"{url}: {_reason(error)}.") from error
    return response


def _login(url: str) -> str | None:
    """Return the header with the user and password of ~/.netrc, which are for encrypted connections only."""
    parts = urlsplit(url)
    try:
        found = netrc.netrc().authenticators(parts.hostname or "") if parts.scheme == "https" else None
    except FileNotFoundError:
        return None
    except netrc.NetrcParseError as error:
        raise ValueError(f"~/.netrc is damaged in line {error.lineno}") from None
    return f"Basic {base64.b64encode(f'{found[0]}:{found[2]}'.encode()).decode()}" if found else None


def _length(response: http.client.HTTPResponse) -> int | None:
    length = response.headers.get("Content-Length", "")
    return int(length) if length.isdecimal() else None


def _reason(error: Exception) -> str:
    """Return why a request failed and what to do, without a full stop."""
    if isinstance(error, urllib.error.HTTPError):
        return (
            f"the server answered {error.code} {error.reason}; check the address and the server's log, and put a "
            "password that it asks for into ~/.netrc"
        )
    cause = error.reason if isinstance(error, urllib.error.URLError) and isinstance(error.reason, OSError) else error
    text = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(cause) or type(cause).__name__
    return f"the request failed ({text}); check the address, the server and the link"
