"""Where an artefact came from: the family tree of a checkpoint, segment, labels.json, DB or run folder."""

from __future__ import annotations

import json
import math
import reprlib
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lib.checkpoints import KINDS, load_checkpoint
from lib.cli import UserError, one_line
from lib.preferences.labels import Label, LabelLog, current
from lib.preferences.segments import Segment, SegmentDB, SegmentError, Sidecar, load_segment
from lib.reporting import format_mean

_MAX_TEXT = 200  # characters of anything that a file says
_MAX_NODES = 200
_MAX_DEPTH = 20
_MAX_CONFIG = 1 << 20  # bytes of a config.json
_SAMPLED = 20  # segments of a DB that are read; each takes some milliseconds
# Of a configuration, what is said of every ancestor; the artefact itself shows all of it.
_TELLING = ("name", "algo", "env", "steps", "seed", "loss", "ensemble", "finetune", "kl", "score_weight")
# What a parent's record and its file must agree on to be the same.
_IDENTITY = ("steps", "created", "git_commit")
_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxlist, _SHORT.maxtuple, _SHORT.maxdict = 2, 10, 10, 10


@dataclass
class Node:
    """One artefact of a family tree."""

    title: str
    facts: list[str] = field(default_factory=list)
    parents: list[Node] = field(default_factory=list)


def family_tree(path: Path) -> str:
    """The family tree of an artefact, as lines of text.

    Parents are read from their files where these still exist and are those that the record speaks of; else the
    record is all there is. Nothing that a file holds is run, and what it says is made printable.

    Args:
      path: a policy, reward or trainer checkpoint, a segment, a labels.json, a DB, or a run's folder.

    Raises:
      UserError: it is none of these, or cannot be read.
    """
    return "\n".join(_lines(_Genealogist().artefact(path)))


def _lines(node: Node) -> Iterator[str]:
    yield node.title
    for fact in node.facts:
        yield ("│ " if node.parents else "  ") + fact
    for number, parent in enumerate(node.parents, start=1):
        first, rest = ("└─ ", "   ") if number == len(node.parents) else ("├─ ", "│  ")
        for at, line in enumerate(_lines(parent)):
            yield (rest if at else first) + line


