"""Overview and table of existing labels."""

import itertools
import json

from benchmarks.site import Site
from tests.browser.conftest import PATIENCE, Enter, Serve, Tab, name

EVIL = "<img src=x onerror='window.pwned=1'><script>window.pwned=1</script>{{7*7}}"


def add(site: Site, *labels: dict[str, object]) -> None:
    with (site.db / "labels.json").open("a") as file:
        file.writelines(json.dumps(label) + "\n" for label in labels)


def said(a: int, b: int, label: int | None, **more: object) -> dict[str, object]:
    return {"sample1": name(a), "sample2": name(b), "label": label, **more}


def test_table_filters_opens_changes_and_deletes(serve: Serve, enter: Enter) -> None:
    site = serve()
    add(
        site,
        said(0, 1, 1, annotator="ada", time=1.0, left=2, id="a" * 12),
        said(0, 1, 2, annotator="bob", time=2.0),
        said(2, 3, None, teacher="score", time=3.0),
        said(4, 5, 0, annotator="bob", flag="odd diver", time=4.0),
    )
    tab = enter(site)
    page = tab.page
    page.goto(f"{site.base}/labels")
    rows = page.locator("tbody tr:has(a.pair)")
    rows.nth(3).wait_for()
    page.wait_for_function(
        "() => Array.from(document.querySelectorAll('tbody img')).slice(0, 2).every(image => image.complete)"
    )
    assert [int(rows.nth(0).locator("img").nth(i).evaluate("e => e.naturalWidth")) for i in (0, 1)] == [
        80,
        80,
    ]

    def expect(count: int) -> None:
        page.wait_for_function(
            "count => document.querySelectorAll('tbody a.pair').length == count", arg=count
        )

    page.fill("input[type=search]", "no such word")
    page.wait_for_selector("text=No label matches.")
    page.fill("input[type=search]", "diver")
    expect(1)
    page.fill("input[type=search]", "")
    expect(4)
    page.get_by_role("checkbox", name="Flagged").click()
    expect(1)
    page.get_by_role("checkbox", name="Flagged").click()
    expect(4)
    page.get_by_role("checkbox", name="Disputed").click()
    expect(2)
    page.get_by_role("checkbox", name="Disputed").click()
    expect(4)
    page.get_by_role("combobox", name="Answer").click()
    page.get_by_role("option", name="Can’t tell").click()
    expect(1)
    page.get_by_role("combobox", name="Answer").click()
    page.get_by_role("option", name="Any answer").click()
    expect(4)
    page.get_by_role("combobox", name="Labeller").click()
    page.get_by_role("option", name="bob").click()
    expect(2)

    page.get_by_role("button", name="Delete this label of bob").first.click()
    page.get_by_role("button", name="Delete", exact=True).last.click()
    expect(1)
    assert site.labels()[-1]["cancelled"] is True
    assert site.labels()[-1]["annotator"] == "bob"

    page.goto(f"{site.base}/labels")
    page.get_by_role("link", name="Open or change").last.click()
    tab.ready()
    assert page.locator("#said li").all_inner_texts() == ["ada: 1 better", "bob: 2 better"]
    page.keyboard.press("2")
    page.wait_for_url("**/labels")
    last = site.labels()[-1]
    assert (last["annotator"], last["label"], last["sample1"]) == ("ada", 2, name(0))
    assert len(site.standing()) == 3

    page.get_by_role("combobox", name="Labeller").click()
    page.get_by_role("option", name="bob").click()
    expect(1)
    page.get_by_role("button", name="Delete this label of bob").click()
    page.get_by_role("button", name="Delete", exact=True).last.click()
    expect(2)  # of everybody: bob has none any more


def test_pages_turn_and_the_table_is_seen_and_walked_in_the_dark(serve: Serve, enter: Enter) -> None:
    site = serve()
    pairs = itertools.combinations(range(12), 2)
    add(site, *(said(a, b, 1, time=float(b)) for a, b in pairs))
    page = enter(site, color_scheme="dark").page
    page.goto(f"{site.base}/labels")
    after = page.get_by_role("button", name="Next page")
    after.wait_for()
    ink = page.evaluate("getComputedStyle(document.body).color")
    assert after.locator(".q-icon").evaluate("e => getComputedStyle(e).color") == ink
    page.focus("input[type=search]")
    for _ in range(3):
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.innerText") == "Flagged"
    assert page.evaluate("getComputedStyle(document.activeElement).boxShadow") != "none"
    for rows in (25, 25, 16):
        page.wait_for_function("rows => document.querySelectorAll('tbody a.pair').length == rows", arg=rows)
        if rows == 25:
            shown = page.locator("tbody a.pair").first.get_attribute("aria-label")
            after.click()
            page.locator(f"tbody tr:first-child a.pair:not([aria-label='{shown}'])").wait_for()
    assert after.is_disabled()


