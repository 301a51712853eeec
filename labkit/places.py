"""Where the project lies: its folder, from which workers import it and beside which reports and environments stand."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
