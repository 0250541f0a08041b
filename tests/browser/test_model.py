"""The reward model's page: curves that move with the player, labels to recheck."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from benchmarks.site import Site
from lib.reward.checkpoints import save_reward_model
from lib.reward.model import Member, RewardModel
from lib.reward.network import RewardNet
from tests.browser.conftest import Enter, Serve, name

PAIRS = [(0, 1), (2, 3), (4, 5), (6, 7)]


@pytest.fixture(scope="module")
def reward(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two members with random weights, which find every label about as likely as not."""
    torch.manual_seed(0)
    members = [Member(RewardNet((210, 160, 3), 18), 0.0, 0.001) for _ in range(2)]
    path = tmp_path_factory.mktemp("rewards") / "reward-x.dat"
    save_reward_model(path, RewardModel(members, torch.device("cpu")), {}, {}, {})
    return path


@pytest.fixture
def db(seaquest: Path, tmp_path: Path) -> Path:
    """Twelve of the segments, so that judging them all is a matter of seconds."""
    root = tmp_path / "twelve"
    for number in range(12):
        (root / name(number)).parent.mkdir(parents=True)
        shutil.copy(seaquest / name(number), root / name(number))
    return root


def label(site: Site) -> None:
    """Ada's labels on four pairs, as a page would have written them."""
    lines = [
        {"sample1": name(a), "sample2": name(b), "label": 1, "annotator": "ada", "strategy": "random"}
        | {"id": f"vote{a:08d}", "time": float(a)}
        for a, b in PAIRS
    ]
    (site.db / "labels.json").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_the_curve_moves_with_the_player_and_seeks(
    serve: Serve, enter: Enter, reward: Path, db: Path
) -> None:
    tab = enter(serve("--reward", str(reward), db=db), plays=True).overview()
    page = tab.page
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.get_by_role("link", name="Model").click()
    page.wait_for_selector("#curve polyline")
    page.wait_for_selector("#judging[hidden]", state="attached", timeout=60_000)
    totals = [float(text.replace("−", "-")) for text in page.locator("#list .number").all_inner_texts()]
    assert totals == sorted(totals, reverse=True)
    assert len(totals) == 12

    def step() -> int:
        return int(page.inner_text("#step").split()[1])

    def cursor() -> float:
        return float(page.locator("#curve line.cursor").get_attribute("x1") or "nan")

    points = (page.locator("#curve polyline").get_attribute("points") or "").split()
    xs = [float(point.split(",")[0]) for point in points]
    assert len(xs) == 50
    page.wait_for_function("() => document.querySelector('#step').textContent !== 'step 1 / 50'")
    page.keyboard.press("Space")
    for key in (None, "ArrowRight", "ArrowRight", "ArrowLeft"):
        if key:
            page.keyboard.press(key)
        assert cursor() == pytest.approx(xs[step() - 1], abs=0.06)
        assert page.inner_text("#now").startswith(f"step {step()}: ")
    box = page.locator("#curve").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + xs[9], box["y"] + 50)
    page.mouse.down()
    assert step() == 10
    page.mouse.move(box["x"] + xs[29], box["y"] + 80)
    assert step() == 30
    assert cursor() == pytest.approx(xs[29], abs=0.06)
    page.mouse.up()
    page.wait_for_timeout(100)
    assert step() == 30, "it was paused before"

    page.locator("#list button").first.click()
    page.keyboard.press("ArrowDown")
    second = page.locator("#list button").nth(1)
    page.wait_for_function(
        "name => document.querySelector('#title').textContent == name", arg=second.inner_text().split()[0]
    )
    assert second.get_attribute("aria-current") == "true"
    page.fill("#text", "07/00000000")
    page.wait_for_function("() => document.querySelectorAll('#list button').length == 1")
    page.locator("#list button").click()
    page.wait_for_selector("#title:text('07/00000000')")
    assert complaints == []
    assert {url.split("/")[2] for url in tab.requests if not url.startswith("blob:")} == {
        f"localhost:{tab.site.port}"
    }
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_recheck_is_written_and_undone(serve: Serve, enter: Enter, reward: Path, db: Path) -> None:
    site = serve("--reward", str(reward), "--goal", "10", db=db)
    label(site)
    tab = enter(site)
    page = tab.page
    page.goto(f"{site.base}/model#recheck")
    page.wait_for_function("() => document.querySelectorAll('#list button').length == 4", timeout=60_000)
    percents = [float(text.split()[0]) for text in page.locator("#list .number").all_inner_texts()]
    assert percents == sorted(percents)
    page.locator("#list button").nth(1).click()
    page.wait_for_url("**/label?recheck=*")
    tab.ready()
    assert page.inner_text("#total") == "4"
    assert page.inner_text("#why") == "Asked again: the reward model doubts a label"
    assert page.locator("#opened").is_hidden(), "nothing of what was said before"
    opened = tab.shown()
    page.keyboard.press("2")
    tab.wait_labels(5)
    line = site.labels()[-1]
    assert (line["strategy"], line["annotator"]) == ("recheck", "ada")
    assert line["label"] == 3 - line["left"]
    assert {line["sample1"], line["sample2"]} <= set(opened.replace(":", "").split())
    tab.ready()
    assert tab.shown() != opened, "the next doubtful one"
    page.reload()
    tab.ready()
    assert tab.shown() != opened, "it is answered"
    assert page.inner_text("#total") == "4"
    page.keyboard.press("u")
    tab.wait_labels(6)
    assert (site.labels()[-1]["strategy"], site.labels()[-1]["label"]) == ("random", 1)
    tab.ready()
    assert tab.shown() == opened
    tab.press("x", "1")
    assert [line["strategy"] for line in site.labels()[-2:]] == ["recheck", "recheck"]
    assert len(site.standing()) == 4
    page.keyboard.press("Escape")
    page.wait_for_url("**/model#recheck")
    page.wait_for_function("() => document.querySelectorAll('#list button').length == 2")


