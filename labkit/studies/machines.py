"""The same configurations on several machines of a device file."""

from __future__ import annotations

import pandas as pd

from labkit.errors import UserError
from labkit.results import Results, load
from labkit.results.columns import ASKED_AFTER, WHAT_RAN

HERE, ELSEWHERE = "this page", "other machines"
# The loader does not count: every loader makes the same images.
_ALIKE = [name for name in WHAT_RAN if name not in (*ASKED_AFTER, "loader", "data_checksum")]
_MACHINE = ["device file", "machine", "device", "CPU", "cores", "driver", "PyTorch", "studies", "measured"]


def same_configurations(frame: pd.DataFrame, profile: str) -> pd.DataFrame:
    """Return the rows of every study and machine of a device file that ran configurations of `frame`.

    `machine` says whose. The loader may differ: some studies make images on the GPU, others on the host.
    """
    try:
        recorded = load(profile).frame(hosts="all")
    except UserError:  # no study has records yet
        recorded = frame
    same = recorded.merge(frame[_ALIKE].drop_duplicates())
    here = same["host"].isin(frame["host"])
    return same.assign(machine=here.map({True: HERE, False: ELSEWHERE}))


def spread(frame: pd.DataFrame, metric: str, by: list[str]) -> pd.DataFrame:
    """Return the largest over the smallest machine mean as `value`, per group of `by` with several `machines`."""
    means = frame.groupby([*by, "host"], sort=False)[metric].mean().dropna().groupby(by, sort=False)
    ends = means.agg(value=lambda rates: rates.max() / rates.min(), machines="size").reset_index()
    return ends[ends["machines"] > 1]


def listed(results: Results) -> pd.DataFrame:
    """Return a row per measured machine, as texts: its hardware, its software, and the studies that it ran.

    Columns: `device file`, `machine`, `device`, `CPU`, `cores`, `driver`, `PyTorch`, `studies`, and the newest day as
    `measured`.
    """
    rows = [
        {
            "device file": records.profile.name,
            "machine": str(records.host_id),
            "device": records.device_name,
            "CPU": str(records.host.get("cpu") or ""),
            "cores": str(records.host.get("cpu_cores") or ""),
            "driver": records.host.get("driver") or "none",
            "PyTorch": ", ".join(sorted({record.versions.get("torch_build", "") for record in records.records} - {""})),
            "studies": records.study.id[:2],
            "measured": max(record.started_at[:10] for record in records.records),
        }
        for records in results.selected
        if records
    ]
    frame = pd.DataFrame(rows, columns=_MACHINE)
    texts = dict.fromkeys(_MACHINE[2:-1], lambda cells: ", ".join(dict.fromkeys(filter(None, cells))))
    return frame.groupby(_MACHINE[:2], sort=False, as_index=False).agg({**texts, "measured": "max"})
