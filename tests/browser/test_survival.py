"""Lost connections, restarts, full disks, several tabs and people: nothing lost, nothing doubled."""

import contextlib
import ctypes
import resource
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Error, Route

from benchmarks.site import Site
from tests.browser.conftest import Enter, Serve, Tab


def ids(site: Site) -> list[str]:
    return [line["id"] for line in site.labels()]


def test_reload_in_the_middle_of_a_pair(site: Site, enter: Enter) -> None:
    tab = enter(site).label()
    tab.press("1")
    tab.ready()
    rows = [row.get_attribute("title") for row in tab.page.locator("#list button").all()][1:]
    tab.page.reload()
    tab.ready()
    assert tab.shown() == rows[0]
    tab.press("2")
    assert len(site.standing()) == len(site.labels()) == 2


def test_server_stopped_and_started(serve: Serve, enter: Enter) -> None:
    site = serve()
    tab = enter(site).label()
    tab.press("1", "2")
    tab.ready()
    pair = tab.shown()
    site.stop(signal.SIGKILL)
    tab.page.keyboard.press("1")  # while nobody listens
    tab.wait_status("waits in this browser")
    assert len(site.labels()) == 2
    tab.ready()
    tab.page.keyboard.press("2")
    tab.wait_status("2 answers wait")
    site.start()
    tab.wait_saved()
    tab.wait_total(4)
    tab.press("0")
    assert len(site.standing()) == len(site.labels()) == 5
    assert len(set(ids(site))) == 5
    assert {site.labels()[2]["sample1"], site.labels()[2]["sample2"]} <= set(pair.replace(":", "").split())


def test_answers_given_offline_are_sent_in_order(site: Site, enter: Enter) -> None:
    tab = enter(site).label()
    tab.press("1")
    tab.ready()
    tab.offline()
    for key in ("2", "0", "u", "x"):
        tab.ready()
        tab.page.keyboard.press(key)
        tab.page.wait_for_timeout(250)
    tab.wait_status("4 answers wait in this browser, not on disk yet")
    assert len(site.labels()) == 1
    tab.online()
    tab.wait_saved()
    assert [(line["label"] is None, bool(line.get("cancelled"))) for line in site.labels()[1:]] == [
        (False, False),
        (False, False),
        (False, True),
        (True, False),
    ]
    assert len(site.standing()) == 3


def test_offline_answers_outlive_the_tab(serve: Serve, enter: Enter) -> None:
    site = serve()
    tab = enter(site).label()
    site.stop(signal.SIGKILL)
    tab.page.keyboard.press("1")
    tab.wait_status("waits in this browser")
    tab.page.close()
    site.start()
    again = Tab(tab.context, site).label()
    again.wait_total(1)
    assert len(site.labels()) == 1


def test_an_answer_whose_receipt_was_lost_counts_once(site: Site, enter: Enter) -> None:
    tab = enter(site).label()
    sent: list[Any] = []

    def lose(route: Route) -> None:
        sent.append(route.request.post_data_json)
        if len(sent) > 1:
            route.continue_()
            return
        route.fetch()  # the server writes it down, the browser never hears
        with contextlib.suppress(Error):  # the page has given it up by itself
            route.abort()

    tab.page.route("**/api/vote", lose)
    # As after an earlier request that failed.
    tab.page.evaluate("() => { document.querySelector('#status').textContent = 'Connected again.'; }")
    tab.page.keyboard.press("1")
    tab.wait_saved()
    assert len(sent) > 1
    assert all(vote == sent[0] for vote in sent)
    assert len(site.labels()) == 1


def test_requests_that_fail_meanwhile_do_not_put_an_answer_off(site: Site, enter: Enter) -> None:
    """An answer is sent again half a second after it failed, though something else fails every 50 ms."""
    tab = enter(site).label()
    resent = tab.page.evaluate(
        """async () => {
            const { Outbox } = await import("/static/outbox.js");
            const box = new Outbox("none", "page", () => {}, () => {});
            box.failed("");
            const others = setInterval(() => box.failed(""), 50);
            const resent = new Promise((resolve) => { box.flush = () => resolve(true); });
            const given_up = new Promise((resolve) => setTimeout(resolve, 10000, false));
            const first = await Promise.race([resent, given_up]);
            clearInterval(others);
            return first;
        }"""
    )
    assert resent