def test_the_model_says_nothing_until_it_is_asked(serve: Serve, enter: Enter, reward: Path, db: Path) -> None:
    site = serve("--reward", str(reward), "--strategy", "disagreement", "--random-share", "0", db=db)
    label(site)
    tab = enter(site).label()
    page = tab.page
    for _ in range(15):  # the first pairs are random ones, on a busy machine some more of them
        tab.ready()
        if "the reward models disagree" in page.inner_text("#why").lower():
            break
        tab.press("1")
        page.wait_for_timeout(300)
    assert "the reward models disagree" in page.inner_text("#why").lower()
    tab.press("1")
    assert site.labels()[-1]["strategy"] == "disagreement"
    assert page.locator("#strategy option").all_inner_texts() == [
        "random",
        "disagreement",
        "entropy",
        "recent",
        "diversity",
        "disagreement+diversity",
        "alike",
        "fork",
    ]
    assert not [url for url in tab.requests if "/api/model" in url]


def test_without_a_model_there_is_a_hint(site: Site, enter: Enter) -> None:
    page = enter(site).label().page
    assert page.locator("#model").is_hidden()
    page.goto(f"{site.base}/model")
    page.wait_for_selector("text=restart the page with --reward")


def test_labels_become_a_model_on_the_page(serve: Serve, enter: Enter, db: Path, tmp_path: Path) -> None:
    site = serve("--fit-to", str(tmp_path / "mine"), db=db)
    label(site)
    page = enter(site).overview().page
    page.wait_for_selector("text=20 labels are enough for a first look: 16 to go.")
    lines = (site.db / "labels.json").read_text()
    pairs = [(a, b) for a in range(12) for b in range(a) if (b, a) not in PAIRS][:16]
    more = [
        {"sample1": name(a), "sample2": name(b), "label": 1 + a % 2, "annotator": "ada"} for a, b in pairs
    ]
    (site.db / "labels.json").write_text("".join([lines, *(json.dumps(line) + "\n" for line in more)]))
    in_bar = page.get_by_role("link", name="Model", exact=True)
    assert in_bar.is_hidden()
    page.get_by_role("button", name="Fit one now").click()
    page.wait_for_selector("text=You can continue labelling.")
    in_bar.wait_for(timeout=300_000)  # without a reload
    page.get_by_role("link", name="See what it learned from these labels").click()
    page.wait_for_selector("text=reward-page.dat")
    assert (tmp_path / "mine" / "reward-page.report.html").exists()
    page.goto(site.base)
    # One that fails says why, and the model that was there stays.
    (tmp_path / "mine" / "runs").rename(tmp_path / "runs")
    (tmp_path / "mine" / "runs").write_text("not a folder")
    page.get_by_role("button", name="Fit again").click()
    page.wait_for_selector("text=The fit failed; the last lines say why.", timeout=300_000)
    assert "03_reward_train.py: error: " in page.locator(".command").inner_text()
    page.goto(f"{site.base}/model")
    page.wait_for_selector("text=reward-page.dat")
