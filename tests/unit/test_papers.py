"""Published numbers are as printed, and a paper's file that does not fit says where."""

from __future__ import annotations

from pathlib import Path

import pytest

from labkit.errors import UserError
from labkit.papers import PAPERS, load_papers
from labkit.profile import profile_names

SMALL = """
name: Small
citation: {title: A paper, authors: [Somebody], institution: Somewhere, published: "2018"}
setup: {framework: TensorFlow, data: ImageNet32, models: [resnet50]}
devices: [{profile: k40m, printed: K40m, where: table 1}]
tables:
  - {metric: utilisation, unit: "%", to_si: 0.01, study: 01_training, model: resnet50, workload: train,
     columns: [k40m], rows: {mean: [75]}, where: table 2}
"""


def test_every_paper_reads_and_its_devices_are_profiles() -> None:
    papers = load_papers()
    assert "wisconsin" in [paper.id for paper in papers]
    for paper in papers:
        for device in paper.devices:
            assert device.profile in profile_names()
        for table in paper.tables:
            assert table.columns_are == "precision" or set(table.columns) <= set(profile_names())
        for order in paper.orders:
            assert set(order.order) <= set(profile_names())


def test_the_wisconsin_numbers_are_the_printed_ones() -> None:
    (paper,) = [paper for paper in load_papers() if paper.id == "wisconsin"]
    utilisation = next(table for table in paper.tables if table.metric == "utilisation")
    assert utilisation.si("mean", "v100_sxm2") == pytest.approx(0.7173395321)
    assert utilisation.si("max", "p100_16gb") == pytest.approx(0.94)
    power = next(table for table in paper.tables if table.metric == "power_w")
    assert power.si("idle", "k40m") == 20


def test_a_small_paper_reads(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SMALL)
    (paper,) = load_papers(tmp_path)
    assert paper.tables[0].si("mean", "k40m") == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("utilisation", "utilization", "unknown metric 'utilization'; valid: utilisation"),
        ("01_training", "01_trainig", "unknown study"),
        ("mean: [75]", "mean: [75, 80]", "2 values for 1 columns"),
        ("where: table 2", "were: table 2", "were"),
        ("to_si: 0.01", "to_si: -1", "to_si"),
    ],
)
def test_what_does_not_fit_the_registry_is_an_error_that_says_where(
    tmp_path: Path, before: str, after: str, said: str
) -> None:
    assert before in SMALL
    (tmp_path / "broken.yaml").write_text(SMALL.replace(before, after))
    with pytest.raises(UserError, match=r"papers/broken\.yaml") as caught:
        load_papers(tmp_path)
    assert said in str(caught.value)


def test_no_images_per_second_are_read_off_pictures() -> None:
    text = (PAPERS / "wisconsin.yaml").read_text()
    assert "metric: images_per_s" in text, "the order is there ..."
    (paper,) = [paper for paper in load_papers() if paper.id == "wisconsin"]
    assert all(table.metric != "images_per_s" for table in paper.tables), "... but no number of it was printed"