class _Genealogist:
    """Follows parents from one artefact on, each file once, and not for ever."""

    def __init__(self) -> None:
        self._seen: set[Path] = set()
        self._depth = 0
        self._nodes = 0

    def artefact(self, path: Path) -> Node:
        """The tree of a file or folder.

        Raises:
          UserError: it is no artefact, or cannot be read.
        """
        try:
            mode = path.stat().st_mode
            real = path.resolve()
        except (OSError, RuntimeError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "no path of a file"
            raise UserError(f"{path}: expected an artefact to tell of: {reason}; check the path") from None
        if real in self._seen:
            return Node(f"{_said(str(path))}: told of above")
        self._seen.add(real)
        self._nodes += 1
        try:
            if stat.S_ISDIR(mode):
                if (path / "latest.dat").is_file():  # a folder of checkpoints
                    return self.artefact(path / "latest.dat")
                return self._run(path) if (path / "config.json").is_file() else self._db(path)
            if not stat.S_ISREG(mode):
                raise UserError(
                    f"{path}: expected a checkpoint, segment, labels.json, DB or run, got a device or pipe"
                )
            if path.name == "config.json":
                return self._run(path.parent)
            if path.suffix in (".json", ".jsonl"):
                return self._labels(path)
            with open(path, "rb") as file:
                start = file.read(2)
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
        return self._checkpoint(path, _load_any(path)) if start == b"PK" else self._segment(path)

    # --- parents -------------------------------------------------------------------------------------------------

    def _parent(self, role: str, record: Any, child: Path, key: str = "file") -> list[Node]:
        """The tree of a parent as a record names it, titled with its role; none where nothing is recorded."""
        record = {key: record} if isinstance(record, str) else record
        if not isinstance(record, Mapping) or not isinstance(record.get(key), str):
            return []
        name = _said(record[key])
        if self._depth >= _MAX_DEPTH or self._nodes >= _MAX_NODES:
            return [Node(f"{role}: {name}", ["not followed any further"])]
        self._depth += 1
        try:
            found = _find(record[key], child)
            why = "the file is gone" if found is None else ""
            if found is not None:
                try:
                    node = self._if_same(found, record)
                except UserError as error:
                    node, why = None, one_line(str(error))
                if node is not None:
                    node.title = f"{role}: {node.title}"
                    return [node]
                why = why or "another file has its name now"
            self._nodes += 1
            facts = [*_recorded(record), f"as recorded; {why}"]
            return [Node(f"{role}: {name}", facts, self._ancestors(record, child))]
        finally:
            self._depth -= 1

    def _if_same(self, found: Path, record: Mapping[str, Any]) -> Node | None:
        """The tree of a parent's file, or None if it is not the one that the record speaks of."""
        expected = {key: record[key] for key in _IDENTITY if _is_plain(record.get(key))}
        if expected and found.is_file():
            content = _load_any(found)
            if any(_said(content.get(key)) != _said(value) for key, value in expected.items()):
                return None
        return self.artefact(found)

    def _ancestors(self, content: Mapping[str, Any], child: Path) -> list[Node]:
        """The trees of everything that a checkpoint's `parents` names."""
        parents = content.get("parents")
        if not isinstance(parents, Mapping):
            return []
        nodes = self._parent("finetuned from", parents.get("policy"), child)
        nodes += self._parent("paid by", parents.get("reward"), child)
        dbs = parents.get("dbs")
        for record in dbs if isinstance(dbs, (list, tuple)) else ():
            used = self._parent("fitted on", record, child, "db")
            if used and isinstance(record, Mapping):
                used[0].facts.insert(0, _used(record))
            nodes += used
        return nodes

    # --- kinds ---------------------------------------------------------------------------------------------------

    def _checkpoint(self, path: Path, content: Mapping[str, Any]) -> Node:
        title = f"{content['kind']} {_said(str(path))}"
        if path.is_symlink():
            title += f" → {_said(str(path.readlink()))}"
        if content.get("bare"):
            facts = [f"{len(content['state_dict'])} weights alone: it does not say where it came from"]
            return Node(title, facts)
        facts = _recorded(content)
        config = content.get("config")
        if not self._depth and isinstance(config, Mapping) and config:
            facts.append("configuration: " + _settings(config, config))
        return Node(title, facts, self._ancestors(content, path))

    def _run(self, path: Path) -> Node:
        """A run's folder, by its config.json."""
        file = path / "config.json"
        try:
            if file.stat().st_size > _MAX_CONFIG:
                raise UserError(f"{file}: expected a run's configuration, got {file.stat().st_size} bytes")
            content = json.loads(file.read_bytes())
        except (ValueError, RecursionError):
            raise UserError(f"{file}: expected a run's configuration, got no JSON") from None
        config = content.get("config") if isinstance(content, dict) else None
        if not isinstance(config, dict):
            raise UserError(f"{file}: expected a run's configuration, got another JSON file")
        facts = _recorded(content)
        if not self._depth:
            facts.append("configuration: " + _settings(config, config))
            if isinstance(content.get("command"), list):
                facts.append("command: " + _said(" ".join(map(str, content["command"]))))
        nodes = self._parent("started from", config.get("model"), file)
        nodes += self._parent("paid by", config.get("reward"), file)
        dbs = config.get("dbs")
        for db in dbs if isinstance(dbs, list) else ():
            nodes += self._parent("fitted on", db, file)
        for key, what in (("save", "checkpoints in"), ("out", "reward model in"), ("db_path", "segments in")):
            if isinstance(config.get(key), str):
                facts.append(f"{what} {_said(config[key])}")
        return Node(f"run {_said(str(path))}", facts, nodes)

    def _db(self, path: Path) -> Node:
        db = SegmentDB(path)
        names = db.names
        if not names and not (path / "labels.json").is_file():
            raise UserError(
                f"{path}: expected a DB of segments, a folder of checkpoints or a run's, got another one; "
                "name one of the files in it"
            )
        facts, policies = self._segments(db, names)
        nodes = self._policies(policies, path / "labels.json")
        if (path / "labels.json").is_file():
            nodes.insert(0, self.artefact(path / "labels.json"))
        return Node(f"DB {_said(str(path))}", facts, nodes)

    def _segments(self, db: SegmentDB, names: list[str]) -> tuple[list[str], list[str]]:
        """What some of a DB's segments say, and the policies that recorded them."""
        every = max(1, math.ceil(len(names) / _SAMPLED))
        sampled, games, policies, broken = names[::every], Counter[str](), Counter[str](), 0
        for name in sampled:
            try:
                segment = db.load(name)
            except SegmentError:
                broken += 1
                continue
            sidecar = segment.sidecar
            if sidecar is None:
                games["no game named (the original's format)"] += 1
            else:
                games[f"{_said(sidecar.env_id)} with {_actions(segment, sidecar)}"] += 1
                policies[sidecar.origin.get("run", sidecar.policy)] += 1
        policies.pop("", None)
        facts = [f"{len(names)} segments" + (f", {len(sampled)} of them read" if every > 1 else "")]
        facts += [f"of {game}" for game in games]
        if len(games) > 1:
            facts.append("of more than one game or action set: no reward model can be fitted to all of it")
        if broken:
            facts.append(f"{broken} of those read are damaged")
        return facts, list(policies)

    def _policies(self, policies: Iterable[str], child: Path) -> list[Node]:
        """The policies that recorded segments: files, or just the names of runs."""
        nodes = []
        for policy in policies:
            found = _find(policy, child)
            if found is None or (found.is_dir() and not (found / "config.json").is_file()):
                nodes.append(Node(f"recorded by: the run {_said(policy)}"))
            else:
                nodes += self._parent("recorded by", policy, child)
        return nodes

    def _recorder(self, sidecar: Sidecar, path: Path) -> list[Node]:
        """The run that recorded a segment, and what it came from."""
        origin = sidecar.origin
        if "run" not in origin:
            return self._policies([sidecar.policy] if sidecar.policy else [], path)
        parents = {
            key: {"file": origin[of]}
            for key, of in (("policy", "model"), ("reward", "reward"))
            if of in origin
        }
        return self._parent("recorded by", {"file": origin["run"], "parents": parents}, path)

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
        facts += _commits(labels)
        asked = Counter(label.strategy or "not said" for label in labels)
        if asked:
            facts.append(
                "asked as: " + ", ".join(f"{_said(name)} {count}" for name, count in asked.most_common())
            )
        times = sorted(label.time for label in labels if label.time is not None)
        if times:
            facts.append(f"given from {_when(times[0])} to {_when(times[-1])}")
        nodes = []
        if path.parent.resolve() not in self._seen and SegmentDB(path.parent).names:
            nodes = [self.artefact(path.parent)]
            nodes[0].title = f"about: {nodes[0].title}"
        return Node(f"labels {_said(str(path))}", facts, nodes)

    def _segment(self, path: Path) -> Node:
        try:
            segment = load_segment(path)
        except SegmentError as error:
            raise UserError(f"expected a checkpoint, segment, labels.json, DB or run: {error}") from None
        steps, height, width, _ = segment.frames.shape
        facts = [f"{steps} steps of {width}×{height} pixels"]
        sidecar = segment.sidecar
        if sidecar is None:
            facts.append("of the original's format: it does not say where it came from")
            return Node(f"segment {_said(str(path))}", facts)
        facts.append(
            f"of {_said(sidecar.env_id)} with {_actions(segment, sidecar)}, score {sidecar.scores.sum():g}"
        )
        facts.append(f"begun at step {sidecar.step} of the run that recorded it")
        if sidecar.origin:
            facts.append(_settings(sidecar.origin, sidecar.origin))
        return Node(
            f"segment {_said(str(path))}",
            facts,
            self._recorder(sidecar, path),
        )


def _load_any(path: Path) -> dict[str, Any]:
    """A checkpoint of whichever kind.

    Raises:
      UserError: it is none.
    """
    for kind in KINDS:
        try:
            content = load_checkpoint(path, kind)
        except UserError as error:
            if not any(f"got a {other} checkpoint" in str(error) for other in KINDS):
                raise UserError(
                    str(error).replace(f"expected a {kind} checkpoint", "expected a checkpoint")
                ) from None
        else:
            break
    if content.get("bare"):
        content["kind"] = "policy" if "policy.2.weight" in content["state_dict"] else "reward"
    return content


def _find(name: str, child: Path) -> Path | None:
    """The file or folder that a record names: from here, or from any folder that its child lies in.

    Records hold paths as they were given on the command line, which may have been another folder's.
    """
    try:
        for folder in (Path(), *child.resolve().parents):
            path = folder / name
            if path.is_file() or path.is_dir():
                return path
    except (OSError, RuntimeError, ValueError):  # too long, a loop of links, a zero byte
        pass
    return None


# --- what is said of one artefact --------------------------------------------------------------------------------


def _recorded(content: Mapping[str, Any]) -> list[str]:
    """What a checkpoint, a run's config.json or a parent's record says of itself."""
    facts = []
    if isinstance(content.get("created"), str):
        commit = _said(content.get("git_commit") if isinstance(content.get("git_commit"), str) else "")
        facts.append(
            f"made {_said(content['created'])} by {f'commit {commit}' if commit else 'an unknown commit'}"
        )
    versions = content.get("versions")
    if isinstance(versions, Mapping):
        facts.append(
            "with " + ", ".join(f"{_said(name)} {_said(number)}" for name, number in versions.items())
        )
    config = content.get("config")
    if isinstance(config, Mapping):
        # A seed of 0 is a seed; of the others, 0 and off mean that there is nothing to tell.
        telling = [key for key in _TELLING if key == "seed" or (_is_plain(config.get(key)) and config[key])]
        facts.append(_settings(config, telling))
    steps = content.get("steps")
    if _is_number(steps):
        facts.append(f"after {steps:,} steps")
    evaluation = content.get("evaluation")
    scores = evaluation.get("scores") if isinstance(evaluation, Mapping) else None
    if isinstance(scores, list) and scores and all(map(_is_number, scores)):
        facts.append(f"score {format_mean(scores)} (95 %, {len(scores)} games)")
    results = content.get("results")
    if isinstance(results, Mapping):
        figures = {name: number for name, number in results.items() if _is_number(number)}
        facts.append(", ".join(f"{_said(name)} {number:.4g}" for name, number in figures.items()))
    parents = content.get("parents")
    if isinstance(parents, Mapping) and _is_number(parents.get("labels")):
        facts.append(f"fitted to {parents['labels']} labels")
    return [fact for fact in facts if fact]


def _settings(config: Mapping[Any, Any], keys: Iterable[Any]) -> str:
    """Some settings of a configuration."""
    return ", ".join(f"{_said(key)} {_said(config[key])}" for key in keys if config.get(key) is not None)


def _used(record: Mapping[str, Any]) -> str:
    """What a fit took of a DB."""
    people = record.get("labellers")
    if isinstance(people, Mapping):
        people = [f"{name} ({count})" for name, count in people.items()]
    by = " by " + ", ".join(map(_said, people[:20])) if isinstance(people, list) and people else ""
    policies = record.get("policies")
    if isinstance(policies, Mapping) and policies:
        by += "; recorded by " + ", ".join(f"{_said(k)} ({_said(v)})" for k, v in list(policies.items())[:20])
    return f"{_said(record.get('labels', '?'))} of its labels were used{by}"


def _actions(segment: Segment, sidecar: Sidecar) -> str:
    count = sidecar.num_actions
    return f"actions of {count} numbers" if segment.continuous else f"{count} actions"


def _labellers(labels: Iterable[Label]) -> list[str]:
    """How many labels each labeller gave, and how."""
    counts = Counter((label.annotator, label.teacher) for label in labels)
    parameters = {(label.annotator, label.teacher): label.parameters for label in labels if label.parameters}
    facts = []
    for (person, teacher), count in counts.most_common(20):
        who = _said(person) if person else f"{_said(teacher)}, simulated" if teacher else "unnamed"
        numbers = parameters.get((person, teacher))
        how = f" ({', '.join(f'{_said(k)} {v:g}' for k, v in numbers.items())})" if numbers else ""
        facts.append(f"{count} by {who}{how}")
    if len(counts) > 20:
        facts.append(f"and by {len(counts) - 20} others")
    return facts


def _commits(labels: Iterable[Label]) -> list[str]:
    """Which code wrote the labels, where they say it."""
    counts = Counter(label.commit for label in labels if label.commit)
    return [f"{count} written by commit {_said(commit)}" for commit, count in counts.most_common(5)]


def _when(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
    except (OverflowError, OSError, ValueError):
        return "an impossible time"


def _is_number(value: object) -> bool:
    """Whether it is a number that can be reckoned with and written out."""
    return isinstance(value, (int, float)) and abs(value) < 1e15


def _is_plain(value: object) -> bool:
    return isinstance(value, (str, int, float))


def _said(value: object) -> str:
    """Anything a file says, fit for a part of a line, however large or deep it is."""
    text = value if isinstance(value, str) else _SHORT.repr(value)
    text = one_line(text[: _MAX_TEXT + 1])
    return text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + "…"
