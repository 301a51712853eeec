"""`params/<hw>.yaml`: a profile that extends a good one, with all that a plan reads of it."""

from labkit.hardware.profile import load_profile, profile_names
from tests.fuzz.check import documented, folder, written
from tests.fuzz.mutate import of_yaml as mutate

__all__ = ["mutate", "run"]


def run(data: bytes) -> None:
    path = written("params/hostile.yaml", data)
    good = path.with_name("good.yaml")
    if not good.exists():
        good.write_text(GOOD, encoding="utf-8")
    with documented():
        profile = load_profile("hostile", folder() / "params")
        for scale in profile.timing:
            profile.passes(scale)
        for study in profile.sweeps:
            dict(profile.sweep(study, "full"))
    assert "hostile" in profile_names(path.parent)


GOOD = """
title: A good profile
device: {kind: cuda, pattern: H200, memory_bytes: {value: 1.5e11, source: a data sheet}}
peaks: {flop_per_s: {fp32: {value: 6.7e13, source: a data sheet}}}
timing:
  smoke: {warmup_s: 0, timed_s: 0.1, block_s: 0.05, limit_s: 60}
sweeps:
  01_training: {smoke: {models: [alexnet], batches: [4, 8]}}
"""
