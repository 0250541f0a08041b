"""Starts the labelling page and says how to reach it."""

from __future__ import annotations

import asyncio
import errno
import getpass
import logging
import os
import socket
import ssl
import sys
import warnings
import webbrowser
from functools import partial
from pathlib import Path

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from lib.cli import UserError
from lib.label_ui.access import MAX_BODY, Guard, as_origin, is_loopback, own_names
from lib.label_ui.api import PageSettings, build_api
from lib.label_ui.config import LabelConfig
from lib.label_ui.desk import Desk
from lib.label_ui.fitting import Fitting
from lib.label_ui.keys import Keys, load_secret, state_folder
from lib.label_ui.pages import add_pages
from lib.label_ui.ratings import Ratings, StepRater, load_rater
from lib.preferences.answers import holds_answers
from lib.preferences.labels import STRATEGIES
from lib.preferences.queries import Strategy
from lib.preferences.rated_pairs import ClipRater
from lib.preferences.segment_db import SegmentDB
from lib.preferences.strategies import make_strategy
from lib.provenance import git_commit

_REQUEST_SECONDS = 20.0
"""For a whole request to arrive, body included; a page sends some 500 bytes."""
_UNFINISHED = 200
"""Connections that may be waiting for the rest of a request; browsers need a few milliseconds for one."""


