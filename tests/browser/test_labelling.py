"""Labelling by keys and buttons, as a person does."""

import base64
import itertools
import re
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from playwright.sync_api import Route

from benchmarks.site import Site
from lib.preferences.schedule import LabelPlan, ProgressWriter, TrainingProgress
from lib.preferences.segments import Segment, load_segment, save_segment
from tests.browser.conftest import PATIENCE, READY, Enter, Serve


def test_every_answer_by_key(site: Site, enter: Enter) -> None:
    tab = enter(site).label()
    tab.press("1", "2", "0", "x")
    tab.wait_labels(4)
    for line, said in zip(site.labels(), ("left", "right", 0, None), strict=True):
        better = {"left": line["left"], "right": 3 - line["left"]}.get(str(said), said)
        assert line["label"] == better
        assert line["annotator"] == site.name
        assert line["strategy"] == "random"
        assert 100 < line["response_ms"] < 20_000
        assert abs(line["time"] - time.time()) < 60


def test_every_answer_by_button_and_keys_after_a_click(site: Site, enter: Enter) -> None:
    tab = enter(site, plays=True).label()
    for count, name in enumerate(
        ("1 Left better", "2 Right better", "0 Both alike", "X Can’t tell"), start=1
    ):
        tab.ready()
        tab.page.get_by_role("button", name=name).click()
        tab.wait_labels(count)
    for button in ("#pause", "#pause", "#replay", "#speed [data-speed='4']"):
        tab.page.click(button)
    tab.press("1")
    assert len(site.labels()) == 5
    tab.ready()
    tab.page.click("#undo")
    tab.wait_status("Undone")
    tab.page.keyboard.press("Space")  # pauses; does not press the button that was clicked last
    assert tab.page.inner_text("#pausetext") == "Play"
    tab.wait_labels(6)


def test_a_key_held_down_answers_once_also_on_a_button(site: Site, enter: Enter) -> None:
    tab = enter(site).label()
    tab.ready()
    tab.hold("1")
    tab.wait_saved()
    assert len(site.labels()) == 1
    tab.ready()
    tab.page.focus("[data-answer='1']")
    tab.hold("Enter")
    tab.wait_saved()
    assert len(site.labels()) == 2
    tab.press("2")
    assert len(site.labels()) == 3


def test_undo_any_number_back_and_answer_again(site: Site, enter: Enter) -> None:
    tab = enter(site).label()
    pairs = []
    for _ in range(3):
        tab.ready()
        pairs.append(tab.shown())
        tab.press("1")
    for key, pair in zip(("u", "Backspace", "u"), reversed(pairs), strict=True):
        tab.page.keyboard.press(key)
        tab.ready()
        assert tab.shown() == pair
    tab.wait_labels(6)
    assert site.standing() == {}
    tab.page.keyboard.press("u")
    tab.wait_status("nothing to undo")
    tab.press("x", "0", "2")
    assert len(site.standing()) == 3
    tab.page.reload()
    tab.ready()
    tab.page.keyboard.press("u")  # what was answered before the reload can be undone as well
    tab.wait_status("Undone: 2 better")
    tab.wait_labels(10)
    assert len(site.standing()) == 2


def test_undo_pressed_twice_takes_no_answer_back_twice(site: Site, enter: Enter) -> None:
    tab = enter(site).label()
    tab.press("1")
    tab.page.reload()
    tab.ready()
    held: list[Route] = []
    tab.page.route("**/api/undo", lambda route: held.append(route))
    tab.page.keyboard.press("u")
    tab.wait_status("Undone: 1 better")
    tab.page.keyboard.press("u")
    tab.wait_status("There is nothing to undo.")
    held[0].continue_()
    tab.wait_labels(2)


