"""Tests that published numbers are as printed, and that errors in a paper's file name the place."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from labkit.errors import UserError
from workbook.claims.papers import Paper, PrintedTable, PublishedRun, PublishedTable, load_papers
from workbook.hardware.profile import load_profile, profile_names
from workbook.registry import METRICS

SMALL = """
name: Small
citation: {title: A paper, authors: [Somebody], institution: Somewhere, published: "2018"}
setup: {framework: TensorFlow, data: ImageNet32, models: [resnet50]}
devices: [{profile: k40m, printed: K40m, where: table 1}]
tables:
  - {metric: utilisation, unit: "%", to_si: 0.01, study: 01_training, model: resnet50, workload: train,
     columns: [k40m], rows: {mean: [75]}, where: table 2}
"""


ALL = {paper.id: paper for paper in load_papers()}
TABLES = [
    pytest.param(paper, table, id=f"{paper.id}-{table.metric}") for paper in ALL.values() for table in paper.tables
]


def printed(paper: str, title: str) -> PrintedTable:
    """Return the printed table of a paper whose title starts with `title`."""
    (match,) = [table for table in ALL[paper].printed if table.title.startswith(title)]
    return match


def table(paper: str, metric: str) -> PublishedTable:
    (match,) = [candidate for candidate in ALL[paper].tables if candidate.metric == metric]
    return match


def test_the_five_papers_are_loaded_before_the_later_sources() -> None:
    five = ["cern", "dell_p100", "dell_v100", "nyu", "wisconsin"]
    assert list(ALL) == [*five, "convnext", "gpt_fast", "inceptionnext", "milabench", "nanogpt", "pytorch2"]
    assert [paper.id for paper in ALL.values() if not paper.later] == five
    assert {ALL[paper].citation.title for paper in five} == {
        "Comparing ML Hardware",
        "Deep Learning Performance with P100 GPUs",
        "Benchmarking Machine Learning in HEP",
        "Performance Analysis of various Deep Learning Models on High Performance Computing Systems",
        "Deep Learning at Scale on NVIDIA V100 Accelerators",
    }
    assert len({paper.name for paper in ALL.values()}) == len(ALL)


@pytest.mark.parametrize("paper", ALL.values(), ids=ALL)
def test_the_devices_of_a_paper_are_profiles_with_a_place_in_the_paper(paper: Paper) -> None:
    assert paper.devices and paper.setup.models and paper.setup.frameworks
    for device in paper.devices:
        assert device.profile in profile_names()
        assert device.printed and device.where
    for item in paper.tables:
        assert item.columns_are == "precision" or set(item.columns) <= {device.profile for device in paper.devices}


@pytest.mark.parametrize(("paper", "one"), TABLES)
def test_printed_units_are_converted_to_the_stored_unit(paper: Paper, one: PublishedTable) -> None:
    metric = METRICS[one.metric]
    factor = {"MiB": 2.0**20}.get(one.unit) or (1 / metric.scale if one.unit == metric.unit else None)
    assert factor is not None, f"{one.unit} is no unit of {one.metric}"
    assert one.to_si == pytest.approx(factor, rel=1e-12)
    values = [one.si(row, column) for row in one.rows for column in one.columns]
    assert all(0 < value <= 1 for value in values) or not metric.share


# ---- Wisconsin ------------------------------------------------------------------------------------------------------

GPUS = ["p100_12gb", "p100_16gb", "v100_sxm2", "k40m"]


def test_the_wisconsin_tables_are_as_printed() -> None:
    for metric, rows in {
        "utilisation": {
            "min": [48, 65, 54, 58],
            "mean": [78.75008831, 86.14081547, 71.73395321, 75.24019258],
            "max": [92, 94, 100, 90],
        },
        "memory_bytes": {"used": [11837, 15715, 15772, 11019]},
        "power_w": {
            "min": [38, 89, 110, 99],
            "mean": [103.7762275, 140.1445986, 170.9325135, 120.586543],
            "max": [150, 182, 247, 145],
            "idle": [24, 30, 55, 20],
        },
    }.items():
        published = table("wisconsin", metric)
        assert (published.columns, published.rows, published.model) == (GPUS, rows, "resnet50")
    assert table("wisconsin", "utilisation").si("mean", "v100_sxm2") == pytest.approx(0.7173395321)
    assert table("wisconsin", "memory_bytes").si("used", "k40m") == 11019 * 2**20
    assert table("wisconsin", "power_w").si("idle", "k40m") == 20


def test_the_wisconsin_hardware_is_as_printed() -> None:
    rows = printed("wisconsin", "The GPUs").rows
    p100, v100, k40 = rows.values()
    assert p100 == ["56", "3,584", "N/A", "1,126 MHz", "4.7", "9.3", "4 MB L2", "12/16 GB", "720 GB/s", "250W"]
    assert v100 == ["80", "5,120", "640", "1.53 GHz", "7", "14", "6 MB L2", "16 GB", "900 GB/s", "300W"]
    assert k40 == ["15", "2,880", "N/A", "745 MHz", "1.43", "4.29", "1536 KB L2", "12 GB", "288 GB/s", "235W"]


def test_four_v100_are_about_half_utilised_and_the_first_more_than_the_others() -> None:
    rows = printed("wisconsin", "VGG-16 on four V100").rows
    assert rows["Min Utilization"] == [35, 18, 17, 12]
    assert rows["Max Utilization"] == [68, 53, 53, 54]
    assert rows["Avg Utilization"] == [56.27317073, 43.77926829, 43.89268293, 43.72682927]


# ---- Dell P100 ------------------------------------------------------------------------------------------------------

SAMPLES = 512_000  # of NV-Caffe with any number of GPUs


def test_the_number_of_samples_is_the_same_for_any_number_of_gpus() -> None:
    for name, (batch, _, iterations) in printed("dell_p100", "Batch sizes and iterations").rows.items():
        if str(iterations).endswith("iterations"):
            total = float(str(batch)) * int(str(iterations).split()[0])
            assert total == (SAMPLES if "Caffe" in name else SAMPLES / 2), "epochs = iterations x batch / samples"


def test_the_runs_of_the_p100_paper_are_as_in_its_table_2() -> None:
    names = {"googlenet": "GoogleNet", "inception_v3": "Inception-V3", "inception_bn": "Inception-BN"}
    rows = printed("dell_p100", "Batch sizes and iterations").rows
    given = {name: [batch, px, length] for name, (batch, px, length) in rows.items() if "1-16" not in name}
    runs = [run for run in ALL["dell_p100"].runs if run.image_px != 256]
    on = {run: f"{run.devices} P100" if run.device == "cuda" else "CPU" for run in runs}
    stored = {
        f"{run.framework.replace('Intel', 'NV')} {names[run.model]}, {on[run]}": [
            run.batch,
            run.image_px,
            f"{run.iterations} iterations" if run.iterations else f"{run.epochs} epoch",
        ]
        for run in runs
    }
    assert stored == given
    assert {run.samples for run in runs if run.framework == "NV-Caffe"} == {SAMPLES}
    assert {run.batch_of_device for run in runs if run.model == "inception_bn"} == {64}, "per GPU of a node with four"
    (constant,) = [run for run in ALL["dell_p100"].runs if run.image_px == 256]
    assert [constant.batch, 256, f"{constant.epochs} epoch"] == rows["MXNet GoogleNet, 1-16 P100"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"iterations": 10, "epochs": 1}, "in either `iterations` or `epochs`"),
        ({}, "in either `iterations` or `epochs`"),
        ({"epochs": 1, "devices": 3}, "can't share a batch of 64"),
    ],
)
def test_a_run_has_a_single_length_and_a_batch_that_its_devices_can_share(wrong: dict[str, int], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        PublishedRun.model_validate(
            {"framework": "MXNet", "model": "vgg16", "image_px": 32, "batch": 64, "where": "table 2"} | wrong
        )


def test_the_p100_has_the_printed_peaks() -> None:
    assert printed("dell_p100", "Peak arithmetic").rows == {
        "double precision": [4.7, 5.3],
        "single precision": [9.3, 10.6],
    }
    for place, hw in enumerate(("p100_16gb", "p100_sxm2")):
        peaks = load_profile(hw).peaks.flop_per_s
        assert (peaks["fp64"].value, peaks["fp32"].value) == ((4.7e12, 9.3e12), (5.3e12, 10.6e12))[place]


# ---- CERN -----------------------------------------------------------------------------------------------------------


def test_the_cern_hardware_is_as_printed_with_flops_a_thousand_times_too_small() -> None:
    hardware = printed("cern", "Hardware Specifications")
    assert hardware.columns == ["Tesla K20Xm", "Tesla K40c", "Tesla V100"]
    assert hardware.rows["Floating point performance"] == ["3.935 GFLOPs", "4.291 GFLOPs", "14.131 GFLOPS"]
    assert hardware.rows["Memory Bandwidth"] == ["249 G/s", "288G/s", "900G/s"]
    assert hardware.rows["Memory Size"] == ["6GB", "12GB", "16GB"]
    assert hardware.rows["Compute Capability"] == ["3.5", "3.5", "7.0"]
    for place, hw in enumerate(("k20xm", "k40c", "v100_pcie")):
        profile = load_profile(hw)
        assert profile.device.compute_capability == hardware.rows["Compute Capability"][place]
        stated = float(str(hardware.rows["Floating point performance"][place]).split()[0])
        assert profile.peaks.flop_per_s["fp32"].value == pytest.approx(stated * 1e12, rel=0.02)


# ---- Dell V100 ------------------------------------------------------------------------------------------------------

INT8 = {  # FP32 top-1 and top-5, INT8 top-1 and top-5, and the differences that the paper prints
    "resnet50": (72.90, 91.14, 72.84, 91.08, 0.07, 0.06),
    "resnet101": (74.33, 91.95, 74.31, 91.88, 0.02, 0.07),
    "resnet152": (74.90, 92.21, 74.84, 92.16, 0.06, 0.05),
    "vgg16": (68.35, 88.45, 68.30, 88.42, 0.05, 0.03),
    "vgg19": (68.47, 88.46, 68.38, 88.42, 0.09, 0.03),
    "googlenet": (68.95, 89.12, 68.77, 89.00, 0.18, 0.12),
    "alexnet": (56.82, 79.99, 56.79, 79.94, 0.03, 0.06),
}


def test_the_int8_accuracies_are_as_printed() -> None:
    top1, top5 = table("dell_v100", "top1"), table("dell_v100", "top5")
    assert top1.columns == top5.columns == ["fp32", "int8"]
    assert top1.rows == {model: [row[0], row[2]] for model, row in INT8.items()}
    assert top5.rows == {model: [row[1], row[3]] for model, row in INT8.items()}
    assert top1.si("alexnet", "int8") == pytest.approx(0.5679)


def test_three_printed_differences_contradict_the_printed_accuracies() -> None:
    losses = printed("dell_v100", "Accuracy lost")
    assert list(losses.rows.values()) == [[row[4], row[5]] for row in INT8.values()]
    wrong = {
        (model, place)
        for model, row in INT8.items()
        for place in (0, 1)
        if abs(row[place] - row[place + 2] - row[place + 4]) > 0.001
    }
    assert wrong == {("resnet50", 0), ("vgg19", 1), ("alexnet", 1)}
    for correction in ("ResNet-50 top-1 0.06", "VGG-19 top-5 0.04", "AlexNet top-5 0.05"):
        assert correction in losses.note, "the note gives the right differences"


def test_the_two_kinds_of_v100_are_as_printed() -> None:
    kinds = printed("dell_v100", "V100-PCIe vs V100-SXM2")
    assert kinds.columns == ["V100-PCIe", "V100-SXM2"]
    assert list(kinds.rows.values()) == [
        [5120, 5120],
        [1380, 1530],
        [640, 640],
        [900, 900],
        ["N/A", 300],
        [112, 120],
    ]
    assert printed("dell_v100", "Batch size per GPU").rows == {"TensorFlow": [128], "MXNet": [64], "Caffe2": [64]}


# ---- a paper's file -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("utilisation", "utilization", "unknown metric 'utilization'; valid: utilisation"),
        ("01_training", "01_trainig", "unknown study"),
        ("mean: [75]", "mean: [75, 80]", "2 values for 1 columns"),
        ("where: table 2", "were: table 2", "were"),
        ("to_si: 0.01", "to_si: -1", "to_si"),
        ("columns: [k40m]", "columns: [k40n]", "unknown profile 'k40n'; valid: k40c, k40m,"),
        ("profile: k40m, printed", "profile: k40x, printed", "unknown profile 'k40x'; valid: k40"),
        ("model: resnet50, ", "", "a table of statistics names its model"),
        ("workload: train", "workload: gan", "workload"),
    ],
)
def test_an_entry_that_contradicts_the_registry_is_an_error_with_its_place(
    tmp_path: Path, before: str, after: str, said: str
) -> None:
    assert before in SMALL
    (tmp_path / "broken.yaml").write_text(SMALL.replace(before, after))
    with pytest.raises(UserError, match=r"papers/broken\.yaml") as caught:
        load_papers(tmp_path)
    assert said in str(caught.value)


@pytest.mark.parametrize(("before", "after"), [("columns: [k40m]", "columns: [k40n]"), ("utilisation", "utilization")])
def test_the_error_about_a_paper_has_no_doubled_punctuation(tmp_path: Path, before: str, after: str) -> None:
    (tmp_path / "broken.yaml").write_text(SMALL.replace(before, after))
    with pytest.raises(UserError) as caught:
        load_papers(tmp_path)
    assert ": :" not in str(caught.value) and ".." not in str(caught.value)
