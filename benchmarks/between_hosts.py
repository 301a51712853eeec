"""Print how well recorded numbers repeat: over the passes of a host, and between hosts of a profile.

    python benchmarks/between_hosts.py [h200] [--history] [--within-studies]

Reads records and measures nothing. `--history` adds the records of git's history that others have replaced. Hosts are
compared for the same configuration, scale, protocol and framework versions. Trials that differ only in the length of
their timed part, or in what follows it, are the same configuration. Nothing is judged, so there is no bound.
"""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

import workbook
from labkit.errors import LabkitError
from workbook.paths import ROOT
from workbook.records.after_traces import BUSY
from workbook.results.columns import WHAT_RAN
from workbook.results.table import Results
from workbook.trials.trial import ASKED_AFTER, OF_NETWORKS, Trial

WITHIN = (0.02, 0.05, 0.2)
METRICS = ("throughput", "step_s", "busy_step_s", "power_w", "energy_per_image_j")
CLASSES = (
    *("captured", "eager, device-bound", "eager, launch-bound", "eager, no trace"),
    *("compiled, no graph", "CPU", "stored images", "ceiling"),
)
_TIMED = [name for name in WHAT_RAN if name not in (*ASKED_AFTER, "energy_windows")]
SAME = [*_TIMED, "scale", "protocol", "framework_version"]
TRIAL = ["study", "host", "key_hash", "scale", "protocol", "framework_version"]


def recorded(hw: str) -> pd.DataFrame:
    """Return the successful passes of all hosts, a row each. Idle devices are left out."""
    results = workbook.load(hw)
    parts = [*results.selected, *results.others()]
    versions = {(part.host_id, part.study.id, r.framework): r.framework_version for part in parts for r in part.records}
    passes = Results(parts).frame().query("status == 'ok' and workload != 'idle'").copy()
    passes["framework_version"] = [versions[of] for of in zip(passes.host, passes.study, passes.framework, strict=True)]
    passes["throughput"] = passes.images_per_s.fillna(passes.flop_per_s).fillna(passes.bytes_per_s)
    passes["step_s"] = passes.step_s.where(passes.busy_step_s.notna())  # beside the busy time of the same steps
    passes = passes.drop_duplicates("record")  # studies share records
    return passes[list(dict.fromkeys([*SAME, *TRIAL, *METRICS, "host_share", "pass_number", "started_at"]))]


def replaced(hw: str) -> Iterator[pd.DataFrame]:
    """Yield `recorded` for each commit that changed the records, and say which cannot be read."""

    def git(*arguments: str) -> bytes:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=True).stdout

    records, hosts = f"reports/{hw}/records", f"reports/{hw}/hosts"
    for commit in git("log", "--full-history", "--format=%h", "--", records).decode().split():
        files = git("ls-tree", "-r", "--name-only", commit, records, hosts).decode().splitlines()
        if not any(file.startswith(records) for file in files):
            continue
        packed = io.BytesIO(git("archive", commit, *files))
        with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=packed) as archive:
            archive.extractall(folder, filter="data")
            os.environ["LABKIT_REPORTS"] = str(Path(folder) / "reports")
            try:
                yield recorded(hw)
            except LabkitError as error:
                print(f"{commit} is left out: {str(error).removeprefix(folder + '/').split('. ')[0]}.")
            finally:
                del os.environ["LABKIT_REPORTS"]


def class_of(passes: pd.DataFrame) -> str:
    """Return the class of a trial from its passes."""
    trial, waits = passes.iloc[0], passes.host_share.median()
    if trial.device == "cpu":
        return "CPU"
    if trial.form != Trial.form:
        return "stored images"
    if trial.workload not in OF_NETWORKS:
        return "ceiling"
    if trial.engine != "eager":
        return "captured" if "graph" in trial.engine else "compiled, no graph"
    if np.isnan(waits):
        return "eager, no trace"
    return "eager, device-bound" if waits <= 1 - BUSY else "eager, launch-bound"


def grouped(passes: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Return the passes with the number of their group in `by`, and its class."""
    number = passes.groupby(list(by), dropna=False).ngroup()
    classes = {of: class_of(rows) for of, rows in passes.groupby(number)}
    return passes.assign(group=number, **{"class": pd.Categorical(number.map(classes), CLASSES)})


def shares_within(values: pd.Series) -> dict[str, str]:
    """Return the share of the values up to each bound of `WITHIN`, in whole per cent; 100 % is all of them."""
    return {f"<= {bound:.0%}": f"{100 * (values <= bound).sum() // len(values)}%" for bound in WITHIN}


def half_widths(passes: pd.DataFrame) -> pd.DataFrame:
    """Return a row per class: relative half-widths of the trials' 95 % intervals of throughput."""
    passes, rows = grouped(passes, TRIAL), []
    trials = workbook.estimate(passes, "throughput", by=["class", "group"]).dropna(subset=["high"])
    trials["half"] = (trials.high - trials.low) / (2 * trials.value)
    trials["deviation"] = trials.group.map(np.log(passes.throughput).groupby(passes.group).std())
    for name, of in trials.groupby("class", observed=True):
        about = {"class": name, "trials": len(of), "median half-width": f"{of.half.median():.1%}"}
        rows.append({**about, **shares_within(of.half), "median SD of passes": f"{of.deviation.median():.2%}"})
    return pd.DataFrame(rows)


def host_pairs(passes: pd.DataFrame, same: Sequence[str]) -> pd.DataFrame:
    """Return a row per class and metric: by how much the larger of two hosts' means exceeds the smaller."""
    passes, rows = grouped(passes, same), []
    for metric in METRICS:
        logs = np.log(passes[metric].where(passes[metric] > 0)).rename("log")
        means = logs.groupby([passes[name] for name in ("class", "group", "study", "host")], observed=True).mean()
        hosts = means.dropna().reset_index()
        pairs = hosts.merge(hosts, on=["class", "group"]).query("host_x < host_y")
        pairs["differ"] = np.expm1((pairs.log_x - pairs.log_y).abs())
        for name, of in pairs.groupby("class", observed=True):
            about = {"class": name, "metric": metric, "configurations": of.group.nunique(), "pairs": len(of)}
            middle, largest = f"{of.differ.median():.1%}", f"{of.differ.max():.1%}"
            rows.append({**about, **shares_within(of.differ), "median": middle, "largest": largest})
    return pd.DataFrame(sorted(rows, key=lambda row: CLASSES.index(row["class"])))


def main() -> None:
    """Read the records and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("hw", nargs="?", default="h200")
    parser.add_argument("--history", action="store_true", help="also replaced records, from git's history")
    parser.add_argument("--within-studies", action="store_true", help="compare trials of the same study and key only")
    options = parser.parse_args()
    passes = pd.concat([recorded(options.hw), *(replaced(options.hw) if options.history else ())])
    passes = passes.sort_values("started_at").drop_duplicates([*TRIAL, "pass_number"], keep="last")
    print(f"{options.hw}: {len(passes)} passes of trials on {passes.host.nunique()} hosts")
    pairs = host_pairs(passes, [*SAME, "study", "key_hash"] if options.within_studies else SAME)
    for sentence, table in (
        ("On one host, the 95 % intervals of throughput over passes have these half-widths", half_widths(passes)),
        ("On two hosts, means over passes of the same configuration differ by", pairs),
    ):
        print(f"\n{sentence}:\n{table.to_string(index=False) if len(table) else '(nothing to compare)'}")


if __name__ == "__main__":
    main()