class _Impatient(HttpToolsProtocol):
    """A connection that is closed when its request does not arrive in time.

    uvicorn itself waits for ever, so a few hundred clients that dribble bytes (slow loris) would use up all connections.
    """

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        unfinished = [
            one for one in self.connections if isinstance(one, _Impatient) and one._deadline is not None
        ]
        if len(unfinished) >= _UNFINISHED:
            min(unfinished, key=lambda one: one._deadline.when() if one._deadline else 0.0)._give_up()
        self._wait()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._wait()

    def on_message_complete(self) -> None:
        self._arrived()
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        self._arrived()
        super().handle_websocket_upgrade()

    def connection_lost(self, exc: Exception | None) -> None:
        self._arrived()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self._deadline is None:  # more bytes of the same request buy no time
            self._deadline = self.loop.call_later(_REQUEST_SECONDS, self._give_up)

    def _arrived(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._arrived()
        self.transport.abort()


def serve(config: LabelConfig) -> None:
    """Serves the page until Ctrl-C.

    Args:
      config: The command line.

    Raises:
      UserError: the port is taken, the certificate does not fit, the DB cannot be read.
    """
    _check_certificate(config)
    rater, ratings = None, None
    if config.reward is not None:
        rater = load_rater(config.reward, config.db_path, config.dev)
        if isinstance(rater, StepRater):  # answers are not rated step by step, and have no page of the model
            ratings = Ratings(rater, config.reward.name)
    desk = Desk(
        config.db_path,
        make_strategies=partial(_strategies, config, rater),
        strategy=config.strategy,
        ratings=ratings,
        repeat_rate=config.repeat_rate,
        goal=config.goal,
        seed=config.seed,
    )
    found = desk.db.counted(len(desk.db.sync()))
    git_commit()  # every label carries it, and the first one need not wait for git
    listener = _bind(config.host, config.port)
    port = listener.getsockname()[1]
    secret, lasting = load_secret(state_folder())
    keys = Keys(secret, desk.db.id)
    url = as_origin(config.url) if config.url else None
    scheme = "https" if config.ssl_cert else "http"
    base = url or f"{scheme}://{_address(config.host)}:{port}"
    name = config.name.strip() if config.name else None
    app = build_api(desk, PageSettings(name, config.speed, config.start_paused))
    logging.getLogger("nicegui").setLevel(logging.ERROR)  # its warnings show the address of what is not found
    # NiceGUI looks at every object there is when it starts, at those that PyTorch has deprecated too.
    warnings.filterwarnings("ignore", category=FutureWarning, module="nicegui")
    add_pages(app, desk, keys, _fitting(config, desk), url)
    guarded = Guard(app, keys, own_names(config.host, url), secure=base.startswith("https:"), url=url)
    server = uvicorn.Server(
        uvicorn.Config(
            guarded,
            http=_Impatient,
            ws_max_size=MAX_BODY,
            log_level="warning",
            access_log=False,  # it would show tokens
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=2,
            ssl_certfile=config.ssl_cert,
            ssl_keyfile=config.ssl_key,
        )
    )
    _say(f"{config.db_path}: {found}. Ctrl-C stops; every answer is saved at once.")
    link = f"{base}/?token={keys.new_link('host')}"
    _say(f"Open this link (it works once; your browser then stays logged in):\n  {link}")
    if url:
        _say(f"The proxy or tunnel of {url} must lead to {scheme}://{config.host}:{port}.")
    elif is_loopback(config.host):
        user, machine = _user(), socket.gethostname()
        _say(
            f"From another machine, first run:  ssh -L {port}:localhost:{port} {user}@{machine}\n  then "
            "open the same link there."
        )
    elif not config.ssl_cert:
        _say(
            f"Warning: {config.host} is reachable from other machines and the connection is not encrypted: anybody on "
            "the network can read the link and the cookie. Give --ssl-cert and --ssl-key, or use ssh -L.",
            error=True,
        )
    if not lasting:
        _say(
            f"Note: {state_folder()} cannot be written, so browsers need a new link after a restart.",
            error=True,
        )
    if config.open and _has_screen():
        webbrowser.open(link)  # the listener holds its request until the server runs
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:
        _say("Stopped.")
    if rater is not None or desk.model is not None:
        # A regular exit while a thread is inside PyTorch ends with "terminate called". Answers are on disk already.
        sys.stdout.flush()
        os._exit(0)


def _strategies(config: LabelConfig, rater: ClipRater | None) -> dict[str, Strategy]:
    """All strategies that can work here. Raises UserError if the configured one cannot."""
    db = SegmentDB(config.db_path)
    answers = holds_answers(db)
    found = {}
    for name in STRATEGIES:
        try:
            found[name] = make_strategy(name, db, rater, config.random_share, answers)
        except UserError:
            if name == config.strategy:
                raise
    return found


def _fitting(config: LabelConfig, desk: Desk) -> Fitting | None:
    """The fits that the page offers. Raises UserError if the DB holds answers, whose model needs a language model."""
    if config.fit_to is None:
        return None
    if desk.db.answers:
        raise UserError(
            f"--fit-to: expected a DB of clips, but {config.db_path} holds answers; fit with "
            "03_reward_train.py"
        )

    def show(reward: Path) -> None:
        rater = load_rater(reward, config.db_path, config.dev)
        assert isinstance(rater, StepRater)
        desk.show(Ratings(rater, reward.name))

    return Fitting(config.db_path, config.fit_to, show)


def _check_certificate(config: LabelConfig) -> None:
    if config.ssl_cert is None:
        return
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(config.ssl_cert, config.ssl_key)
    except (OSError, ValueError) as error:
        raise UserError(
            f"--ssl-cert {config.ssl_cert}: expected a certificate and its key (PEM); {error}"
        ) from error


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, proto)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
    except UnicodeError:  # from the coding of names
        raise UserError(f"--host {host}: expected the name or address of this machine") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UserError(
                f"--port {port}: taken by another program, perhaps another labelling page; "
                f"stop it or take --port {port + 1 if port < 65535 else 8080}"
            ) from None
        raise UserError(
            f"--host {host} --port {port}: cannot listen there ({error.strerror or error})"
        ) from None
    return listener


def _has_screen() -> bool:
    """Whether a browser would get a window: without one Python would start a text browser in the terminal."""
    return sys.platform != "linux" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _user() -> str:
    """The user to log in as; one without an account, as in a container, has no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "you"


def _address(host: str) -> str:
    """The browser's name for an address that the server listens on."""
    if host == "127.0.0.1":
        return "localhost"
    if host in ("0.0.0.0", "::"):
        name = socket.getfqdn()
        return socket.gethostname() if name.startswith("localhost") else name
    return f"[{host}]" if ":" in host else host


def _say(text: str, error: bool = False) -> None:
    print(text, file=sys.stderr if error else sys.stdout, flush=True)