def test_no_answer_before_the_clips_are_there(site: Site, enter: Enter) -> None:
    tab = enter(site)
    held: list[Any] = []
    tab.page.route("**/clip/*", lambda route: held.append(route))
    tab.page.goto(f"{site.base}/label")
    tab.page.wait_for_selector("#list [aria-current]")
    for key in ("1", "2", "0", "x"):
        tab.page.keyboard.press(key)
        tab.page.wait_for_timeout(60)
    assert tab.page.locator("[data-answer='1']").is_disabled()
    assert site.labels() == []
    for route in held:
        route.continue_()
    tab.page.unroute("**/clip/*")
    tab.press("1")
    assert len(site.labels()) == 1


def test_a_flag_with_a_note_goes_with_the_answer_by_key_or_mouse(site: Site, enter: Enter) -> None:
    tab = enter(site).label()
    tab.page.keyboard.press("f")
    tab.page.keyboard.type("1 diver, 0 air: x")  # letters and digits are text here, not answers
    assert site.labels() == []
    tab.page.keyboard.press("Enter")
    tab.press("2", "1")
    assert [line.get("flag") for line in site.labels()] == ["1 diver, 0 air: x", None]
    tab.page.keyboard.press("f")
    tab.page.keyboard.type("never mind")
    tab.page.keyboard.press("Escape")
    tab.press("1")
    assert "flag" not in site.labels()[-1]
    tab.ready()
    tab.page.keyboard.press("f")
    tab.page.keyboard.type("flickers")
    tab.page.get_by_role("button", name="2 Right better").click()  # without Enter
    tab.wait_labels(4)
    assert site.labels()[-1]["flag"] == "flickers"


def test_frames_are_exact_and_step_by_step(site: Site, enter: Enter) -> None:
    tab = enter(site).label()
    names = re.findall(r"\d+/\d+\.dat", tab.shown())
    segments = [load_segment(site.db / name) for name in names]

    def canvas(number: int) -> np.ndarray:
        url = tab.page.evaluate("id => document.getElementById(id).toDataURL('image/png')", f"canvas{number}")
        image = cv2.imdecode(np.frombuffer(base64.b64decode(url.split(",")[1]), np.uint8), cv2.IMREAD_COLOR)
        assert image is not None
        return image[..., ::-1]

    assert tab.page.inner_text("#pausetext") == "Play"
    tab.page.keyboard.press("1")
    tab.wait_status("Saved")
    left = site.labels()[0]["left"]
    tab.page.keyboard.press("u")
    tab.ready()
    order = segments if left == 1 else segments[::-1]
    for step, key in ((0, None), (1, "ArrowRight"), (0, "ArrowLeft"), (49, "ArrowLeft"), (48, "ArrowLeft")):
        if key:
            tab.page.keyboard.press(key)
        assert tab.page.inner_text("#step") == f"step {step + 1} / 50"
        for number, segment in enumerate(order, start=1):
            np.testing.assert_array_equal(canvas(number), segment.frames[step])
    assert tab.page.inner_text("#action1")


def test_playback_by_keys(site: Site, enter: Enter) -> None:
    tab = enter(site, plays=True).label()

    def step() -> int:
        return int(tab.page.inner_text("#step").split()[1])

    tab.page.keyboard.press("Space")
    paused = step()
    tab.page.wait_for_timeout(300)
    assert step() == paused
    # In one go, for a machine that is busy with other things plays on meanwhile.
    again = tab.page.evaluate(
        "() => { document.body.dispatchEvent(new KeyboardEvent('keydown', {key: 'r', bubbles: true}));"
        "return document.querySelector('#step').textContent; }"
    )
    assert again == "step 1 / 50"
    for key, speed in (
        ("-", "1"),
        ("-", "0.5"),
        ("-", "0.5"),
        ("+", "1"),
        ("+", "2"),
        ("+", "4"),
        ("+", "4"),
    ):
        tab.page.keyboard.press(key)
        assert tab.page.locator("#speed [aria-pressed=true]").get_attribute("data-speed") == speed
    # At 4× the 50 steps and the pause at their end take 0.92 s.
    seen = set()
    for _ in range(60):
        seen.add(step())
        tab.page.wait_for_timeout(15)
    assert len(seen) > 10
    tab.page.reload()
    tab.ready()
    assert tab.page.locator("#speed [aria-pressed=true]").get_attribute("data-speed") == "4", "kept"


