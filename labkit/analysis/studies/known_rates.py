"""The device's counters beside rates that are known: of the matrix product and of the copy that are the ceilings."""

from __future__ import annotations

from labkit.analysis.format import listing, percent
from labkit.analysis.verdicts.evidence import Side
from labkit.results import roofline
from labkit.results.study_records import StudyRecords as Results


def sentence(results: Results) -> str:
    """What part of the nominal rate each reached, and for what part of the time its unit was active, pass by pass."""
    nominal, measured = roofline.nominal(results.profile.peaks, "fp32"), roofline.measured(results)
    pairs = (
        _told(results, "matmul", "fp32_activity", measured.flop_per_s, nominal.flop_per_s),
        _told(results, "memory_copy", "dram_activity", measured.bytes_per_s, nominal.bytes_per_s),
    )
    words = (
        "the matrix product reached {} of the nominal FP32 peak, and FP32 pipes were active for {}",
        "the copy reached {} of the nominal bandwidth, and DRAM was active for {}",
    )
    said = [text.format(*pair) for text, pair in zip(words, pairs, strict=True) if pair]
    return f"The counters beside known rates, by pass: {'; '.join(said)}." if said else ""


def _told(
    results: Results, workload: str, counter: str, rate: float | None, nominal: float | None
) -> tuple[str, str] | None:
    trials = results.trials(workload=workload, precision="fp32", device=results.profile.device.kind)
    active = [value for trial in trials for value in Side(results, trial).values(counter).values()]
    if not rate or not nominal or not active:
        return None
    return percent(rate / nominal), listing([percent(value) for value in active])
