"""Tests of figures: irregular results, texts and numbers, both colour schemes, and unique ids."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from bs4 import BeautifulSoup
from hypothesis import given, settings
from matplotlib import rc_context
from matplotlib.text import Text
from PIL import Image

from labkit.errors import UserError
from tests.workbook.show_frames import BATCHES, MODES, frames, made
from workbook.results import REPORT_VARIABLE, estimate, ratio
from workbook.show import Figure, plots, table, theme_css
from workbook.show.draw import looks, may_be_log
from workbook.show.figure import COLOURS, DPI, colour

SWEEP = made(
    [("vgg16", batch, mode, [batch * k, batch * k * 1.1]) for batch in BATCHES for k, mode in enumerate(MODES, 5)]
)


def as_parts(data: pd.DataFrame) -> pd.DataFrame:
    return data.rename(columns={"mode": "part"})


def of_networks(data: pd.DataFrame) -> pd.DataFrame:
    return data if data.empty else data.assign(mode=data["mode"] + " " + data["model"])


def as_telemetry(data: pd.DataFrame) -> pd.DataFrame:
    if data.empty:
        return data
    return data.rename(columns={"batch": "time_s", "images_per_s": "value"}).assign(metric="power_w", pass_number=1)


DRAW: dict[str, Callable[[pd.DataFrame], Figure]] = {
    "lines": lambda data: plots.lines(of_networks(data), x="batch", y="images_per_s", hue="mode", values_at=[64]),
    "panels": lambda data: plots.lines(data, x="batch", y="images_per_s", hue="mode", col="model"),
    "dots": lambda data: plots.dots(data, y=["model", "batch"], x="images_per_s", hue="mode", sort="descending"),
    "stack": lambda data: plots.stack(
        as_parts(data), y=["model", "batch"], part="part", value="images_per_s", hatched=["strict FP32"]
    ),
    "series": lambda data: plots.series(as_telemetry(data), hue="mode"),
}
each = pytest.mark.parametrize("kind", DRAW)
pytestmark = pytest.mark.filterwarnings("error")  # matplotlib warns of layouts that do not fit


def texts(svg: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


@each
@settings(max_examples=6)
@given(data=frames())
def test_a_figure_can_be_drawn_of_any_results(kind: str, data: pd.DataFrame) -> None:
    figure = DRAW[kind](data)
    markup = figure._repr_mimebundle_()["text/html"]
    visible = re.sub(r"<[^>]*>", " ", markup)
    assert not re.search(r"\b(nan|None|NaN|inf)\b", visible)
    assert figure.alt
    assert "aria-label" in markup
    if data["images_per_s"].notna().any() and kind != "series":
        assert "<summary>Data" in markup
        assert not re.search(r"(?<![\d.,])0 %", visible)
    if kind in ("lines", "panels", "dots", "stack"):
        groups = data.groupby(["model", "batch", "mode"])["images_per_s"].apply(lambda values: values.notna().any())
        assert figure.data["value"].notna().sum() == groups.sum()
        assert len(figure.data) == len(groups)
        assert figure.data.loc[figure.data["value"].isna(), "reason"].ne("").all()


def test_a_figure_offers_all_its_numbers_and_its_drawing_as_files() -> None:
    figure = DRAW["dots"](SWEEP)
    page = BeautifulSoup(figure._repr_mimebundle_()["text/html"], "html.parser")
    files = {str(link["download"]): str(link["href"]) for link in page.select("details a")}
    assert list(files) == [f"{figure.name}.{ending}" for ending in ("csv", "svg", "png")]
    table, drawing, picture = (base64.b64decode(address.partition("base64,")[2]) for address in files.values())
    saved = pd.read_csv(io.BytesIO(table))
    assert saved["value"].tolist() == pytest.approx(figure.data["value"].tolist())
    assert set(saved["metric"]) == {"images_per_s"}
    root = ElementTree.fromstring(drawing)
    assert root.tag.endswith("svg") and b"var(" not in drawing, "other programs know no CSS variables"
    assert Image.open(io.BytesIO(picture)).width == pytest.approx(2 * DPI * figure.drawing.get_figwidth(), abs=1)


@pytest.mark.parametrize("log", [False, True])
def test_a_very_wide_interval_leaves_the_values_apart(log: bool) -> None:
    shares = pd.DataFrame(
        {"model": ["resnet50", "vgg16"], "value": [0.94, 1.0], "low": [0.93, 0.2], "high": [0.95, 4.4]}
    )
    by_row = plots.dots(shares, y="model", x="sm_activity", log=log)
    swept = plots.lines(shares.assign(batch=[1, 2]), x="batch", y="sm_activity", log=log)
    for low, high in (by_row.drawing.axes[0].get_xlim(), swept.drawing.axes[0].get_ylim()):
        assert low < 93 < 100 < high < (400 if log else 140)


@each
def test_a_figure_states_missing_results_and_failures(kind: str) -> None:
    nothing = made([])
    nothing.attrs["reason"] = "no GPU here"
    failed = made([("vgg16", 64, "strict FP32", "oom: 80 GiB were asked for")])
    assert "not measured (no GPU here)" in " ".join(texts(DRAW[kind](nothing).svg()))
    assert DRAW[kind](pd.DataFrame()).svg()
    if kind != "series":
        figure = DRAW[kind](failed)
        assert "80 GiB were asked for" in " ".join(texts(figure.svg()))
        assert "out of memory: 80 GiB were asked for" in figure._repr_mimebundle_()["text/html"]


@each
def test_the_svg_uses_the_colour_scheme_has_unique_ids_and_is_reproducible(kind: str) -> None:
    first, again, smaller = (DRAW[kind](data).svg() for data in (SWEEP, SWEEP, SWEEP[SWEEP["batch"] > 16]))
    assert first == again
    assert not re.search(r"(?<!, )#[0-9a-f]{6}\b", first)  # a colour may only be the fallback of a variable
    assert set(re.findall(r"--lk-(\w+),", first)) <= {*COLOURS, "font"}
    ids = [set(re.findall(r'\bid="([^"]*)"', svg)) for svg in (first, smaller)]
    assert not ids[0] & ids[1]
    for svg, its_own in zip((first, smaller), ids, strict=True):
        assert {*re.findall(r"url\(#([^)]+)\)", svg), *re.findall(r'href="#([^"]+)"', svg)} <= its_own
    assert "<metadata" not in first
    assert "<style" not in first


def test_a_figure_has_a_link_of_its_own() -> None:
    figure = BeautifulSoup(DRAW["dots"](SWEEP)._repr_mimebundle_()["text/html"], "html.parser").figure
    assert figure is not None and figure.figcaption is not None and figure.figcaption.a is not None
    assert figure.figcaption.a["href"] == f"#{figure['id']}"


def test_the_stylesheet_has_both_colour_schemes() -> None:
    light, dark = theme_css().split("@media screen and (prefers-color-scheme:dark)")
    for name, (on_light, on_dark) in COLOURS.items():
        assert f"--lk-{name}:{on_light};" in light
        assert f"--lk-{name}:{on_dark};" in dark


def contrast(first: str, second: str) -> float:
    """Return the contrast ratio of WCAG 2.1."""

    def luminance(hexadecimal: str) -> float:
        channels = [int(hexadecimal[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
        return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))

    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("name", sorted(set(COLOURS) - {"faint", "ground"}))
@pytest.mark.parametrize("scheme", [0, 1])
def test_text_can_be_read_in_every_colour(name: str, scheme: int) -> None:
    assert contrast(COLOURS[name][scheme], COLOURS["ground"][scheme]) >= 4.5


def test_each_colour_has_a_single_meaning() -> None:
    chosen = looks(["compiled + CUDA graph", "CUDA graph", "XLA", "strict FP32"], "mode")
    names = {value: look.colour for value, look in chosen.items()}
    assert names["strict FP32"] == colour("baseline")
    assert names["CUDA graph"] == colour("between")
    assert names["compiled + CUDA graph"] == colour("optimised")
    assert names["XLA"] == colour("c1")
    assert len(set(looks(range(7), "seed").values())) == 7


def test_the_caller_may_choose_colours() -> None:
    figure = plots.lines(SWEEP, x="batch", y="images_per_s", hue="mode", colours={"strict FP32": "black"})
    assert "black" in {line.get_color() for line in figure.axes[0].lines}


def test_colours_that_fit_no_value_of_hue_are_refused() -> None:
    axes = {"x": "batch", "y": "images_per_s"}
    with pytest.raises(UserError, match=r"names 'basline'.* hue='mode' has the values 'strict FP32'"):
        plots.lines(SWEEP, **axes, hue="mode", colours={"basline": "black"})
    with pytest.raises(UserError, match="hue=None has the values of no column"):
        plots.lines(SWEEP[SWEEP["mode"] == "strict FP32"], **axes, colours={"strict FP32": "black"})
    assert plots.lines(SWEEP.head(0), **axes, hue="mode", colours={"strict FP32": "black"}), (
        "no row, so no value is known"
    )


def test_texts_have_matplotlibs_font_size_and_in_a_report_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def sizes() -> set[str]:
        with rc_context({"font.size": 14}):
            figure = plots.lines(SWEEP, x="batch", y="images_per_s", hue="mode", values_at=[64])
        return set(re.findall(r"font[^;\"]*?([\d.]+)px", figure.svg()))

    assert sizes() == {"14"}
    monkeypatch.setenv(REPORT_VARIABLE, "1")
    assert sizes() == {"12.6"}


@pytest.mark.parametrize("ratio", [1.15, 1.4, 3.0])
@pytest.mark.parametrize("slope", [-0.8, 0.1, 0.8])
def test_a_number_is_beside_the_point_that_it_belongs_to_and_on_no_line(ratio: float, slope: float) -> None:
    modes = ("strict FP32", "CUDA graph", "compiled + CUDA graph")
    rates = [
        (mode, batch, 1e3 * batch**slope * ratio**k) for k, mode in enumerate(modes) for batch in (16, 64, 256, 2048)
    ]
    data = pd.DataFrame(rates, columns=["mode", "batch", "value"]).assign(low=np.nan, high=np.nan)
    axes = plots.lines(data, x="batch", y="images_per_s", hue="mode", values_at=[64, 256]).axes[0]
    points = axes.transData.transform(data[["batch", "value"]].to_numpy())
    texts = [text for text in axes.texts if text.get_text()[0].isdigit()]
    assert len({text.xy for text in texts}) >= 2
    for text in texts:
        box = text.get_window_extent()
        outside = np.maximum(np.maximum(box.min - points, points - box.max), 0)
        nearest = points[np.hypot(*outside.T).argmin()]
        assert nearest == pytest.approx(axes.transData.transform(text.xy)), text
        for line in axes.lines:
            path = line.get_path().transformed(line.get_transform())
            assert not path.intersects_bbox(box.padded(-2), filled=False), f"{text}: a corner may be touched"


def test_a_saved_file_has_the_title_and_the_page_draws_none(tmp_path: Path) -> None:
    figure = plots.lines(SWEEP, x="batch", y="images_per_s", hue="mode", title="Throughput grows")
    assert ">Throughput grows<" in figure.save(tmp_path / "mine.svg").read_text(encoding="utf-8")
    assert ">Throughput grows<" not in figure.svg()


def test_a_long_title_of_a_saved_file_is_not_cut_off(tmp_path: Path) -> None:
    figure = plots.lines(SWEEP, x="batch", y="images_per_s", hue="mode", title="Throughput grows with the batch " * 3)
    with figure._titled():
        figure.drawing.draw_without_rendering()
        assert figure.drawing._suptitle.get_window_extent().x1 <= figure.drawing.bbox.x1


def test_settings_of_all_rows_stand_once_above_them() -> None:
    figure = plots.dots(SWEEP.assign(model="vgg16", image_px=32), y=["mode", "image_px", "batch"], x="images_per_s")
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts.count("32 px") == 1 and "batch 64" in texts


def test_the_title_of_an_axis_is_not_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(REPORT_VARIABLE, "1")
    long = pd.DataFrame({"recipe": ["one worker", "a learning rate of four workers, warmed up"], "value": [0.2, 0.9]})
    figure = plots.dots(long, y="recipe", x="utilisation")
    figure.drawing.draw_without_rendering()
    assert figure.axes[0].xaxis.label.get_window_extent().x1 <= figure.drawing.bbox.x1


def test_the_title_of_a_saved_file_is_above_its_legend(tmp_path: Path) -> None:
    figure = plots.dots(SWEEP, y="batch", x="images_per_s", hue="mode", title="Throughput grows")
    svg = figure.save(tmp_path / "mine.svg").read_text(encoding="utf-8")
    height = {text: float(y) for y, text in re.findall(r' y="(\S+)"[^>]*>([^<]+)</text>', svg)}
    assert 8 < height["Throughput grows"] < height["strict FP32"] - 10
    assert ">Throughput grows<" not in figure.svg()


@pytest.mark.parametrize(("count", "joined"), [(1, False), (2, False), (3, True), (4, True)])
def test_only_three_points_and_more_are_joined(count: int, joined: bool) -> None:
    figure = plots.lines(SWEEP[SWEEP["batch"].isin(BATCHES[:count])], x="batch", y="images_per_s", hue="mode")
    styles = {line.get_linestyle() for line in figure.axes[0].lines}
    assert styles == ({"-"} if joined else {"None"})


def test_the_caller_may_join_two_points() -> None:
    two = SWEEP[SWEEP["batch"].isin(BATCHES[:2])]
    figure = plots.lines(two, x="batch", y="images_per_s", hue="mode", join=2)
    assert {line.get_linestyle() for line in figure.axes[0].lines} == {"-"}


def test_a_line_breaks_where_a_configuration_failed() -> None:
    data = made([("vgg16", batch, "strict FP32", [batch]) for batch in (16, 64, 2048, 8192)])
    data = pd.concat([data, made([("vgg16", 256, "strict FP32", "oom: too large")])])
    (line,) = plots.lines(data, x="batch", y="images_per_s", hue="mode").axes[0].lines
    assert np.isnan(line.get_ydata()[2])


@pytest.mark.parametrize("rates", [(10.0, 10.1, 10.2), (66.0, 142.0, 129.0), (1.0, 90.0, 91.0)])
def test_names_at_the_ends_of_lines_do_not_overlap_and_have_their_order(rates: tuple[float, ...]) -> None:
    of_mode = dict(zip(MODES, rates, strict=True))
    data = made([("vgg16", batch, mode, [batch * rate]) for batch in BATCHES for mode, rate in of_mode.items()])
    figure = plots.lines(data, x="batch", y="images_per_s", hue="mode")
    figure.drawing.draw_without_rendering()
    notes = [text for text in figure.axes[0].texts if text.get_text()]
    from_bottom = sorted(notes, key=lambda text: text.get_window_extent().y0)
    assert [text.get_text().replace("\n", " ") for text in from_bottom] == sorted(of_mode, key=of_mode.__getitem__)
    boxes = [text.get_window_extent() for text in notes]
    assert not any(a.overlaps(b) for place, a in enumerate(boxes) for b in boxes[place + 1 :])
    many = data.assign(mode=[f"mode {number % 5}" for number in range(len(data))], batch=range(len(data)))
    assert plots.lines(many, x="batch", y="images_per_s", hue="mode").drawing.legends


@pytest.mark.parametrize("apart", range(30, 46, 2))
def test_a_space_lies_between_the_numbers_of_a_row(apart: int) -> None:
    data = made([("vgg16", 16, mode, [500 + apart * k]) for k, mode in enumerate(MODES[:2])])
    data = pd.concat([data, made([("vgg16", 64, MODES[0], [1000])])])
    figure = plots.dots(data, y="batch", x="images_per_s", hue="mode")
    figure.drawing.draw_without_rendering()
    boxes = [text.get_window_extent().padded(0.9, 0) for text in figure.axes[0].texts if text.get_text()[0] in "567"]
    assert not any(a.overlaps(b) for place, a in enumerate(boxes) for b in boxes[place + 1 :])


def test_the_numbers_are_estimates_and_the_interval_contains_the_point() -> None:
    figure = plots.dots(SWEEP, y="batch", x="images_per_s", hue="mode")
    wanted = estimate(SWEEP, "images_per_s", by=["batch", "mode"])
    assert sorted(figure.data["value"]) == pytest.approx(sorted(wanted["value"]))
    assert (figure.data["low"] <= figure.data["value"]).all()
    assert (figure.data["value"] <= figure.data["high"]).all()
    aggregated = plots.dots(wanted, y="batch", x="images_per_s", hue="mode")
    assert aggregated.svg() == figure.svg()
    points = plots.dots(wanted[["batch", "mode", "value"]], y="batch", x="images_per_s", hue="mode")
    assert len(points.axes[0].collections) == 0  # without an interval there is no whisker


def test_a_caption_ends_with_what_intervals_are_over_or_why_there_are_none() -> None:
    def of_lines(data: pd.DataFrame) -> str:
        return plots.lines(data, x="batch", y="images_per_s", hue="mode", caption="Mine.").caption

    assert of_lines(SWEEP) == "Mine. Bands are 95 % intervals over runs."
    is_short = (SWEEP["mode"] == MODES[0]) & (SWEEP["batch"] > BATCHES[1])
    assert of_lines(SWEEP[~is_short]) == "Mine. Bands and whiskers are 95 % intervals over runs."
    assert of_lines(SWEEP[SWEEP["batch"] == BATCHES[0]]) == "Mine. Whiskers are 95 % intervals over runs."
    assert of_lines(SWEEP[SWEEP["pass_number"] == 1]) == "Mine. A value of one run has no interval."

    def of_dots(data: pd.DataFrame) -> str:
        return plots.dots(data, y="batch", x="images_per_s", hue="mode").caption

    rates = estimate(SWEEP, "images_per_s", by=["batch", "mode"])
    over = "three or more equal machines, else over runs."
    assert of_dots(rates.assign(hosts=3)) == f"Whiskers are 95 % intervals over {over}"
    assert of_dots(rates.drop(columns="passes")) == "", "the ends of a table of the caller's own may be no intervals"
    assert of_dots(SWEEP.iloc[:0]) == ""


def test_a_failed_row_shows_its_reason_and_references_are_ticks() -> None:
    data = pd.concat([SWEEP, made([("vgg16", 8192, "strict FP32", "unsupported: needs 80 GiB")])])
    speedup = pd.DataFrame({"batch": [16], "value": [7.21]})
    published = pd.DataFrame({"batch": [16], "value": [100.0], "label": ["published"]})
    figure = plots.dots(data, y="batch", x="images_per_s", hue="mode", ratio=speedup, ticks=published)
    assert {"not run: needs 80 GiB", "7.21x", "published", "batch 8,192"} <= set(texts(figure.svg()))


@pytest.mark.parametrize("model", ["vgg16", "a network with a name of many words", 7 * "a long name "])
def test_a_reason_ends_within_its_figure(model: str) -> None:
    reason = "unsupported: needs 80 GiB of memory, and this GPU has 16 GiB in all its parts together"
    data = pd.concat([SWEEP.assign(model=model), made([(model, 8192, "strict FP32", reason)])])
    figure = plots.dots(data, y=["model", "batch", "mode"], x="images_per_s")
    figure.drawing.draw_without_rendering()
    written = [text for text in figure.drawing.findobj(Text) if text.get_style() == "italic"]
    assert written and all(text.get_window_extent().x1 <= figure.drawing.bbox.x1 for text in written)


def test_a_reason_beside_a_setting_of_60_characters_is_written() -> None:
    mode = "compiled + CUDA graph, fused SGD, FP32 master weights, NHWC, own"
    figure = plots.dots(
        pd.concat([SWEEP, made([("vgg16", 8192, mode, "unsupported: needs 80 GiB")])]),
        y=["batch", "mode"],
        x="images_per_s",
    )
    assert "not run: needs 80" in " ".join(texts(figure.svg()))


def test_a_failed_row_may_stand_below_the_figure_alone() -> None:
    data = pd.concat([SWEEP, made([("vgg16", 8192, "strict FP32", "unsupported: needs 80 GiB")])])
    figure = plots.dots(data, y="batch", x="images_per_s", hue="mode", reasons=False)
    assert not {"not run: needs 80 GiB", "batch 8,192"} & set(texts(figure.svg()))
    assert figure._missing() == ["batch 8,192, strict FP32: not run: needs 80 GiB"]


@pytest.mark.parametrize(("values", "marks"), [([100.0, 100.0], 0), ([100.0, 200.0], 2), ([100.0], 1)])
def test_a_reference_that_all_rows_have_is_one_line(values: list[float], marks: int) -> None:
    data = SWEEP[SWEEP["batch"].isin([16, 64])]
    peaks = pd.DataFrame({"batch": [16, 64][: len(values)], "value": values, "label": "peak"})
    figure = plots.dots(data, y="batch", x="images_per_s", hue="mode", ticks=peaks)
    drawn = [line.get_marker() for line in figure.axes[0].lines].count("|")
    assert drawn == marks and texts(figure.svg()).count("peak") == 1


@pytest.mark.parametrize("names", [["label"], []])
def test_a_reference_of_no_row_is_neither_named_nor_within_the_axis(names: list[str]) -> None:
    data = SWEEP[SWEEP["mode"] == "strict FP32"]
    elsewhere = pd.DataFrame({"batch": [3], "value": [1e6], "label": ["reference"]})[["batch", "value", *names]]
    alone, beside = (plots.dots(data, y="batch", x="images_per_s", ticks=ticks) for ticks in (None, elsewhere))
    assert "reference" not in texts(beside.svg())
    assert beside.axes[0].get_xlim() == alone.axes[0].get_xlim()


@pytest.mark.parametrize("value", [0.995, 1.005])
def test_a_number_beside_a_reference_line_does_not_cross_it(value: float) -> None:
    shares = pd.DataFrame({"batch": [16, 64], "value": [value, 0.65]})
    limit = pd.DataFrame({"batch": [16, 64], "value": 1.0, "label": "linear"})
    figure = plots.dots(shares, y="batch", x="scaling_efficiency", ticks=limit)
    figure.drawing.draw_without_rendering()
    (axes,) = figure.axes
    number, *_ = (text.get_window_extent() for text in axes.texts if text.get_text().endswith("%"))
    assert not number.x0 <= axes.transData.transform((100, 0))[0] <= number.x1


def test_four_references_that_all_rows_have_are_told_apart_by_the_legend() -> None:
    data, names = SWEEP[SWEEP["batch"].isin([16, 64])], ("peak", "limit", "floor", "nominal")
    pairs = [(batch, 100.0 * (1 + place), name) for batch in (16, 64) for place, name in enumerate(names)]
    data = data[data["mode"] == "strict FP32"]
    figure = plots.dots(
        data, y="batch", x="images_per_s", ticks=pd.DataFrame(pairs, columns=["batch", "value", "label"])
    )
    (legend,) = figure.drawing.legends
    styles = {
        text.get_text(): line.get_linestyle() for text, line in zip(legend.texts, legend.legend_handles, strict=True)
    }
    assert set(styles) == set(names) and len(set(styles.values())) == len(names)


def test_dots_that_are_no_pair_hide_none_and_a_lone_dot_stands_at_its_row() -> None:
    data = made([("vgg16", 16, MODES[0], [100]), ("vgg16", 16, MODES[1], [100]), ("vgg16", 64, MODES[1], [100])])
    figure = plots.dots(data, y="batch", x="images_per_s", hue="mode", pair=False)
    first, second, lone = (float(line.get_ydata()[0]) for line in figure.axes[0].lines)
    assert second - first > 0.1 and first + second == pytest.approx(0) and lone == 1


def test_zero_has_no_logarithm() -> None:
    assert not may_be_log([0.0, 1.0])
    assert not may_be_log([])
    data = made([("vgg16", batch, "strict FP32", [batch - 16]) for batch in BATCHES])
    assert plots.lines(data, x="batch", y="images_per_s").axes[0].get_yscale() == "linear"


def test_a_figure_can_be_changed_and_saved(tmp_path: Path) -> None:
    figure = plots.dots(SWEEP[SWEEP["batch"] == 64], y="mode", x="images_per_s", title="Mine", caption="Mine too.")
    figure.axes[0].set_xlabel("changed <here>")
    for ending in ("pdf", "png", "svg"):
        path = figure.save(tmp_path / f"picture.{ending}")
        assert path.read_bytes() == figure.save(tmp_path / f"again.{ending}").read_bytes()
    assert "changed &lt;here&gt;" in figure.svg()
    markup = figure._repr_mimebundle_()["text/html"]
    assert "<strong>Mine</strong>" in markup


def test_a_figure_of_another_kind_of_file_is_a_clear_error(tmp_path: Path) -> None:
    figure = plots.lines(SWEEP, x="batch", y="images_per_s", hue="mode")
    with pytest.raises(UserError, match=r"mine\.jpg. has another ending"):
        figure.save(tmp_path / "mine.jpg")


def test_plots_draw_on_axes_that_are_given() -> None:
    from matplotlib.figure import Figure as Drawing

    drawing = Drawing()
    left, right = drawing.subplots(1, 2)
    figure = plots.lines(SWEEP, x="batch", y="images_per_s", hue="mode", ax=left)
    plots.dots(SWEEP, y="batch", x="images_per_s", hue="mode", ax=right)
    assert figure.drawing is drawing
    assert left.lines
    assert right.lines


def test_telemetry_of_two_runs_is_not_joined_into_a_line() -> None:
    data = pd.DataFrame({"time_s": [0, 1], "metric": "power_w", "value": [90.0, 400.0], "pass_number": [1, 2]})
    with pytest.raises(UserError, match="mix pass_number"):
        plots.series(data)
    assert len(plots.series(data, hue="pass_number").axes[0].lines) == 2


def test_a_figure_of_one_row_has_room_for_its_legend() -> None:
    modes = [f"an execution mode {place}" for place in range(5)]
    one = made([("vgg16", 64, mode, [place, place * 1.1]) for place, mode in enumerate(modes, 5)])
    assert plots.dots(one, y=["model", "batch"], x="images_per_s", hue="mode").svg()


@pytest.mark.parametrize(
    ("draw", "said"),
    [
        (
            lambda: plots.lines(SWEEP, x="batch", y="images_per_s", hue=["mode", "model"]),
            r"one column .* \['mode', 'mod",
        ),
        (lambda: plots.lines(SWEEP, x="batch", y=["images_per_s", "power_w"]), "one column is valid .* Choose one"),
        (lambda: plots.dots(SWEEP, x="images_per_s", y="batch", hue=["mode"]), "one column is valid"),
        (lambda: plots.stack(SWEEP, y="batch", part=["mode"], value="images_per_s"), "one column is valid"),
        (
            lambda: plots.lines(SWEEP, x="mode", y="images_per_s", hue="batch"),
            "mode has no numbers for an axis; `plots.d",
        ),
        (lambda: plots.lines(SWEEP, x="batch", y="images_per_s", hue="mode", log="y"), "unknown log 'y'; valid: "),
        (
            lambda: plots.dots(SWEEP, x="images_per_s", y="batch", hue="mode", sort="up"),
            "unknown order .* 'up'; valid: ",
        ),
    ],
    ids=["two colours", "two metrics", "list", "two parts", "x of texts", "log", "order"],
)
def test_an_argument_that_no_figure_can_have_is_refused(draw: Callable[[], Figure], said: str) -> None:
    with pytest.raises(UserError, match=said):
        draw()


def test_a_column_that_is_missing_is_named() -> None:
    with pytest.raises(UserError, match="no column colour"):
        plots.lines(SWEEP, x="colour", y="images_per_s")


@pytest.mark.parametrize(
    "shown_as", ["power_w", "image_per_s", "energy_per_image_j", "utilisation", "points", "speedup"]
)
def test_estimates_do_not_stand_under_another_metrics_name(shown_as: str) -> None:
    rates = estimate(SWEEP, "images_per_s", by=["mode", "batch"])
    with pytest.raises(UserError, match="these values are throughput"):
        plots.lines(rates.query("batch > 0"), x="batch", y=shown_as, hue="mode")
    plots.lines(rates, x="batch", y="images_per_s", hue="mode")


@pytest.mark.parametrize("shown_as", ["images_per_s", "power_w", "points"])
def test_ratios_stand_under_no_metrics_name(shown_as: str) -> None:
    ratios = ratio(SWEEP, "images_per_s", over={"mode": "strict FP32"}, by=["mode", "batch"])
    with pytest.raises(UserError, match="these values are ratios of throughput"):
        table(ratios, rows=["mode", "batch"], values={"value": (ratios, shown_as)})
    for form in (ratios, (ratios, "ratio"), (ratios, "speedup"), (ratios, "scaling_efficiency")):
        table(ratios, rows=["mode", "batch"], values={"value": form})


def test_a_table_of_the_callers_own_is_free() -> None:
    own = pd.DataFrame({"batch": [1, 2], "value": [1.0, 2.0]})
    plots.lines(own, x="batch", y="power_w")
    shares = estimate(SWEEP.assign(share=0.5), "share", by=["mode", "batch"])
    table(shares, rows=["mode", "batch"], values={"busy": (shares, "compute_utilisation")})


@pytest.mark.parametrize("join", ["merged", "stacked", "columns"])
def test_what_estimates_are_of_outlives_other_tables(join: str) -> None:
    by = ["mode", "batch"]
    busy = estimate(SWEEP, "utilisation", by=by)
    notes = busy[by].assign(day="Monday")
    of_both = {
        "merged": busy.merge(notes, on=by),
        "stacked": pd.concat([busy, notes.assign(batch=4_096, value=1.0)], ignore_index=True),
        "columns": busy[[*by, "value"]],
    }[join]
    with pytest.raises(UserError, match="these values are utilisation"):
        plots.lines(of_both, x="batch", y="temperature_c", hue="mode")
    plots.lines(of_both, x="batch", y="utilisation", hue="mode")


def test_stacked_estimates_of_two_metrics_stand_under_neither_name() -> None:
    rates, busy = (estimate(SWEEP, metric, by=["mode", "batch"]) for metric in ("images_per_s", "utilisation"))
    with pytest.raises(UserError, match="another quantity"):
        plots.dots(pd.concat([rates, busy.assign(mode="busy")]), y=["mode", "batch"], x="images_per_s")
