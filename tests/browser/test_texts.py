"""Answers of a language model in front of a labeller."""

import time
from pathlib import Path

import pytest
from playwright.sync_api import Page

from lib.preferences.answers import Answer, load_answer, prompt_of, save_answer
from lib.preferences.prompts import Message
from lib.preferences.segment_db import SegmentDB
from tests.browser.conftest import Enter, Serve
from tests.text.dbs import answer_db, answers_to, random_texts


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    return answer_db(tmp_path / "texts", random_texts(6, 3), policy="secret-policy")


def test_answers_by_key_with_undo_and_both_texts_of_one_prompt(
    texts: Path, serve: Serve, enter: Enter
) -> None:
    site = serve(db=texts)
    tab = enter(site).label()
    db = SegmentDB(texts)
    for key in ("1", "2", "0", "x"):
        tab.ready()
        shown = [tab.page.inner_text(f"#text{side}") for side in (1, 2)]
        prompt = tab.page.inner_text("#prompt")
        left_words, right_words = (len(text.split()) for text in shown)
        counts = f"Words: {left_words} and {right_words}."
        assert counts not in tab.status()
        tab.press(key)
        tab.wait_status(counts)
        line = site.labels()[-1]
        names = [line["sample1"], line["sample2"]]
        assert prompt_of(names[0]) == prompt_of(names[1])
        left, right = (load_answer(db, name) for name in (names if line["left"] == 1 else names[::-1]))
        assert [left.text, right.text] == shown
        assert left.prompt == right.prompt == prompt
        better = {"1": line["left"], "2": 3 - line["left"], "0": 0, "x": None}[key]
        assert line["label"] == better
    buttons = [tab.page.inner_text(f"[data-answer='{side}']").split("\n")[-1] for side in (1, 2)]
    assert [words.removeprefix(f"{side} ") for side, words in enumerate(buttons, 1)] == [
        "First better",
        "Second better",
    ]
    tab.page.keyboard.press("u")
    tab.wait_status("Undone")
    tab.press("1")
    assert len(site.standing()) == 4
    before = len(site.labels())
    tab.ready()
    tab.page.focus("[data-answer='1']")
    tab.hold("Enter")
    tab.wait_saved()
    assert len(site.labels()) == before + 1, "held down it answers once"
    assert not tab.page.is_visible("#canvas1")
    assert not tab.page.is_visible("#pause")
    assert "secret-policy" not in tab.page.content()
    assert not any("/thumb/" in url or "/clip/" in url for url in tab.requests)


def test_answers_may_come_into_a_db_that_was_empty(tmp_path: Path, serve: Serve, enter: Enter) -> None:
    (tmp_path / "texts").mkdir()
    site = serve("--strategy", "recent", db=tmp_path / "texts")
    tab = enter(site)
    tab.page.goto(f"{site.base}/label")
    tab.page.wait_for_selector("text=no clips yet")
    answer_db(tmp_path / "texts", random_texts(6, 3))
    tab.press("1", "2", "1", "2", "1", "2")
    assert {line["strategy"] for line in site.labels()} >= {"recent"}
    assert all(prompt_of(line["sample1"]) == prompt_of(line["sample2"]) for line in site.labels())


def test_the_overview_counts_the_pairs_within_each_prompt(texts: Path, serve: Serve, enter: Enter) -> None:
    page = enter(serve(db=texts)).overview().page
    page.set_viewport_size({"width": 390, "height": 844})
    figures = page.locator(".figures p")
    figures.first.wait_for()
    assert [figure.split() for figure in figures.all_inner_texts()[:3]] == [
        ["18", "answers"],
        ["0", "labels"],
        ["18", *["pairs", "not", "asked", "yet"]],
    ]
    assert all(
        box["scrollWidth"] <= box["clientWidth"]
        for box in figures.evaluate_all(
            "all => all.map(({scrollWidth, clientWidth}) => ({scrollWidth, clientWidth}))"
        )
    )


def test_each_line_runs_in_its_own_direction(tmp_path: Path, serve: Serve, enter: Enter) -> None:
    db = answer_db(tmp_path / "texts", [["The sea.\nהים.", "The sea.\nהים!"]])
    tab = enter(serve(db=db)).label()
    lines = tab.page.evaluate(
        """() => {
          const range = document.createRange();
          range.selectNodeContents(document.getElementById("text1"));
          return Array.from(range.getClientRects(), ({ left }) => left);
        }"""
    )
    assert lines[-1] > lines[0] + 100


