"""The page of a run in a real Chromium."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rankup.monitor.recording import Recording, Steps

from .. import traces
from ..handmade import BEGIN, made
from .browser import Browser, Tab
from .pages import page
from .test_html import LIMIT, empty

DRAWN = "document.querySelectorAll('figure[data-drawn]').length"
# Draws everything, as a reader would who scrolls through it.
THROUGH = """(async () => {
  const shown = [...document.querySelectorAll('figure')]
    .filter(figure => !figure.closest('details:not([open])'));
  for (const figure of shown) {
    figure.scrollIntoView();
    for (let n = 0; n < 2400 && !figure.dataset.drawn; n++)
      await new Promise(done => setTimeout(done, 25));
  }
  return shown.filter(figure => !figure.dataset.drawn).length;
})()"""
# Seconds since the start, of what a plot shows.
RANGE = f"""document.querySelector('[data-plot=gpu-util] .area').layout.xaxis.range
  .map(v => Math.round(v / 1000 - {BEGIN:.0f})).join()"""
RANGES = f"""[...document.querySelectorAll('figure[data-drawn] .area')]
  .filter(a => a.closest('figure').dataset.plot !== 'cpu-cores')
  .map(a => a.layout.xaxis.range.map(v => Math.round(v / 1000 - {BEGIN:.0f})).join())"""


@pytest.fixture(scope="module")
def one_of_four(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return page(traces.one_of_four().recording(), tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture(scope="module")
def tab(browser: Browser, one_of_four: Path) -> Iterator[Tab]:
    tab = browser.open(one_of_four)
    assert tab.run(THROUGH) == 0, "plots were not drawn"
    yield tab
    tab.close()


@pytest.fixture
def fresh(tab: Tab) -> Tab:
    """The page as it was opened."""
    tab.run("document.getElementById('farther').click(); document.getElementById('reset').click()")
    tab.run("document.querySelector('[data-plot=gpu-util]').scrollIntoView({block: 'start'})")
    tab.settle()
    return tab


def in_step(tab: Tab) -> str:
    """The range of time that all plots show; those off the screen once they come there."""
    assert tab.run(THROUGH) == 0
    tab.until(f"new Set({RANGES}).size === 1")
    return str(tab.run(RANGES)[0])


def test_it_opens_without_a_complaint_or_a_request_and_has_its_plots(
    tab: Tab, one_of_four: Path
) -> None:
    assert tab.complaints() == []
    assert tab.requests() == [one_of_four.as_uri()]
    assert tab.run(DRAWN) >= 15
    heat = tab.run("document.querySelectorAll('[data-plot=gpu-util] .heatmaplayer image').length")
    assert heat == 1
    cells = tab.run("document.querySelector('[data-plot=gpu-util] .area').data.at(-2).z")
    assert len(cells) == 4
    means = [sum(filter(None, row.values())) / len(row) for row in cells]
    assert means[0] == pytest.approx(92.7, abs=1)
    assert means[1:] == [0, 0, 0]


@pytest.mark.slow
def test_dragging_and_buttons_zoom_all_plots(fresh: Tab) -> None:
    box = fresh.run(
        "(() => { const b = document.querySelector('[data-plot=gpu-util] .nsewdrag')"
        ".getBoundingClientRect(); return [b.x, b.y, b.width, b.height]; })()"
    )
    x, y, width, height = box
    row = y + height / 2
    fresh.mouse("mouseMoved", x + width * 0.25, row)
    fresh.mouse("mousePressed", x + width * 0.25, row, buttons=1)
    fresh.mouse("mouseMoved", x + width * 0.4, row, buttons=1)
    fresh.mouse("mouseMoved", x + width * 0.5, row, buttons=1)
    fresh.mouse("mouseReleased", x + width * 0.5, row)
    fresh.until(f"{RANGE} !== '0,5520'")
    begin, end = map(int, in_step(fresh).split(","))
    assert begin == pytest.approx(5520 * 0.25, abs=30)
    assert end == pytest.approx(5520 * 0.5, abs=30)
    assert "min" in fresh.run("document.getElementById('shown').textContent")

    for button, shown in (("reset", "0,5520"), ("closer", "1380,4140"), ("later", "2760,5520")):
        fresh.run(f"document.getElementById('{button}').click()")
        fresh.run("document.querySelector('[data-plot=gpu-util]').scrollIntoView({block: 'start'})")
        fresh.until(f"{RANGE} === '{shown}'")
    assert in_step(fresh) == "2760,5520"


@pytest.mark.slow
def test_hover_names_the_gpu_and_a_finding_shows_its_gpus(fresh: Tab) -> None:
    x, y, width, height = fresh.run(
        "(() => { const b = document.querySelector('[data-plot=gpu-util] .heatmaplayer image')"
        ".getBoundingClientRect(); return [b.x, b.y, b.width, b.height]; })()"
    )
    fresh.mouse("mouseMoved", x + width * 0.5, y + height * 0.1)
    hover = "document.querySelector('[data-plot=gpu-util] .hoverlayer')?.textContent"
    fresh.until(f"{hover}?.includes('jrc0001:0')")
    said = fresh.run(hover)
    assert re.search(r"9\d(\.\d+)? %", said)
    assert re.search(r"18:(45|46):\d\d", said)

    fresh.run("document.querySelector('[data-mark]').click()")
    fresh.until(
        "JSON.stringify(document.querySelector('[data-plot=gpu-util] .area').layout.shapes"
        ".filter(s => s.type === 'rect' && s.yref === 'y2').map(s => [s.y0, s.y1]))"
        " === '[[0.5,3.5]]'"
    )
    assert fresh.run("document.querySelector('[data-mark]').getAttribute('aria-pressed')") == "true"
    fresh.run("document.getElementById('reset').click()")

    # Lines in the place of heat maps.
    fresh.run("document.getElementById('lines').click()")
    kinds = "document.querySelector('[data-plot=gpu-util] .area').data.map(d => d.type).join()"
    fresh.until(f"{kinds} === 'scatter,scatter,scatter,scatter'")
    fresh.run("document.getElementById('lines').click()")


@pytest.mark.slow
def test_dark_and_light_an_address_that_names_a_stretch_and_the_printer(
    browser: Browser, one_of_four: Path, tmp_path: Path
) -> None:
    tab = browser.open(one_of_four, dark=True, fragment="#zoom=600,1200")
    paper = "getComputedStyle(document.body).backgroundColor"
    grid = "document.querySelector('[data-plot=gpu-util] .area').layout.font.color"
    tab.run("document.querySelector('[data-plot=gpu-util]').scrollIntoView()")
    tab.until("document.querySelector('[data-plot=gpu-util]').dataset.drawn")
    assert set(tab.run(RANGES)) == {"600,1200"}
    dark = tab.run(paper), tab.run(grid)
    assert tab.run("document.getElementById('theme').textContent") == "Light"
    tab.run("document.getElementById('theme').click()")
    tab.until(f"{paper} !== '{dark[0]}' && {grid} !== '{dark[1]}'")
    tab.pdf(tmp_path / "printed.pdf")
    data = (tmp_path / "printed.pdf").read_bytes()
    assert data.startswith(b"%PDF")
    assert 3 <= len(re.findall(rb"/Type\s*/Page\b", data)) <= 20
    assert tab.complaints() == []
    tab.close()


def test_hostile_names_are_text_in_the_plots_too(browser: Browser, tmp_path: Path) -> None:
    evil = "<img src=x onerror=alert(1)>&\"'</script><b>\u202e"
    base = made(nodes=2)
    heads = tuple(replace(head, node=f"{evil}{at}") for at, head in enumerate(base.heads))
    facts = replace(base.facts, name=evil, command=evil)
    steps = replace(
        base.steps, extra={evil: base.steps.time * 0 + 1.0, "constructor": base.steps.time}
    )
    hostile = replace(base, heads=heads, facts=facts, steps=steps)
    tab = browser.open(page(hostile, tmp_path / "hostile.html"))
    tab.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert tab.run(THROUGH) == 0
    assert tab.complaints() == []
    assert len(tab.requests()) == 1
    assert tab.run("document.querySelectorAll('main img, main b > img').length") == 0
    ticks = tab.run("document.querySelector('[data-plot=gpu-util] .y2tick text').textContent")
    assert ticks.startswith("<img src=x")
    tab.close()


@pytest.mark.slow
def test_nothing_recorded_is_no_trouble(browser: Browser, tmp_path: Path) -> None:
    tab = browser.open(page(empty(), tmp_path / "page.html"))
    assert tab.run(THROUGH) == 0
    assert tab.complaints() == []
    assert tab.run("document.getElementById('trouble').hidden")
    tab.close()


def day() -> Recording:
    """A day on 1000 GPUs: a node unused, one GPU hot for a minute, ten minutes not sampled."""
    draw = np.random.default_rng(7)
    bins, gpus, count = 1440, 1000, 60_000
    levels = {"util": (94.0, 3.0), "power": (330.0, 14.0), "temperature": (62.0, 2.5)}
    levels |= {"memory": (3e10, 2e8), "nvlink": (2e10, 1e9), "processes": (1.0, 0.0)}
    channels = {}
    for name, (middle, spread) in levels.items():
        noise = draw.standard_normal((bins, gpus), dtype=np.float32).clip(-2, 2)
        channels[name] = np.float32(middle) + np.float32(spread) * noise
        channels[name][700:712] = np.nan
    for name, value in (("util", 0), ("power", 55), ("memory", 5e6), ("processes", 0)):
        channels[name][:, 40:44] = value
    channels["temperature"][300, 777] = 93.0
    step = np.arange(1, count + 1)
    steps = Steps(
        time=BEGIN + 60 + step * 1.4,
        step=step,
        loss=2.1 + 8.5 / (1 + step / 400) ** 0.6 + 0.03 * draw.standard_normal(count),
        seconds=1.4 + 0.02 * draw.standard_normal(count),
        rate=4e6 + 2e4 * draw.standard_normal(count),
        data_wait=0.01 + 0.001 * draw.standard_normal(count),
        mfu=np.full(count, np.nan),
        unit="tokens",
    )
    covered = np.ones((bins, 250), np.float32)
    covered[700:712] = 0
    return made(250, 4, bins, 60.0, steps=steps, covered=covered, **channels)


@pytest.mark.slow
def test_a_day_on_a_thousand_gpus(browser: Browser, tmp_path: Path) -> None:
    path = page(day(), tmp_path / "day.html")
    assert path.stat().st_size < LIMIT
    tab = browser.open(path)
    # A peak of one sample on one GPU of a thousand is on the page.
    tab.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert tab.run(THROUGH) == 0
    high = tab.run(
        "Math.max(...document.querySelector('[data-plot=gpu-temperature] .area')"
        ".data[0].y.filter(Number.isFinite))"
    )
    assert high == pytest.approx(93, abs=0.1)
    # Above 64 GPUs a row is a node; a finding brings its own of 250 near.
    tab.run("document.querySelector('[data-mark]').click()")
    assert tab.run(THROUGH) == 0
    rows = tab.run("document.querySelector('[data-plot=gpu-util] .area').layout.yaxis2.range")
    assert rows == [18.5, 1.5]
    assert tab.complaints() == []
    tab.close()
