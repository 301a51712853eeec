"""Rules of the comparison: which trainings of several devices are alike, and which device is the baseline."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from labkit.errors import unknown
from workbook.hardware.profile import Profile, load_profile
from workbook.results.columns import QUANTITY
from workbook.results.estimates import ESTIMATED, IDENTITY
from workbook.studies import free_speed, published
from workbook.words import AS_INSTALLED, CAREFUL, STRICT

EAGER, GRAPH, DEVICE_TIME = "eager loop", "CUDA graph", "eager loop, device time"
# Columns that two compared devices have equal. The content of the images may differ: no time depends on it.
ALIKE = [name for name in IDENTITY if name not in ("profile", "host", "data_checksum")]
CONFIGURATION = ["profile", *ALIKE]
_SETTING = ["profile", "model", "image_px", "batch"]
_PAPERS_PX = 32
_AS_PRINTED = {"power_w": "power_smi_w"}  # the reading that `nvidia-smi` prints, where it differs


def in_generations(profiles: Iterable[Profile]) -> list[Profile]:
    """Return CPUs first, then GPUs by compute capability, nominal bandwidth and number of devices."""

    def place(profile: Profile) -> tuple[bool, float, float, int]:
        device, bandwidth = profile.device, profile.peaks.memory_bytes_per_s
        capability = float(device.compute_capability or 0)
        return device.kind == "cuda", capability, bandwidth.value if bandwidth else 0.0, device.count

    return sorted(profiles, key=place)


def titled(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows in the order of `in_generations`, with the title of each device file as `title`."""
    titles = {profile.name: profile.title for profile in in_generations(map(load_profile, frame["profile"].unique()))}
    rows = frame.assign(title=frame["profile"].map(titles).astype(object))
    return rows.sort_values("profile", key=lambda names: names.map(list(titles).index), kind="stable")


