"""How long a user waits for --help, and for the labelling page of a large DB."""

import http.cookiejar
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from statistics import median

from benchmarks.ours import record_segments
from benchmarks.report import Row, Target
from benchmarks.setup import Setup
from benchmarks.site import Site, large_db

ROOT = Path(__file__).parents[1]
SCRIPTS = ("01_a2c.py", "02_label_ui.py", "03_reward_train.py", "04_play.py", "online.py", "demo.py")


def help_of_scripts(setup: Setup, scripts: tuple[str, ...] = SCRIPTS) -> list[Row]:
    rows = []
    for script in scripts:
        command, times = [sys.executable, str(ROOT / script), "--help"], []
        for repeat in range(setup.repeats + 1):
            began = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            if repeat > 0:
                times.append(time.perf_counter() - began)
        title = f"`{script} --help`"
        target = Target(1.5, least=False, of_ratio=False)
        name = f"help-{Path(script).stem.split('_')[0]}"
        rows.append(Row(name, title, "s", median(times), repeats=len(times), target=target))
    return rows


def page_time(db: Path, state: Path) -> float:
    """Seconds from the start of 02_label_ui.py to the last byte of the page behind the link that it prints.

    Raises:
      OSError: the page was not served.
    """
    site = Site(db, state, "--name", "bench")
    browser = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
    )
    began = time.perf_counter()
    try:
        site.start()
        with browser.open(site.link, timeout=60) as page:
            page.read()
        return time.perf_counter() - began
    finally:
        site.stop(signal.SIGKILL)


def first_page(setup: Setup, segments: int = 10_000) -> list[Row]:
    record_segments(setup.folder / "some", 20)
    db = large_db(setup.folder / "some", setup.folder / "large", segments)
    page_time(db, setup.folder / "state")  # fills the page cache
    times = [page_time(db, setup.folder / "state") for _ in range(setup.repeats)]
    return [
        Row(
            "startup-page",
            f"`02_label_ui.py` from start to first page, {segments:,} segments in the DB",
            "s",
            median(times),
            repeats=len(times),
            target=Target(4, least=False, of_ratio=False),
            note=f"worst {max(times):.2f} s; the page's HTML, not yet its scripts.",
        )
    ]
