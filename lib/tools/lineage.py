"""Where an artefact came from: the lineage of a checkpoint, segment, labels.json, DB or run folder."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lib.checkpoints import load_checkpoint
from lib.cli import UserError, one_line
from lib.preferences.answers import (
    holds_answers,
    is_answer,
    load_answer,
    prompt_of,
    read_answer,
    word_count,
)
from lib.preferences.labels import Label, LabelLog, current
from lib.preferences.segment_db import SegmentDB
from lib.preferences.segments import Segment, SegmentError, Sidecar, load_segment
from lib.provenance import LINEAGE, plain
from lib.reporting import format_mean
from lib.runs import read_config

_MAX_TEXT = 200  # characters of anything that a file says
_MAX_NODES = 200
_MAX_DEPTH = 20
_SAMPLED = 20  # segments of a DB that are read; each takes some milliseconds
_TELLING = ("name", "algo", "env", "steps", "seed", "loss", "ensemble", "finetune", "kl", "score_weight")
"""Settings shown of every ancestor; of the artefact itself all are shown."""
_IDENTITY = ("steps", "created", "git_commit")
"""What a parent's record and its file must agree on."""


@dataclass
class Node:
    """One artefact of a lineage."""

    title: str
    facts: list[str] = field(default_factory=list)
    parents: list[Node] = field(default_factory=list)


def lineage_text(path: Path) -> str:
    """The lineage of an artefact, as an indented tree.

    A parent is read from its file where that still exists and matches its record; otherwise the record speaks. Code in
    files never runs, and what they say is made printable.

    Args:
      path: A policy, reward or trainer checkpoint, a segment, a labels.json, a DB, or a run's folder.

    Raises:
      UserError: It is none of these, or cannot be read.
    """
    return "\n".join(_lines(_Lineage().artefact(path)))


def _lines(node: Node) -> Iterator[str]:
    yield node.title
    for fact in node.facts:
        yield ("│ " if node.parents else "  ") + fact
    for number, parent in enumerate(node.parents, start=1):
        first, rest = ("└─ ", "   ") if number == len(node.parents) else ("├─ ", "│  ")
        for at, line in enumerate(_lines(parent)):
            yield (rest if at else first) + line