def test_an_answer_is_sent_as_soon_as_anything_shows_that_the_server_is_there(
    site: Site, enter: Enter
) -> None:
    tab = enter(site).label()
    tab.page.route("**/api/vote", lambda route: route.abort())
    tab.page.keyboard.press("1")
    tab.wait_status("waits in this browser")
    # Its next try is far away.
    tab.page.evaluate("() => { window.setTimeout = () => 0; }")
    tab.page.wait_for_timeout(1000)
    tab.page.unroute("**/api/vote")
    assert site.labels() == []
    tab.page.evaluate("() => document.dispatchEvent(new Event('visibilitychange'))")
    tab.wait_saved()
    assert len(site.labels()) == 1


def test_one_of_those_that_waited_was_dropped_and_the_page_goes_on_saying_so(
    site: Site, enter: Enter
) -> None:
    tab = enter(site).label()
    tab.offline()
    for key in "12":
        tab.ready()
        tab.page.keyboard.press(key)
    tab.wait_status("2 answers wait")
    sent: list[str] = []

    def drop_first(route: Route) -> None:
        sent.append(route.request.url)
        if len(sent) == 1:
            reply = {"outcome": "dropped", "reason": "a test"}
            route.fulfill(json=reply)
        else:
            route.continue_()

    tab.page.route("**/api/vote", drop_first)
    tab.online()
    tab.wait_labels(1)
    tab.wait_status("An answer was not counted: a test.")
    tab.page.wait_for_timeout(500)
    assert "not counted" in tab.status()


def test_answers_keep_their_order_though_the_clock_is_set_back(site: Site, enter: Enter) -> None:
    bodies = (
        enter(site)
        .label()
        .page.evaluate(
            """async () => {
            const { Outbox } = await import("/static/outbox.js");
            const open = () => new Outbox("none", "page", () => {}, () => {});
            const now = Date.now();
            const box = open();
            Date.now = () => now;
            box.add("/none", "first");
            Date.now = () => now - 1e6;
            box.add("/none", "second");
            const after = open();
            after.add("/none", "third");
            return open().ops.map(({ body }) => body);
        }"""
        )
    )
    assert bodies == ["first", "second", "third"]


def test_an_answer_waits_while_another_program_is_at_this_address(site: Site, enter: Enter) -> None:
    tab = enter(site).label()
    tab.page.route("**/api/vote", lambda route: route.fulfill(status=404))
    tab.page.keyboard.press("1")
    tab.wait_status("Not saved: the server answered 404. 1 answer is kept in this browser")
    tab.page.unroute("**/api/vote")
    tab.wait_labels(1)


def test_answers_wait_while_another_db_is_served_at_this_address(
    serve: Serve, enter: Enter, seaquest: Path, tmp_path: Path
) -> None:
    site = serve()
    tab = enter(site).label()
    own, other = site.db, tmp_path / "other"
    shutil.copytree(seaquest, other)
    site.stop(signal.SIGKILL)
    tab.page.keyboard.press("1")
    tab.wait_status("1 answer waits")
    site.db = other
    site.start()
    tab.context.request.get(site.link, max_redirects=0)
    tab.wait_status("Not saved: another database is served at this address now")
    assert "1 answer is kept in this browser" in tab.status()
    Tab(tab.context, site).label().press("2")
    assert len(site.labels()) == 1
    site.stop(signal.SIGKILL)
    site.db = own
    site.start()
    tab.wait_labels(1)
    assert [line["label"] is None for line in site.labels()] == [False]


