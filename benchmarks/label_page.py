"""Speed and memory of the labelling page over many labels, in a real Chromium.

Makes a DB. First presses keys and prints the time from key press to the next pair's first frame on screen;
then a script in the tab continues, with the debugger detached (it would keep a copy of every response),
and the memory of server and tab is printed as labels come in. Needs Chromium.

    .venv/bin/python -m benchmarks.label_page --keys 200 --labels 1000

`--text-kb 2` does the same with answers of a language model, of so many kilobytes each. Only key presses over clips are a row
of `make bench`.
"""

import contextlib
import math
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from playwright.sync_api import Browser, Error, Page, Playwright, sync_playwright

from benchmarks.report import Row
from benchmarks.setup import Setup
from benchmarks.site import Site, free_port
from lib import cli
from lib.cli import UserError, flag
from lib.preferences.answers import Answer, save_answer
from lib.preferences.segments import Segment, save_segment
from lib.tools import doctor

_OBSERVE = """() => {
  window.waits = [];
  new PerformanceObserver(list => {
    for (const entry of list.getEntries()) if (entry.name === 'next pair') waits.push(entry.duration);
  }).observe({type: 'measure'});
}"""

_ANSWER = """() => setInterval(() => document.body.dispatchEvent(
  new KeyboardEvent('keydown', {key: '1', code: 'Digit1', bubbles: true})), 200)"""


@dataclass(frozen=True)
class PageConfig:
    """How much to measure."""

    keys: int = flag(default=200, min=1, help="key presses for the speed")
    labels: int = flag(default=1000, min=0, help="labels for the memory")
    text_kb: int = flag(default=0, min=0, help="size of answers in place of clips")


def segments_for(labels: int) -> int:
    """How many segments have enough pairs for so many labels."""
    return math.ceil(math.sqrt(2 * labels)) + 10


def record(db: Path, count: int) -> None:
    """Segments of random play of Seaquest."""
    from ale_py.vector_env import AtariVectorEnv

    games = 8
    emulator = AtariVectorEnv(
        "seaquest", games, img_height=210, img_width=160, grayscale=False, stack_num=1, reward_clipping=False
    )
    observation, _ = emulator.reset(seed=0)
    rng = np.random.default_rng(0)
    made = 0
    while made < count:
        frames, actions = [], []
        for _ in range(50):
            frames.append(observation[:, 0].copy())
            actions.append(rng.integers(0, 18, games))
            observation, *_ = emulator.step(actions[-1])
        for game in range(min(games, count - made)):
            clip = np.stack(frames)[:, game].copy()
            save_segment(
                db / f"{game:02d}" / f"{made:08d}.dat", Segment(clip, np.stack(actions)[:, game], None)
            )
            made += 1
    emulator.close()


