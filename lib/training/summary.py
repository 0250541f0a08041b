"""A run on one page: the score of its evaluations, their other measures, and a game if one was recorded."""

import base64
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from lib.agent.evaluate import Evaluation
from lib.cli import UserError
from lib.files import write_atomic
from lib.provenance import now
from lib.reporting import decimals, format_count, mean_interval
from lib.reward.report.page import write_page

LOG, PAGE = "evaluations.jsonl", "summary.html"

_NAMES = {
    "score": "score",
    "learned": "learned return",
    "kl": "KL to the reference policy, nats a step",
    "length": "steps a game",
}
"""The first measures on the page, if they were measured."""

_OF_TEXT = {
    "score": "score",
    "learned": "learned reward",
    "kl": "KL to the reference policy, nats an answer",
    "length": "tokens an answer",
}
"""The same of a language model, whose games are answers."""

_ABOUT = ("run", "steps", "games", "interval")
"""Fields of a row that are not figures."""

Row = dict[str, Any]
"""An evaluation: `run`, the folder of its curves; `steps` of training before it; `games`; means over these by name, among
them `score`, `interval` (half-width of its 95 % interval) and `length`."""


def log_evaluation(folder: Path, run: str, steps: int, games: Evaluation) -> None:
    """Adds a row to the `evaluations.jsonl` of a folder of checkpoints.

    Raises:
      UserError: the file cannot be written.
    """
    means = {name: float(values.mean()) for name, values in games.figures.items()}
    means["length"], means["interval"] = means.pop("steps"), mean_interval(games.scores)[1]
    means = {name: value for name, value in means.items() if math.isfinite(value)}
    row = {"run": run, "steps": steps, "games": len(games.scores), **means}
    path = folder / LOG
    try:
        before = path.read_bytes() if path.exists() else b""
        write_atomic(path, before + json.dumps(row).encode() + b"\n")
    except OSError as error:
        raise UserError(f"--save {folder}: could not write {LOG}: {error.strerror}") from error


def read_evaluations(folder: Path) -> list[Row]:
    """The rows of the run that evaluated last; [] if there is none.

    If that run was resumed, rows after the state that it resumed from do not count.

    Raises:
      UserError: the file is not one of ours.
    """
    path, rows = folder / LOG, list[Row]()
    try:
        for line in path.read_text().splitlines() if path.exists() else ():
            row = json.loads(line)
            run, steps, *_ = (row[name] for name in ("run", "steps", "games", "score"))
            if rows and rows[-1]["run"] != run:
                rows = []
            while rows and rows[-1]["steps"] >= steps:
                rows.pop()
            rows.append({name: row[name] if name == "run" else float(row[name]) for name in row})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path}: expected a row of JSON for each evaluation: {error}") from error
    return rows


def write_summary(folder: Path, page: Path, config: Mapping[str, Any], video: Path | None = None) -> None:
    """Writes the page of the run that a folder of checkpoints is of, which holds all it needs.

    Args:
      folder: with `evaluations.jsonl`.
      page: where to.
      config: of the run, as its checkpoints keep it.
      video: an mp4 to show.

    Raises:
      UserError: the rows cannot be read, or the page cannot be written.
    """
    rows = read_evaluations(folder)
    of_text = "prompts" in config
    titles = _OF_TEXT if of_text else _NAMES
    unit, games = ("answers", "answers") if of_text else ("steps", "games")
    names = [name for name in titles if name in rows[-1]]
    names += [name for name in rows[-1] if name not in (*titles, *_ABOUT)]
    best, last = max(rows, key=lambda row: row["score"]), rows[-1]
    figures = [
        (_score(last), f"score, {last['games']:.0f} {games} after {format_count(last['steps'])} {unit}"),
        (_score(best), f"the highest of {len(rows)} evaluations, after {format_count(best['steps'])} {unit}"),
        *((f"{last[name]:.3g}", titles[name]) for name in ("learned", "kl") if name in last),
    ]
    about = [str(config[key]) for key in ("env", "algo") if config.get(key)]
    write_page(
        "summary.html",
        page,
        title=str(config.get("name") or folder.name),
        subtitle=" · ".join([*about, now()]),
        figures=figures,
        charts=[_chart(rows, name, titles.get(name, name), unit) for name in names],
        video=video and f"data:video/mp4;base64,{base64.b64encode(video.read_bytes()).decode()}",
        origin=[(key, config[key]) for key in ("model", "reward") if config.get(key)],
    )


def _score(row: Row) -> str:
    score, half = row["score"], row.get("interval")
    digits = decimals(score, half or 0.0)
    return f"{score:.{digits}f}" + ("" if half is None else f" ± {half:.{digits}f}")


def _chart(rows: Sequence[Row], name: str, title: str, unit: str) -> tuple[str, Markup]:
    """The title and the picture of a figure over the steps of training."""
    from lib.reward.report import plots  # Matplotlib takes a second to import

    shown = [row for row in rows if name in row]
    halves = [row.get("interval", 0) for row in shown] if name == "score" else None
    return title, plots.over_training(
        title, unit, [row["steps"] for row in shown], [row[name] for row in shown], halves
    )
