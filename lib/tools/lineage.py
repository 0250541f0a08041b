"""The lineage of a checkpoint, segment, labels.json, DB or run folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lib.checkpoints import load_checkpoint
from lib.cli import UserError, one_line
from lib.preferences.answers import (
    holds_answers,
    is_answer,
    read_answer,
    word_count,
)
from lib.preferences.labels import LabelLog, current
from lib.preferences.prompts import last
from lib.preferences.segment_db import SegmentDB
from lib.preferences.segments import SegmentError, load_segment
from lib.provenance import plain
from lib.runs import read_config
from lib.tools.facts import (
    as_list,
    as_mapping,
    game_of,
    of_answers,
    of_labellers,
    of_segments,
    of_use,
    plain_lineage,
    recorded,
    said,
    settings,
    when,
)

_MAX_NODES = 200
_MAX_DEPTH = 20
_IDENTITY = ("steps", "created", "git_commit")
"""Keys in which a parent's record and its file must agree."""


@dataclass
class Node:
    """One artefact of a lineage."""

    title: str
    facts: list[str] = field(default_factory=list)
    parents: list[Node] = field(default_factory=list)


def lineage_text(path: Path) -> str:
    """The lineage of an artefact, as an indented tree.

    A parent is read from its file if that still exists and matches its record, otherwise from the record. Code in
    files never runs, and their text is made printable.

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
    """Follows an artefact's parents: each file once, up to a limit."""

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
            reason = getattr(error, "strerror", None) or "not the path of a file"
            raise UserError(f"{path}: expected an artefact to describe: {reason}; check the path") from None
        if real in self._seen:
            return Node(f"{said(path)}: described above")
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
                return Node(f"language model {said(path)}")
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
        record = as_mapping({key: record} if isinstance(record, str) else record)
        if not isinstance(record.get(key), str):
            return []
        name = said(record[key])
        if self._depth >= _MAX_DEPTH or self._nodes >= _MAX_NODES:
            return [Node(f"{role}: {name}", ["not followed further"])]
        self._depth += 1
        try:
            found = _find(record[key], child)
            _check_same(found, record)
            node = self.artefact(found)
            node.title = f"{role}: {node.title}"
        except UserError as error:
            self._nodes += 1
            facts = [*recorded(record), f"as recorded; {one_line(str(error))}"]
            node = Node(f"{role}: {name}", facts, self._ancestors(record, child))
        finally:
            self._depth -= 1
        return [node]

    def _ancestors(self, content: Mapping[str, Any], child: Path) -> list[Node]:
        """The trees of everything that a checkpoint's `parents` names."""
        parents = as_mapping(content.get("parents"))
        nodes = self._parent("finetuned from", parents.get("policy"), child)
        nodes += self._parent("held near", parents.get("reference"), child)
        nodes += self._parent("paid by", parents.get("reward"), child)
        for record in as_list(parents.get("dbs")):
            used = self._parent("fitted on", record, child, "db")
            if used and isinstance(record, Mapping):
                used[0].facts.insert(0, of_use(record))
            nodes += used
        if isinstance(parents.get("language"), str):
            nodes.append(Node(f"layers of: the language model {said(parents['language'])}"))
        return nodes

    # --- kinds ---------------------------------------------------------------------------------------------------

    def _checkpoint(self, path: Path) -> Node:
        whole = load_checkpoint(path)
        kind = whole["kind"] or ("policy" if "policy.2.weight" in whole["state_dict"] else "reward")
        title = f"{kind} {said(path)}"
        if path.is_symlink():
            title += f" → {said(path.readlink())}"
        if "bare" in whole:
            return Node(
                title, [f"{len(whole['state_dict'])} weights only: the file does not say where it came from"]
            )
        return self._told(title, plain_lineage(whole), path)

    def _finetuned(self, path: Path) -> Node:
        from lib.text.language import read_policy

        return self._told(f"language model {said(path)}", plain(read_policy(path)), path)

    def _told(self, title: str, content: Mapping[str, Any], path: Path) -> Node:
        """A checkpoint's description of itself."""
        config = as_mapping(content.get("config"))
        facts = recorded(content)
        if not self._depth and config:
            facts.append("configuration: " + settings(config, config))
        return Node(title, facts, self._ancestors(content, path))

    def _run(self, path: Path) -> Node:
        """A run's folder, by its config.json."""
        content = plain(read_config(path))
        config, file = content["config"], path / "config.json"
        facts = recorded(content)
        if not self._depth:
            facts.append("configuration: " + settings(config, config))
            if "command" in content:
                facts.append("command: " + said(" ".join(map(str, as_list(content["command"])))))
        nodes = self._parent("started from", config.get("model"), file)
        nodes += self._parent("paid by", config.get("reward"), file)
        for db in as_list(config.get("dbs")):
            nodes += self._parent("fitted on", db, file)
        for key, what in (("save", "checkpoints in"), ("out", "reward model in"), ("db_path", "segments in")):
            if isinstance(config.get(key), str):
                facts.append(f"{what} {said(config[key])}")
        return Node(f"run {said(path)}", facts, nodes)

    def _db(self, path: Path) -> Node:
        db = SegmentDB(path)
        labelled = (path / "labels.json").is_file()
        if not db.names and not labelled:
            raise UserError(
                f"{path}: expected a DB of segments, a folder of checkpoints or a run's, got another one; "
                "name one of the files in it"
            )
        facts, policies = of_answers(db) if holds_answers(db) else of_segments(db)
        nodes = [self.artefact(path / "labels.json")] if labelled else []
        return Node(f"DB {said(path)}", facts, nodes + self._recorders(policies, path / "labels.json"))

    def _recorders(self, policies: Iterable[str], child: Path) -> list[Node]:
        """The policies that recorded segments: files, or just the names of runs."""
        nodes = []
        for policy in policies:
            try:
                found = _find(policy, child)
                known = found.is_file() or (found / "config.json").is_file()
            except UserError:
                known = False
            run = [Node(f"recorded by: the run {said(policy)}")]
            nodes += self._parent("recorded by", policy, child) if known else run
        return nodes

    def _labels(self, path: Path) -> Node:
        log = LabelLog(path)
        lines = log.read()
        if not lines and log.problems:
            raise UserError(f"{path}: expected labels, JSON lines; {log.problems[0]}")
        labels = current(lines)
        facts = [f"{len(labels)} labels in force, in {len(lines)} lines"]
        if log.problems:
            facts.append(f"{len(log.problems)} lines cannot be read")
        facts += of_labellers(labels)
        commits = Counter(label.commit for label in labels if label.commit)
        facts += [f"{count} written by commit {said(commit)}" for commit, count in commits.most_common(5)]
        asked = Counter(label.strategy or "not said" for label in labels).most_common()
        if asked:
            facts.append("asked as: " + ", ".join(f"{said(name)} {count}" for name, count in asked))
        times = [label.time for label in labels if label.time is not None]
        if times:
            facts.append(f"given from {when(min(times))} to {when(max(times))}")
        nodes = []
        if path.parent.resolve() not in self._seen and SegmentDB(path.parent).names:
            nodes = [self.artefact(path.parent)]
            nodes[0].title = f"about: {nodes[0].title}"
        return Node(f"labels {said(path)}", facts, nodes)

    def _answer(self, path: Path) -> Node:
        try:
            answer = read_answer(path, str(path))
        except SegmentError as error:
            raise UserError(f"expected a checkpoint, segment, labels.json, DB or run: {error}") from None
        end = "finished" if answer.finished else "cut off"
        facts = [
            f"{word_count(answer.text)} words, {len(answer.tokens)} tokens, {end}",
            f"to {said(repr(last(answer.prompt)))}",
            f"by the language model {said(answer.policy)}" if answer.policy else "by an unnamed author",
        ]
        if answer.origin:
            facts.append(settings(answer.origin, answer.origin))
        return Node(f"answer {said(path)}", facts)

    def _segment(self, path: Path) -> Node:
        try:
            segment = load_segment(path)
        except SegmentError as error:
            raise UserError(f"expected a checkpoint, segment, labels.json, DB or run: {error}") from None
        steps, height, width, _ = segment.frames.shape
        title, facts = f"segment {said(path)}", [f"{steps} steps of {width}×{height} pixels"]
        sidecar = segment.sidecar
        if sidecar is None:
            return Node(title, [*facts, "of the original's format: it does not say where it came from"])
        facts.append(f"of {game_of(segment, sidecar)}, score {sidecar.scores.sum():g}")
        facts.append(f"begun at step {sidecar.step} of the run that recorded it")
        origin = sidecar.origin
        if origin:
            facts.append(settings(origin, origin))
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
    """Refuses a checkpoint that does not match the record.

    Raises:
      UserError: It is another one, or cannot be read.
    """
    expected = {key: record[key] for key in _IDENTITY if record.get(key) is not None}
    if expected and found.is_file():
        content = plain_lineage(load_checkpoint(found))
        if any(content.get(key) != value for key, value in expected.items()):
            raise UserError("another file has its name now")