class _Lineage:
    """Follows parents from one artefact on: each file once, and up to a limit."""

    def __init__(self) -> None:
        self._seen: set[Path] = set()
        self._depth = 0
        self._nodes = 0

    def artefact(self, path: Path) -> Node:
        """The tree of a file or folder.

        Raises:
          UserError: It is no artefact, or cannot be read.
        """
        try:
            real = path.resolve(strict=True)
        except (OSError, RuntimeError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "no path of a file"
            raise UserError(f"{path}: expected an artefact to tell of: {reason}; check the path") from None
        if real in self._seen:
            return Node(f"{_said(path)}: told of above")
        self._seen.add(real)
        self._nodes += 1
        try:
            if (path / "latest.dat").is_file():  # a folder of checkpoints
                return self.artefact(path / "latest.dat")
            if (path / "latest" / "policy.json").is_file():  # of finetuned language models
                return self.artefact(path / "latest")
            if (path / "policy.json").is_file():
                return self._finetuned(path)
            if (path / "tokenizer.json").is_file():
                return Node(f"language model {_said(path)}")
            if path.is_dir():
                return self._run(path) if (path / "config.json").is_file() else self._db(path)
            if not path.is_file():
                raise UserError(
                    f"{path}: expected a checkpoint, segment, labels.json, DB or run, got a device or pipe"
                )
            if path.name == "config.json":
                return self._run(path.parent)
            if path.suffix in (".json", ".jsonl"):
                return self._labels(path)
            with open(path, "rb") as file:
                start = file.read(9)
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
        if is_answer(start):
            return self._answer(path)
        return self._checkpoint(path) if start[:2] == b"PK" else self._segment(path)

    # --- parents -------------------------------------------------------------------------------------------------

    def _parent(self, role: str, record: Any, child: Path, key: str = "file") -> list[Node]:
        """The tree of a parent as a record names it, titled with its role; [] where nothing is recorded."""
        record = _mapping({key: record} if isinstance(record, str) else record)
        if not isinstance(record.get(key), str):
            return []
        name = _said(record[key])
        if self._depth >= _MAX_DEPTH or self._nodes >= _MAX_NODES:
            return [Node(f"{role}: {name}", ["not followed any further"])]
        self._depth += 1
        try:
            found = _find(record[key], child)
            _check_same(found, record)
            node = self.artefact(found)
            node.title = f"{role}: {node.title}"
        except UserError as error:
            self._nodes += 1
            facts = [*_recorded(record), f"as recorded; {one_line(str(error))}"]
            node = Node(f"{role}: {name}", facts, self._ancestors(record, child))
        finally:
            self._depth -= 1
        return [node]

    def _ancestors(self, content: Mapping[str, Any], child: Path) -> list[Node]:
        """The trees of everything that a checkpoint's `parents` names."""
        parents = _mapping(content.get("parents"))
        nodes = self._parent("finetuned from", parents.get("policy"), child)
        nodes += self._parent("held near", parents.get("reference"), child)
        nodes += self._parent("paid by", parents.get("reward"), child)
        for record in _list(parents.get("dbs")):
            used = self._parent("fitted on", record, child, "db")
            if used and isinstance(record, Mapping):
                used[0].facts.insert(0, _used(record))
            nodes += used
        if isinstance(parents.get("language"), str):
            nodes.append(Node(f"layers of: the language model {_said(parents['language'])}"))
        return nodes

    # --- kinds ---------------------------------------------------------------------------------------------------

    def _checkpoint(self, path: Path) -> Node:
        whole = load_checkpoint(path)
        kind = whole["kind"] or ("policy" if "policy.2.weight" in whole["state_dict"] else "reward")
        title = f"{kind} {_said(path)}"
        if path.is_symlink():
            title += f" → {_said(path.readlink())}"
        if "bare" in whole:
            return Node(
                title, [f"{len(whole['state_dict'])} weights alone: it does not say where it came from"]
            )
        return self._told(title, _plain(whole), path)

    def _finetuned(self, path: Path) -> Node:
        from lib.text.language import read_policy

        return self._told(f"language model {_said(path)}", plain(read_policy(path)), path)

    def _told(self, title: str, content: Mapping[str, Any], path: Path) -> Node:
        """What a checkpoint says of itself."""
        config = _mapping(content.get("config"))
        facts = _recorded(content)
        if not self._depth and config:
            facts.append("configuration: " + _settings(config, config))
        return Node(title, facts, self._ancestors(content, path))

    def _run(self, path: Path) -> Node:
        """A run's folder, by its config.json."""
        content = plain(read_config(path))
        config, file = content["config"], path / "config.json"
        facts = _recorded(content)
        if not self._depth:
            facts.append("configuration: " + _settings(config, config))
            if "command" in content:
                facts.append("command: " + _said(" ".join(map(str, _list(content["command"])))))
        nodes = self._parent("started from", config.get("model"), file)
        nodes += self._parent("paid by", config.get("reward"), file)
        for db in _list(config.get("dbs")):
            nodes += self._parent("fitted on", db, file)
        for key, what in (("save", "checkpoints in"), ("out", "reward model in"), ("db_path", "segments in")):
            if isinstance(config.get(key), str):
                facts.append(f"{what} {_said(config[key])}")
        return Node(f"run {_said(path)}", facts, nodes)

    def _db(self, path: Path) -> Node:
        db = SegmentDB(path)
        labelled = (path / "labels.json").is_file()
        if not db.names and not labelled:
            raise UserError(
                f"{path}: expected a DB of segments, a folder of checkpoints or a run's, got another one; "
                "name one of the files in it"
            )
        facts, policies = _answers(db) if holds_answers(db) else _segments(db)
        nodes = [self.artefact(path / "labels.json")] if labelled else []
        return Node(f"DB {_said(path)}", facts, nodes + self._recorders(policies, path / "labels.json"))

    def _recorders(self, policies: Iterable[str], child: Path) -> list[Node]:
        """The policies that recorded segments: files, or just the names of runs."""
        nodes = []
        for policy in policies:
            try:
                found = _find(policy, child)
                known = found.is_file() or (found / "config.json").is_file()
            except UserError:
                known = False
            run = [Node(f"recorded by: the run {_said(policy)}")]
            nodes += self._parent("recorded by", policy, child) if known else run
        return nodes

    def _labels(self, path: Path) -> Node:
        log = LabelLog(path)
        lines = log.read()
        if not lines and log.problems:
            raise UserError(f"{path}: expected labels, JSON lines; {log.problems[0]}")
        labels = current(lines)
        facts = [f"{len(labels)} labels that hold, in {len(lines)} lines"]
        if log.problems:
            facts.append(f"{len(log.problems)} lines cannot be read")
        facts += _labellers(labels)
        commits = Counter(label.commit for label in labels if label.commit)
        facts += [f"{count} written by commit {_said(commit)}" for commit, count in commits.most_common(5)]
        asked = Counter(label.strategy or "not said" for label in labels).most_common()
        if asked:
            facts.append("asked as: " + ", ".join(f"{_said(name)} {count}" for name, count in asked))
        times = [label.time for label in labels if label.time is not None]
        if times:
            facts.append(f"given from {_when(min(times))} to {_when(max(times))}")
        nodes = []
        if path.parent.resolve() not in self._seen and SegmentDB(path.parent).names:
            nodes = [self.artefact(path.parent)]
            nodes[0].title = f"about: {nodes[0].title}"
        return Node(f"labels {_said(path)}", facts, nodes)

    def _answer(self, path: Path) -> Node:
        try:
            answer = read_answer(path, str(path))
        except SegmentError as error:
            raise UserError(f"expected a checkpoint, segment, labels.json, DB or run: {error}") from None
        end = "finished" if answer.finished else "cut off"
        facts = [
            f"{word_count(answer.text)} words, {len(answer.tokens)} tokens, {end}",
            f"to {_said(repr(answer.prompt))}",
            f"by the language model {_said(answer.policy)}" if answer.policy else "by an unnamed author",
        ]
        if answer.origin:
            facts.append(_settings(answer.origin, answer.origin))
        return Node(f"answer {_said(path)}", facts)

    def _segment(self, path: Path) -> Node:
        try:
            segment = load_segment(path)
        except SegmentError as error:
            raise UserError(f"expected a checkpoint, segment, labels.json, DB or run: {error}") from None
        steps, height, width, _ = segment.frames.shape
        title, facts = f"segment {_said(path)}", [f"{steps} steps of {width}×{height} pixels"]
        sidecar = segment.sidecar
        if sidecar is None:
            return Node(title, [*facts, "of the original's format: it does not say where it came from"])
        facts.append(f"of {_game(segment, sidecar)}, score {sidecar.scores.sum():g}")
        facts.append(f"begun at step {sidecar.step} of the run that recorded it")
        origin = sidecar.origin
        if origin:
            facts.append(_settings(origin, origin))
        if "run" not in origin:
            return Node(title, facts, self._recorders([sidecar.policy] if sidecar.policy else [], path))
        parents = {role: {"file": origin[key]} for role, key in _ORIGIN if key in origin}
        return Node(
            title, facts, self._parent("recorded by", {"file": origin["run"], "parents": parents}, path)
        )


_ORIGIN = (("policy", "model"), ("reward", "reward"))
"""What a segment's origin calls the parents of the run that recorded it."""


def _find(name: str, child: Path) -> Path:
    """The file or folder that a record names: from here, or from any folder above its child.

    Records hold paths as they were given on the command line, perhaps in another folder.

    Raises:
      UserError: There is none.
    """
    try:
        for folder in (Path(), *child.resolve().parents):
            path = folder / name
            if path.is_file() or path.is_dir():
                return path
    except (OSError, RuntimeError, ValueError):  # too long, a loop of links, a zero byte
        pass
    raise UserError("the file is gone")


def _check_same(found: Path, record: Mapping[str, Any]) -> None:
    """Refuses a checkpoint that is not the one that a record speaks of.

    Raises:
      UserError: It is another one, or cannot be read.
    """
    expected = {key: record[key] for key in _IDENTITY if record.get(key) is not None}
    if expected and found.is_file():
        content = _plain(load_checkpoint(found))
        if any(content.get(key) != value for key, value in expected.items()):
            raise UserError("another file has its name now")


# --- what is said of one artefact --------------------------------------------------------------------------------


def _plain(content: Mapping[str, Any]) -> dict[str, Any]:
    """What a checkpoint says in plain values."""
    return plain({key: content[key] for key in (*LINEAGE, "evaluation") if key in content})


def _recorded(content: Mapping[str, Any]) -> list[str]:
    """What a checkpoint, a run's config.json or a parent's record says of itself."""
    facts = []
    if content.get("created"):
        commit = content.get("git_commit")
        facts.append(
            f"made {_said(content['created'])} by "
            + (f"commit {_said(commit)}" if commit else "an unknown commit")
        )
    versions = _mapping(content.get("versions"))
    if versions:
        facts.append(
            "with " + ", ".join(f"{_said(name)} {_said(number)}" for name, number in versions.items())
        )
    config = _mapping(content.get("config"))
    # A seed of 0 is a seed; elsewhere 0 and off mean that there is nothing to tell.
    facts.append(_settings(config, [key for key in _TELLING if key == "seed" or config.get(key)]))
    if _is_number(content.get("steps")):
        facts.append(f"after {content['steps']:,} steps")
    scores = _list(_mapping(content.get("evaluation")).get("scores"))
    if scores and all(map(_is_number, scores)):
        facts.append(f"score {format_mean(scores)} (95 %, {len(scores)} games)")
    results = {
        name: number for name, number in _mapping(content.get("results")).items() if _is_number(number)
    }
    facts.append(", ".join(f"{_said(name)} {number:.4g}" for name, number in results.items()))
    labels = _mapping(content.get("parents")).get("labels")
    if _is_number(labels):
        facts.append(f"fitted to {labels} labels")
    return [fact for fact in facts if fact]


def _settings(config: Mapping[Any, Any], keys: Iterable[Any]) -> str:
    return ", ".join(f"{_said(key)} {_said(config[key])}" for key in keys if config.get(key) is not None)


def _used(record: Mapping[str, Any]) -> str:
    """What a fit took of a DB."""
    people = record.get("labellers")
    if isinstance(people, Mapping):
        people = [f"{name} ({count})" for name, count in people.items()]
    by = " by " + ", ".join(map(_said, people[:20])) if isinstance(people, list) and people else ""
    policies = list(_mapping(record.get("policies")).items())[:20]
    if policies:
        by += "; recorded by " + ", ".join(f"{_said(name)} ({_said(count)})" for name, count in policies)
    return f"{_said(record.get('labels', '?'))} of its labels were used{by}"


def _segments(db: SegmentDB) -> tuple[list[str], list[str]]:
    """What a sample of a DB's segments says, and the policies that recorded them."""
    names = db.names
    every = max(1, math.ceil(len(names) / _SAMPLED))
    sampled, games, policies, broken = names[::every], Counter[str](), Counter[str](), 0
    for name in sampled:
        try:
            segment = db.load(name)
        except SegmentError:
            broken += 1
            continue
        sidecar = segment.sidecar
        games[_game(segment, sidecar) if sidecar else "no game named (the original's format)"] += 1
        if sidecar:
            policies[sidecar.origin.get("run", sidecar.policy)] += 1
    policies.pop("", None)
    facts = [f"{len(names)} segments" + (f", {len(sampled)} of them read" if every > 1 else "")]
    facts += [f"of {game}" for game in games]
    if len(games) > 1:
        facts.append("of more than one game or action set: no reward model can be fitted to all of it")
    if broken:
        facts.append(f"{broken} of those read are damaged")
    return facts, list(policies)


def _answers(db: SegmentDB) -> tuple[list[str], list[str]]:
    """What a sample of a DB's answers says; their models are folders, no artefacts of ours."""
    names = db.names
    every = max(1, math.ceil(len(names) / _SAMPLED))
    models, broken = Counter[str](), 0
    for name in names[::every]:
        try:
            models[load_answer(db, name).policy or "an unnamed author"] += 1
        except SegmentError:
            broken += 1
    facts = [f"{len(names)} answers to {len(set(map(prompt_of, names)))} prompts"]
    facts += [f"by {_said(model)}" for model in models]
    if broken:
        facts.append(f"{broken} of those read are damaged")
    return facts, []


def _game(segment: Segment, sidecar: Sidecar) -> str:
    count = sidecar.num_actions
    actions = f"actions of {count} numbers" if segment.continuous else f"{count} actions"
    return f"{_said(sidecar.env_id)} with {actions}"


def _labellers(labels: Iterable[Label]) -> list[str]:
    """How many labels each labeller gave, and how."""
    counts = Counter(label.labeller for label in labels)
    parameters = {label.labeller: label.parameters for label in labels if label.parameters}
    facts = []
    for (person, teacher), count in counts.most_common(20):
        who = _said(person) if person else f"{_said(teacher)}, simulated" if teacher else "unnamed"
        numbers = parameters.get((person, teacher))
        how = f" ({', '.join(f'{_said(k)} {v:g}' for k, v in numbers.items())})" if numbers else ""
        facts.append(f"{count} by {who}{how}")
    if len(counts) > 20:
        facts.append(f"and by {len(counts) - 20} others")
    return facts


def _when(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
    except (OverflowError, OSError, ValueError):
        return "an impossible time"


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _is_number(value: object) -> bool:
    """Whether it is a number of a size that can be shown."""
    return isinstance(value, (int, float)) and abs(value) < 1e15


def _said(value: object) -> str:
    """Anything a file says, fit for a part of a line."""
    text = one_line(str(value)[: _MAX_TEXT + 1])
    return text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + "…"
