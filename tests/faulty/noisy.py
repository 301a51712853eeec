"""Prints megabytes, through Python and past it, some of it looking like an event."""

import json
import os
import subprocess
import sys

from tests.faulty import Steps


def build(trial, data):
    return Noisy(trial)


class Noisy(Steps):
    def fail(self):
        event = json.dumps({"event": "done", "status": "ok", "reason": None})
        for stream in (sys.stdout, sys.stderr):
            for _ in range(20):
                stream.write("x" * 50_000 + "\n" + event + "\n")
            stream.flush()
        os.write(1, b"\xff\x00" * 500_000 + b"\n" + event.encode() + b"\n")
        subprocess.run([sys.executable, "-c", f"print({event!r})"], check=True)