def test_an_answer_is_text_whatever_is_in_it(tmp_path: Path, serve: Serve, enter: Enter) -> None:
    evil = "<script>document.title='ran'</script><img src=x onerror=\"document.title='ran'\">\n\n  two  spaces &amp;"
    other = "שלום עולם 🙂👩‍👩‍👧 **not bold**"
    prompt = "<b>prompt</b>\nمرحبا"
    db = answers_to(tmp_path / "texts", prompt, evil)
    save_answer(db / "00" / "00000001.dat", Answer(prompt, other, finished=False))
    tab = enter(serve(db=db)).label()
    found = {
        tab.page.text_content(f"#text{side}"): (
            tab.page.text_content(f"#end{side}"),
            tab.page.evaluate(
                "id => { const s = getComputedStyle(document.getElementById(id)); return [s.direction, s.whiteSpace]; }",
                f"text{side}",
            ),
        )
        for side in (1, 2)
    }
    assert found == {evil: ("■", ["ltr", "pre-wrap"]), other: ("… cut off", ["rtl", "pre-wrap"])}
    assert tab.page.text_content("#prompt") == "<b>prompt</b>\nمرحبا"
    assert tab.page.title() == "Label"
    assert tab.page.locator("#stage :is(img, script, b)").count() == 0


def test_long_answers_scroll_together_under_their_prompt(tmp_path: Path, serve: Serve, enter: Enter) -> None:
    long = ["\n".join(f"{i} {line}" for i in range(900))[:65_000] for line in ("word " * 13, "other " * 11)]
    db = answers_to(tmp_path / "texts", "The prompt", *long)
    tab = enter(serve(db=db)).label()

    def tops() -> list[float]:
        ids = ["prompt", "text1", "text2"]
        found: list[float] = tab.page.evaluate(
            "ids => ids.map(id => document.getElementById(id).getBoundingClientRect().top)", ids
        )
        return found

    before = tops()
    assert before[1] == before[2]
    for _ in range(5):
        tab.page.keyboard.press("Space")
    after = tops()
    assert after[0] == before[0]
    assert after[1] == after[2] < before[1] - 1000
    tab.page.keyboard.press("r")
    assert tops() == before
    width = tab.page.evaluate("document.getElementById('text1').getBoundingClientRect().width")
    assert 300 < width < 640
    tab.page.set_viewport_size({"width": 700, "height": 900})
    narrow = tops()
    assert narrow[2] > narrow[1] + 1000  # one below the other


def test_a_dialogue_shows_who_says_what_and_ends_in_view(tmp_path: Path, serve: Serve, enter: Enter) -> None:
    prompt = (
        Message("system", "Be <b>brief</b>."),
        Message("user", "What is tea?"),
        Message("assistant", "A drink.\n" * 40),
        Message("user", "Hot?"),
    )
    db = answers_to(tmp_path / "texts", prompt, "Answer 0", "Answer 1", "Answer 2")
    tab = enter(serve(db=db)).label()

    def seen() -> list[str]:
        found: list[str] = tab.page.evaluate(
            """() => {
              const box = document.getElementById("prompt").getBoundingClientRect();
              const inside = ({ top, bottom }) => top >= box.top && bottom <= box.bottom;
              const messages = Array.from(document.querySelectorAll("#prompt p"));
              return messages.filter((one) => inside(one.getBoundingClientRect())).map((one) => one.innerText);
            }"""
        )
        return found

    def height() -> float:
        found: float = tab.page.evaluate("document.getElementById('prompt').clientHeight")
        return found

    for _ in range(2):
        tab.ready()
        shown = tab.page.locator("#prompt p").all_text_contents()
        assert shown == [
            "systemBe <b>brief</b>.",
            "userWhat is tea?",
            "assistant" + "A drink.\n" * 40,
            "userHot?",
        ]
        assert seen() == ["User\nHot?"]
        low = height()
        tab.page.keyboard.press("p")
        assert height() > 2 * low
        assert seen() == ["User\nHot?"]
        tab.page.keyboard.press("p")
        tab.press("1")


def test_messages_run_in_their_own_direction_and_a_long_one_begins_in_view(
    tmp_path: Path, serve: Serve, enter: Enter
) -> None:
    prompt = (
        Message("user", "ما هو الشاي؟"),
        Message("assistant", "A drink."),
        Message("user", "FIRST\n" + "more\n" * 60),
    )
    db = answers_to(tmp_path / "texts", prompt, "Answer 0", "Answer 1")
    tab = enter(serve(db=db)).label()
    directions = tab.page.evaluate(
        "Array.from(document.querySelectorAll('#prompt p'), (one) => getComputedStyle(one).direction)"
    )
    assert directions == ["rtl", "ltr", "ltr"]
    tops = "() => ['#prompt', '#prompt p:last-child'].map((one) => document.querySelector(one).getBoundingClientRect().top)"
    for _ in range(2):
        box, last = tab.page.evaluate(tops)
        assert 0 <= last - box < 30
        tab.page.keyboard.press("p")