def test_overview_counts_and_follows(serve: Serve, enter: Enter) -> None:
    site = serve("--goal", "50")
    tab = enter(site).overview()
    figures = tab.page.locator(".figures")
    figures.wait_for()
    assert "48\nclips" in figures.inner_text().replace("\n\n", "\n")
    assert "0 of 50" in figures.inner_text()
    table = Tab(tab.context, site).page
    table.goto(f"{site.base}/labels")
    table.wait_for_selector("text=No labels yet.")
    table.close()
    add(site, *(said(0, i, 1, annotator="bob", time=float(i)) for i in range(1, 6)))
    tab.page.wait_for_selector("text=5 of 50", timeout=PATIENCE)
    assert "bob" in tab.page.locator("table").inner_text()
    assert tab.page.locator(".growth svg").count() == 1
    tab.page.set_viewport_size({"width": 390, "height": 844})
    assert tab.page.locator("thead th").first.evaluate("th => th.clientHeight") < 60  # no word is broken


def test_what_is_selected_on_the_overview_stays_while_others_label(serve: Serve, enter: Enter) -> None:
    site = serve()
    add(site, said(0, 1, 1, annotator="bob", time=1.0))
    tab = enter(site).overview()
    command = tab.page.locator("pre.command")
    command.focus()
    command.evaluate("(pre) => getSelection().selectAllChildren(pre)")
    add(site, said(0, 2, 1, annotator="bob", time=2.0))
    tab.page.locator(".figures").get_by_text("labels", exact=True).wait_for()
    assert command.evaluate("(pre) => document.activeElement === pre")
    assert tab.page.evaluate("getSelection().toString()").strip() == command.inner_text().strip()


def test_notes_and_names_are_shown_never_run(serve: Serve, enter: Enter) -> None:
    site = serve()
    add(
        site,
        said(0, 1, 1, annotator=EVIL[:60], flag=EVIL, time=1.0),
        said(0, 2, 1, annotator="bob", flag=EVIL, strategy=EVIL, time=2.0),
        said(0, 2, 1, teacher=EVIL, time=3.0) | {"sample1": EVIL},
    )
    tab = enter(site).overview()
    tab.page.wait_for_selector("text=onerror")
    assert tab.page.evaluate("window.pwned") is None
    tab.page.goto(f"{site.base}/labels")
    tab.page.wait_for_selector("a.pair")
    assert "{{7*7}}" in tab.page.locator("tbody").inner_text()
    assert tab.page.evaluate("window.pwned") is None
    tab.page.locator("a.pair").nth(1).click()
    tab.ready()
    assert "onerror" in tab.page.locator("#said").inner_text()
    assert tab.page.evaluate("window.pwned") is None


def opened(serve: Serve, enter: Enter, broken: bool = False) -> Tab:
    """The page of a pair that ada has called 1 better, opened from the table."""
    site = serve()
    if broken:
        (site.db / name(1)).write_bytes(b"no segment")
    add(site, said(0, 1, 1, annotator="ada", time=1.0, left=1, id="a" * 12))
    tab = enter(site)
    tab.page.goto(f"{site.base}/labels")
    tab.page.get_by_role("link", name="Open or change").first.click()
    return tab


def test_who_was_shown_a_pair_the_other_way_round_is_quoted_as_it_stands_now(
    serve: Serve, enter: Enter
) -> None:
    site = serve()
    add(
        site,
        said(0, 1, 2, annotator="ada", time=1.0, left=1),
        said(1, 0, 1, annotator="bob", time=2.0, left=1, strategy="recheck"),
        said(1, 0, 0, annotator="eve", time=3.0, left=2),
    )
    tab = enter(site)
    tab.page.goto(f"{site.base}/labels")
    tab.page.get_by_role("link", name="Open or change").first.click()
    tab.ready()
    lines = tab.page.locator("#said li").all_inner_texts()
    assert lines == ["ada: 2 better", "bob: 2 better", "eve: alike"], (
        "of clips 0 and 1, the left one is clip 0"
    )


def test_a_change_that_is_taken_back_can_be_made_anew(serve: Serve, enter: Enter) -> None:
    tab = opened(serve, enter)
    tab.ready()
    tab.page.keyboard.press("2")
    tab.page.wait_for_url("**/labels")
    tab.label()
    tab.page.keyboard.press("u")
    tab.wait_status("Undone: 2 better")
    tab.page.reload()
    tab.press("0")
    tab.wait_labels(4)
    assert list(tab.site.standing().values()) == [0]


def test_an_opened_pair_is_answered_once_though_the_server_is_away(serve: Serve, enter: Enter) -> None:
    tab = opened(serve, enter)
    tab.ready()
    tab.offline()
    tab.page.keyboard.press("2")
    tab.wait_status("1 answer waits")
    assert tab.page.locator("[data-answer='1']").get_attribute("aria-disabled") == "true"
    tab.online()
    tab.page.wait_for_url("**/labels")
    assert [line["label"] for line in tab.site.labels()] == [1, 2]


def test_an_opened_pair_that_cannot_be_shown_is_no_other(serve: Serve, enter: Enter) -> None:
    tab = opened(serve, enter, broken=True)
    tab.wait_status("A clip cannot be shown and is left out")
    tab.page.wait_for_timeout(500)
    assert tab.page.locator("#stage").get_attribute("class") == "stage empty"
    assert tab.page.locator("[data-answer='1']").get_attribute("aria-disabled") == "true"


def test_a_server_that_is_away_at_first_leaves_nothing_twice(serve: Serve, enter: Enter) -> None:
    tab = opened(serve, enter)
    tab.ready()
    tab.page.route("**/api/pair/**", lambda route: route.abort(), times=1)
    tab.page.reload()
    tab.ready()
    assert tab.page.locator("#speed button").count() == 4
