"""Access to the page: checks every request before any other code sees it."""

from __future__ import annotations

import base64
import hashlib
import html
import ipaddress
import re
import socket
from collections.abc import Iterable
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lib.label_ui.keys import COOKIE_SECONDS, Keys, Role

MAX_BODY = 1 << 20
"""Bytes of a request; an answer takes some 500."""

_STRICT = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# NiceGUI's pages carry inline scripts and compile templates; everything still has to come from this server.
_NICEGUI = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; object-src 'none'"
)

# A browser that is refused gets no file either, so this one page carries its style, which its policy admits by digest.
# The colours are those of base.css.
_SORRY_STYLE = (
    ":root{color-scheme:light dark}body{display:grid;place-items:center;min-height:100vh;margin:0;background:#f4f4f1;"
    "color:#1b1e24;font:16px/1.5 -apple-system,'Segoe UI','Noto Sans','Helvetica Neue',Arial,sans-serif}"
    "main{max-width:34em;margin:24px;padding:24px 28px;border:1px solid #cfd1cf;border-radius:10px;background:#fff}"
    "h1{margin:0 0 8px;font-size:20px}p{margin:0}"
    "@media(prefers-color-scheme:dark){body{background:#14161a;color:#e7e9ed}main{background:#1c1f25;border-color:#31363f}}"
)
_SORRY_POLICY = _STRICT.replace(
    "style-src 'self'",
    f"style-src 'sha256-{base64.b64encode(hashlib.sha256(_SORRY_STYLE.encode()).digest()).decode()}'",
)
_DOOR_POLICY = _SORRY_POLICY.replace("form-action 'none'", "form-action 'self'")


def own_names(host: str, url: str | None = None) -> set[str]:
    """Names under which this machine may be addressed when it listens on `host`, or is reached at `url`.

    IP addresses need no listing: a foreign site can point a name of its own here, but not a number.
    """
    names = {"localhost", host.lower()}
    if not is_loopback(host):
        names |= {socket.gethostname().lower(), socket.getfqdn().lower()}
    if url is not None:
        names.add(urlsplit(url).hostname or "")
    return names


