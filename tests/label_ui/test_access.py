"""What gets past the guard and what does not."""

import base64
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from lib.label_ui.access import Guard, as_origin, is_loopback, own_names
from lib.label_ui.api import PageSettings, build_api
from lib.label_ui.desk import Desk
from lib.label_ui.keys import Keys, load_secret
from tests.label_ui.dbs import make_db

ORIGIN = {"Origin": "http://localhost:8080"}


@pytest.fixture
def keys() -> Keys:
    return Keys(b"k" * 32, "db")


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> FastAPI:
    """One for all tests, none of which labels."""
    db = make_db(tmp_path_factory.mktemp("access") / "db", 4)
    return build_api(Desk(db, repeat_rate=0), PageSettings(name="ada"))


@pytest.fixture
def client(api: FastAPI, keys: Keys) -> Iterator[TestClient]:
    app = Guard(api, keys, own_names("127.0.0.1"), secure=False)
    with TestClient(app, base_url="http://localhost:8080", follow_redirects=False) as client:
        yield client


def enter(client: TestClient, keys: Keys) -> None:
    response = client.get(f"/?token={keys.new_link('host')}")
    assert response.status_code == 303


def test_the_link_works_once(client: TestClient, keys: Keys) -> None:
    token = keys.new_link("host")
    response = client.get(f"/?token={token}")
    assert (response.status_code, response.headers["location"]) == (303, "/")
    assert client.get("/api/session").status_code == 200
    assert client.get(f"/?token={token}").status_code == 303, "who is in may click it again"
    client.cookies.clear()
    assert client.get(f"/?token={token}").status_code == 401


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/label",
        "/labels",
        "/api/session",
        "/clip/0123456789abcdef.png",
        "/static/label.js",
        "/_nicegui/x",
    ],
)
def test_nothing_is_open_without_a_cookie(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 401
    assert client.get(path, headers={"Accept": "text/html"}).text.startswith("<!doctype html>")


def test_posts_and_sockets_are_closed_too(client: TestClient) -> None:
    assert client.post("/api/vote", json={}, headers=ORIGIN).status_code == 401
    with (
        pytest.raises(WebSocketDisconnect),
        client.websocket_connect("/_nicegui_ws/socket.io/", headers=ORIGIN),
    ):
        pass


@pytest.mark.parametrize(
    "origin",
    [
        None,
        "http://evil.example",
        "http://localhost:9999",
        "null",
        "",
        "ftp://localhost:8080",
        "https://localhost:8080",
        "http://localhost:8080/",
        "http://[",
    ],
)
def test_foreign_pages_can_neither_post_nor_open_sockets(
    client: TestClient, keys: Keys, origin: str | None
) -> None:
    enter(client, keys)
    headers = {} if origin is None else {"Origin": origin}
    assert client.post("/api/batch", json={}, headers=headers).status_code == 403
    with (
        pytest.raises(WebSocketDisconnect),
        client.websocket_connect("/_nicegui_ws/socket.io/", headers=headers),
    ):
        pass
    assert client.post("/api/batch", json={}, headers=ORIGIN).status_code == 422, "our own page gets through"
    if origin is not None:
        assert client.get("/api/session", headers=headers).status_code == 403


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8080", 200),
        ("127.0.0.1:1234", 200),
        ("[::1]:8080", 200),
        ("evil.example", 403),
        ("evil.example:8080", 403),
        ("localhost.evil.example", 403),
        ("[::1].evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("LocalHost:8080", 200),
        ("[", 403),
        ("localhost/evil.example", 403),
        ("user@localhost", 403),
        ("", 403),
    ],
)
def test_only_this_machines_names_are_answered(
    client: TestClient, keys: Keys, host: str, status: int
) -> None:
    enter(client, keys)
    assert client.get("/api/session", headers={"Host": host}).status_code == status


@pytest.mark.parametrize("host", ["label.example.org", "localhost:8080"], ids=["kept", "of the page"])
def test_behind_a_proxy_the_pages_origin_is_the_proxys(api: FastAPI, keys: Keys, host: str) -> None:
    url = "https://label.example.org"
    guard = Guard(api, keys, own_names("127.0.0.1", url), secure=True, url=url)
    with TestClient(guard, base_url="http://localhost:8080", follow_redirects=False) as client:
        entered = client.get(f"/?token={keys.new_link('host')}", headers={"Host": host})
        assert entered.headers["location"] == "/"
        cookie = entered.headers["set-cookie"]
        assert "secure" in cookie.lower()
        sent = {"Host": host, "Cookie": cookie.partition(";")[0]}
        for origin, status in ((url, 422), ("http://localhost:8080", 403), ("https://evil.example", 403)):
            answer = client.post("/api/batch", json={}, headers=sent | {"Origin": origin})
            assert answer.status_code == status
        assert client.get("/api/session", headers=sent | {"Host": "evil.example"}).status_code == 403


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("HTTPS://Label.Example.org:443/", "https://label.example.org"),
        ("http://label.example.org:80", "http://label.example.org"),
        ("http://label.example.org:443", "http://label.example.org:443"),
        ("https://label.example.org:8443", "https://label.example.org:8443"),
    ],
)
def test_an_address_is_known_as_browsers_name_it(url: str, origin: str) -> None:
    assert as_origin(url) == origin