@pytest.mark.parametrize("flag", ["", "--start-paused"])
def test_reduced_motion_or_a_flag_starts_paused(site: Site, serve: Serve, enter: Enter, flag: str) -> None:
    tab = (enter(serve(flag), plays=True) if flag else enter(site)).label()
    tab.page.wait_for_timeout(200)
    assert tab.page.inner_text("#step") == "step 1 / 50"
    tab.page.keyboard.press("Space")
    tab.page.wait_for_function("() => document.querySelector('#step').textContent !== 'step 1 / 50'")


def test_pixels_are_whole_and_both_clips_fit(site: Site, enter: Enter) -> None:
    tab = enter(site).label()
    for size, scale in (((1280, 720), 3), ((1024, 768), 2), ((1920, 1080), 4), ((900, 500), 1)):
        tab.page.set_viewport_size({"width": size[0], "height": size[1]})
        tab.page.wait_for_function(
            "scale => document.querySelector('#canvas1').clientWidth == 160 * scale", arg=scale
        )
        for id in ("#canvas1", "#canvas2", "#action2", "#status"):
            box = tab.page.locator(id).bounding_box()
            assert box is not None
            assert box["x"] + box["width"] <= size[0]
            assert box["y"] + box["height"] <= size[1]
        wide = tab.page.evaluate(
            "document.querySelector('.panel').scrollWidth - document.querySelector('.panel').clientWidth"
        )
        assert wide <= 0


def test_resample_strategy_and_jumping_in_the_batch(site: Site, enter: Enter) -> None:
    tab = enter(site).label()
    rows = tab.page.locator("#list button")
    before = [row.get_attribute("title") or "" for row in rows.all()]
    assert all(re.fullmatch(r"\S+\.dat and \S+\.dat", title) for title in before), (
        "repeat checks as all others"
    )
    tab.page.keyboard.press("n")
    tab.wait_status("New pairs drawn")
    tab.page.wait_for_function(
        "before => { const t = Array.from(document.querySelectorAll('#list button'), b => b.title);"
        "return t.length == before.length && t[0] == before[0] && t[1] != before[1]; }",
        arg=before,
    )
    wanted = rows.nth(3).get_attribute("title")
    rows.nth(3).click()
    tab.ready()
    assert tab.shown() == wanted
    assert tab.page.locator("#strategy option").all_inner_texts() == [
        "random",
        "recent",
        "diversity",
        "alike",
        "fork",
    ]


def test_when_pairs_run_out_it_says_so_and_new_segments_appear(
    serve: Serve, enter: Enter, seaquest: Path, tmp_path: Path
) -> None:
    db = tmp_path / "three"
    db.mkdir()
    source = load_segment(seaquest / "00/00000000.dat")

    def add(number: int) -> None:
        frames = source.frames.copy()
        frames[:, :20, : 10 + number] = 255
        save_segment(db / "00" / f"{number:08d}.dat", Segment(frames, source.actions, source.sidecar))

    tab = enter(serve(db=db))
    tab.page.goto(f"{tab.site.base}/label")
    tab.page.wait_for_selector("text=holds no clips yet")
    for key in ("r", "Space", "Space", "ArrowRight", "1", "u", "f", "n"):
        tab.page.keyboard.press(key)
    add(0)
    tab.page.wait_for_selector("text=There is one clip", timeout=PATIENCE)
    add(1)
    add(2)
    tab.ready()
    assert tab.page.locator("#notice").is_hidden()
    tab.ready()
    for _ in range(2):
        tab.press("1")
    tab.ready()
    tab.page.keyboard.press("1")
    tab.page.wait_for_selector("text=every one of the 3 pairs")
    pairs = {frozenset((line["sample1"], line["sample2"])) for line in tab.site.labels()}
    names = [f"00/{i:08d}.dat" for i in range(3)]
    assert pairs == {frozenset(pair) for pair in itertools.combinations(names, 2)}


