"""The labelling page under load: several labellers over real sockets, beside hostile clients.

Each labeller answers at a steady rate as the page does: vote, ask for more pairs, fetch the clips of the next one.
Every tenth vote is sent twice, as after a lost receipt. Meanwhile slow-loris connections dribble bytes, and
requests of 100 MB come with and without a cookie. Afterwards every acknowledged vote must be on disk exactly once.

    .venv/bin/python -m benchmarks.label_load --minutes 5
    .venv/bin/python -m benchmarks.label_load --minutes 1 --segments 100000 --labels 1000000

prints votes, the time from a vote to the next pair, and the server's memory; exits with 1 where a vote was lost or doubled.
"""

import http.client
import itertools
import json
import secrets
import signal
import socket
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.label_page import record, resident, segments_for
from benchmarks.site import Site, large_db
from lib import cli
from lib.cli import UserError, flag
from lib.preferences.segment_db import SegmentDB

_BATCH = 6
"""Pairs that a page holds."""
_HUGE = 100_000_000  # bytes
_DRIBBLERS = 50


@dataclass(frozen=True)
class LoadConfig:
    """How much load, on how large a DB."""

    minutes: float = flag(default=5.0, min=0.01, help="minutes of labelling")
    labellers: int = flag(default=4, min=1, help="labellers at once")
    rate: float = flag(default=2.0, min=0.01, help="votes a second of each")
    segments: int = flag(default=0, min=0, help="segments of the DB; 0: enough for the votes")
    labels: int = flag(default=0, min=0, help="labels that it has at the start")


def write_labels(db: Path, labels: int) -> None:
    """Writes labels of somebody on random pairs."""
    names, rng = SegmentDB(db).names, np.random.default_rng(0)
    with (db / "labels.json").open("w") as file:
        for number in range(labels):
            one, two = rng.integers(len(names), size=2)
            line = {
                "sample1": names[one],
                "sample2": names[two - (one == two)],
                "label": 1,
                "annotator": "eve",
            }
            file.write(json.dumps(line | {"id": f"old{number:09d}", "time": float(number)}) + "\n")


class Client:
    """One browser's connection: keep-alive, a cookie, the page's own Origin."""

    def __init__(self, port: int, cookie: str) -> None:
        self._connection = http.client.HTTPConnection("localhost", port, timeout=30)
        self._headers = {
            "Cookie": cookie,
            "Origin": f"http://localhost:{port}",
            "Content-Type": "application/json",
        }

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Posts a body, or gets where there is none; returns the JSON or the bytes of the reply.

        Raises:
          RuntimeError: the server did not answer with 200.
        """
        data = None if body is None else json.dumps(body)
        self._connection.request("GET" if body is None else "POST", path, data, self._headers)
        response = self._connection.getresponse()
        answer = response.read()
        if response.status != 200:
            raise RuntimeError(f"{path}: {response.status} {answer[:200]!r}")
        return json.loads(answer) if response.headers["Content-Type"] == "application/json" else answer


def enter(site: Site) -> str:
    """Opens the site's link and returns the cookie."""
    connection = http.client.HTTPConnection("localhost", site.port, timeout=30)
    connection.request("GET", site.link.removeprefix(site.base))
    return connection.getresponse().headers["Set-Cookie"].split(";")[0]


@dataclass
class Outcome:
    """The results of a load."""

    acknowledged: list[str] = field(default_factory=list)
    """Ids of the votes that the server said were saved."""
    waits: list[float] = field(default_factory=list)
    """Milliseconds from each vote to the next pair's clips."""
    memory: list[float] = field(default_factory=list)
    """MB of the server, every quarter of a second."""
    refused: int = 0
    """Huge requests that were cut off before their end."""
    errors: list[str] = field(default_factory=list)

    def grown(self) -> float:
        """MB by which the server's memory grew after the first third of the time, at its peak."""
        third = len(self.memory) // 3
        return max(self.memory[third:]) - self.memory[third]


def lost_or_doubled(site: Site, outcome: Outcome) -> list[str]:
    """Acknowledged votes that are not on disk exactly once."""
    lines = Counter(line["id"] for line in site.labels())
    return [id for id in outcome.acknowledged if lines[id] != 1]


def label(port: int, cookie: str, name: str, rate: float, until: float, outcome: Outcome) -> None:
    """One labeller, answering `rate` pairs a second until a time of the monotonic clock."""
    client = Client(port, cookie)
    db = client.ask("/api/session")["db"]
    page = secrets.token_hex(8)

    def batch(keep: list[dict[str, Any]]) -> list[dict[str, Any]]:
        body = {"db": db, "page": page, "labeller": name, "keep": keep, "want": _BATCH}
        return list(client.ask("/api/batch", body)["pairs"])

    offers, due = batch([]), time.monotonic()
    for number in itertools.count():
        due += 1 / rate
        if due > until:
            return
        time.sleep(max(0.0, due - time.monotonic()))
        begin = time.perf_counter()
        vote = {"db": db, "labeller": name, "offer": offers[0], "label": number % 3, "response_ms": 500}
        outcomes = [client.ask("/api/vote", vote)["outcome"] for _ in range(2 if number % 10 == 9 else 1)]
        if outcomes[0] != "saved" or outcomes[1:] not in ([], ["duplicate"]):
            raise RuntimeError(f"a vote was {' and '.join(outcomes)}")
        outcome.acknowledged.append(offers[0]["id"])
        offers = batch(offers[1:])
        for clip in (offers[0]["clip1"], offers[0]["clip2"]):
            client.ask(f"/clip/{clip}.png")
        outcome.waits.append(1000 * (time.perf_counter() - begin))


