"""One-time links, and signed cookies in exchange for them."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

Role = Literal["host", "guest"]
"""The host came by the link in the terminal, a guest by one made on the page."""

COOKIE_SECONDS = 30 * 24 * 3600


class Keys:
    """Makes and checks links and cookies for one DB.

    Cookies are signed, not stored, so they outlive a restart of the server. Links work once and die with it.

    Args:
      secret: What cookies are signed with.
      db: Id of the DB; a cookie opens no other.
      now: Unix seconds.
    """

    def __init__(self, secret: bytes, db: str, now: Callable[[], float] = time.time) -> None:
        self._secret = secret
        self._db = db
        self._now = now
        self._links: dict[str, Role] = {}
        self.cookie = f"label-{db[:8]}"

    def new_link(self, role: Role) -> str:
        """A token that :meth:`redeem` accepts once."""
        token = secrets.token_urlsafe(24)
        self._links[_digest(token)] = role
        return token

    def valid(self, token: str) -> bool:
        """Whether :meth:`redeem` would accept a token."""
        return _digest(token) in self._links

    def redeem(self, token: str) -> str | None:
        """Exchanges a link's token for a cookie's value; None when the token is unknown or used."""
        role = self._links.pop(_digest(token), None)
        if role is None:
            return None
        payload = f"{role}.{int(self._now()) + COOKIE_SECONDS}.{secrets.token_hex(8)}"
        return f"{payload}.{self._sign(payload)}"

    def role(self, value: str) -> Role | None:
        """The role of a cookie's owner, or None for a cookie that is forged, expired or for another DB."""
        payload, _, signature = value.rpartition(".")
        if not hmac.compare_digest(signature.encode(), self._sign(payload).encode()):
            return None
        role, expires, _ = payload.split(".")
        if int(expires) < self._now():
            return None
        return "host" if role == "host" else "guest"

    def _sign(self, payload: str) -> str:
        return hmac.new(self._secret, f"{self._db}.{payload}".encode(), hashlib.sha256).hexdigest()


def load_secret(folder: Path) -> tuple[bytes, bool]:
    """The key that signs cookies, made on first use and kept outside the DB, which gets passed around.

    Args:
      folder: Where it is kept, readable by its owner only.

    Returns:
      32 bytes, and whether they will be the same next time.
    """
    path = folder / "label-page.key"
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with contextlib.suppress(FileExistsError):
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with open(fd, "wb") as file:
                file.write(secrets.token_bytes(32))
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        with open(fd, "rb") as file:
            status = os.fstat(fd)
            key = file.read(64)
        if len(key) == 32 and status.st_uid == os.getuid() and not status.st_mode & 0o077:
            return key, True
    return secrets.token_bytes(32), False


def state_folder() -> Path:
    """Where this user's programs keep their state, as opposed to data and settings (XDG_STATE_HOME)."""
    base = os.environ.get("XDG_STATE_HOME")
    return (
        Path(base if base and Path(base).is_absolute() else Path.home() / ".local/state") / "clip-preferences"
    )


def _digest(token: str) -> str:
    """Tokens are looked up by digest, so that the time a look-up takes says nothing about them."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