def test_broken_and_odd_segments_get_a_sentence(
    serve: Serve, enter: Enter, seaquest: Path, tmp_path: Path
) -> None:
    db = tmp_path / "odd"
    db.mkdir()
    for number, (height, width) in enumerate([(210, 160), (84, 84), (64, 96)]):
        segment = Segment(np.full((8, height, width, 3), number * 40, np.uint8), np.zeros(8, np.int64), None)
        save_segment(db / "00" / f"{number:08d}.dat", segment)
    (db / "00/00000009.dat").write_bytes(b"no segment")
    tab = enter(serve(db=db))
    tab.page.goto(f"{tab.site.base}/label")
    tab.ready()
    tab.wait_status("")
    tab.page.wait_for_function(
        "() => /different sizes|Left out|left out/.test(document.querySelector('#status').textContent)"
    )
    for says in (
        "different sizes",
        "different sizes",
        "Saved",
    ):  # of the pair on screen, as long as there is one
        tab.press("x")
        tab.wait_status(says)
    tab.page.wait_for_selector("text=every one of the 3 pairs")
    assert all("00000009" not in line["sample1"] + line["sample2"] for line in tab.site.labels())
    tab.page.goto(f"{tab.site.base}/")
    tab.page.wait_for_selector("text=00/00000009.dat")


def test_the_name_is_asked_once_and_can_be_changed(serve: Serve, enter: Enter) -> None:
    site = serve()
    site.stop()
    site.flags = ("--repeat-rate", "0")
    site.start()
    tab = enter(site)
    tab.page.goto(f"{site.base}/label")
    tab.page.wait_for_selector("dialog[open]")
    tab.page.keyboard.press("1")
    for _ in range(2):  # a browser lets a page prevent the first only
        tab.page.keyboard.press("Escape")
    tab.page.fill("#askname", "grace")
    tab.page.keyboard.press("Enter")
    tab.press("1")
    tab.page.reload()
    tab.press("1")
    tab.page.click("#who")
    tab.page.fill("#askname", "hopper")
    tab.page.keyboard.press("Enter")
    tab.press("2")
    assert [line["annotator"] for line in site.labels()] == ["grace", "grace", "hopper"]


def test_nothing_comes_from_outside_or_goes_beyond_the_window(site: Site, enter: Enter) -> None:
    tab = enter(site)
    complaints: list[str] = []
    tab.page.on(
        "console", lambda message: complaints.append(message.text) if message.type == "error" else None
    )
    tab.label()
    tab.press("1", "1")
    for path, sign in (("/", ".figures"), ("/labels", "a.pair"), ("/label", "#list [aria-current]")):
        tab.page.goto(site.base + path)
        tab.page.wait_for_selector(sign)
        assert tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert {url.split("/")[2] for url in tab.requests if not url.startswith(("data:", "blob:"))} == {
        f"localhost:{site.port}"
    }
    assert complaints == []
    assert tab.page.locator("#status").get_attribute("aria-live") == "polite"