def dribble(port: int, until: float) -> None:
    """Slow loris: requests that never end. Reopens connections that the server closes."""
    sockets: list[socket.socket] = []
    while time.monotonic() < until:
        while len(sockets) < _DRIBBLERS:
            sockets.append(socket.create_connection(("localhost", port)))
            sockets[-1].sendall(b"POST /api/vote HTTP/1.1\r\nHost: localhost\r\n")
        for one in list(sockets):
            try:
                one.sendall(b"X-A: b\r\n")
            except OSError:
                sockets.remove(one)
        time.sleep(0.5)
    for one in sockets:
        one.close()


def flood(port: int, cookie: str, until: float, outcome: Outcome) -> None:
    """One request of 100 MB after another: with a cookie, without one, and chunked."""
    block = b"x" * (1 << 20)
    for number in itertools.count():
        if time.monotonic() > until:
            return
        kind = number % 3
        head = f"POST /api/vote HTTP/1.1\r\nHost: localhost:{port}\r\nOrigin: http://localhost:{port}\r\n"
        head += f"Cookie: {cookie}\r\n" if kind else ""
        head += "Transfer-Encoding: chunked\r\n\r\n" if kind == 2 else f"Content-Length: {_HUGE}\r\n\r\n"
        with socket.create_connection(("localhost", port)) as connection:
            connection.settimeout(5)
            try:
                connection.sendall(head.encode())
                for _ in range(_HUGE >> 20):
                    connection.sendall(b"%x\r\n%b\r\n" % (len(block), block) if kind == 2 else block)
            except OSError:
                outcome.refused += 1
        time.sleep(0.5)


def load(site: Site, labellers: int, rate: float, seconds: float) -> Outcome:
    """Labels over real sockets, beside slow-loris connections and huge requests.

    Args:
      site: a running page whose link has not been used.
      labellers: how many at once.
      rate: votes a second of each.
      seconds: for how long.
    """
    assert site.process is not None
    outcome, cookie, until = Outcome(), enter(site), time.monotonic() + seconds

    def guarded(work: Any, *args: Any) -> None:
        try:
            work(site.port, *args)
        except Exception as error:  # a thread's exception would be lost
            outcome.errors.append(f"{type(error).__name__}: {error}")

    jobs = [(label, cookie, f"labeller {number}", rate, until, outcome) for number in range(labellers)]
    jobs += [(dribble, until), (flood, cookie, until, outcome)]  # type: ignore[list-item]
    threads = [threading.Thread(target=guarded, args=job) for job in jobs]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        outcome.memory.append(resident(site.process.pid))
        time.sleep(0.25)
    return outcome


def report(site: Site, outcome: Outcome) -> Iterator[str]:
    """The results of a load, in lines."""
    yield from outcome.errors
    if not outcome.waits:
        raise UserError("expected answers, got none in that time; take more --minutes or a higher --rate")
    median, late, worst = np.percentile(outcome.waits, [50, 95, 100])
    third = outcome.memory[len(outcome.memory) // 3]
    yield f"{len(outcome.acknowledged)} votes acknowledged, {len(lost_or_doubled(site, outcome))} lost or doubled"
    yield f"vote to next pair: median {median:.0f} ms, 95th percentile {late:.0f} ms, worst {worst:.0f} ms"
    yield f"server: {third:.0f} MB after a third of the time, {max(outcome.memory):.0f} MB at most"
    yield f"{outcome.refused} requests of 100 MB cut off"


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 1 where a vote was lost or doubled, or a labeller was refused."""
    config = cli.parse(LoadConfig, argv, description=(__doc__ or "").splitlines()[0])
    with tempfile.TemporaryDirectory() as folder:
        some = Path(folder) / "some"
        some.mkdir()
        needed = segments_for(round(config.labellers * config.rate * config.minutes * 60))
        record(some, needed)
        db = large_db(some, Path(folder) / "db", max(needed, config.segments))
        write_labels(db, config.labels)
        begin = time.perf_counter()
        site = Site(db, Path(folder) / "state").start()
        print(f"start to link: {time.perf_counter() - begin:.1f} s, {resident(site.process.pid):.0f} MB")
        try:
            outcome = load(site, config.labellers, config.rate, config.minutes * 60)
            for line in report(site, outcome):
                print(line)
            return 1 if outcome.errors or lost_or_doubled(site, outcome) else 0
        finally:
            site.stop(signal.SIGKILL)


if __name__ == "__main__":
    cli.run(main)
