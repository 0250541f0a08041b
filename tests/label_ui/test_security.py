"""What docs/security.md promises of the page, over real sockets where these matter. Links and cookies: test_access.py."""

import asyncio
import contextlib
import http.client
import json
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

from benchmarks.site import Site
from lib.label_ui import serve
from lib.label_ui.access import MAX_BODY, Guard, own_names
from lib.label_ui.api import PageSettings, build_api
from lib.label_ui.desk import Desk
from lib.label_ui.keys import Keys
from lib.preferences.labels import Label, LabelLog
from tests.label_ui.dbs import make_db

ORIGIN = {"Origin": "http://localhost:8080"}
EVIL = "</script><img src=x onerror=alert(1)>{{7*7}}"


def guard(root: Path, secure: bool = False) -> tuple[Guard, Keys]:
    keys = Keys(b"k" * 32, "db")
    api = build_api(Desk(root, repeat_rate=0), PageSettings())
    return Guard(api, keys, own_names("127.0.0.1"), secure=secure), keys


def client_of(app: Guard, scheme: str = "http") -> TestClient:
    return TestClient(app, base_url=f"{scheme}://localhost:8080", follow_redirects=False)


# --- links and cookies ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("secure", [False, True])
def test_the_cookie_is_for_this_server_only(tmp_path: Path, secure: bool) -> None:
    app, keys = guard(make_db(tmp_path / "db", 2), secure)
    response = client_of(app, scheme="https" if secure else "http").get(f"/?token={keys.new_link('guest')}")
    parts = {part.strip().lower() for part in response.headers["set-cookie"].split(";")[1:]}
    assert parts - {"secure"} == {"httponly", "samesite=lax", "path=/", "max-age=2592000"}
    assert ("secure" in parts) == secure
    assert "domain" not in response.headers["set-cookie"].lower()


def test_a_head_request_uses_up_no_link(tmp_path: Path) -> None:
    app, keys = guard(make_db(tmp_path / "db", 2))
    link = f"/?token={keys.new_link('guest')}"
    assert client_of(app).head(link).status_code == 401
    assert client_of(app).get(link).status_code == 303


def test_a_preview_uses_up_no_invitation(tmp_path: Path) -> None:
    app, keys = guard(make_db(tmp_path / "db", 2))
    link = f"/?invite={keys.new_link('guest')}"
    for _ in range(3):
        shown = client_of(app).get(link)
        assert (shown.status_code, "set-cookie" in shown.headers) == (200, False)
        assert f'<form method="post" action="{link}">' in shown.text
        assert "form-action 'self'" in shown.headers["content-security-policy"]
    assert client_of(app).post(link).status_code == 403, "only the page's own button"
    assert client_of(app).post(link, headers={"Origin": "http://evil.example"}).status_code == 403
    bob = client_of(app)
    assert bob.post(link, headers=ORIGIN).status_code == 303
    assert bob.get("/api/session").status_code == 200
    assert client_of(app).post(link, headers=ORIGIN).status_code == 401, "once"
    used = client_of(app).get(link)
    assert (used.status_code, "<form" in used.text) == (401, False), "no button that only refuses"
    odd = client_of(app).get(f'/?invite={keys.new_link("guest")}&x="><script>alert(1)</script>')
    assert "<form" in odd.text
    assert "<script>" not in odd.text


# --- headers, files, and what is written ------------------------------------------------------------------------


@pytest.fixture
def inside(tmp_path: Path) -> tuple[TestClient, Path]:
    """Somebody who was let in, and the DB."""
    root = make_db(tmp_path / "db", 4)
    app, keys = guard(root)
    client = client_of(app)
    assert client.get(f"/?token={keys.new_link('host')}").status_code == 303
    return client, root


def test_every_answer_carries_strict_headers(inside: tuple[TestClient, Path]) -> None:
    client, _ = inside
    thumb = f"/thumb/{offers(client)[0]['clip1']}.png"
    answers = [
        (404, "no-store", client.get("/nowhere")),
        (405, "no-store", client.delete("/api/vote", headers=ORIGIN)),
        (413, "no-store", client.post("/api/vote", content=b"x" * (MAX_BODY + 1), headers=ORIGIN)),
        (422, "no-store", client.post("/api/vote", json={}, headers=ORIGIN)),
        (403, "no-store", client.post("/api/vote", json={}, headers={"Origin": "http://evil.example"})),
        (200, "private, max-age=60", client.get(thumb)),
        (200, "no-cache", client.get("/label")),
        (200, "no-cache", client.get("/static/label.js")),
        (200, "no-store", client.get("/api/session")),
    ]
    client.cookies.clear()
    answers.append((401, "no-store", client.get("/label")))
    for status, kept, answer in answers:
        assert answer.status_code == status
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy, status
        assert "frame-ancestors 'none'" in policy, status
        assert "unsafe" not in policy, status
        assert answer.headers["x-content-type-options"] == "nosniff", status
        assert answer.headers["x-frame-options"] == "DENY", status
        assert answer.headers["referrer-policy"] == "same-origin", status
        assert answer.headers["cross-origin-resource-policy"] == "same-origin", status
        assert answer.headers["cache-control"] == kept, status


