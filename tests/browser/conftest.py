"""A real Chromium in front of the real script, on real Seaquest segments."""

import copy
import json
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, TimeoutError, sync_playwright

from benchmarks.site import Site
from lib.preferences.segment_db import SegmentDB
from lib.tools.doctor import GET_CHROMIUM, chromium
from tests.scripts import ROOT, ForkedSite

PATIENCE = 90_000
"""Milliseconds for what takes a moment on a quiet machine: answers that failed are sent again after up to 8 s, and a
request is given up after 5."""

READY = "[data-answer='1'][aria-disabled='false']"
_CHROMIUM = chromium()
_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.browser)
            if _CHROMIUM is None:
                item.add_marker(pytest.mark.skip(reason="no Chromium"))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if _CHROMIUM is None:
        terminalreporter.write_line(
            f"The page's browser tests were skipped: no Chromium found; {GET_CHROMIUM}"
        )


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_CHROMIUM, args=_FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def seaquest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A DB of 48 of the example's segments, in folders of four. Copy it before writing to it."""
    root, example = tmp_path_factory.mktemp("seaquest"), ROOT / "examples" / "seaquest" / "db"
    for number, name in enumerate(SegmentDB(example).names[:48]):
        env, part = divmod(number, 4)
        (root / f"{env:02d}").mkdir(exist_ok=True)
        shutil.copy(example / name, root / f"{env:02d}" / f"{part:08d}.dat")
    return root


def name(number: int) -> str:
    """The first segment of one of its folders."""
    return f"{number:02d}/00000000.dat"