def test_labels_page_shows_texts_and_leads_back_and_the_overview_promises_no_model(
    texts: Path, serve: Serve, enter: Enter
) -> None:
    site = serve(db=texts)
    tab = enter(site).label()
    first = tab.page.inner_text("#text1")
    tab.press("1")
    tab.page.goto(f"{site.base}/labels")
    tab.page.wait_for_selector(".snippet.best")
    assert tab.page.inner_text(".snippet.best") == first
    tab.page.click("a.pair")
    tab.ready()
    assert "first better" in tab.page.inner_text("[data-answer='1']").lower()
    assert tab.page.is_visible("#opened")
    tab.page.goto(site.base)
    assert "--reward" not in tab.page.inner_text(".command")


def test_differences_are_marked_on_demand(tmp_path: Path, serve: Serve, enter: Enter) -> None:
    pair = ("the <b>quick</b> brown fox  jumps", "the brown dog\njumps high")
    db = answer_db(tmp_path / "texts", [pair, ("x " * 32_000, "y " * 32_000)])
    tab = enter(serve(db=db)).label()
    for _ in range(2):
        texts = [tab.page.text_content(f"#text{side}") for side in (1, 2)]
        assert tab.page.locator("mark").count() == 0
        began = time.monotonic()
        tab.page.keyboard.press("d")
        marked = [tab.page.locator(f"#text{side} mark").all_text_contents() for side in (1, 2)]
        assert time.monotonic() - began < 60  # word by word it would take hours
        assert [tab.page.text_content(f"#text{side}") for side in (1, 2)] == texts
        if tab.page.inner_text("#prompt") == "prompt 0":
            assert dict(zip(texts, marked, strict=True)) == {
                pair[0]: ["<b>quick</b>", "fox"],
                pair[1]: ["dog", "high"],
            }
        else:
            assert sorted(map(len, marked)) == [1, 1]
        tab.page.keyboard.press("d")
        assert tab.page.locator("mark").count() == 0
        assert [tab.page.text_content(f"#text{side}") for side in (1, 2)] == texts
        tab.page.keyboard.press("d")
        tab.press("0")  # the next pair begins without marks


def check_fences_that_never_close(page: Page) -> None:
    for end, kinds in (("", []), ("```\nafter", ["CODE"])):
        seconds, shown, found = page.evaluate(
            """async (end) => {
              const { markdown } = await import("/static/markdown.js");
              const text = "```x\\n".repeat(13_000) + end + "```x\\n".repeat(13_000);
              const began = performance.now();
              const nodes = markdown(text);
              const seconds = (performance.now() - began) / 1000;
              const kinds = nodes.map((node) => node.tagName).filter(Boolean);
              const shown = nodes.map((node) => node.textContent ?? node).join("");
              return [seconds, shown.length, kinds];
            }""",
            end,
        )
        assert found == kinds
        assert shown == 2 * 13_000 * 5 + (len("\nafter") - len("```x\n") if end else 0)
        assert seconds < 2, "looking for the end of each would take ten times as long"


def test_markdown_takes_shape_on_demand_and_nothing_else_does(
    tmp_path: Path, serve: Serve, enter: Enter
) -> None:
    text = (
        "# A *title*\n\nSome **bold** and _slanted_ words, 2 * 3 * 4, snake_case_name, `code **as is**`.\n- one\n* two\n"
        "```python\n# no <b>title</b>\n```\n<img src=x onerror=\"document.title='ran'\"> [a](javascript:alert(1)) **open"
    )
    db = answers_to(tmp_path / "texts", "p", text, "**" * 32_000)
    tab = enter(serve(db=db)).label()
    side = 1 if tab.page.text_content("#text1") == text else 2
    assert tab.page.locator("#texts :is(strong, em, code)").count() == 0
    tab.page.keyboard.press("m")
    shown = tab.page.locator(f"#text{side}")
    assert shown.locator("strong").all_text_contents() == ["A title", "bold"]
    assert shown.locator("em").all_text_contents() == ["title", "slanted"]
    assert shown.locator("code").all_text_contents() == ["code **as is**", "# no <b>title</b>\n"]
    found = shown.text_content() or ""
    assert "2 * 3 * 4, snake_case_name," in found
    assert "\n• one\n• two\n" in found
    assert found.endswith("[a](javascript:alert(1)) **open")
    assert tab.page.locator("#texts :is(img, a, b)").count() == 0
    # A run of asterisks is not bold: thousands of bold words take a browser seconds.
    assert tab.page.locator(f"#text{3 - side} *").count() == 0
    assert tab.page.title() == "Label"
    tab.page.reload()
    tab.ready()
    assert tab.page.locator("#texts em").count() == 2  # this browser remembers it
    tab.page.keyboard.press("m")
    assert tab.page.text_content(f"#text{side}") == text or tab.page.text_content(f"#text{3 - side}") == text
    check_fences_that_never_close(tab.page)
