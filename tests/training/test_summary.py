"""A run on one page: what it evaluated, and the video of a game."""

import base64
import re
import signal
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lib.agent.actor_critic import ActorCritic
from lib.agent.config import TrainConfig
from lib.agent.evaluate import Evaluation
from lib.agent.play_config import PlayConfig
from lib.cli import UserError
from lib.tools.play_games import play_games
from lib.training.summary import _score as shown_score
from lib.training.summary import log_evaluation, read_evaluations, write_summary
from lib.training.train import train
from tests.disk import disk_full_after


def evaluation(*scores: float, **measures: float) -> Evaluation:
    values = {name: np.full(len(scores), value) for name, value in measures.items()}
    return Evaluation(np.array(scores), np.full(len(scores), 30), values)


def log(folder: Path, run: str, *rows: tuple[int, Evaluation]) -> None:
    for steps, games in rows:
        log_evaluation(folder, run, steps, games)


def test_rows_are_means_over_games(tmp_path: Path) -> None:
    log(tmp_path, "a", (0, evaluation(1, 3, learned=-2)), (100, evaluation(5, kl=0.5)))
    first, second = read_evaluations(tmp_path)
    interval = first.pop("interval")
    assert interval == pytest.approx(12.706, abs=1e-3)  # t of one degree of freedom × 1
    assert first == {"run": "a", "steps": 0, "games": 2, "score": 2, "length": 30, "learned": -2}
    assert second == {"run": "a", "steps": 100, "games": 1, "score": 5, "length": 30, "kl": 0.5}


def test_a_resumed_run_counts_once_and_only_the_last_run_counts(tmp_path: Path) -> None:
    assert read_evaluations(tmp_path) == []
    log(tmp_path, "a", *((steps, evaluation(steps)) for steps in (0, 100, 200, 300)))
    log(tmp_path, "a", (150, evaluation(7)), (250, evaluation(8)))
    assert [(row["steps"], row["score"]) for row in read_evaluations(tmp_path)] == [
        *((0, 0), (100, 100), (150, 7), (250, 8))
    ]
    log(tmp_path, "b", (0, evaluation(9)))
    assert [(row["run"], row["score"]) for row in read_evaluations(tmp_path)] == [("b", 9)]


def test_a_row_that_did_not_fit_on_the_disk_spoils_no_other(tmp_path: Path) -> None:
    log(tmp_path, "a", (0, evaluation(1)))
    full = disk_full_after((tmp_path / "evaluations.jsonl").stat().st_size + 10)
    with full, pytest.raises(UserError, match=r"could not write evaluations\.jsonl: File too large"):
        log_evaluation(tmp_path, "a", 100, evaluation(2))
    log(tmp_path, "a", (100, evaluation(3)))
    assert [(row["steps"], row["score"]) for row in read_evaluations(tmp_path)] == [(0, 1), (100, 3)]


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[1]",
        '{"run": "a"}\n{"run": "a"}',
        '{"run": "a", "steps": "many", "games": 1, "score": 1}',
        '{"run": "a", "steps": 1, "games": 1}',
    ],
)
def test_a_file_of_somebody_else_is_refused_in_a_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "evaluations.jsonl").write_text(text)
    with pytest.raises(UserError, match=r"evaluations\.jsonl: expected a row of JSON"):
        read_evaluations(tmp_path)


def test_the_page_holds_all_it_needs(tmp_path: Path) -> None:
    rows = (
        (0, evaluation(60, 62)),
        (1000, evaluation(80, 84)),
        (2000, evaluation(70, 71, learned=12.34, kl=0.125)),
    )
    log(tmp_path, "a", *rows)
    video, page = tmp_path / "game.mp4", tmp_path / "page.html"
    video.write_bytes(b"frames")
    config = {"name": "<v1>", "env": "MovingDot-v0", "algo": "ppo", "model": Path("v0.dat"), "reward": None}
    write_summary(tmp_path, page, config, video)
    text = page.read_text()
    strip = re.findall(r"<strong>(.*?)</strong><span class=\"muted\">(.*?)<", text)
    assert strip == [
        ("70.5 ± 6.4", "score, 2 games after 2.00k steps"),
        ("82 ± 25", "the highest of 3 evaluations, after 1.00k steps"),
        ("12.3", "learned return"),
        ("0.125", "KL to the reference policy, nats a step"),
    ]
    assert "<h1>&lt;v1&gt;</h1>" in text
    assert "MovingDot-v0 · ppo" in text
    assert "<td>v0.dat</td>" in text
    assert f'src="data:video/mp4;base64,{base64.b64encode(b"frames").decode()}"' in text
    assert re.findall(r"<h2>(.*?)</h2>", text)[:3] == [
        "score",
        "learned return",
        "KL to the reference policy, nats a step",
    ]
    assert not re.findall(r"(?:src|href)=\"(?!data:|#)", text)  # nothing from elsewhere
    score, learned, *_ = (ET.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL))
    assert "var(--accent)" in {part.get("stroke") for part in score.iter()}  # the page's theme colours it
    assert score.get("aria-label") == "score by steps of training"
    assert len(marks(score)) == 3
    assert len(marks(learned)) == 1


