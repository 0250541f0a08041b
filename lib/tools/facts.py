"""An artefact's description of itself, as lines to print; anything in it may be wrong, too long or missing."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from lib.cli import one_line
from lib.preferences.answers import load_answer, prompt_of
from lib.preferences.labels import Label
from lib.preferences.segment_db import SegmentDB
from lib.preferences.segments import Segment, SegmentError, Sidecar
from lib.provenance import LINEAGE, plain
from lib.reporting import format_score

_MAX_TEXT = 200  # characters of anything that a file says
_SAMPLED = 20  # segments of a DB that are read; each takes some milliseconds
_TELLING = ("name", "algo", "env", "steps", "seed", "loss", "ensemble", "finetune", "kl", "score_weight")
"""Settings shown of every ancestor; of the artefact itself all are shown."""


def plain_lineage(content: Mapping[str, Any]) -> dict[str, Any]:
    """A checkpoint's plain values."""
    return plain({key: content[key] for key in (*LINEAGE, "evaluation") if key in content})


def recorded(content: Mapping[str, Any]) -> list[str]:
    """The facts in a checkpoint, a run's config.json or a parent's record."""
    facts = []
    if content.get("created"):
        commit = content.get("git_commit")
        facts.append(
            f"made {said(content['created'])} by "
            + (f"commit {said(commit)}" if commit else "an unknown commit")
        )
    versions = as_mapping(content.get("versions"))
    if versions:
        facts.append("with " + ", ".join(f"{said(name)} {said(number)}" for name, number in versions.items()))
    config = as_mapping(content.get("config"))
    # A seed of 0 is a seed; elsewhere 0 and off mean that there is nothing to tell.
    facts.append(settings(config, [key for key in _TELLING if key == "seed" or config.get(key)]))
    if _is_number(content.get("steps")):
        facts.append(f"after {content['steps']:,} steps")
    scores = as_list(as_mapping(content.get("evaluation")).get("scores"))
    if scores and all(map(_is_number, scores)):
        facts.append(format_score(scores))
    results = {
        name: number for name, number in as_mapping(content.get("results")).items() if _is_number(number)
    }
    facts.append(", ".join(f"{said(name)} {number:.4g}" for name, number in results.items()))
    labels = as_mapping(content.get("parents")).get("labels")
    if _is_number(labels):
        facts.append(f"fitted to {labels} labels")
    return [fact for fact in facts if fact]


def settings(config: Mapping[Any, Any], keys: Iterable[Any]) -> str:
    return ", ".join(f"{said(key)} {said(config[key])}" for key in keys if config.get(key) is not None)


def of_use(record: Mapping[str, Any]) -> str:
    """A fit's use of a DB."""
    people = record.get("labellers")
    if isinstance(people, Mapping):
        people = [f"{name} ({count})" for name, count in people.items()]
    by = " by " + ", ".join(map(said, people[:20])) if isinstance(people, list) and people else ""
    policies = list(as_mapping(record.get("policies")).items())[:20]
    if policies:
        by += "; recorded by " + ", ".join(f"{said(name)} ({said(count)})" for name, count in policies)
    return f"{said(record.get('labels', '?'))} of its labels were used{by}"


def of_segments(db: SegmentDB) -> tuple[list[str], list[str]]:
    """Facts from a sample of a DB's segments, and the policies that recorded them."""
    names = db.names
    every = max(1, math.ceil(len(names) / _SAMPLED))
    sampled, broken = names[::every], 0
    games, policies = dict[str, None](), dict[str, None]()  # in the order found
    for name in sampled:
        try:
            segment = db.load(name)
        except SegmentError:
            broken += 1
            continue
        sidecar = segment.sidecar
        games[game_of(segment, sidecar) if sidecar else "no game named (the original's format)"] = None
        if sidecar:
            policies[sidecar.origin.get("run", sidecar.policy)] = None
    policies.pop("", None)
    facts = [f"{len(names)} segments" + (f", {len(sampled)} of them read" if every > 1 else "")]
    facts += [f"of {game}" for game in games]
    if len(games) > 1:
        facts.append("from more than one game or action set: no reward model can be fitted to all of them")
    if broken:
        facts.append(f"{broken} of those read are damaged")
    return facts, list(policies)


def of_answers(db: SegmentDB) -> tuple[list[str], list[str]]:
    """Facts from a sample of a DB's answers; their models are folders, not artefacts of ours."""
    names = db.names
    # By chance: the models answered each prompt in one order, so that every n-th answer may be by one of them alone.
    sampled = random.Random(0).sample(names, min(len(names), _SAMPLED))
    models, broken = dict[str, None](), 0
    for name in sampled:
        try:
            models[load_answer(db, name).policy or "an unnamed author"] = None
        except SegmentError:
            broken += 1
    read = f", {len(sampled)} of them read" if len(sampled) < len(names) else ""
    facts = [f"{len(names)} answers to {len(set(map(prompt_of, names)))} prompts{read}"]
    facts += [f"by {said(model)}" for model in models]
    if broken:
        facts.append(f"{broken} of those read are damaged")
    return facts, []


def game_of(segment: Segment, sidecar: Sidecar) -> str:
    count = sidecar.num_actions
    actions = f"actions of {count} numbers" if segment.continuous else f"{count} actions"
    return f"{said(sidecar.env_id)} with {actions}"


def of_labellers(labels: Iterable[Label]) -> list[str]:
    """The number of labels by each labeller, with a teacher's parameters."""
    counts = Counter(label.labeller for label in labels)
    parameters = {label.labeller: label.parameters for label in labels if label.parameters}
    facts = []
    for (person, teacher), count in counts.most_common(20):
        who = said(person) if person else f"{said(teacher)}, simulated" if teacher else "unnamed"
        numbers = parameters.get((person, teacher))
        how = f" ({', '.join(f'{said(k)} {v:g}' for k, v in numbers.items())})" if numbers else ""
        facts.append(f"{count} by {who}{how}")
    if len(counts) > 20:
        facts.append(f"and by {len(counts) - 20} others")
    return facts


def when(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
    except (OverflowError, OSError, ValueError):
        return "an impossible time"


def as_mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _is_number(value: object) -> bool:
    """Whether it is a number that can be shown."""
    return isinstance(value, (int, float)) and abs(value) < 1e15


def said(value: object) -> str:
    """Any value from a file, fit for part of a line."""
    text = one_line(str(value)[: _MAX_TEXT + 1])
    return text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + "…"