def as_origin(url: str) -> str:
    """An address as browsers name it in `Origin`: in lower case, without a slash at its end or its scheme's usual port."""
    url = url.rstrip("/").lower()
    return url.removesuffix(":443" if url.startswith("https:") else ":80")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class Guard:
    """ASGI middleware around everything: pages, clips, static files and sockets.

    A request passes when its Host is one of ours, its Origin (required of requests that change something) is the page's
    own, its body is not oversized, and its cookie is valid. `/?token=…` turns a link into a cookie; `/?invite=…` shows
    a button that does, because chat programs fetch a link for its preview and would use it up.

    Args:
      app: what is guarded.
      keys: of links and cookies.
      hosts: our names (`own_names`).
      secure: whether browsers reach the page by https, so that cookies are for https alone.
      url: the page's origin in browsers (`as_origin`), if a proxy leads here; None: scheme and Host.
    """

    def __init__(
        self, app: ASGIApp, keys: Keys, hosts: Iterable[str], secure: bool, url: str | None = None
    ) -> None:
        self.app = app  # NiceGUI looks for it by this name
        self._keys = keys
        self._hosts = frozenset(hosts)
        self._secure = secure
        self._url = url

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        reason = self._foreign(scope, headers)
        if reason is not None:
            await self._refuse(scope, receive, send, 403, reason)
            return
        role = self._role(headers)
        token = self._token(scope)
        if token is not None:
            await self._enter(token, role)(scope, receive, self._with_headers(scope, send))
        elif role is None and (invitation := _in_query(scope, "GET", "invite")) is not None:
            page = _door(scope) if self._keys.valid(invitation) else _used()
            await page(scope, receive, self._with_headers(scope, send))
        elif role is None:
            await self._refuse(
                scope, receive, send, 401, "This page opens with a link: use the one in the terminal."
            )
        elif int(headers.get("content-length") or 0) > MAX_BODY:
            await self._refuse(
                scope, receive, send, 413, "The request is larger than anything this page sends."
            )
        else:
            scope.setdefault("state", {})["role"] = role
            body = _Body(receive)
            await self.app(scope, body, self._with_headers(scope, send, body))

    def _foreign(self, scope: Scope, headers: Headers) -> str | None:
        """What is wrong with a request's origin, or None."""
        host = ",".join(headers.getlist("host")).lower()
        name = _host_name(host)
        if name is None or not (name in self._hosts or _is_ip(name)):
            return "The address in the browser is not one of this machine's names."
        origins = headers.getlist("origin")
        if not origins:
            changes = scope["type"] == "websocket" or scope["method"] not in ("GET", "HEAD", "OPTIONS")
            return "The request does not say which page sent it." if changes else None
        own = self._url or f"{'https' if self._secure else 'http'}://{host}"
        if [origin.lower() for origin in origins] != [own]:
            return "The request comes from another page."
        return None

    def _role(self, headers: Headers) -> Role | None:
        # Other servers on this machine set cookies as well, some in ways that the standard library refuses to read.
        return self._keys.role(cookie_parser(headers.get("cookie", "")).get(self._keys.cookie, ""))

    def _token(self, scope: Scope) -> str | None:
        """The token of a request that redeems one: GET with a link, POST with an invitation."""
        return _in_query(scope, "GET", "token") or _in_query(scope, "POST", "invite")

    def _enter(self, token: str, role: Role | None) -> Response:
        response = RedirectResponse("/", status_code=303)
        if role is not None:
            return response
        value = self._keys.redeem(token)
        if value is None:
            return _used()
        response.set_cookie(
            self._keys.cookie,
            value,
            max_age=COOKIE_SECONDS,
            httponly=True,
            samesite="lax",
            secure=self._secure,
        )
        return response

    async def _refuse(self, scope: Scope, receive: Receive, send: Send, status: int, reason: str) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": reason})
            return
        wants_page = "text/html" in Headers(scope=scope).get("accept", "")
        response = _sorry(status, reason) if wants_page else JSONResponse({"error": reason}, status)
        response.headers["Connection"] = "close"  # do not wait for the rest of this request
        await response(scope, receive, self._with_headers(scope, send))

    def _with_headers(self, scope: Scope, send: Send, body: _Body | None = None) -> Send:
        """Adds the headers that keep browsers strict."""
        strict = scope["path"] in ("/label", "/model")
        ours = not scope["path"].startswith("/_nicegui")

        async def wrapped(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                if "content-security-policy" not in headers:
                    page = headers.get("content-type", "").startswith("text/html")
                    headers["Content-Security-Policy"] = _NICEGUI if page and not strict else _STRICT
                headers["X-Content-Type-Options"] = "nosniff"
                headers["X-Frame-Options"] = "DENY"
                headers["Referrer-Policy"] = "same-origin"
                headers["Cross-Origin-Resource-Policy"] = "same-origin"
                headers["Cross-Origin-Opener-Policy"] = "same-origin"
                if ours and "cache-control" not in headers:
                    headers["Cache-Control"] = "no-store"
                if body is not None and body.too_large:
                    headers["Connection"] = "close"
            await send(message)

        return wrapped


class _Body:
    """Stops reading a body of unknown length once it is too large.

    Attributes:
      too_large: Whether it did.
    """

    def __init__(self, receive: Receive) -> None:
        self.too_large = False
        self._receive = receive
        self._seen = 0

    async def __call__(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._seen += len(message.get("body", b""))
            if self._seen > MAX_BODY:
                self.too_large = True
                return {"type": "http.disconnect"}
        return message


def _sorry(status: int, reason: str) -> Response:
    return _page(status, "This page is not open", f"<p>{reason}</p>", _SORRY_POLICY)


def _used() -> Response:
    return _sorry(
        401,
        "This link was used before or is not valid. Anybody who is logged in can make a new one on the overview, "
        "and each start of the script prints one.",
    )


def _door(scope: Scope) -> Response:
    """The page that an invitation opens: only the button uses it up, not the visit."""
    here = html.escape(f"/?{scope['query_string'].decode('latin-1')}")
    content = (
        "<p>You are invited to compare clips here. This link works once, for this browser.</p>"
        f'<form method="post" action="{here}"><p><button>Enter</button></p></form>'
    )
    return _page(200, "Compare clips", content, _DOOR_POLICY)


def _page(status: int, title: str, content: str, policy: str) -> Response:
    return HTMLResponse(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">'
        f"<style>{_SORRY_STYLE}</style><main><h1>{title}</h1>{content}</main></html>",
        status,
        headers={"Content-Security-Policy": policy},
    )


def _in_query(scope: Scope, method: str, name: str) -> str | None:
    """A value in the query of the front page, for requests of one method."""
    if scope["type"] != "http" or scope["method"] != method or scope["path"] != "/":
        return None
    return parse_qs(scope["query_string"].decode("latin-1")).get(name, [None])[0]


def _host_name(host: str) -> str | None:
    """The name or address in a Host header without port and brackets; None for nonsense."""
    found = re.fullmatch(r"(?:\[([0-9a-f:.]+)\]|([\w.-]+))(?::\d{1,5})?", host, re.ASCII)
    return found[1] or found[2] if found else None


def _is_ip(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