def test_buttons_work_by_tab_and_space_and_the_focus_stays_where_somebody_put_it(
    site: Site, enter: Enter
) -> None:
    tab = enter(site, plays=True).label()
    keyboard = tab.page.keyboard

    def walk(selector: str) -> None:
        for _ in range(40):
            keyboard.press("Tab")
            if tab.page.evaluate("selector => document.activeElement.matches(selector)", selector):
                return
        raise AssertionError(f"{selector} is not reached by Tab")

    walk("[data-answer='0']")
    assert tab.page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    for count in (1, 2):
        keyboard.press("Space")
        tab.wait_labels(count)
        tab.ready()
    tab.wait_status("Saved: alike")
    assert [line["label"] for line in site.labels()] == [0, 0]
    assert tab.page.evaluate("document.activeElement.dataset.answer") == "0"
    walk("#flag")
    keyboard.press("Enter")
    keyboard.type("odd")
    keyboard.press("Enter")
    assert tab.page.evaluate("document.activeElement.id") == "flag"
    assert tab.page.evaluate("document.activeElement.matches(':focus-visible')")
    walk("#list .button")
    keyboard.press("Tab")
    title = tab.page.evaluate("document.activeElement.title")
    keyboard.press("Enter")
    tab.ready()
    assert tab.shown() == title
    assert tab.page.evaluate("document.activeElement.title") == title
    tab.page.click("#flag")
    keyboard.press("Escape")
    keyboard.press("Space")
    assert tab.page.inner_text("#pausetext") == "Play", "after a click Space pauses again"


def test_keys_of_other_keyboards(site: Site, enter: Enter) -> None:
    tab = enter(site).label()
    count = 0
    for keyboard, key, code, shift, label in (
        ("French", "&", "Digit1", False, "left"),
        ("French with Shift", "1", "Digit1", True, "left"),
        ("Russian", "ч", "KeyX", False, None),
        ("English", "!", "Digit1", True, "none"),
        ("Dvorak", "q", "KeyX", False, "none"),
        ("Swiss", "+", "Digit1", True, "none"),
    ):
        tab.ready()
        tab.page.evaluate(
            "([key, code, shiftKey]) => document.body.dispatchEvent("
            "new KeyboardEvent('keydown', {key, code, shiftKey, bubbles: true}))",
            [key, code, shift],
        )
        if label == "none":
            tab.page.wait_for_timeout(300)
        else:
            count += 1
            tab.wait_labels(count)
        lines = site.labels()
        assert len(lines) == count, keyboard
        if label != "none":
            assert lines[-1]["label"] == (lines[-1]["left"] if label == "left" else label), keyboard
        speed = tab.page.locator("#speed [aria-pressed=true]").get_attribute("data-speed")
        assert speed == ("4" if key == "+" else "2"), keyboard


def test_each_key_press_is_timed_until_the_next_pair_plays(site: Site, enter: Enter) -> None:
    """What `benchmarks.label_page` reads; its figures are in docs/labelling.md."""
    tab = enter(site).label()
    tab.page.evaluate(
        "window.waits = []; new PerformanceObserver(list => {"
        "for (const entry of list.getEntries()) if (entry.name === 'next pair') waits.push(entry.duration);"
        "}).observe({type: 'measure'})"
    )
    for number in range(5):
        tab.ready()
        tab.page.keyboard.press("12"[number % 2])
        tab.page.wait_for_function("count => waits.length == count", arg=number + 1)
    assert all(wait > 0 for wait in tab.page.evaluate("waits"))


def test_a_flag_comes_back_with_an_undone_pair(site: Site, enter: Enter) -> None:
    tab = enter(site).label()
    tab.note("odd")
    tab.press("1")
    tab.page.keyboard.press("u")
    tab.ready()
    assert tab.page.locator("#flag").get_attribute("aria-pressed") == "true"
    tab.press("2")
    assert [line.get("flag") for line in site.labels() if not line.get("cancelled")] == ["odd", "odd"]


def test_a_note_outlives_a_reload_in_the_middle_of_its_pair(site: Site, enter: Enter) -> None:
    tab = enter(site).label()
    tab.note("odd")
    tab.page.reload()
    tab.ready()
    assert tab.page.locator("#flag").get_attribute("title") == "Flagged: odd"
    tab.press("1")
    assert site.labels()[-1]["flag"] == "odd"


