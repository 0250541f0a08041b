"""02_label_ui.py through its command line, as far as no browser is needed."""

import json
import os
import re
import runpy
import shutil
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from http.client import HTTPSConnection
from pathlib import Path

import pytest
import torch
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from lib.label_ui import serve
from lib.label_ui.access import MAX_BODY
from lib.reward.checkpoints import save_reward_model
from lib.reward.model import Member, RewardModel
from lib.reward.network import RewardNet
from tests.label_ui.dbs import make_db
from tests.reward.clips import grey_db
from tests.scripts import ForkedSite, refusal

SCRIPT = Path(__file__).parents[2] / "02_label_ui.py"
main = runpy.run_path(str(SCRIPT))["main"]


def test_the_page_starts_without_gymnasium_and_torch() -> None:
    code = "import sys, lib.label_ui.serve; print({'gymnasium', 'ale_py', 'torch', 'matplotlib'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=SCRIPT.parent)
    assert done.stdout == "set()\n", done.stderr


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["-d", "DB/missing"], "no such folder"),
        ([], "--db-path"),
        (["-d", "DB", "--strategy", "psychic"], "--strategy: expected one of random"),
        (["-d", "DB", "--strategy", "entropy"], "give --reward REWARD"),
        (["-d", "DB", "--teacher", "score", "--strategy", "disagreement"], "give --reward REWARD"),
        (["-d", "DB", "--random-share", "2"], "0.0 to 1.0"),
        (["-d", "DB", "--count", "5"], "--teacher"),
        (["-d", "DB", "--ssl-cert", "x.pem"], "go together"),
        (["-d", "DB", "--ssl-cert", "x.pem", "--ssl-key", "y.pem"], "no such file"),
        (["-d", "DB", "--ssl-cert", "DB/00/00000000.dat", "--ssl-key", "DB/00/00000000.dat"], "PEM"),
        (["-d", "DB", "--url", "https://label.example.org/label"], "without a path"),
        (["-d", "DB", "--url", "label.example.org"], "a scheme and a name"),
        (["-d", "DB", "--port", "99999"], "65535"),
        (["-d", "DB", "--host", "192.0.2.1"], "cannot listen"),
        (["-d", "DB", "--host", "192.168..1"], "name or address of this machine"),
        (["-d", "DB", "--goal", "0"], "at least 1"),
        (["-d", "DB", "--repeat-rate", "2"], "0.5"),
        (["-d", "DB", "--name", "x" * 61], "60 characters"),
        (["-d", "DB", "--teacher", "nobody"], "--teacher: expected one of"),
        (["-d", "DB", "--teacher", "score", "--goal", "300"], "a teacher needs none: say --count"),
        (["-d", "DB", "--teacher", "score", "--fit-to", "rewards"], "--fit-to is the page's"),
    ],
    ids=lambda value: " ".join(value)[-24:] if isinstance(value, list) else "",
)
def test_bad_flags_get_one_line_and_status_2(
    tmp_path: Path,
    args: list[str],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    make_db(tmp_path / "DB", 2)
    line = [SCRIPT.name, *(arg.replace("DB", str(tmp_path / "DB")) for arg in args)]
    assert says in refusal(line, monkeypatch, capsys)


def test_a_taken_port_gets_one_line_and_status_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    db = make_db(tmp_path / "db", 2)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        line = [SCRIPT.name, "-d", str(db), "--port", str(taken.getsockname()[1])]
        assert "taken by another program" in refusal(line, monkeypatch, capsys)


def test_a_user_without_an_account_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    assert serve._user() == "you"


def test_a_simulated_teacher_is_asked_what_the_reward_model_cannot_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    db = grey_db(tmp_path / "db", 8, 0)
    flags = ["-d", str(db), "--teacher", "score", "--strategy", "disagreement", "--reward"]
    single = save(tmp_path / "single.dat", 1)
    line = [SCRIPT.name, *flags, str(single), "--count", "2"]
    assert "--ensemble" in refusal(line, monkeypatch, capsys)

    pair = save(tmp_path / "pair.dat", 2)
    main([*flags, str(pair), "--count", "6", "--random-share", "0.5"])
    asked = [json.loads(line)["strategy"] for line in (db / "labels.json").read_text().splitlines()]
    assert set(asked) == {"disagreement", "random"}


def save(path: Path, members: int) -> Path:
    """A reward model with random weights for the frames of `grey_db`."""
    torch.manual_seed(0)
    networks = [RewardNet((48, 48, 3), 4) for _ in range(members)]
    model = RewardModel([Member(network, 0.0, 1.0) for network in networks], torch.device("cpu"))
    save_reward_model(path, model, {}, {}, {})
    return path


@pytest.mark.slow  # as all that starts a process from a warm one
def test_open_hands_the_link_to_a_browser_where_there_is_a_screen(tmp_path: Path) -> None:
    make_db(tmp_path / "db", 2)
    browser, opened = tmp_path / "browser", tmp_path / "opened"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {opened}.part && mv {opened}.part {opened}\n')
    browser.chmod(0o755)
    for screen in ("", ":0"):
        site = ForkedSite(tmp_path / "db", tmp_path / "state", "--open")
        site.environment |= {"BROWSER": str(browser), "DISPLAY": screen, "WAYLAND_DISPLAY": ""}
        site.start()
        while screen and not opened.exists():
            time.sleep(0.05)
        site.stop()
        assert opened.exists() == bool(screen)
    assert opened.read_text() == site.link


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_the_page_is_served_over_tls_and_takes_no_huge_message(tmp_path: Path) -> None:
    page = (SCRIPT.parent / "docs/labelling.md").read_text()
    (command,) = re.findall(r"^openssl .*", page, re.MULTILINE)
    subprocess.run(command, shell=True, check=True, cwd=tmp_path, capture_output=True)
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    flags = ("--ssl-cert", str(cert), "--ssl-key", str(key))
    site = ForkedSite(make_db(tmp_path / "db", 4), tmp_path / "state", *flags).start()
    try:
        with pytest.raises(OSError, match=r"closed|reset"):
            urllib.request.urlopen(site.link.replace("https", "http"), timeout=60)
        trusted = ssl.create_default_context(cafile=cert)
        connection = HTTPSConnection("localhost", site.port, context=trusted, timeout=60)
        connection.request("GET", site.link.partition(str(site.port))[2])
        entered = connection.getresponse()
        entered.read()
        assert entered.status == 303
        cookie, *parts = entered.headers["Set-Cookie"].split("; ")
        assert "Secure" in parts
        here = {"Cookie": cookie, "Origin": f"https://localhost:{site.port}"}
        for origin, status in ((here["Origin"], 422), (f"http://localhost:{site.port}", 403)):
            connection.request("POST", "/api/vote", "{}", here | {"Origin": origin})
            refused = connection.getresponse()
            refused.read()
            assert refused.status == status, "the page's own origin is that of https"
        connection.request(
            "GET", "/x%1b%5b31m?token=secret", headers=here
        )  # as a link on some other page may ask
        assert connection.getresponse().status == 404
        address = f"wss://localhost:{site.port}/_nicegui_ws/socket.io/?EIO=4&transport=websocket"
        with connect(address, ssl=trusted, additional_headers=here) as socket_io:
            socket_io.send("4" + "x" * MAX_BODY)
            with pytest.raises(ConnectionClosed, match="1009"):
                list(socket_io)
    finally:
        said = site.stop()
    assert "secret" not in said
    assert "\x1b" not in said
