"""Speed and memory of the labelling page over many labels, in a real Chromium.

Presses keys on a DB of its own and prints the time from key press to the next pair's first frame on screen, and
the memory of server and tab as labels come in. Needs Chromium.

    .venv/bin/python -m benchmarks.label_page --labels 1000
"""

import argparse
import shutil
import signal
import tempfile
import time
from pathlib import Path

import numpy as np
from playwright.sync_api import CDPSession, sync_playwright

from lib.preferences.segments import Segment, save_segment
from tests.browser.site import Site

_OBSERVE = """() => {
  window.waits = [];
  new PerformanceObserver(list => {
    for (const entry of list.getEntries()) if (entry.name === 'next pair') waits.push(entry.duration);
  }).observe({type: 'measure'});
}"""


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


def resident(pid: int) -> float:
    """Resident memory of a process in MB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def tab_memory(browser: CDPSession) -> float:
    """Resident memory of the largest renderer in MB."""
    processes = browser.send("SystemInfo.getProcessInfo")["processInfo"]
    return max(resident(process["id"]) for process in processes if process["type"] == "renderer")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--labels", type=int, default=1000)
    parser.add_argument("--segments", type=int, default=64)
    args = parser.parse_args()
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        db = Path(folder) / "db"
        db.mkdir()
        record(db, args.segments)
        begin = time.perf_counter()
        site = Site(db, Path(folder) / "state", "--name", "bench", "--goal", str(args.labels)).start()
        print(f"server ready after {time.perf_counter() - begin:.2f} s with {args.segments} segments")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        try:
            page = browser.new_page(viewport={"width": 1280, "height": 720})
            begin = time.perf_counter()
            page.goto(site.link)
            page.wait_for_selector(".figures")
            print(f"overview shown after {time.perf_counter() - begin:.2f} s")
            begin = time.perf_counter()
            page.goto(f"{site.base}/label")
            page.wait_for_selector("[data-answer='1']:not([disabled])")
            print(f"first pair playing after {time.perf_counter() - begin:.2f} s")
            page.evaluate(_OBSERVE)
            processes = browser.new_browser_cdp_session()
            session = page.context.new_cdp_session(page)
            assert site.process is not None
            print("labels  server MB  tab MB  heap MB  DOM nodes")
            for count in range(args.labels + 1):
                if count % max(1, args.labels // 10) == 0:
                    session.send("HeapProfiler.collectGarbage")
                    session.send("Performance.enable")
                    metrics = {
                        m["name"]: m["value"] for m in session.send("Performance.getMetrics")["metrics"]
                    }
                    print(
                        f"{count:6}  {resident(site.process.pid):9.1f}  {tab_memory(processes):6.1f}  "
                        f"{metrics['JSHeapUsedSize'] / 1e6:7.2f}  {metrics['Nodes']:9.0f}",
                        flush=True,
                    )
                if count < args.labels:
                    page.wait_for_timeout(170)  # the page takes no answer earlier
                    page.keyboard.press("120x"[count % 4])
                    page.wait_for_function("count => waits.length == count", arg=count + 1)
            waits = np.array(page.evaluate("waits"))
            figures = " / ".join(f"{np.percentile(waits, q):.0f}" for q in (50, 95, 99))
            print(
                f"key press to next pair, ms: 50th / 95th / 99th percentile {figures}, worst {waits.max():.0f}"
            )
            print(f"lines in labels.json: {len(site.labels())}")
        finally:
            browser.close()
            site.stop(signal.SIGKILL)


if __name__ == "__main__":
    main()