def test_a_flag_stays_with_its_pair_while_another_is_answered(site: Site, enter: Enter) -> None:
    tab = enter(site).label()
    tab.press("1")
    tab.ready()
    flagged = tab.shown()
    tab.note("odd")
    tab.page.keyboard.press("u")
    tab.press("2")
    tab.ready()
    assert tab.shown() == flagged
    assert tab.page.locator("#flag").get_attribute("title") == "Flagged: odd"
    tab.press("1")
    assert site.labels()[-1]["flag"] == "odd"


def test_a_click_counts_though_the_list_is_renewed_meanwhile(site: Site, enter: Enter) -> None:
    tab = enter(site).label()
    row = tab.page.locator("#list button").nth(1)
    wanted = row.get_attribute("title")
    row.hover()
    tab.page.mouse.down()
    with tab.page.expect_response("**/api/batch"):
        tab.page.evaluate("() => document.dispatchEvent(new Event('visibilitychange'))")
    tab.page.wait_for_timeout(200)  # the reply is shown
    tab.page.mouse.up()
    tab.page.wait_for_function(
        "wanted => document.querySelector('#list [aria-current]').title === wanted", arg=wanted
    )


def test_new_pairs_leave_the_pair_on_screen_whenever_they_come(site: Site, enter: Enter) -> None:
    tab = enter(site).label()
    held: list[Any] = []
    released: list[bool] = []
    tab.page.route("**/api/batch", lambda route: route.continue_() if released else held.append(route))
    tab.page.evaluate("() => document.dispatchEvent(new Event('visibilitychange'))")
    tab.page.keyboard.press("n")
    tab.press("1")
    tab.ready()
    shown = tab.shown()
    ahead = tab.page.locator("#list button").last.get_attribute("title")
    released.append(True)
    for route in held:
        route.continue_()
    tab.page.wait_for_function(
        "last => Array.from(document.querySelectorAll('#list button')).at(-1).title !== last", arg=ahead
    )
    tab.page.wait_for_timeout(500)
    assert tab.shown() == shown