def offers(client: TestClient) -> list[dict[str, Any]]:
    db = client.get("/api/session").json()["db"]
    ask = {"db": db, "page": "page00000001", "labeller": "ada", "want": 3}
    return list(client.post("/api/batch", json=ask, headers=ORIGIN).json()["pairs"])


def vote(client: TestClient, **changes: Any) -> Any:
    """Answers a pair, with changes to the offer."""
    body = {
        "db": client.get("/api/session").json()["db"],
        "labeller": "ada",
        "label": 1,
    }
    offer = {**offers(client)[0], **changes.pop("offer", {})}
    return client.post("/api/vote", json={**body, "offer": offer, **changes}, headers=ORIGIN)


def test_only_the_page_itself_gives_its_pairs_back(inside: tuple[TestClient, Path]) -> None:
    client, _ = inside
    leaving = {"page": "page00000000"}
    for headers in ({}, {"Origin": "null"}, {"Origin": "http://evil.example"}):
        assert client.post("/api/leave", json=leaving, headers=headers).status_code == 403
    assert client.post("/api/leave", json=leaving, headers=ORIGIN).status_code == 204
    assert client.post("/api/leave", json={"page": "../x"}, headers=ORIGIN).status_code == 422
    client.cookies.clear()
    assert client.post("/api/leave", json=leaving, headers=ORIGIN).status_code == 401


def test_links_out_of_the_db_are_neither_shown_nor_labelled(inside: tuple[TestClient, Path]) -> None:
    client, root = inside
    outside = make_db(root.parent / "outside", 1)
    (root / "00" / "00000099.dat").symlink_to(outside / "00" / "00000000.dat")
    (root / "09").symlink_to(outside / "00")
    desk = Desk(root)
    for name in ("00/00000099.dat", "09/00000000.dat", "../outside/00/00000000.dat"):
        for kind in ("clip", "thumb"):
            assert client.get(f"/{kind}/{desk.db.clip_id(name)}.png").status_code == 404
        reply = vote(client, offer={"id": "another00001", "sample1": name})
        assert reply.json()["outcome"] == "dropped"
    assert not (root / "labels.json").exists()


def test_labels_are_not_written_through_a_link(inside: tuple[TestClient, Path]) -> None:
    client, root = inside
    target = root.parent / "target"
    target.write_text("mine\n")
    (root / "labels.json").symlink_to(target)
    ask = {"db": Desk(root).db.id, "page": "p0000001", "labeller": "a", "want": 1}
    asked = client.post("/api/batch", json=ask, headers=ORIGIN)
    assert asked.status_code == 503
    assert "found a link" in asked.json()["error"]
    assert target.read_text() == "mine\n"


def test_notes_and_names_come_back_as_json_and_stay_on_one_line(inside: tuple[TestClient, Path]) -> None:
    client, root = inside
    evil = EVIL + "\n\u2028\x00"
    assert vote(client, labeller=evil, flag=evil).json()["outcome"] == "saved"
    (line,) = (root / "labels.json").read_bytes().splitlines()
    assert json.loads(line)["flag"] == evil.strip()
    said = client.get("/api/history", params={"labeller": evil.strip()})
    assert said.headers["content-type"] == "application/json"
    assert said.json()[0]["flag"] == evil.strip()


def test_half_an_emoji_in_a_note_loses_no_answer(inside: tuple[TestClient, Path]) -> None:
    """Browsers write it as JSON, UTF-8 has no bytes for it."""
    client, root = inside
    session = client.get("/api/session").json()
    cut = "eve \ud83d"
    body = {"db": session["db"], "labeller": cut, "label": 1, "flag": "odd \ud83d"}
    body["offer"] = offers(client)[0]
    headers = {**ORIGIN, "Content-Type": "application/json"}
    reply = client.post("/api/vote", content=json.dumps(body), headers=headers)
    assert reply.json()["outcome"] == "saved"
    (label,) = LabelLog(root / "labels.json").read()
    assert (label.annotator, label.flag) == ("eve \ufffd", "odd \ufffd")


@pytest.mark.parametrize(
    "changes",
    [
        {"labeller": "x" * 61},
        {"labeller": " "},
        {"flag": "x" * 501},
        {"label": 3},
        {"label": "1"},
        {"offer": {"id": "../../x"}},
        {"offer": {"id": "u-00000001"}},
        {"offer": {"strategy": "x" * 61}},
        {"offer": {"sample1": "x" * 301}},
    ],
)
def test_answers_of_another_form_are_refused(
    inside: tuple[TestClient, Path], changes: dict[str, Any]
) -> None:
    client, root = inside
    assert vote(client, **changes).status_code == 422
    assert not (root / "labels.json").exists()