@pytest.mark.parametrize("how", ["close", "leave"])
def test_a_closed_tab_gives_its_pairs_to_others_at_once(
    serve: Serve, enter: Enter, seaquest: Path, tmp_path: Path, how: str
) -> None:
    db = tmp_path / "two"
    (db / "00").mkdir(parents=True)
    for number in range(2):
        shutil.copy(seaquest / "00" / f"{number:08d}.dat", db / "00")
    site = serve(db=db)
    one = enter(site).label()
    pair = one.shown()
    two = Tab(one.context, site)
    two.page.goto(f"{site.base}/label")
    two.page.wait_for_selector("text=on other labellers' screens")
    if how == "close":
        one.page.close()
    else:
        one.page.goto(f"{site.base}/labels")
    two.ready()  # it asks every two seconds; a lease would last two minutes
    assert two.shown() == pair
    two.press("1")
    assert len(site.labels()) == 1


def test_a_page_that_is_left_and_come_back_to_has_its_pairs_again(site: Site, enter: Enter) -> None:
    tab = enter(site).label()
    rows = tab.page.locator("#list button")
    before = [row.get_attribute("title") for row in rows.all()]
    tab.page.goto(f"{site.base}/labels")
    tab.page.go_back()
    tab.ready()
    assert [row.get_attribute("title") for row in rows.all()] == before


def let_files_grow(site: Site, to: int = resource.RLIM_INFINITY) -> None:
    """Lets the server write files of so many bytes and no more."""
    assert site.process is not None
    resource.prlimit(site.process.pid, resource.RLIMIT_FSIZE, (to, resource.RLIM_INFINITY))


def test_a_full_disk_is_said_and_the_answer_kept(serve: Serve, enter: Enter) -> None:
    site = serve()
    let_files_grow(site, 150)
    tab = enter(site).label()
    pair = tab.shown()
    tab.page.keyboard.press("1")
    tab.wait_status("Not saved")
    assert "1 answer is kept in this browser" in tab.status()
    assert tab.shown() == pair, "the page does not move on"
    tab.page.keyboard.press("2")
    assert site.labels() == []
    let_files_grow(site)
    tab.wait_total(1)
    tab.press("2")
    assert len(site.standing()) == len(site.labels()) == 2


def test_a_page_that_is_no_longer_let_in_says_so(site: Site, enter: Enter) -> None:
    tab = enter(site).label()
    tab.page.context.clear_cookies()
    tab.page.keyboard.press("1")
    tab.wait_status("Not saved")
    assert "use the one in the terminal. 1 answer is kept in this browser" in tab.status()


def test_a_read_only_db_is_said_and_the_answer_kept(serve: Serve, enter: Enter) -> None:
    site = serve(before=obey_permissions)
    tab = enter(site).label()
    pair = tab.shown()
    site.db.chmod(0o555)
    tab.page.keyboard.press("1")
    tab.wait_status("Not saved")
    assert "Permission denied" in tab.status()
    assert "1 answer is kept in this browser" in tab.status()
    assert tab.shown() == pair, "the page does not move on"
    assert not (site.db / "labels.json").exists()
    tab.page.reload()
    tab.wait_status("Not saved")
    site.db.chmod(0o755)
    tab.wait_total(1)
    tab.press("2")
    assert len(site.standing()) == len(site.labels()) == 2


def test_a_pair_whose_answer_waits_is_not_asked_again_after_a_reload(serve: Serve, enter: Enter) -> None:
    """The second answer would have the id of the first, and be taken for it."""
    site = serve()
    tab = enter(site).label()
    pair = tab.shown()
    tab.page.route("**/api/vote", lambda route: route.fulfill(status=507, json={"error": "no space"}))
    tab.page.keyboard.press("1")
    tab.wait_status("Not saved: no space")
    tab.page.unroute("**/api/vote")
    tab.page.reload()
    tab.ready()
    assert tab.shown() != pair
    tab.press("2")
    tab.wait_labels(2)
    first, second = site.labels()
    assert {first["sample1"], first["sample2"]} <= set(pair.split())
    assert not {second["sample1"], second["sample2"]} <= set(pair.split())
    assert (first["label"], second["label"]) == (first["left"], 3 - second["left"])


