"""The page of a report in a real browser: hover, zoom, runs, axes, colors, widths."""

import json
from pathlib import Path

import pytest

from bert_jax.__main__ import main
from bert_jax_lab.reports import report_page, run_data
from tests.written_runs import write_config, write_finetuning, write_run

pytestmark = pytest.mark.browser
_HOSTILE = '<img src=x onerror=alert(1)> \' & "quoted"'
_GROUND = "getComputedStyle(document.body).backgroundColor"
_FIRST = "report.drawn[0].plot"
# The content of the canvases as one text.
_PIXELS = "report.drawn.map(({plot}) => plot.ctx.canvas.toDataURL()).join()"


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """Runs to show: two complete ones, one that has not begun, a task, a bad name."""
    home = tmp_path_factory.mktemp("runs")
    write_run(home / "slow")
    write_run(home / "fast", seed=1, rate=8e-3)
    write_config(home / "empty")
    write_run(home / _HOSTILE, seed=2)
    write_run(home / "long", seed=3, rows_a_step=50)
    write_finetuning(home / "tuned")
    return home


@pytest.fixture
def show(runs, browser, capsys):
    """Returns a function that opens the page of runs, and returns its tab and the output of --json.

    Afterwards, asserts that no page logged an error or made a request.
    """
    opened = []

    def show(*names: str, width: int = 1400, dark: bool = False):
        page = runs / f"{'-'.join(str(len(name)) for name in names)}.html"
        capsys.readouterr()
        command = ["report", *(str(runs / name) for name in names), "--html", str(page), "--json"]
        assert main(command) == 0
        printed = json.loads(capsys.readouterr().out)
        tab = browser.open(page, width=width, dark=dark)
        opened.append((tab, page))
        return tab, printed if isinstance(printed, list) else [printed]

    yield show
    for tab, page in opened:
        assert (tab.problems, tab.requests) == ([], [page.as_uri()])
        tab.close()


def choose(tab, identity: str, value: str) -> None:
    """Chooses an option of a <select>, as a user does."""
    tab.evaluate(
        f"(() => {{ const s = document.getElementById({json.dumps(identity)});"
        f"s.value = {json.dumps(value)}; s.dispatchEvent(new Event('change')); }})()"
    )
    tab.settle()


def range_of(tab, number: int = 0) -> list[float]:
    return tab.evaluate(f"(({{min, max}}) => [min, max])(report.drawn[{number}].plot.scales.x)")


def hover(tab, at: float) -> None:
    """Moves the pointer into the first chart, to a value of the axis."""
    left, top, _, height = tab.place("#chart-0 .u-over")
    tab.move(left + tab.evaluate(f"{_FIRST}.valToPos({at}, 'x')"), top + height / 2)


def legend(tab, number: int = 0) -> dict[str, str]:
    """Returns the legend of a chart: names and values at the pointer."""
    return dict(
        tab.evaluate(
            f"[...document.querySelectorAll('#chart-{number} .u-series')].map((row) => "
            "['.u-label', '.u-value'].map((name) => row.querySelector(name).textContent))"
        )
    )


@pytest.mark.parametrize(("width", "dark"), [(390, False), (1400, True)], ids=["phone", "wide"])
@pytest.mark.parametrize(
    "names",
    [("slow",), ("slow", "fast", "empty", _HOSTILE), ("tuned",), ("empty",), ("long",)],
    ids=["one", "several", "task", "empty", "long"],
)
def test_the_page_fits_and_is_drawn(show, pictures, request, names, width, dark):
    tab, printed = show(*names, width=width, dark=dark)
    assert tab.overflow() <= 0
    assert tab.evaluate("page.data.runs") == printed
    assert tab.evaluate("page.isDark()") == dark
    charts = tab.evaluate("page.data.charts.length")
    assert (charts == 0) == (names == ("empty",))
    assert tab.evaluate("document.querySelectorAll('canvas').length") == charts
    # Something is drawn in each: more colors than the background and the text.
    colours = (
        "report.drawn.map(({plot}) => { const {width, height} = plot.ctx.canvas;"
        "const d = new Uint32Array(plot.ctx.getImageData(0, 0, width, height).data.buffer);"
        "return new Set(d).size; })"
    )
    assert all(number > 8 for number in tab.evaluate(colours))
    kind = request.node.callspec.id
    tab.screenshot(pictures / f"report-{kind}.png")
    # Tables scroll inside their boxes.
    tab.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    tab.settle()
    assert tab.overflow() <= 0


