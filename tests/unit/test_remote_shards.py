"""Tests of shards on a web server: what is delivered, what is counted, and how servers and links fail."""

from __future__ import annotations

import io
import shutil
import ssl
import subprocess
import tarfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from labkit.data.chosen import REMOTE, check_use, data_at_scale, stored_by_checksum, stored_set
from labkit.data.readers import open_reader, why_not
from labkit.data.stored import StoredSet, make_set, over_http
from labkit.data.stored.forms import INDEX
from labkit.data.stored.over_http import ServerError, open_file
from labkit.data.stored.remote import open_remote, shards_of
from labkit.errors import DataError, LabkitError, Unsupported, UserError
from labkit.trial import Trial
from labkit.workloads import build_workload

pytest.importorskip("torch")

IMAGES, CLASSES, SHARDS = 40, 10, 16
PATTERN = f"{{000000..{SHARDS - 1:06d}}}.tar"
needs_webdataset = pytest.mark.skipif(
    why_not("webdataset", "shards", "cpu") is not None, reason="webdataset is not installed"
)


class _Http(ThreadingHTTPServer):
    request_queue_size = 64  # sizes are asked for at the same time


class Server:
    """A web server for a folder. `requests` are the methods and paths asked for, and `logins` the passwords sent.

    It answers with `status`, and stops after `most_bytes` of each answer: it closes the connection, or sends nothing
    more if it `stalls`. Without `ranges`, it sends a file from its begin. `length` replaces the length that it tells.
    """

    def __init__(self, folder: Path, certificate: Path | None = None) -> None:
        self.status, self.most_bytes, self.stalls, self.ranges = 200, 10**9, False, True
        self.length: str | None = None
        self.requests: list[tuple[str, str]] = []
        self.logins: list[str | None] = []
        self._folder, self._released = folder, threading.Event()
        self._http = _Http(("127.0.0.1", 0), self._handler())
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._http.socket = context.wrap_socket(self._http.socket, server_side=True)
        self.url = f"{'https' if certificate else 'http'}://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._released.set()
        self._http.shutdown()
        self._http.server_close()

    def _handler(self) -> type[SimpleHTTPRequestHandler]:
        outer = self

        class Handler(SimpleHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.requests.append((self.command, self.path))
                outer.logins.append(self.headers.get("Authorization"))
                file = outer._folder / self.path.lstrip("/")
                if outer.status != 200 or not file.is_file():
                    self.send_error(outer.status if outer.status != 200 else 404)
                    return
                start = int(self.headers.get("Range", "bytes=0-")[6:-1]) if outer.ranges else 0
                content = file.read_bytes()[start:]
                self.send_response(206 if start else 200)
                length = str(len(content)) if outer.length is None else outer.length
                if length:
                    self.send_header("Content-Length", length)
                self.end_headers()
                if self.command == "HEAD":
                    return
                self.wfile.write(content[: outer.most_bytes])
                if outer.stalls:
                    outer._released.wait(60)

            do_HEAD = do_GET

            def log_message(self, *_: Any) -> None:
                pass

        return Handler


@pytest.fixture(scope="session")
def shards(shared_cache: Path) -> StoredSet:
    return make_set(shared_cache / "published-shards", images=IMAGES, classes=CLASSES, forms=("shards",))["shards"]


@pytest.fixture
def folder(shards: StoredSet, tmp_path: Path) -> Path:
    """Return a copy of the set's folder, which a test may change."""
    return Path(shutil.copytree(shards.folder, tmp_path / "published"))


@pytest.fixture
def server(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")
    made = Server(folder)
    yield made
    made.close()


def batches(stored: StoredSet, count: int, **options: Any) -> list[list[int]]:
    """Return the labels of the first batches of a reader."""
    usual = {"batch": 8, "image_px": 32, "workers": 0, "seed": 1, "device": "cpu"}
    reader = open_reader("webdataset", stored, **{**usual, **options})
    try:
        return [reader.next_batch()[1].tolist() for _ in range(count)]
    finally:
        reader.close()


# ---- what is delivered and counted ----------------------------------------------------------------------------------


@needs_webdataset
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("order", ["shuffled", "as stored"])
def test_shards_on_a_server_give_the_batches_of_local_ones(
    shards: StoredSet, server: Server, workers: int, order: str
) -> None:
    name, forms = stored_set(f"{server.url}/{PATTERN}", 8)
    remote = forms["shards"]
    assert (name, list(forms)) == (REMOTE, ["shards"])
    assert (remote.images, remote.classes, remote.file_bytes) == (IMAGES, CLASSES, shards.file_bytes)
    assert [file.name for file in remote.files] == [file.name for file in shards.files]
    options = {"workers": workers, "order": order}
    assert batches(remote, 2 * IMAGES // 8, **options) == batches(shards, 2 * IMAGES // 8, **options)


def test_a_worker_process_opens_the_set_by_its_checksum_without_the_server(server: Server, folder: Path) -> None:
    pattern = f"{server.url}/{PATTERN}"
    remote = open_remote(pattern)
    asked = len(server.requests)
    assert stored_by_checksum("shards", remote.checksum) == remote
    assert len(server.requests) == asked
    other = Server(folder)
    assert open_remote(f"{other.url}/{PATTERN}").checksum != remote.checksum, "another server is another link"
    other.close()


def test_without_an_index_the_images_are_counted_once(server: Server, folder: Path) -> None:
    (folder / INDEX).unlink()
    progress: list[tuple[str, int, int]] = []
    counted = open_remote(f"{server.url}/{PATTERN}", progress=lambda *done: progress.append(done))
    assert (counted.images, counted.classes) == (IMAGES, CLASSES)
    assert len(progress) == SHARDS and progress[-1] == ("shards", IMAGES, IMAGES)
    server.requests.clear()
    assert open_remote(f"{server.url}/{PATTERN}") == counted
    assert {method for method, _ in server.requests} == {"HEAD"}, "only sizes are asked for the second time"


def test_shards_that_changed_are_counted_anew(server: Server, folder: Path) -> None:
    (folder / INDEX).unlink()
    before = open_remote(f"{server.url}/{PATTERN}")
    shutil.copy(folder / "000001.tar", folder / "000000.tar")
    with tarfile.open(folder / "000000.tar", "a") as shard:
        for ending, content in (("jpg", bytes(9)), ("cls", str(CLASSES).encode())):
            member = tarfile.TarInfo(f"more.{ending}")
            member.size = len(content)
            shard.addfile(member, io.BytesIO(content))
    after = open_remote(f"{server.url}/{PATTERN}")
    assert after.classes == CLASSES + 1
    assert after.checksum != before.checksum


def test_a_pattern_may_name_some_of_the_published_shards(server: Server) -> None:
    some = open_remote(f"{server.url}/{{000000..000003}}.tar")
    assert len(some.files) == 4
    assert IMAGES // SHARDS * 4 <= some.images < IMAGES


@needs_webdataset
def test_a_damaged_image_is_skipped_and_counted(server: Server, folder: Path) -> None:
    data = bytearray((folder / "000003.tar").read_bytes())
    first = data.index(b"\xff\xd8\xff")
    data[first : first + 700] = bytes(700)
    (folder / "000003.tar").write_bytes(data)
    options = {"batch": 8, "image_px": 32, "workers": 0, "seed": 1, "device": "cpu"}
    reader = open_reader("webdataset", open_remote(f"{server.url}/{PATTERN}"), **options)  # type: ignore[arg-type]
    for _ in range(IMAGES // 8 + 1):
        reader.next_batch()
    assert reader.skipped >= 1
    reader.close()


# ---- servers and links that fail ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("status", "said"), [(401, "401 Unauthorized"), (404, "404 Not Found")])
def test_a_status_is_one_sentence_with_the_address(server: Server, status: int, said: str) -> None:
    server.status = status
    with pytest.raises(DataError, match=rf"^{server.url}/00000\d\.tar: the server answered {said}; check the address"):
        open_remote(f"{server.url}/{PATTERN}")


def test_an_unknown_host_and_a_refused_connection_are_one_sentence(server: Server) -> None:
    with pytest.raises(DataError, match=r"^http://no\.invalid/a\.tar: the request failed \(.*\); check the address"):
        open_remote("http://no.invalid/a.tar")
    server.close()
    with pytest.raises(DataError, match=rf"^{server.url}/a\.tar: the request failed \(Connection refused\); check"):
        open_remote(f"{server.url}/a.tar")


def test_a_server_that_tells_no_size_is_refused(server: Server) -> None:
    server.length = ""
    with pytest.raises(DataError, match="does not say the size of the file; serve it as a plain file"):
        open_remote(f"{server.url}/{PATTERN}")


def test_a_shard_smaller_than_its_published_index_says_is_refused(server: Server, folder: Path) -> None:
    size = (folder / "000002.tar").stat().st_size
    (folder / "000002.tar").write_bytes((folder / "000002.tar").read_bytes()[: size // 2])
    said = rf"000002\.tar: the file has {size // 2:,} bytes, and {size:,} by index\.json on the server; copy both"
    with pytest.raises(DataError, match=said):
        open_remote(f"{server.url}/{PATTERN}")
    (folder / INDEX).unlink()
    with pytest.raises(DataError, match=r"000002\.tar is no whole shard \(unexpected end of data\); copy it"):
        open_remote(f"{server.url}/{PATTERN}")


def test_shards_of_something_else_are_refused(server: Server, folder: Path) -> None:
    with tarfile.open(folder / "text.tar", "w") as shard:
        shard.addfile(tarfile.TarInfo("a.txt"))
    with pytest.raises(DataError, match=r"shards without images; each sample needs <key>\.jpg, and its class"):
        open_remote(f"{server.url}/text.tar")
    (folder / "page.tar").write_bytes(b"<html>" * 1000)
    with pytest.raises(DataError, match=r"page\.tar is no whole shard \("):
        open_remote(f"{server.url}/page.tar")


@needs_webdataset
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"most_bytes": 50_000, "stalls": True}, r"the request failed \(timed out\); check the address"),
        ({"most_bytes": 50_000, "ranges": False}, r"the file is cut off after 50,000 of [\d,]+ bytes; copy it to the"),
        ({"most_bytes": 0}, r"the file is cut off after 0 of [\d,]+ bytes; copy it to the server again"),
        ({"length": "1000"}, r"the file has 1,000 bytes, and [\d,]+ are expected\. It is cut off, or was replaced"),
        ({"status": 404}, "the server answered 404 Not Found; check the address"),
    ],
)
def test_a_server_that_fails_during_reading_is_one_sentence_and_no_hang(
    server: Server, monkeypatch: pytest.MonkeyPatch, workers: int, fault: dict[str, Any], said: str
) -> None:
    remote = open_remote(f"{server.url}/{PATTERN}")
    monkeypatch.setattr(over_http, "ANSWER_S", 0.3)
    for name, value in fault.items():
        setattr(server, name, value)
    began = time.monotonic()
    with pytest.raises(LabkitError, match=rf"^the reader webdataset failed: {server.url}/0000\d\d\.tar: {said}"):
        batches(remote, 2 * IMAGES, workers=workers)
    assert time.monotonic() - began < 60


def test_a_connection_that_the_server_closes_is_continued_where_it_ended(server: Server, folder: Path) -> None:
    content = (folder / "000000.tar").read_bytes()
    server.most_bytes = len(content) // 3 + 1
    with open_file(f"{server.url}/000000.tar", len(content)) as stream:
        assert stream.read() == content
    assert len(server.requests) == 3


# ---- certificates, passwords and patterns ---------------------------------------------------------------------------


@pytest.fixture
def certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a file with a key and a self-signed certificate for 127.0.0.1."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed, and makes the certificate")
    file = tmp_path / "server.pem"
    about = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2", "-nodes"]
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", *about, "-keyout", str(file), "-out", f"{file}.crt"]
    subprocess.run(make, check=True, capture_output=True)
    file.write_bytes(file.read_bytes() + Path(f"{file}.crt").read_bytes())
    monkeypatch.setattr(urllib.request, "_opener", None)  # it keeps the certificates of its first use
    return file


def test_an_untrusted_certificate_is_one_sentence_and_a_trusted_one_is_read(
    server: Server, folder: Path, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secure = Server(folder, certificate)
    said = r"the request failed \(.*certificate verify failed: self-signed certificate.*\); check the address"
    with pytest.raises(DataError, match=rf"^{secure.url}/0000\d\d\.tar: {said}"):
        open_remote(f"{secure.url}/{PATTERN}")
    monkeypatch.setattr(urllib.request, "_opener", None)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert open_remote(f"{secure.url}/{PATTERN}").images == IMAGES
    secure.close()


def test_a_password_of_netrc_is_sent_over_encrypted_connections_only(
    server: Server, folder: Path, certificate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login ann password secret\n")
    (tmp_path / ".netrc").chmod(0o600)
    secure = Server(folder, certificate)
    open_remote(f"{secure.url}/{PATTERN}")
    open_remote(f"{server.url}/{PATTERN}")
    assert set(secure.logins) == {"Basic YW5uOnNlY3JldA=="}
    assert set(server.logins) == {None}
    secure.close()
    (tmp_path / ".netrc").write_text("machine\n")
    with pytest.raises(ServerError, match=r"~/\.netrc is damaged in line \d"):
        open_remote(f"{secure.url}/{PATTERN}")


@pytest.mark.parametrize("address", ["https://ann:hidden@host/a.tar", "https://host/a.tar?key=hidden"])
def test_an_address_with_a_secret_is_refused_without_repeating_it(address: str) -> None:
    uses: list[Callable[[str], object]] = [
        shards_of,
        open_remote,
        lambda name: check_use(name, ["01_training"]),
        lambda name: data_at_scale(name, "smoke"),
        lambda name: stored_set(name, 8),
    ]
    for use in uses:
        with pytest.raises(UserError, match=r"may hold a secret; give one like https://host/") as raised:
            use(address)
        assert "hidden" not in str(raised.value)


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("https://host", "no shard is named"),
        ("https://host/a-{0..3.tar", "Unbalanced braces"),
        ("https://host/{0..999}-{0..999}.tar", "it names more than 100,000 shards"),
        ("https://[host/a.tar", "Invalid IPv6 URL"),
        ("https://host/" + "{a,b}" * 17, "it names more than 100,000 shards"),
        ("https://host/{a..z}{a..z}{a..z}{a..z}", "it names more than 100,000 shards"),
        ("https://host/{-999999999..0}.tar", "it names more than 100,000 shards"),
        ("https://host/{{0..9},x}.tar", "it has more than 2,000 characters, or braces within braces"),
        ("https://host/" + "a" * 2_000, "it has more than 2,000 characters, or braces within braces"),
    ],
)
def test_a_pattern_that_names_no_shards_has_one_reason(pattern: str, said: str) -> None:
    with pytest.raises(UserError, match=rf"no address of shards \({said}.*\); give one like https://host"):
        shards_of(pattern)


def test_a_pattern_is_split_before_its_first_brace() -> None:
    assert shards_of("http://h/a/{x,y}/{8..9}.tar") == ("http://h/a", ["x/8.tar", "x/9.tar", "y/8.tar", "y/9.tar"])
    assert shards_of("http://h/a/b.tar") == ("http://h/a", ["b.tar"])


# ---- trials ---------------------------------------------------------------------------------------------------------


@needs_webdataset
def test_a_load_from_a_server_claims_nothing_about_the_page_cache(server: Server) -> None:
    remote = open_remote(f"{server.url}/{PATTERN}")
    trial = Trial(workload="load", form="shards", reader="webdataset", batch=8, image_px=32, device="cpu")
    workload: Any = build_workload(trial, remote)
    workload.check()
    workload.step()
    assert workload.facts["resident_share"] is None
    assert workload.facts["files"] == SHARDS
    assert "of the form shards on a server" in workload.facts["data_description"]
    assert server.url not in str(workload.facts)
    workload.close()
    cold: Any = build_workload(replace(trial, cache="cold", epochs=1), remote)
    with pytest.raises(Unsupported, match="cannot be made cold: the shards come from a server, which has its own"):
        cold.bring_cache()
    cold.close()


def test_embedded_images_cannot_come_from_a_server() -> None:
    with pytest.raises(UserError, match="names shards on a server, which only readers of files take; name a folder"):
        data_at_scale("https://host/a.tar", "smoke")