def test_where_nothing_answers_only_the_first_answer_waits_for_it(site: Site, enter: Enter) -> None:
    """Packets may vanish rather than be refused, as in a tunnel that stalls."""
    tab = enter(site).label()
    tab.page.route("**/api/**", lambda route: None)
    tab.press("1")
    tab.wait_status("1 answer waits in this browser")
    tab.page.evaluate("AbortSignal.timeout = () => new AbortController().signal")  # from now on for ever
    tab.press("2")
    tab.press("0")
    tab.wait_status("3 answers wait in this browser")
    tab.page.unroute("**/api/**")
    tab.page.reload()
    tab.page.wait_for_function("() => !Object.keys(localStorage).some(key => key.startsWith('answer:'))")
    mine = [line for line in site.labels() if line["annotator"] == site.name]
    assert [line["label"] for line in mine] == [mine[0]["left"], 3 - mine[1]["left"], 0]


def test_an_answer_that_cannot_be_saved_can_be_taken_back(serve: Serve, enter: Enter) -> None:
    site = serve()
    tab = enter(site).label()
    pair = tab.shown()
    let_files_grow(site, 150)
    tab.note("odd")
    tab.page.keyboard.press("1")
    tab.wait_status("Not saved")
    assert tab.page.locator(".clip.chosen").count() == 1
    tab.page.keyboard.press("u")
    tab.wait_status("2 answers are kept")
    assert tab.shown() == pair
    assert tab.page.locator(".clip.chosen").count() == 0
    assert tab.page.locator("#flag").get_attribute("aria-pressed") == "true"
    let_files_grow(site)
    tab.wait_labels(2)
    assert site.standing() == {}
    tab.press("2")
    assert [line["flag"] for line in site.labels()] == ["odd"] * 3
    assert len(site.standing()) == 1


def obey_permissions() -> None:
    """Takes from a program that root starts the right to write where it may not (CAP_DAC_OVERRIDE)."""
    ctypes.CDLL(None).prctl(24, 1, 0, 0, 0)  # PR_CAPBSET_DROP


def test_two_tabs_of_one_person(site: Site, enter: Enter) -> None:
    one = enter(site).label()
    two = Tab(one.context, site).label()
    for _ in range(3):
        assert one.shown() != two.shown()
        one.page.bring_to_front()
        one.press("1")
        two.page.bring_to_front()
        two.press("2")
    assert len(site.standing()) == len(site.labels()) == 6


def test_a_duplicated_tab_is_another_where_there_are_no_locks(site: Site, enter: Enter) -> None:
    """As over plain http to another machine. A duplicate begins with a copy of what its session stored."""
    one = enter(site)
    one.context.add_init_script("Object.defineProperty(navigator, 'locks', { value: undefined })")
    one.label()
    one.page.wait_for_timeout(500)
    stored = one.page.evaluate("() => JSON.stringify(sessionStorage)")
    two = Tab(one.context, site)
    two.page.goto(site.base)
    two.page.evaluate("stored => Object.assign(sessionStorage, JSON.parse(stored))", stored)
    two.label()
    assert one.shown() != two.shown()
    one.page.reload()
    one.ready()
    assert one.page.evaluate("() => sessionStorage.page") in stored, "a tab that is alone keeps its own"


def test_two_labellers_at_once(serve: Serve, enter: Enter) -> None:
    site = serve()
    ada = enter(site).overview()
    ada.page.click("text=Invite")
    link = ada.page.get_by_label("Link").input_value()
    ada.context.grant_permissions(["clipboard-read"])
    ada.page.get_by_role("button", name="Copy").click()
    ada.page.wait_for_selector("text=Copied.")
    assert ada.page.evaluate("navigator.clipboard.readText()") == link
    ada.label()
    bob = enter(site, link=link)
    bob.page.get_by_role("button", name="Enter").click()
    bob.page.wait_for_selector(".figures")
    bob.page.goto(f"{site.base}/label")
    bob.page.wait_for_selector("dialog[open]")
    bob.page.fill("#askname", "bob")
    bob.page.keyboard.press("Enter")
    for _ in range(4):
        ada.press("1")
        bob.press("2")
    names = [line["annotator"] for line in site.labels()]
    assert (names.count("ada"), names.count("bob")) == (4, 4)
    pairs = {frozenset((line["sample1"], line["sample2"])) for line in site.labels()}
    assert len(pairs) == 8, "no pair went to both"