def write_answers(db: Path, labels: int, size: int) -> int:
    """Writes answers, five to a prompt, of `size` bytes each, enough for so many labels. Returns how many."""
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("aeinorst"), rng.integers(2, 9))) for _ in range(1000)]
    count = 5 * math.ceil(labels / 10 + 1)  # ten pairs to a prompt
    for made in range(count):
        text = " ".join(rng.choice(words, size // 3))[:size]
        name = db / f"{made // 5:06d}" / f"{made % 5:08d}.dat"
        save_answer(name, Answer(f"What do you say to {words[made // 5 % 1000]}?", text, finished=True))
    return count


def resident(pid: int) -> float:
    """Resident memory of a process in MB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def tab_memory(browser: int) -> float:
    """Resident memory of the largest renderer of a Chromium in MB."""
    sizes = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
            parent, pid = int(folder.name), int(folder.name)
            while parent not in (browser, 1, 0):
                parent = int((Path("/proc") / str(parent) / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if parent == browser and b"--type=renderer" in command:
                sizes.append(resident(pid))
        except (OSError, IndexError, ValueError):
            continue  # the process has ended
    return max(sizes)


def connect(playwright: Playwright, port: int) -> Browser:
    """Attaches to a Chromium once it listens."""
    for _ in range(100):
        try:
            return playwright.chromium.connect_over_cdp(f"http://127.0.0.1:{port}")
        except Error:
            time.sleep(0.1)
    raise RuntimeError("Chromium did not start")


def measure_speed(page: Page, site: Site, count: int) -> tuple[float, float, np.ndarray]:
    """Presses keys.

    Returns:
      Seconds to the overview, seconds from there to the first pair, and float `[count]`: milliseconds from each key
      press to the next pair's first frame.
    """
    begin = time.perf_counter()
    page.goto(site.link)
    page.wait_for_selector(".figures")
    overview = time.perf_counter() - begin
    begin = time.perf_counter()
    page.goto(f"{site.base}/label")
    page.wait_for_selector("[data-answer='1'][aria-disabled='false']")
    first_pair = time.perf_counter() - begin
    page.evaluate(_OBSERVE)
    for number in range(1, count + 1):
        page.wait_for_timeout(170)  # the page accepts no earlier answer
        page.keyboard.press("120x"[number % 4])
        page.wait_for_function("number => waits.length == number", arg=number)
    return overview, first_pair, np.array(page.evaluate("waits"))


@contextlib.contextmanager
def labelling(
    folder: Path, labels: int, text_kb: int = 0
) -> Iterator[tuple[Site, subprocess.Popen[bytes], Browser, int]]:
    """The page over enough segments, or answers of so many KB, for so many labels, and a Chromium that has not opened it.

    Yields:
      The site, the browser's process, the connection to it, and the number of segments or answers.

    Raises:
      UserError: there is no Chromium.
    """
    chromium = doctor.chromium()
    if chromium is None:
        raise UserError(f"no Chromium found; {doctor.GET_CHROMIUM}")
    db = folder / "db"
    db.mkdir()
    if text_kb:
        made = write_answers(db, labels, 1024 * text_kb)
    else:
        made = segments_for(labels)
        record(db, made)
    with sync_playwright() as playwright:
        site = Site(db, folder / "state", "--name", "bench", "--goal", str(labels)).start()
        port = free_port()
        browser = subprocess.Popen(
            [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1280,720",
             f"--remote-debugging-port={port}", f"--user-data-dir={folder}/profile", "about:blank"],
            stderr=subprocess.DEVNULL,
            process_group=0,  # Debian's headless shell is started by a script that passes no signal on
        )  # fmt: skip
        try:
            yield site, browser, connect(playwright, port), made
        finally:
            os.killpg(browser.pid, signal.SIGTERM)
            browser.wait()
            site.stop(signal.SIGKILL)


def key_presses(setup: Setup) -> list[Row]:
    """The row of the harness: from a key press to the next pair of clips."""
    name, title = "label-page", "Labelling page: key press to the first frame of the next pair"
    keys = 20 if setup.quick else 100
    try:
        with labelling(setup.folder, keys) as (site, _, browser, _):
            overview, first_pair, waits = measure_speed(browser.contexts[0].pages[0], site, keys)
    except UserError as error:
        return [Row(name, title, note=f"{error}.")]
    note = (
        f"95th percentile {np.percentile(waits, 95):.0f} ms, worst {waits.max():.0f} ms; overview after "
        f"{overview:.2f} s, first pair {first_pair:.2f} s later."
    )
    return [Row(name, title, "ms", float(np.median(waits)), repeats=keys, note=note)]


def main(argv: Sequence[str] | None = None) -> None:
    config = cli.parse(PageConfig, argv, description=(__doc__ or "").splitlines()[0])
    keys, labels = config.keys, config.labels
    with (
        tempfile.TemporaryDirectory() as folder,
        labelling(Path(folder), keys + labels, config.text_kb) as (site, browser, attached, made),
    ):
        page = attached.contexts[0].pages[0]
        overview, first_pair, waits = measure_speed(page, site, keys)
        print(f"{made} clips or answers; overview shown after {overview:.2f} s")
        print(f"first pair playing after {first_pair:.2f} s")
        figures = " / ".join(f"{np.percentile(waits, q):.0f}" for q in (50, 95, 99))
        print(
            f"key press to next pair, {keys} times, ms: 50th / 95th / 99th percentile {figures}, "
            f"worst {waits.max():.0f}"
        )
        page.reload()
        page.wait_for_selector("[data-answer='1'][aria-disabled='false']")
        page.evaluate(_ANSWER)
        attached.close()
        assert site.process is not None
        print("labels  server MB  tab MB")
        for mark in range(keys, keys + labels + 1, max(1, labels // 10)):
            while len(site.labels()) < mark:
                time.sleep(0.2)
            print(f"{mark:6}  {resident(site.process.pid):9.1f}  {tab_memory(browser.pid):6.1f}", flush=True)


if __name__ == "__main__":
    cli.run(main)