def test_a_clip_that_failed_once_does_not_hold_answers_up(site: Site, enter: Enter) -> None:
    tab = enter(site)
    failed: list[str] = []

    def fail_once(route: Any) -> None:
        if failed:
            route.continue_()
        else:
            failed.append(route.request.url)
            route.fulfill(status=503, json={"error": "a test"})

    tab.page.route("**/clip/*", fail_once)
    tab.page.goto(f"{site.base}/label")
    tab.page.wait_for_selector(READY, timeout=PATIENCE // 5)  # not only at the next heartbeat
    tab.page.keyboard.press("1")
    assert failed


def test_the_page_says_what_a_training_has_due(serve: Serve, enter: Enter) -> None:
    site = serve("--name", "ada")
    tab = enter(site).label()
    tab.ready()
    assert "due" not in tab.page.inner_text("#pace")
    ProgressWriter(site.db).write(TrainingProgress(LabelPlan(100, 50, 2), 0, "waiting"))
    tab.press("1")
    tab.page.wait_for_function("document.getElementById('pace').textContent.includes('1 due')")
    tab.press("2")
    tab.page.wait_for_function("document.getElementById('pace').textContent.includes('none due')")


def test_a_pair_that_came_while_nobody_looked_is_timed_from_then_on(site: Site, enter: Enter) -> None:
    tab = enter(site).label()
    see = """state => {
        Object.defineProperty(document, "visibilityState", { value: state, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    tab.page.evaluate(see, "hidden")
    tab.page.wait_for_timeout(1500)
    tab.press("1")
    tab.ready()
    tab.page.evaluate(see, "visible")
    tab.press("2")
    tab.wait_labels(2)
    assert 0 <= site.labels()[1]["response_ms"] < 20_000


def test_a_tab_opened_in_the_background_is_timed_once_it_is_seen(site: Site, enter: Enter) -> None:
    tab = enter(site)
    see = "state => Object.defineProperty(document, 'visibilityState', {{ value: {}, configurable: true }})"
    tab.page.add_init_script(f"({see.format('state')})(sessionStorage.seen ?? 'hidden')")
    tab.label()
    tab.page.wait_for_timeout(3000)
    tab.page.evaluate(see.format("'visible'"))
    tab.page.evaluate("() => document.dispatchEvent(new Event('visibilitychange'))")
    tab.page.keyboard.press("1")
    tab.wait_labels(1)
    assert site.labels()[0]["response_ms"] < 2500


def test_an_answer_that_is_not_counted_is_not_passed_over(site: Site, enter: Enter) -> None:
    tab = enter(site).label()
    tab.page.route(
        "**/api/vote", lambda route: route.fulfill(json={"outcome": "dropped", "reason": "a test"})
    )
    tab.press("1")
    tab.wait_status("An answer was not counted: a test.")
    tab.page.wait_for_timeout(300)
    assert "not counted" in tab.status()
    tab.page.unroute("**/api/vote")
    tab.press("1")
    tab.wait_status("Saved: ")


def test_flags_hold_until_somebody_chooses_otherwise(serve: Serve, enter: Enter) -> None:
    """A name typed for another DB at this address, and a speed that nobody chose, say nothing."""
    site = serve()
    tab = enter(site).overview()
    tab.page.evaluate("localStorage.labeller = 'bob'")
    tab.label()
    site.stop()
    site.flags += ("--speed", "0.5")
    site.start()
    tab.label()
    assert tab.page.inner_text("#who") == "ada"
    pressed = tab.page.locator("#speed [aria-pressed='true']")
    assert pressed.inner_text() == "½×"
    tab.page.click("#speed [data-speed='4']")
    tab.page.click("#who")
    tab.page.fill("#askname", "eve")
    tab.page.keyboard.press("Enter")
    tab.page.reload()
    tab.ready()
    assert (tab.page.inner_text("#who"), pressed.inner_text()) == ("eve", "4×")


def test_what_goes_wrong_is_seen_in_a_small_window(site: Site, enter: Enter) -> None:
    tab = enter(site, viewport={"width": 844, "height": 390}).label()
    for width, height in ((844, 390), (768, 432), (390, 844), (360, 640), (640, 360)):
        tab.page.set_viewport_size({"width": width, "height": height})
        tab.ready()
        assert tab.page.locator("#bar1").evaluate("bar => bar.clientWidth") >= 30
        tab.offline()
        tab.page.keyboard.press("1")
        tab.wait_status("waits in this browser")
        box = tab.page.locator("#status").bounding_box()
        assert box is not None
        assert 0 < box["y"] < box["y"] + box["height"] <= height
        tab.online()
        tab.wait_saved()


BEYOND = """() => [...document.querySelectorAll("button, .nav a, select")].filter((part) => {
  if (!part.offsetParent) return false;
  const inside = document.createRange();
  inside.selectNodeContents(part);
  const text = inside.getBoundingClientRect(), own = part.getBoundingClientRect();
  return part.tagName === "SELECT" ? part.clientWidth < 60 : text.left < own.left + 1 || text.right > own.right - 1;
}).map((part) => part.textContent)"""
"""What is written on buttons beyond their edges; lists of choices too narrow to be read."""


def test_words_stay_on_their_buttons_in_fonts_of_other_systems(site: Site, enter: Enter) -> None:
    site.name = "elisabeth"
    tab = enter(site).label()
    sizes = ((1280, 720), (1366, 657))
    for font, model, (width, height) in itertools.product(("DejaVu Sans", "serif"), (False, True), sizes):
        tab.page.evaluate("model => { document.querySelector('#model').hidden = !model; }", model)
        tab.page.evaluate(
            "font => document.documentElement.style.setProperty('--font', font)", f"'{font}', {font}"
        )
        tab.page.set_viewport_size({"width": width, "height": height})
        assert tab.page.evaluate(BEYOND) == [], (font, model, width)
        assert tab.page.evaluate("() => document.documentElement.scrollWidth") == width, (font, model)


def test_the_last_frame_is_held_before_a_clip_begins_again(site: Site, enter: Enter) -> None:
    tab = enter(site).label()
    tab.page.keyboard.press("ArrowLeft")  # from the first step to the last
    assert tab.page.inner_text("#step") == "step 50 / 50"
    held = tab.page.evaluate("""() => new Promise((done) => {
      const step = document.querySelector("#step"), began = performance.now();
      const changed = new MutationObserver(() => done(performance.now() - began));
      changed.observe(step, {childList: true, characterData: true, subtree: true});
      document.querySelector("#pause").click();
    })""")
    assert held >= 400  # ms


def test_at_200_percent_the_answers_stand_below_the_clips_and_in_sight(site: Site, enter: Enter) -> None:
    site.name = "elisabeth"
    tab = enter(site).label()
    tab.page.set_viewport_size({"width": 640, "height": 360})  # CSS pixels of 1280×720
    tab.page.wait_for_function("() => document.querySelector('#canvas1').getBoundingClientRect().x >= 0")
    clips = [tab.page.locator(f"#canvas{number}").bounding_box() for number in (1, 2)]
    answers = [
        tab.page.locator(f"[data-answer='{answer}']").bounding_box() for answer in ("1", "2", "0", "x")
    ]
    for clip in clips:
        assert clip is not None
        assert clip["x"] >= 0
        assert clip["y"] >= 0
        assert clip["width"] > 100
        for answer in answers:
            assert answer is not None
            assert clip["y"] + clip["height"] < answer["y"]
            assert answer["y"] + answer["height"] <= 360
    assert tab.page.evaluate("() => document.documentElement.scrollWidth") == 640
    assert tab.page.evaluate(BEYOND) == []


def test_a_phone_held_sideways_shows_the_answers_beside_the_hints(site: Site, enter: Enter) -> None:
    tab = enter(site, hints=True, viewport={"width": 844, "height": 390}).label()
    box = tab.page.locator("[data-answer='x']").bounding_box()
    assert box is not None
    assert box["y"] + box["height"] < 350


def test_hints_stay_until_they_are_dismissed(site: Site, enter: Enter) -> None:
    tab = enter(site, hints=True).label()
    hints = tab.page.locator("#hints")
    tab.press("1")
    assert hints.is_visible()
    assert tab.page.evaluate("() => document.documentElement.scrollHeight") == 720
    tab.page.reload()
    tab.ready()
    assert hints.is_visible()
    tab.page.get_by_role("button", name="Got it").click()
    assert hints.is_hidden()
    tab.press("2")
    tab.page.reload()
    tab.ready()
    assert hints.is_hidden()


@pytest.mark.parametrize(("width", "height"), [(390, 844), (1024, 768)], ids=["phone", "tablet"])
def test_answers_by_touch(site: Site, enter: Enter, width: int, height: int) -> None:
    held = {"viewport": {"width": width, "height": height}, "has_touch": True, "is_mobile": True}
    tab = enter(site, hints=True, plays=True, **held).label()
    assert tab.page.evaluate("() => document.documentElement.scrollWidth") == width
    for answer in ("1", "2", "0", "x"):
        box = tab.page.locator(f"[data-answer='{answer}']").bounding_box()
        assert box is not None
        assert box["height"] >= 44  # Apple's and Google's guidelines: 44 to 48
        assert box["width"] >= 100
        assert box["y"] + box["height"] <= height  # in sight, below the clips
    for count, answer in enumerate(("1", "0", "2"), 1):
        tab.ready()
        tab.page.locator(f"[data-answer='{answer}']").tap()
        tab.wait_labels(count)
    lines = site.labels()
    assert [line["label"] for line in lines] == [lines[0]["left"], 0, 3 - lines[2]["left"]]
    tab.ready()
    tab.page.locator("#pause").tap()
    assert tab.page.inner_text("#pausetext") == "Play"
    tab.page.locator("#undo").tap()
    tab.wait_status("Undone")
