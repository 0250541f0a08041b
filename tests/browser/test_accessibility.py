"""What axe-core finds on each page, in both themes."""

import subprocess
import sys
from pathlib import Path

import numpy as np
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

from lib.agent.evaluate import Evaluation
from lib.reward.report.page import write_page
from lib.training.summary import log_evaluation, write_summary
from tests.browser.conftest import Enter, Serve
from tests.browser.test_model import db as db
from tests.browser.test_model import label
from tests.browser.test_model import reward as reward
from tests.browser.test_report import report as report
from tests.browser.test_texts import texts as texts


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
    tab = enter(site, hints=True).overview()
    found = {}
    tab.page.locator(".figures").wait_for()
    found["overview"] = findings(tab.page)
    tab.page.get_by_role("button", name="Invite").click()
    invitation = tab.page.get_by_label("Link", exact=True).input_value()
    tab.page.wait_for_timeout(500)  # it fades in
    found["invite"] = findings(tab.page)
    tab.page.goto(f"{site.base}/labels")
    tab.page.locator("tbody a.pair").first.wait_for()
    found["labels"] = findings(tab.page)
    tab.page.get_by_role("button", name="Delete this label").first.click()
    tab.page.get_by_text("Delete this label?").wait_for()
    tab.page.wait_for_timeout(500)
    found["delete"] = findings(tab.page)
    tab.page.get_by_role("button", name="Keep").click()
    tab.page.locator("tbody a.pair").first.click()
    tab.ready()
    found["opened pair"] = findings(tab.page)
    tab.page.goto(f"{site.base}/model")
    tab.page.wait_for_selector("#judging[hidden]", state="attached", timeout=60_000)
    tab.page.wait_for_selector("#curve polyline")
    found["model"] = findings(tab.page)
    tab.page.click("#tab-recheck")
    tab.page.wait_for_function("() => document.querySelectorAll('#list button').length === 4")
    found["doubted labels"] = findings(tab.page)
    tab.page.locator("#list button").first.click()
    tab.page.wait_for_url("**/label?recheck=*")
    tab.ready()
    found["recheck"] = findings(tab.page)
    tab.label()
    found["label"] = findings(tab.page)
    tab.page.click("#who")
    found["who"] = findings(tab.page)
    tab.label()
    tab.page.keyboard.press("f")
    found["note"] = findings(tab.page)
    for name, link in (("not open", site.base), ("invited", invitation)):
        found[name] = findings(enter(site, link=link).page)
    assert found == {page: [] for page in found}


def test_before_there_are_clips_or_a_model(serve: Serve, enter: Enter, db: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    page = enter(serve(db=tmp_path / "empty")).overview().page
    page.locator(".figures").wait_for()
    found = {"empty": findings(page)}
    page.goto(page.url + "model")
    page.get_by_text("restart the page with --reward").wait_for()
    found["no model"] = findings(page)
    site = serve("--fit-to", str(tmp_path / "mine"), db=db)
    label(site)
    page = enter(site).overview().page
    page.get_by_text("labels are enough for a first look").wait_for()
    found["fit"] = findings(page)
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
    answers = [{"name": name, "paid": "+0.50", "text": "A text."} for name in ("First", "Best")]
    choices = [{"prompt": "A prompt", "answers": answers}]
    write_page("best.html", tmp_path / "best.html", title="Best of 4", subtitle="smollm2", choices=choices)
    for path in (report, tmp_path / "summary.html", tmp_path / "best.html"):
        page = context.new_page()
        page.goto(path.as_uri())
        assert findings(page) == []
    context.close()


def test_the_site(browser: Browser, tmp_path: Path) -> None:
    names = ("index", "flags")
    docs = Path(__file__).parents[2] / "docs"
    build = ("-m", "sphinx", "-q", "-b", "html", "-d", tmp_path / "cache", docs, tmp_path / "site")
    subprocess.run([sys.executable, *build, *(docs / f"{name}.md" for name in names)], check=True)
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    found = {}
    for name in names:
        page.goto((tmp_path / "site" / f"{name}.html").as_uri())
        found[name] = findings(page)
    context.close()
    assert found == {name: [] for name in found}