def test_the_curves_are_the_numbers(show):
    tab, printed = show("slow", "fast")
    found = tab.evaluate(
        "report.drawn.map(({plot, chart}) => chart.series.map((one) => {"
        "  const at = plot.series.findIndex((s) => s.label === one.label);"
        "  return plot.data[0].map((x, i) => [x, plot.data[at][i]]).filter(([, y]) => y != null);"
        "}))"
    )
    charts = tab.evaluate("page.data.charts")
    assert len(found) == len(charts) > 6
    for chart, drawn in zip(charts, found, strict=True):
        for series, curve in zip(chart["series"], drawn, strict=True):
            run = printed[series["run"]]
            is_training = series["table"] == "training"
            columns = run["training"] if is_training else run["held_out"][series["table"]]
            pairs = zip(columns["step"], columns[series["column"]], strict=True)
            wanted = [[x, y] for x, y in pairs if y is not None and (y > 0 or not chart["log"])]
            assert curve == wanted, (chart["heading"], series["label"])


def test_hovering_shows_the_values_in_all_charts(show, pictures):
    tab, (run,) = show("slow")
    assert legend(tab)["mlm_loss, training"] == "–"
    hover(tab, 120)
    shown = legend(tab)
    loss = run["training"]["mlm_loss"][119]
    held_out = run["held_out"]["validation"]["mlm_loss"][2]
    assert run["held_out"]["validation"]["step"][2] == 120
    assert float(shown["step"]) == 120 and shown["unigram entropy"] == "3.75"
    assert float(shown["mlm_loss, training"]) == pytest.approx(loss, rel=1e-4)
    assert float(shown["mlm_loss, validation"]) == pytest.approx(held_out, rel=1e-4)
    headings = tab.evaluate("page.data.charts.map((chart) => chart.heading)")
    rate = legend(tab, headings.index("Learning rate"))["learning_rate, training"]
    assert float(rate) == pytest.approx(run["training"]["learning_rate"][119], rel=1e-4)
    tab.screenshot(pictures / "report-hover.png")
    # Between two evaluations the nearer one is shown; for a skipped update, its neighbor.
    hover(tab, 131)
    assert float(legend(tab)["mlm_loss, validation"]) == pytest.approx(held_out, rel=1e-4)
    hover(tab, 150)
    near = run["training"]["mlm_loss"][148]
    assert float(legend(tab)["mlm_loss, training"]) == pytest.approx(near, rel=1e-4)


def test_zoom(show, pictures):
    tab, _ = show("slow", "fast")
    charts = tab.evaluate("report.drawn.length")
    assert range_of(tab) == [1, 200]
    assert tab.evaluate("document.getElementById('zoom-all').disabled")
    left, top, width, height = tab.place("#chart-0 .u-over")
    tab.drag((left + width * 0.25, top + height / 2), (left + width * 0.5, top + height / 2))
    low, high = range_of(tab)
    assert low == pytest.approx(1 + 199 * 0.25, abs=1) and high == pytest.approx(100.5, abs=1)
    assert all(range_of(tab, number) == [low, high] for number in range(charts))
    tab.screenshot(pictures / "report-zoom.png")
    tab.click("#zoom-right")
    half = (high - low) / 2
    assert range_of(tab) == [pytest.approx(low + half), pytest.approx(high + half)]
    tab.click("#zoom-left")
    assert range_of(tab) == [pytest.approx(low), pytest.approx(high)]
    tab.click("#zoom-in")
    inner = range_of(tab)
    assert inner[1] - inner[0] == pytest.approx(half)
    tab.click("#zoom-out")
    assert range_of(tab) == [pytest.approx(low), pytest.approx(high)]
    tab.click("#chart-1 .u-over", times=2)
    assert all(range_of(tab, number) == [1, 200] for number in range(charts))
    # Also by the keyboard.
    tab.evaluate("document.getElementById('zoom-in').focus()")
    tab.press("Enter")
    assert range_of(tab) == [pytest.approx(50.75), pytest.approx(150.25)]
    tab.click("#zoom-all")
    assert range_of(tab) == [1, 200]


