"""The report of a fit, opened from disk in Chromium."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from playwright.sync_api import Browser, Page

from lib.preferences.labels import Label, LabelLog
from lib.preferences.segment_db import SegmentDB
from lib.preferences.segments import save_segment
from lib.reporting import Charts
from lib.reward.report import report_path, write_report
from tests.reward.fits import unfitted

EVIL = "<img src=x onerror='window.pwned=1'><script>window.pwned=1</script>"


@pytest.fixture(scope="module")
def report(seaquest: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a model with random weights, on eight segments of real play."""
    folder = tmp_path_factory.mktemp("report")
    db, names = SegmentDB(seaquest), SegmentDB(seaquest).names[:8]
    (folder / "db").mkdir()
    for name in names:
        save_segment(folder / "db" / name, db.load(name))
    log = LabelLog(folder / "db" / "labels.json")
    for number, (one, other) in enumerate(itertools.combinations(names, 2)):
        log.append(Label(one, other, 1 + number % 2, annotator=EVIL if number < 3 else "ada", flag=EVIL))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    fit = unfitted(folder / "db", folder / "out", members=1)
    write_report(fit, Charts(None))
    torch.set_num_threads(threads)
    return report_path(fit.path)


class Opened:
    """A page from disk, and what it complained about or asked for."""

    def __init__(self, page: Page, path: Path) -> None:
        self.page, self.complaints, self.requests = page, list[str](), list[str]()
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))
        page.goto(path.as_uri())


@pytest.fixture
def opened(browser: Browser, report: Path) -> Iterator[Opened]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    opened = Opened(context.new_page(), report)
    yield opened
    context.close()
    assert opened.complaints == []
    assert [url for url in opened.requests if not url.startswith("data:")] == [report.as_uri()]


def test_clips_play_and_move_the_cursor_of_their_curve(opened: Opened) -> None:
    page = opened.page
    clip = page.locator(".clip").first
    clip.scroll_into_view_if_needed()
    said = clip.locator("output")
    cursor = clip.locator("line.cursor")
    page.wait_for_function("document.querySelector('.clip output').textContent.startsWith('step ')")
    place, before = cursor.get_attribute("x1"), said.inner_text()
    page.wait_for_function(
        "before => document.querySelector('.clip output').textContent != before", arg=before
    )
    assert cursor.get_attribute("x1") != place
    assert page.locator(".clip output:not([aria-live=off])").count() == 0, "what plays is not read aloud"
    colours = "canvas => new Set(canvas.getContext('2d').getImageData(0, 0, 160, 210).data).size"
    assert clip.locator("canvas").evaluate(colours) > 10

    clip.get_by_role("button", name="Pause").click()
    held = said.inner_text()
    page.wait_for_timeout(300)
    assert said.inner_text() == held
    slider = clip.get_by_role("slider")
    slider.focus()
    page.keyboard.press("End")
    assert said.inner_text().startswith("step 50 of 50: ")
    right = cursor.get_attribute("x1")
    page.keyboard.press("Home")
    assert said.inner_text().startswith("step 1 of 50: ")
    assert float(cursor.get_attribute("x1") or 0) < float(right or 0)


def test_all_clips_stop_and_go_with_one_button(opened: Opened) -> None:
    page = opened.page
    page.get_by_role("button", name="Pause all clips").click()
    assert page.locator(".clip button").all_inner_texts() == ["Play"] * 8
    page.get_by_role("button", name="Play all clips").click()
    assert page.locator(".clip button").all_inner_texts() == ["Pause"] * 8


def test_who_asks_for_less_motion_gets_still_clips(browser: Browser, report: Path) -> None:
    context = browser.new_context(reduced_motion="reduce")
    page = Opened(context.new_page(), report).page
    page.wait_for_function("document.querySelector('.clip output').textContent.startsWith('step 1 ')")
    assert page.locator(".clip button").all_inner_texts() == ["Play"] * 8
    assert page.get_by_role("button", name="Play all clips").is_visible()
    context.close()


def test_hostile_names_are_text(opened: Opened) -> None:
    page = opened.page
    assert EVIL in page.locator("td").all_inner_texts()
    assert page.evaluate("window.pwned") is None


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_and_can_be_read_in_either_theme(browser: Browser, report: Path, scheme: str) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 800}, color_scheme=scheme)  # type: ignore[arg-type]
    page = Opened(context.new_page(), report).page
    # Contrast of text at least 4.5:1 (WCAG 2.1, 1.4.3), axis labels included.
    worst = """() => {
      const light = (colour) => {
        const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map((value) => {
          value /= 255;
          return value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
        });
        return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
      };
      const ground = light(getComputedStyle(document.querySelector("section")).backgroundColor);
      const texts = [...document.querySelectorAll("section p, section h2, td, svg text, figcaption, output")];
      return Math.min(...texts.map((element) => {
        const style = getComputedStyle(element);
        const ink = light(element.closest("svg") ? style.fill : style.color);
        return Math.max(ink, ground) / Math.min(ink, ground);
      }));
    }"""
    for width in (390, 1280):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(worst) >= 4.5
    context.close()