@pytest.mark.parametrize(
    ("score", "interval", "shown"),
    [
        (0.104, 0.012, "0.104 ± 0.012"),
        (1222, 110, "1222 ± 110"),
        (97.23, 0.08, "97.2 ± 0.1"),
        (-0.5, 3e-17, "-0.500 ± 0.000"),
        (0, 0, "0 ± 0"),
        (833.25, None, "833"),
    ],
)
def test_a_score_has_the_digits_that_mean_something(score: float, interval: float | None, shown: str) -> None:
    row = {"score": score} if interval is None else {"score": score, "interval": interval}
    assert shown_score(row) == shown


def test_the_page_of_a_text_run_speaks_of_answers_and_tokens(tmp_path: Path) -> None:
    rows = (0.1, 0.11), (0.09, 0.12)
    for number, scores in enumerate(rows):
        log(tmp_path, "a", (640 * number, evaluation(*scores, learned=0.5, kl=2.5, finished=1)))
    page = tmp_path / "page.html"
    write_summary(tmp_path, page, {"name": "t1", "prompts": Path("prompts.txt"), "algo": "ppo"})
    text = page.read_text()
    assert "score, 2 answers after 640 answers" in text
    assert re.findall(r"<h2>(.*?)</h2>", text)[:4] == [
        *("score", "learned reward", "KL to the reference policy, nats an answer", "tokens an answer")
    ]
    assert "score by answers of training" in text
    for word in ("game", "step"):
        assert word not in re.sub(r"<(style|script).*?</\1>", "", text, flags=re.DOTALL)


def marks(svg: ET.Element) -> list[ET.Element]:
    """The dots of a line."""
    return [
        part for part in svg.iter("{http://www.w3.org/2000/svg}use") if part.get("fill") == "var(--accent)"
    ]


@pytest.mark.slow
def test_a_run_leaves_its_page_and_a_recorded_game_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = {
        **{"env": "MovingDot-v0", "network": "small", "num_envs": 2, "eval_games": 2, "eval_every": 10},
        "runs": tmp_path / "runs",
    }
    done = train(TrainConfig(name="dot", steps=20, save=tmp_path / "v0", **small))  # type: ignore[arg-type]
    (row, last) = read_evaluations(tmp_path / "v0")
    assert (row["run"], row["steps"], last["steps"]) == (done.run_dir.name, 10, 20)
    said = (tmp_path / "v0" / "summary.html").read_text()
    assert "<video" not in said

    def stopped_at_once(*arguments: Any, **parts: Any) -> ActorCritic:
        signal.raise_signal(signal.SIGTERM)
        return ActorCritic(*arguments, **parts)

    # Another run into the folder, which ends before it has evaluated, leaves the page as it is.
    other = TrainConfig(name="other", steps=20, save=tmp_path / "v0", **small)  # type: ignore[arg-type]
    assert train(other, make_learner=stopped_at_once).stopped
    assert (tmp_path / "v0" / "summary.html").read_text() == said
    play_games(PlayConfig(model=tmp_path / "v0" / "latest.dat", games=1, record=tmp_path / "videos"))
    page = tmp_path / "videos" / "summary.html"
    assert f"on one page: {page}" in capsys.readouterr().out
    video = base64.b64encode((tmp_path / "videos" / "game-01.mp4").read_bytes()).decode()
    assert f'src="data:video/mp4;base64,{video}"' in page.read_text()
