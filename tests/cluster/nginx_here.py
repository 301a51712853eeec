"""nginx as a server of a folder, over HTTP and over HTTPS with a self-signed certificate."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from tests.processes import eventually

SETTINGS = """
daemon off; user root; worker_processes 1; pid {home}/pid; error_log {home}/error.log;
events {{ worker_connections 64; }}
http {{
  access_log off; sendfile on;
  server {{
    listen {address}:80; listen {address}:443 ssl; root {folder};
    ssl_certificate {home}/certificate; ssl_certificate_key {home}/key;
  }}
}}
"""


class NginxHere:
    """nginx on an address. `before` is the prefix of a command on the host that has this address."""

    def __init__(self, folder: Path, home: Path, *, before: Sequence[str], address: str) -> None:
        self.home, self._before = home, before
        about = ["-subj", f"/CN={address}", "-addext", f"subjectAltName=IP:{address}", "-days", "2", "-nodes"]
        make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", *about, "-keyout", home / "key"]
        subprocess.run([*make, "-out", home / "certificate"], check=True, capture_output=True)
        (home / "settings").write_text(SETTINGS.format(home=home, address=address, folder=folder))

    def __enter__(self) -> Self:
        command = [*self._before, "nginx", "-c", str(self.home / "settings"), "-e", str(self.home / "error.log")]
        self._process = psutil.Popen(command, stderr=subprocess.DEVNULL)
        assert eventually(lambda: bool(self._process.children())), (self.home / "error.log").read_text()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.signal(signal.SIGKILL)
        self._process.wait()

    def signal(self, number: int) -> None:
        """Send a signal to all processes of this server, first to the one that would replace the others."""
        for process in (self._process, *self._process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)