def trainings(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the timed PyTorch trainings of one job on one device, `titled`.

    `mode` omits the optimiser, and is "eager loop" where the host launches each kernel. A GPU's loops that differ from
    the baseline in one change (study 09) are left out, because they would have the baseline's mode, and so are the
    longer runs for energy, which repeat others. `is_device` tells whether the device alone sets the speed: in a CUDA
    graph, and on a CPU, which is its own host.
    """
    timed = frame[(frame["workload"] == "train") & (frame["framework"] == "torch") & (frame["epochs"] == 0)]
    timed = timed[(timed["devices"] == 1) & (timed["arrangement"] == "alone") & (timed["energy_windows"] == 0)]
    timed = timed[(timed["device"] == "cpu") | ~free_speed.is_changed(timed)]
    timed = timed.drop_duplicates([*CONFIGURATION, "host", "pass_number"])  # some were traced in several ways
    modes = timed["mode"].str.split(",").str[0].replace(dict.fromkeys((STRICT, AS_INSTALLED, CAREFUL, "eager"), EAGER))
    is_device = modes.str.contains(GRAPH) | (timed["device"] == "cpu")
    return titled(timed.assign(mode=modes, is_device=is_device.astype(bool)))


def baseline_of(steps: pd.DataFrame, asked: str = "") -> str:
    """Return the device file of the baseline: `asked`, else the first that shares a CUDA graph with another.

    `steps` are `trainings`. If none is shared, return the first that shares any configuration, or else the first.
    Raise UserError for a device file without trainings.
    """
    if asked and asked not in set(steps["profile"]):
        raise unknown("baseline", asked, steps["profile"].unique())
    shared = steps[steps.groupby(ALIKE, dropna=False)["profile"].transform("nunique") > 1]
    graphs = shared[shared["mode"].str.contains(GRAPH)]
    return asked or next(iter([*graphs["profile"], *shared["profile"], *steps["profile"]]), "")


def comparable(steps: pd.DataFrame, base: str) -> pd.DataFrame:
    """Return the rows whose configuration the baseline and another device ran; without another, the baseline's rows.

    The rows are only of configurations in which the device alone sets the speed.
    """
    alone = steps[steps["is_device"]]
    alike = alone.merge(alone.loc[alone["profile"] == base, ALIKE].drop_duplicates(), on=ALIKE)
    devices = alike.groupby(ALIKE, dropna=False)["profile"].transform("nunique").clip(upper=2)
    return titled(alike[devices == devices.max()])


def fastest(alike: pd.DataFrame) -> pd.DataFrame:
    """Return, per network and image size, the rows of the configuration with the most images/s on any device.

    If several studies have the same configuration, the first counts.
    """
    keys = ["model", "image_px"]
    means = alike.groupby([*ALIKE, "profile"], dropna=False)["images_per_s"].mean().dropna().reset_index()
    once = means.sort_values("study").drop_duplicates(["profile", *(name for name in ALIKE if name != "study")])
    best = once.sort_values("images_per_s").drop_duplicates(keys, keep="last")
    return titled(alike.merge(best[ALIKE], on=ALIKE))


def both_ways(fastest: pd.DataFrame, eager: pd.DataFrame) -> pd.DataFrame:
    """Return ratios of the `fastest` configurations and those of `eager` loops with equal network, images and batch.

    Both have the columns `CONFIGURATION`, and may differ in precision. A setting without an eager loop is left out. If
    several studies have the same configuration, the first is kept.
    """
    both = pd.concat([fastest, eager.merge(fastest[_SETTING].drop_duplicates())])
    both = both.drop_duplicates([*_SETTING, "mode"])
    shown = titled(both[both.groupby(_SETTING)["mode"].transform("nunique") > 1])
    about = ["title", "model", "image_px", "batch", "precision", "mode"]
    return shown[[*about, *ESTIMATED, QUANTITY]]


def nominal(ratios: pd.DataFrame, base: str) -> pd.DataFrame:
    """Return the ratios of nominal peaks as references for a figure: `title`, `precision`, `value`, `label`.

    Each device file and precision in `ratios` has a row per peak (FLOP/s, memory bandwidth) that is published.
    """
    rows = []
    for name, title, precision in ratios[["profile", "title", "precision"]].drop_duplicates().itertuples(index=False):
        above, below = load_profile(name).peaks, load_profile(base).peaks
        peaks = {
            "nominal FLOP/s": (above.flop_per_s.get(precision), below.flop_per_s.get(precision)),
            "nominal memory bandwidth": (above.memory_bytes_per_s, below.memory_bytes_per_s),
        }
        for text, (over, under) in peaks.items():
            if over and under:
                rows.append({"title": title, "precision": precision, "value": over.value / under.value, "label": text})
    return pd.DataFrame(rows, columns=["title", "precision", "value", "label"])


def beside_papers(frame: pd.DataFrame, readings: pd.DataFrame, metric: str, model: str) -> pd.DataFrame:
    """Return readings while a network trains, a row per device: first the papers', then those of `frame`.

    Columns: `device`, `source` (the paper, or the device again), `value` (the mean), `low` and `high` (the lowest and
    the highest reading), in SI units, and `limit`, the power limit of printed devices in watts. Rows of `frame` are of
    strict FP32 at its largest batch: the timed parts of all full runs on the machine that has most of them, the newest
    of several. `readings` is `Results.readings()`.
    """
    rows = frame[(frame["workload"] == "train") & (frame["model"] == model) & (frame["mode"] == STRICT)]
    rows = rows[(rows["epochs"] == 0) & (rows["devices"] == 1) & (rows["image_px"] == _PAPERS_PX)]
    rows = titled(rows[rows["batch"] == rows.groupby("profile")["batch"].transform("max")])
    timed = readings[(readings["window"] == "timed") & (readings["metric"] == _AS_PRINTED.get(metric, metric))]
    of_record = ["record", "title", "host", "started_at"]
    own = rows[of_record].merge(timed[["record", "mean", "lowest", "highest"]], on="record")
    runs = own.groupby(["title", "host"])["started_at"].agg(["size", "max"]).sort_values(["size", "max"]).reset_index()
    own = own.merge(runs.drop_duplicates("title", keep="last")[["title", "host"]])
    spread = own.groupby("title", sort=False).agg({"mean": "mean", "lowest": "min", "highest": "max"})
    printed = published.statistics(metric, model)
    printed[["device", "source"]] = printed["device"].str.extract(r"(.+) \((.+)\)")
    both = pd.concat([printed, spread.reset_index(names="device").assign(source=spread.index)], ignore_index=True)
    both = both.rename(columns={"mean": "value", "lowest": "low", "highest": "high"})
    return both[["device", "source", "value", "low", "high", "limit"]]