@pytest.mark.parametrize("body", ['{"db": "\\ud800"}', '{"db": NaN}', "[1e999]"])
def test_what_json_cannot_say_again_is_refused_like_all_else(
    inside: tuple[TestClient, Path], body: str
) -> None:
    for path in ("/api/batch", "/api/vote", "/api/undo", "/api/leave"):
        refused = inside[0].post(path, content=body, headers={**ORIGIN, "Content-Type": "application/json"})
        assert refused.status_code == 422
        assert refused.json() == {"error": "this page sends no such message"}


# --- the script itself --------------------------------------------------------------------------------------------


def ask(
    site: Site, path: str, cookie: str = "", method: str = "GET", body: str | None = None
) -> tuple[int, str, Any]:
    connection = http.client.HTTPConnection("localhost", site.port, timeout=600)
    connection.request(method, path, body, {"Cookie": cookie, "Origin": site.base, "Accept": "text/html"})
    response = connection.getresponse()
    return response.status, response.read().decode("utf-8", "replace"), response.headers


def test_the_log_holds_no_secret_and_pages_no_markup_of_strangers(tmp_path: Path) -> None:
    root = make_db(tmp_path / "db", 3)
    LabelLog(root / "labels.json").append(
        Label(
            "00/00000000.dat", "01/00000001.dat", 1, annotator=EVIL[:60], flag=EVIL, strategy=EVIL, time=1.0
        )
    )
    site = Site(root, tmp_path / "state").start()
    try:
        assert site.process is not None
        path = site.link.removeprefix(site.base)
        token = path.removeprefix("/?token=")
        assert ask(site, "/?token=a-wrong-one")[0] == 401
        status, _, headers = ask(site, path)
        cookie = headers["Set-Cookie"].split(";")[0]
        assert status == 303
        for page in ("/", "/labels", "/label"):
            status, text, headers = ask(site, page, cookie)
            assert status == 200
            assert "<img src=x" not in text
            assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
            assert headers["X-Content-Type-Options"] == "nosniff"
        assert ask(site, "/api/vote", cookie, "POST", "no json")[0] == 422
        with socket.create_connection(("localhost", site.port)) as rude:
            rude.sendall(b"GET /?token=" + token.encode() + b" HTTP/9.9\r\nbroken\r\n\r\n")
            rude.recv(100)
        process = site.process
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=600)
        site.process = None
        assert token not in said, "printed once, in the line that the test has read"
        assert "a-wrong-one" not in said
        assert cookie.split("=", 1)[1] not in said
        assert not re.search(r"Traceback|token", said), said
        key = (tmp_path / "state" / "clip-preferences" / "label-page.key").read_bytes()
        assert key.hex() not in said
        assert not any(key in file.read_bytes() for file in root.rglob("*") if file.is_file())
    finally:
        site.stop(signal.SIGKILL)


# --- connections that do not end ------------------------------------------------------------------------------------


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A server that waits a second for a request and for five at a time."""
    monkeypatch.setattr(serve, "_REQUEST_SECONDS", 1.0)
    monkeypatch.setattr(serve, "_UNFINISHED", 5)
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(PlainTextResponse("here"), http=serve._Impatient, log_level="error")
    )
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
    thread.start()
    yield listener.getsockname()[1]
    server.should_exit = True
    thread.join()


def answer(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=600) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        return b"".join(iter(lambda: connection.recv(4096), b""))


def closed(connection: socket.socket) -> bool:
    """Waits for the other side to close a connection."""
    try:
        return connection.recv(4096) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"GET /",
        b"GET / HTTP/1.1\r\nHost: x\r\nX-A: ",
        b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nabc",
    ],
)
def test_a_request_that_does_not_end_is_cut_off_however_it_dribbles(port: int, start: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=0.05) as connection:
        connection.sendall(start)
        for _ in range(400):  # a byte every 50 ms, which buys no time
            try:
                if connection.recv(4096) == b"":
                    break
            except TimeoutError:
                pass
            except ConnectionResetError:
                break
            with contextlib.suppress(ConnectionError):
                connection.sendall(b"a" if start.startswith(b"GET") else b"")
        else:
            pytest.fail("not cut off within 20 s")
    assert answer(port).endswith(b"here")


def test_a_crowd_of_unfinished_requests_keeps_nobody_out(port: int) -> None:
    crowd = [socket.create_connection(("127.0.0.1", port), timeout=600) for _ in range(20)]
    for one in crowd:
        one.sendall(b"GET / HTTP/1.1\r\n")
    assert answer(port).endswith(b"here")
    assert closed(crowd[0]), "the oldest goes first"
    for one in crowd:
        one.close()


def test_a_kept_connection_may_ask_again(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    for _ in range(3):
        connection.request("GET", "/")
        assert connection.getresponse().read() == b"here"
        time.sleep(0.4)  # longer in all than a request may take
    connection.close()
