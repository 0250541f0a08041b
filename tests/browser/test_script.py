"""Who gets in, over real sockets."""

import http.client

from benchmarks.site import Site
from tests.browser.conftest import Enter, Serve

SOCKET = "/_nicegui_ws/socket.io/?EIO=4&transport=websocket"


def ask(site: Site, path: str, method: str = "GET", **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=600)
    connection.putrequest(method, path, skip_host=True)
    for key, value in (
        {"Host": f"localhost:{site.port}"} | {k.replace("_", "-"): v for k, v in headers.items()}
    ).items():
        connection.putheader(key, value)
    connection.endheaders()
    response = connection.getresponse()
    answer = response.status, b"" if response.status == 101 else response.read()
    connection.close()
    return answer


def test_token_cookie_traversal_and_foreign_origins(serve: Serve, enter: Enter) -> None:
    site = serve()
    for path in (
        "/",
        "/label",
        "/labels",
        "/model",
        "/api/session",
        "/api/model/clips?order=most",
        "/static/label.js",
        "/_nicegui/3/static/nicegui.js",
    ):
        assert ask(site, path)[0] == 401
    assert ask(site, "/?token=wrong")[0] == 401

    tab = enter(site, link=site.link)
    tab.page.wait_for_selector(".figures")
    assert "token" not in tab.page.url
    cookie = next(c for c in tab.context.cookies() if c["name"].startswith("label-"))
    assert cookie["httpOnly"]
    assert tab.page.evaluate("document.cookie") == ""
    assert ask(site, site.link[site.link.index("/?") :])[0] == 401, "the link is used up"
    key = f"{cookie['name']}={cookie['value']}"
    assert ask(site, "/api/session", Cookie=key)[0] == 200
    assert ask(site, "/api/session", Cookie=key[:-1] + ("0" if key[-1] != "0" else "1"))[0] == 401
    assert ask(site, "/api/session", Cookie=key, Host="evil.example")[0] == 403

    secret = site.db.parent / "secret.dat"
    secret.write_text("top secret")
    (site.db / "00/00000099.dat").symlink_to(secret)
    for path in (
        "/clip/../../secret.dat", "/clip/..%2f..%2fsecret.dat", "/thumb/%2e%2e%2fsecret.png", "/static/../access.py",
        "/static/..%2f..%2faccess.py", "/static/%2e%2e/access.py", "//etc/passwd", "/clip/00/00000099.dat",
        "/_nicegui/3.18.0/static/../../../access.py",
    ):  # fmt: skip
        status, body = ask(site, path, Cookie=key)
        assert status in (404, 422), path
        assert b"secret" not in body.replace(b"secret.dat", b"")
        assert b"hmac" not in body

    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec_WebSocket_Version": "13",
        "Sec_WebSocket_Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    }
    for origin in ("http://evil.example", "null", f"http://localhost:{site.port + 1}"):
        assert ask(site, "/api/vote", "POST", Cookie=key, Origin=origin, Content_Length="0")[0] == 403
        assert ask(site, SOCKET, Cookie=key, Origin=origin, **upgrade)[0] == 403
    own = f"http://localhost:{site.port}"
    assert ask(site, SOCKET, Origin=own, **upgrade)[0] == 403, "no cookie"
    assert ask(site, SOCKET, Cookie=key, **upgrade)[0] == 403, "no origin"
    assert ask(site, SOCKET, Cookie=key, Origin=own, **upgrade)[0] == 101
    assert ask(site, "/api/vote", "POST", Cookie=key, Origin=own, Content_Length="0")[0] == 422


def test_another_site_in_the_same_browser_gets_nothing(site: Site, enter: Enter) -> None:
    tab = enter(site).overview()
    tab.page.wait_for_selector(".figures")
    evil = tab.context.new_page()
    evil.route(
        "http://evil.example/", lambda route: route.fulfill(body="<h1>evil</h1>", content_type="text/html")
    )
    evil.goto("http://evil.example/")
    outcome = evil.evaluate(
        """async base => {
            const result = {};
            await fetch(base + '/api/session', {credentials: 'include'}).then(() => result.read = true, () => {});
            await fetch(base + '/api/vote', {method: 'POST', mode: 'no-cors', credentials: 'include', body: '{}'})
                .then(() => {}, () => {});
            await new Promise(done => {
                const socket = new WebSocket(base.replace('http', 'ws') + '/_nicegui_ws/socket.io/?EIO=4&transport=websocket');
                socket.onopen = () => { result.socket = true; done(); };
                socket.onerror = done;
            });
            await new Promise(done => {
                const image = new Image();
                image.onload = () => { result.image = true; done(); };
                image.onerror = done;
                image.src = base + '/static/icon.svg';
            });
            return result;
        }""",
        site.base,
    )
    assert outcome == {}
    assert site.labels() == []


def test_a_used_link_says_what_to_do(site: Site, enter: Enter) -> None:
    site.cookies = None
    late = enter(site, link=site.link)
    assert "used before" in late.page.inner_text("body")
    radius = late.page.evaluate("getComputedStyle(document.querySelector('main')).borderRadius")
    assert radius == "10px", "its style is admitted"