@pytest.fixture(scope="session")
def common(seaquest: Path, browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("common")
    shutil.copytree(seaquest, folder / "db")
    site = ForkedSite(folder / "db", folder / "state", "--repeat-rate", "0", "--goal", "500").start()
    context = browser.new_context()
    context.new_page().goto(site.link)
    site.cookies = context.storage_state()
    context.close()
    yield site
    site.stop(signal.SIGKILL)


@pytest.fixture
def site(common: Site, request: pytest.FixtureRequest) -> Site:
    """A running site shared with other tests; each of them is somebody else and sees only their own labels."""
    mine = copy.copy(common)
    mine.name = request.node.name[:60]
    return mine


@pytest.fixture
def serve(seaquest: Path, tmp_path: Path) -> Iterator[Callable[..., Site]]:
    """Starts the page on a copy of the Seaquest DB, or on another one."""
    sites: list[Site] = []

    def start(
        *flags: str, db: Path | None = None, name: str = "ada", before: Callable[[], None] | None = None
    ) -> Site:
        if db is None:
            db = tmp_path / "seaquest"
            shutil.copytree(seaquest, db)
        site = ForkedSite(db, tmp_path / "state", "--name", name, "--repeat-rate", "0", "--seed", "0", *flags)
        sites.append(site)
        return site.start(before)

    yield start
    for site in sites:
        site.stop(signal.SIGKILL)


class Tab:
    """A page of the site together with what it complained about."""

    def __init__(self, context: BrowserContext, site: Site) -> None:
        self.context = context
        self.site = site
        self.page: Page = context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.add_init_script(
            "addEventListener('keydown', ({key}) => (window.keys ??= []).push(key), true)"
        )

    def overview(self) -> "Tab":
        self.page.goto(self.site.base)
        return self

    def label(self) -> "Tab":
        self.page.goto(f"{self.site.base}/label")
        self.ready()
        return self

    def ready(self) -> None:
        self.page.wait_for_selector(READY, timeout=PATIENCE)
        self.page.wait_for_timeout(170)  # an answer this soon after a pair appears would not be taken

    def press(self, *keys: str) -> None:
        """Answers by key, each on a pair of its own."""
        for key in keys:
            self.ready()
            before = self.shown()
            self.page.keyboard.press(key)
            self.page.wait_for_function(
                "before => document.querySelector('#list [aria-current]')?.title !== before", arg=before
            )

    def offline(self) -> None:
        """Takes the network away, and waits until it is: on a busy machine the next request might still pass."""
        self.context.set_offline(True)
        self.page.evaluate(
            "async () => { while (await fetch('/api/session').then(() => true, () => false)); }"
        )

    def online(self) -> None:
        self.context.set_offline(False)

    def hold(self, key: str) -> None:
        """Holds a key down, which repeats it 30 times."""
        for _ in range(30):
            self.page.keyboard.down(key)
            self.page.wait_for_timeout(20)
        self.page.keyboard.up(key)

    def note(self, text: str) -> None:
        """Flags the pair on screen, by keys."""
        self.page.keyboard.press("f")
        self.page.keyboard.type(text)
        self.page.keyboard.press("Enter")

    def shown(self) -> str:
        """The pair on screen."""
        return self.page.locator("#list [aria-current]").get_attribute("title") or ""

    def status(self) -> str:
        return self.page.locator("#status").inner_text()

    def wait_status(self, *texts: str) -> None:
        """Waits until the page says one of these."""
        try:
            self.page.wait_for_function(
                "texts => texts.some(text => document.querySelector('#status')?.textContent.includes(text))",
                arg=texts,
                timeout=PATIENCE,
            )
        except TimeoutError as error:
            raise AssertionError(
                f"the page says {self.status()!r}, expected {texts}; shown: {self.shown()!r}; "
                f"keys: {self.page.evaluate('() => window.keys')}; complaints: {self.errors}; last requests: "
                f"{[url for url in self.requests if not url.endswith('/api/batch')][-8:]}"
            ) from error

    def wait_saved(self) -> None:
        """Waits until no answer is on its way any more and the page says so.

        Either alone may hold too soon: the page may still say "Connected again." of an earlier request.
        """
        self.page.wait_for_function(
            "() => !Object.keys(localStorage).some(key => key.startsWith('answer:'))", timeout=PATIENCE
        )
        self.wait_status("Saved: ", "Connected again.")

    def wait_labels(self, count: int) -> None:
        """Waits until that many lines are in labels.json."""
        for _ in range(PATIENCE // 50):
            if len(self.site.labels()) == count:
                return
            self.page.wait_for_timeout(50)
        raise AssertionError(f"expected {count} labels, found {len(self.site.labels())}")

    def wait_total(self, total: int) -> None:
        self.page.wait_for_function(
            "total => document.querySelector('#total')?.textContent == total",
            arg=str(total),
            timeout=PATIENCE,
        )


Serve = Callable[..., Site]
"""What the fixture `serve` is."""

Enter = Callable[..., Tab]
"""What the fixture `enter` is."""


@pytest.fixture
def enter(browser: Browser) -> Iterator[Callable[..., Tab]]:
    """Lets a browser of its own (its own cookies and storage) in, which opens no page but `link`, where one is given.

    The overview, to which a site's link leads, takes more time than the page of pairs. Clips start paused, as for
    somebody who asked for less motion, unless `plays`: they take most of a browser's time.
    """
    contexts: list[BrowserContext] = []
    tabs: list[Tab] = []

    def open(
        site: Site, link: str | None = None, hints: bool = False, plays: bool = False, **options: Any
    ) -> Tab:
        options = {"viewport": {"width": 1280, "height": 720}} | options
        context = browser.new_context(
            storage_state=site.cookies, reduced_motion="no-preference" if plays else "reduce", **options
        )
        if site.name:
            context.add_init_script(f"localStorage.labeller ??= {json.dumps(site.name)}")
        if not hints:
            context.add_init_script("localStorage.hinted = 'yes'")
        contexts.append(context)
        tab = Tab(context, site)
        tabs.append(tab)
        if link:
            tab.page.goto(link)
        elif not site.cookies:
            context.request.get(site.link, max_redirects=0)
        return tab

    yield open
    for context in contexts:
        context.close()
    assert [error for tab in tabs for error in tab.errors] == []