def test_runs_and_series_can_be_hidden(show):
    tab, _ = show("slow", "fast")
    shown = (
        "report.drawn.map(({plot, members}) => "
        "plot.series.filter((s, i) => members[i] === 1 && s.show).length)"
    )
    before, pixels = tab.evaluate(shown), tab.evaluate(_PIXELS)
    assert sum(before) > 6
    tab.click("#run-1")
    assert tab.evaluate("document.getElementById('run-1').ariaPressed") == "false"
    assert not any(tab.evaluate(shown)) and tab.evaluate(_PIXELS) != pixels
    choose(tab, "axis", "positions_seen")  # it stays hidden after a redraw
    assert not any(tab.evaluate(shown))
    choose(tab, "axis", "step")
    tab.click("#run-1")
    assert tab.evaluate(shown) == before and tab.evaluate(_PIXELS) == pixels
    # One series of one chart, in the legend of this chart.
    tab.click("#chart-0 .u-legend .u-series:nth-child(2) .u-label")
    assert not tab.evaluate(f"{_FIRST}.series[1].show")
    assert tab.evaluate("report.drawn[1].plot.series[1].show")


def test_axes_and_smoothing(show):
    tab, (run,) = show("slow")
    choose(tab, "axis", "positions_seen")
    assert range_of(tab) == [512, run["training"]["positions_seen"][-1]]
    choose(tab, "axis", "training_seconds")
    assert range_of(tab) == [pytest.approx(0.1), pytest.approx(20.0)]
    assert "seconds of training" in legend(tab)
    choose(tab, "axis", "step")
    pixels = tab.evaluate(_PIXELS)
    choose(tab, "smooth", "25")
    assert tab.evaluate(_PIXELS) != pixels
    hover(tab, 60)
    losses = run["training"]["mlm_loss"][59 - 12 : 59 + 13]
    shown = float(legend(tab)["mlm_loss, training (mean of 25)"])
    assert shown == pytest.approx(sum(losses) / 25, rel=1e-4)
    # The updates 150 and 151 were skipped: the mean is over the other 23.
    hover(tab, 140)
    losses = [loss for loss in run["training"]["mlm_loss"][139 - 12 : 139 + 13] if loss is not None]
    shown = float(legend(tab)["mlm_loss, training (mean of 25)"])
    assert len(losses) == 23 and shown == pytest.approx(sum(losses) / 23, rel=1e-4)
    choose(tab, "smooth", "1")
    tab.move(1, 1)
    assert tab.evaluate(_PIXELS) == pixels


def test_the_expected_band(runs, browser, pictures, tmp_path):
    """The band has the values of its steps, also on another axis."""
    run = run_data.read(runs / "slow", name="slow")
    run["expected"] = [[20, 4.0, 5.5], [100, 2.0, 3.0], [200, 1.8, 2.5]]
    (tmp_path / "with.html").write_text(report_page.render([run]))
    tab = browser.open(tmp_path / "with.html", width=1400)
    hover(tab, 100)
    found = legend(tab)
    assert (found["expected, lowest"], found["expected, highest"]) == ("2", "3")
    tab.screenshot(pictures / "report-expected.png")
    choose(tab, "axis", "training_seconds")
    hover(tab, 10.0)
    assert legend(tab)["expected, highest"] == "3"
    assert tab.problems == []
    tab.close()


def test_light_and_dark(show):
    tab, _ = show("slow", "fast")
    ground, pixels = tab.evaluate(_GROUND), tab.evaluate(_PIXELS)
    tab.click("#theme")
    assert tab.evaluate(_GROUND) != ground and tab.evaluate(_PIXELS) != pixels
    tab.click("#theme")
    assert (tab.evaluate(_GROUND), tab.evaluate(_PIXELS)) == (ground, pixels)
    # Without a choice the page follows the system.
    tab.prefer(dark=True)
    assert not tab.evaluate("page.isDark()")
    other, _ = show("slow", dark=False)
    other.prefer(dark=True)
    other.settle()
    assert other.evaluate("page.isDark()") and other.evaluate(_GROUND) != ground


def test_a_rotated_phone(show):
    """The charts follow the width of the window, both ways."""
    tab, _ = show("slow", width=1400)
    widths = "report.drawn.map(({plot}) => plot.width)"
    wide = tab.evaluate(widths)
    tab.resize(390)
    tab.settle()
    assert all(200 <= width < 390 for width in tab.evaluate(widths)) and tab.overflow() <= 0
    tab.resize(1400)
    tab.settle()
    assert tab.evaluate(widths) == wide
