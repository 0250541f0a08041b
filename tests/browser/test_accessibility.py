"""What axe-core finds on each page, in both themes."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

from benchmarks.site import Site
from lib.agent.evaluate import Evaluation
from lib.training.summary import log_evaluation, write_summary
from tests.browser.conftest import Tab
from tests.browser.test_model import db as db
from tests.browser.test_model import label
from tests.browser.test_model import reward as reward
from tests.browser.test_report import report as report
from tests.browser.test_texts import texts as texts

Serve = Callable[..., Site]
Enter = Callable[..., Tab]


def findings(page: Page) -> list[str]:
    """What axe-core calls serious or critical: rule, and where, in both themes."""
    found = []
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme, reduced_motion="reduce")
        for violation in Axe().run(page).response["violations"]:
            if violation["impact"] in ("serious", "critical"):
                found += [
                    f"{theme}: {violation['id']}: {node['failureSummary']} {node['html'][:200]}"
                    for node in violation["nodes"]
                ]
    return found


def test_labelling_overview_labels_and_model(serve: Serve, enter: Enter, db: Path, reward: Path) -> None:
    site = serve("--goal", "9", "--reward", str(reward), db=db)
    label(site)
    tab = enter(site, hints=True)
    found = {}
    tab.page.locator(".figures").wait_for()
    found["overview"] = findings(tab.page)
    tab.page.goto(f"{site.base}/labels")
    tab.page.locator("tbody a.pair").first.wait_for()
    found["labels"] = findings(tab.page)
    tab.page.goto(f"{site.base}/model")
    tab.page.wait_for_selector("#judging[hidden]", state="attached", timeout=60_000)
    tab.page.wait_for_selector("#curve polyline")
    found["model"] = findings(tab.page)
    tab.label()
    found["label"] = findings(tab.page)
    tab.page.click("#who")
    found["who"] = findings(tab.page)
    assert found == {page: [] for page in found}


def test_texts(texts: Path, serve: Serve, enter: Enter) -> None:
    assert findings(enter(serve(db=texts)).label().page) == []


def test_the_pages_of_a_fit_and_of_a_run(report: Path, browser: Browser, tmp_path: Path) -> None:
    for steps in (0, 1000):
        log_evaluation(
            tmp_path, "a", steps, Evaluation(np.array([steps, 8.0]), np.array([30, 40]), {"kl": np.ones(2)})
        )
    write_summary(tmp_path, tmp_path / "summary.html", {"name": "v1", "reward": "reward-x.dat"})
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    for path in (report, tmp_path / "summary.html"):
        page = context.new_page()
        page.goto(path.as_uri())
        assert findings(page) == []
    context.close()