@pytest.mark.parametrize("name", ["Host", "Origin"])
def test_a_header_that_comes_twice_is_refused(client: TestClient, keys: Keys, name: str) -> None:
    enter(client, keys)
    own = {"Host": "localhost:8080", "Origin": "http://localhost:8080"}
    twice = [*own.items(), (name, own[name].replace("localhost", "evil.example"))]
    assert client.get("/api/session", headers=list(own.items())).status_code == 200
    assert client.get("/api/session", headers=twice).status_code == 403


def test_cookies_of_other_servers_on_this_machine_do_not_get_in_the_way(
    client: TestClient, keys: Keys
) -> None:
    enter(client, keys)
    own = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
    client.cookies.clear()
    for odd in (
        'prefs={"a": [1, 2]}',
        "a[0]=1",
        "=",
        "x",
        'q="',
        "name with space=1",
        "é=é".encode().decode("latin-1"),
    ):
        cookie = f"{odd}; {own}".encode("latin-1")
        headers = [(b"Cookie", cookie)]
        assert client.get("/api/session", headers=headers).status_code == 200, odd


def test_the_page_that_refuses_has_a_style_that_its_policy_admits(client: TestClient) -> None:
    response = client.get("/label", headers={"Accept": "text/html"})
    style = response.text.split("<style>")[1].split("</style>")[0]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in response.headers["content-security-policy"]


def test_forged_expired_and_foreign_cookies_are_refused(tmp_path: Path) -> None:
    now = [1_700_000_000.0]
    keys = Keys(b"k" * 32, "db", now=lambda: now[0])
    value = keys.redeem(keys.new_link("guest")) or ""
    assert keys.role(value) == "guest"
    assert keys.role(value.replace("guest", "host")) is None
    assert Keys(b"k" * 32, "other").role(value) is None
    assert Keys(b"j" * 32, "db").role(value) is None
    assert Keys(b"k" * 32, "db", now=lambda: now[0]).role(value) == "guest", "a restart keeps people in"
    for nonsense in ("", ".", "a.b.c.d", value + "0", "é" * 9):
        assert keys.role(nonsense) is None
    now[0] += 31 * 86400
    assert keys.role(value) is None


@pytest.mark.parametrize(
    "path",
    [
        "/clip/../../etc/passwd",
        "/clip/..%2f..%2fetc%2fpasswd",
        "/clip/%2e%2e/%2e%2e/labels.json",
        "/clip/00/00000000.dat",
        "/clip/00000000.png",
        "/clip/0123456789abcde%00.png",
        "/thumb/..%2flabels.png",
        "/static/../desk.py",
        "/static/..%2fdesk.py",
        "/static/%2e%2e/desk.py",
        "/static//etc/passwd",
        "/api/pair/../../x",
    ],
)
def test_no_url_reads_a_file_outside(client: TestClient, keys: Keys, path: str) -> None:
    enter(client, keys)
    response = client.get(path)
    assert response.status_code in (404, 422)
    assert b"root:" not in response.content
    assert b"import" not in response.content


def test_only_the_host_gets_the_name_of_the_command_line(client: TestClient, keys: Keys) -> None:
    enter(client, keys)
    assert client.get("/api/session").json()["name"] == "ada"
    client.cookies.clear()
    client.get(f"/?token={keys.new_link('guest')}")
    assert client.get("/api/session").json()["name"] is None


def test_the_key_is_made_once_and_private(tmp_path: Path) -> None:
    key, lasting = load_secret(tmp_path / "state")
    assert lasting
    assert load_secret(tmp_path / "state") == (key, True)
    path = tmp_path / "state/label-page.key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    other, lasting = load_secret(tmp_path / "state")
    assert not lasting, "a key that others could read is not used"
    assert other != key
    os.truncate(path, 3)
    path.chmod(0o600)
    assert not load_secret(tmp_path / "state")[1]


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("box", False)],
)
def test_what_counts_as_this_machine_only(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
