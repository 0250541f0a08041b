"""Simulated teachers: programs that compare segments in a person's place, for demonstrations and experiments.

They read what a person would see, or the sidecar that no model sees, and write the same label log, marked with
their name.

Six of them are those of B-Pref (Lee et al. 2021, arXiv 2111.03026), each with one human weakness. R is the score
gained over a segment, R̄ its mean over the DB:

=========  ===========================================================  =============
oracle     the higher R; alike where they are equal                     also `score`
mistake    oracle's answer, swapped with probability ε                  ε = 0.1
noisy      1 with probability σ(β(R₁ − R₂)), otherwise 2                β = 1
skip       cannot tell where max(R₁, R₂) < εR̄, otherwise oracle         ε = 0.1
myopic     the higher Σ γ^(T−t) rₜ over steps t = 1 … T                 γ = 0.9
equal      alike where abs(R₁ − R₂) ≤ εR̄, otherwise oracle              ε = 0.1
=========  ===========================================================  =============

The paper measures its thresholds against what the current policy earns in as many steps; a DB has no current policy,
so R̄ is the mean over all segments that it holds and that can be read whenever labels are asked for.
The authors' code multiplies the threshold by ε again in some of its places and lets a skipped query use up budget;
here ε counts once, and a query that cannot be told is written down but is not one of the labels asked for.
Equal returns are alike here, where that code prefers the first.
"""

import importlib
import inspect
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lib.cli import UserError
from lib.preferences.answers import Answer, holds_answers, load_answer
from lib.preferences.labels import TEACHERS, TEXT_TEACHERS, Label, LabelLog, Pair, current, is_own
from lib.preferences.prompts import is_text
from lib.preferences.queries import Query
from lib.preferences.rated_pairs import ClipRater, sigmoid
from lib.preferences.schedule import LabelCount, ProgressReader
from lib.preferences.segment_db import SegmentDB
from lib.preferences.segments import Segment, SegmentError
from lib.preferences.strategies import make_strategy
from lib.preferences.text_teachers import value_of
from lib.preferences.values import air, backflip, left, midwater, myopic_score, score, seaquest
from lib.reporting import Progress

_POLL_SECONDS = 0.5
_QUERIES_PER_LABEL = 10
"""A teacher that cannot tell gives up after this many queries for each label asked for."""


@dataclass(frozen=True)
class Teacher:
    """Values each clip or answer by a number, then compares two numbers.

    Attributes:
      value: prefers the segment of the higher one.
      tie: calls two alike whose values differ by no more.
      beta: answers 1 with probability σ(β(value1 − value2)) and never alike; None: always the higher value.
      error_rate: probability that a preference comes out the wrong way round; ties are never touched.
      threshold: ε of `equal` and `skip`, in mean values of the DB.
      skips: cannot tell below the threshold; without it, calls alike what differs by no more.
      rare: cannot tell half of the time where the values differ by less, as a labeller looking for the rare clips.
      choose: of a teacher that looks at both at once, in place of `compare`; values are then ignored.
    """

    value: Callable[[Any], float]
    tie: float = 0.0
    beta: float | None = None
    error_rate: float = 0.0
    threshold: float = 0.0
    skips: bool = False
    rare: float = 0.0
    choose: Callable[[Any, Any], int | None] | None = None

    def compare(self, value1: float, value2: float, mean: float = 0.0) -> int | None:
        """The answer by the values, without chance.

        Args:
          value1: of the one segment.
          value2: of the other.
          mean: of all segments in the DB; only a teacher with a threshold asks.

        Returns:
          1 or 2 for the better one, 0 for alike, None for cannot tell.
        """
        if self.skips and max(value1, value2) < self.threshold * mean:
            return None
        tie = self.tie if self.skips else max(self.tie, self.threshold * abs(mean))
        if abs(value1 - value2) <= tie:
            return 0
        return 1 if value1 > value2 else 2

    def parameters(self) -> dict[str, float]:
        """Its parameters, for the labels that it gives."""
        given = {"error_rate": self.error_rate, "beta": self.beta, "threshold": self.threshold or None}
        if isinstance(self.value, partial):
            given |= self.value.keywords
        return {name: number for name, number in given.items() if number is not None}

    def answer(self, value1: float, value2: float, rng: np.random.Generator, mean: float = 0.0) -> int | None:
        """The teacher's answer: that of `compare`, changed by error or noise."""
        if abs(value1 - value2) < self.rare and rng.random() < 0.5:
            return None
        if self.beta is None:
            said = self.compare(value1, value2, mean)
        else:
            said = 1 if rng.random() < sigmoid(self.beta * (value1 - value2)) else 2
        if said and rng.random() < self.error_rate:
            said = 3 - said
        return said


_VALUES = {"midwater": midwater, "seaquest": seaquest, "air": air, "left": left, "backflip": backflip}
"""Value functions of the teachers that look at more than the score."""


def make_teacher(
    name: str,
    error_rate: float | None = None,
    beta: float | None = None,
    myopia: float | None = None,
    threshold: float | None = None,
) -> Teacher:
    """The teacher of that name.

    Args:
      name: in `lib.preferences.labels.TEACHERS`, which has the parameters that are not given here.
      error_rate: of any of them.
      beta: of `noisy`, per point of score.
      myopia: γ of `myopic`; None: 0.9.
      threshold: ε of `skip` and `equal`.

    Raises:
      UserError: unknown teacher, or a parameter of another one.
    """
    if name not in TEACHERS:
        raise UserError(f"--teacher {name}: expected one of {', '.join(TEACHERS)}")
    for flag, given, owners in (
        ("--beta", beta, ("noisy",)),
        ("--myopia", myopia, ("myopic",)),
        ("--threshold", threshold, ("skip", "equal")),
    ):
        if given is not None and name not in owners:
            raise UserError(f"{flag} belongs to --teacher {' or '.join(owners)}; got --teacher {name}")
    value: Callable[[Segment], float] = _VALUES.get(name, score)
    if name == "myopic":
        value = partial(myopic_score, gamma=0.9 if myopia is None else myopia)
    changes = {"error_rate": error_rate, "beta": beta, "threshold": threshold}
    return Teacher(value, **TEACHERS[name] | {key: x for key, x in changes.items() if x is not None})


def own_teacher(name: str, error_rate: float | None = None, flag: str = "--teacher") -> Teacher:
    """A teacher of the user's own: a function of one clip or answer that returns a number, or of two that chooses.

    The module is imported, so only names typed at a command line may be passed here.

    Args:
      name: `package.module:function`, found in the working folder or where Python looks for modules. The function takes
        a `Segment` or, in a DB of answers, an `Answer`; of two of them it returns 1 or 2 for the better, 0 for alike,
        None for cannot tell.
      error_rate: as of `mistake`.
      flag: by which it was named.

    Raises:
      UserError: there is no such function, or it needs neither one nor two arguments.
    """
    module, _, function = name.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), function)
        taken = sum(
            argument.default is argument.empty
            and argument.kind in (argument.POSITIONAL_ONLY, argument.POSITIONAL_OR_KEYWORD)
            for argument in inspect.signature(found).parameters.values()
        )
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise UserError(f"{flag} {name}: expected package.module:function: {error}") from error
    finally:
        sys.path.append(sys.path.pop(0))  # for what the function imports when it is called
    if taken not in (1, 2):
        raise UserError(
            f"{flag} {name}: expected a function of one clip that returns a number, or of two clips that "
            f"returns 1, 2, 0 or None; it needs {taken} arguments"
        )

    def value(clip: Any) -> float:
        worth = found(clip)
        try:
            number = float(worth)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise UserError(f"{flag} {name}: expected a finite number for each clip, got {worth!r}")
        return number

    def choose(first: Any, second: Any) -> int | None:
        said = found(first, second)
        if said is None:
            return None
        # No bool: its False, "not the first", would say that they are alike.
        number = isinstance(said, (int, float, np.integer, np.floating)) and not isinstance(said, bool)
        if not number or said not in (0, 1, 2):
            raise UserError(f"{flag} {name}: expected 1, 2, 0 or None for each pair, got {said!r}")
        return int(said)

    if taken == 1:
        return Teacher(value, error_rate=error_rate or 0.0)
    return Teacher(lambda clip: 0.0, error_rate=error_rate or 0.0, choose=choose)


def make_text_teacher(
    name: str,
    error_rate: float | None = None,
    beta: float | None = None,
    threshold: float | None = None,
    keyword: str | None = None,
) -> Teacher:
    """The teacher of answers of that name, in `TEXT_TEACHERS`.

    Args:
      error_rate: as of `mistake`.
      beta: as of `noisy`, per word or point.
      threshold: ε as of `equal`.
      keyword: of `keyword`.

    Raises:
      UserError: the keyword is missing, no text, or belongs to another teacher; or β leaves no use for ε.
    """
    if (keyword is not None) != (name == "keyword"):
        raise UserError(
            f"--teacher keyword and --keyword WORD go together; got --teacher {name}"
            + ("" if keyword is None else f" --keyword {keyword}")
        )
    if keyword is not None and not is_text(keyword):
        raise UserError(
            "--keyword: expected a word in UTF-8, got one that is not; check the terminal's locale"
        )
    if beta is not None and threshold:
        raise UserError(
            "--threshold has no effect with --beta, by which no two answers are alike: leave out one of them"
        )
    return Teacher(
        value_of(name, keyword or ""), beta=beta, error_rate=error_rate or 0.0, threshold=threshold or 0.0
    )


@dataclass(frozen=True)
class LabelSummary:
    """The result of a simulated teacher's work."""

    written: int
    """Labels given, without the `skipped` ones."""
    wrong: int
    """How many of them prefer the segment of the lower value, by error or noise."""
    ties: int
    skipped: int
    """Queries written as cannot tell."""
    exhausted: bool
    """Every pair has been asked about."""
    at_random: int
    """Labels on random pairs, asked by chance or where the strategy had none left."""
    problems: list[str]
    """Segments that could not be read, one line each."""


class SimulatedLabeller:
    """A simulated teacher of a DB, which can label repeatedly while segments are added.

    Args:
      db_path: the segment DB.
      teacher: a name in TEACHERS or, in a DB of answers, TEXT_TEACHERS; or the user's own, see `own_teacher`.
      error_rate: see `make_teacher`, as for `beta`, `myopia` and `threshold`.
      seed: of the queries, errors and noise.
      strategy: a name in lib.preferences.labels.STRATEGIES.
      rater: the reward model that the strategy asks, if it needs one.
      random_share: share of random pairs that any other strategy is mixed with.
      keyword: of the teacher `keyword`.

    Raises:
      UserError: unknown teacher or strategy, a parameter that is not this one's, a reward model or an ensemble that
        the strategy needs is missing, there is no such DB, or it holds clips for a teacher of answers or the reverse.
    """

    def __init__(
        self,
        db_path: Path,
        teacher: str,
        error_rate: float | None = None,
        seed: int = 0,
        strategy: str = "random",
        beta: float | None = None,
        myopia: float | None = None,
        threshold: float | None = None,
        rater: ClipRater | None = None,
        random_share: float = 0.2,
        keyword: str | None = None,
    ) -> None:
        self._db, self._log = SegmentDB(db_path), LabelLog(db_path / "labels.json")
        self._make_strategy = partial(make_strategy, strategy, self._db, rater, random_share)
        self._flag = teacher
        self._look()
        of_text = teacher in TEXT_TEACHERS
        stranger = ("--myopia", myopia, "myopic") if of_text else ("--keyword", keyword, "keyword")
        if stranger[1] is not None:
            raise UserError(f"{stranger[0]} belongs to --teacher {stranger[2]}; got --teacher {teacher}")
        if is_own(teacher):
            for flag, given in (("--beta", beta), ("--myopia", myopia), ("--threshold", threshold)):
                if given is not None:
                    raise UserError(f"{flag} belongs to other teachers; got --teacher {teacher}")
            self._teacher = own_teacher(teacher, error_rate)
        elif of_text:
            self._teacher = make_text_teacher(teacher, error_rate, beta, threshold, keyword)
        else:
            self._teacher = make_teacher(teacher, error_rate, beta, myopia, threshold)
        self._name = teacher if keyword is None else f"{teacher}:{keyword}"
        self._seed, self._rng = seed, np.random.default_rng(seed)
        self._values: dict[str, float] = {}
        self._problems: dict[str, str] = {}

    def _look(self) -> None:
        """Makes ready to compare what the DB holds; while it is empty, what the teacher compares."""
        db, teacher, of_text = self._db, self._flag, self._flag in TEXT_TEACHERS
        self._was_empty = not db.names
        answers = holds_answers(db) if db.names else of_text
        if answers != of_text and not is_own(teacher):
            raise UserError(
                f"--teacher {teacher} compares {'answers' if of_text else 'clips'}, and {db.root} holds "
                f"{'answers' if answers else 'clips'}; take one of {', '.join(TEXT_TEACHERS if answers else TEACHERS)}"
            )
        self._queries = self._make_strategy(answers)
        self._load: Callable[[str], Segment | Answer] = partial(load_answer, db) if answers else db.load

    def count_segments(self) -> int:
        """The number of segments now."""
        self._db.refresh()
        return len(self._db.names)

    def give(self, count: int) -> LabelSummary:
        """Answers queries about the segments that there are now, appending to labels.json.

        Args:
          count: labels to add. Queries that the teacher cannot tell are written, but not counted; after ten queries
            for each label it ends with fewer.

        Raises:
          UserError: the DB does not have what the teacher reads, or cannot be written to.
        """
        self._db.refresh()
        names = self._db.names
        if len(names) < 2:
            raise UserError(f"{self._db.root}: expected at least two clips to compare, found {len(names)}")
        if self._was_empty:
            self._look()
        taken: set[Pair] = {label.pair for label in current(self._log.read())}
        mean = self._mean(names) if self._teacher.threshold else 0.0
        written = wrong = ties = skipped = at_random = 0
        exhausted = False
        while written < count and written + skipped < _QUERIES_PER_LABEL * count:
            usable = [name for name in names if name not in self._problems]
            asked = {name for pair in taken for name in pair}
            proposed = self._queries.propose(usable, taken, min(count - written, 64), self._rng, asked)
            if not proposed:
                exhausted = True
                break
            for query in proposed:
                taken.add(query.pair)
                if not all(self._readable(name) for name in query.pair):
                    continue
                try:
                    said, erred = self._answer(query.sample1, query.sample2, mean)
                except SegmentError:  # dropped since it was read
                    continue
                if not self._write(query, said, written):
                    continue
                written += said is not None
                at_random += said is not None and query.strategy == "random"
                skipped += said is None
                ties += said == 0
                wrong += erred
        problems = list(self._problems.values())
        return LabelSummary(written, wrong, ties, skipped, exhausted, at_random, problems)

    def _write(self, query: Query, said: int | None, written: int) -> bool:
        """Appends an answer, `written` labels after the first; False if one of the two segments is gone."""
        label = Label(
            query.sample1,
            query.sample2,
            said,
            teacher=self._name,
            parameters={**self._teacher.parameters(), "seed": self._seed},
            time=time.time(),
            strategy=query.strategy,
        )
        try:
            return self._log.append(label, partial(self._db.holds, query.pair))
        except OSError as error:
            raise UserError(
                f"{self._log.path}: could not be written ({error.strerror or error}) after {written} labels, which "
                f"are kept; fix that and start again with --count reduced by {written}"
            ) from error

    def _answer(self, name1: str, name2: str, mean: float) -> tuple[int | None, bool]:
        """The teacher's answer to two readable segments, and whether it is wrong on purpose."""
        if self._teacher.choose is not None:
            swapped = self._rng.random() < 0.5  # names are sorted, and a judge may prefer what it sees first
            first, second = (name2, name1) if swapped else (name1, name2)
            meant = self._teacher.choose(self._load(first), self._load(second))
            if meant and swapped:
                meant = 3 - meant
            if meant and self._rng.random() < self._teacher.error_rate:
                return 3 - meant, True
            return meant, False
        value1, value2 = self._values[name1], self._values[name2]
        said = self._teacher.answer(value1, value2, self._rng, mean)
        return said, said == (2 if value1 > value2 else 1) and value1 != value2

    def _readable(self, name: str) -> bool:
        if name not in self._values and name not in self._problems:
            try:
                self._values[name] = self._teacher.value(self._load(name))
            except SegmentError as error:
                self._problems[name] = str(error)
        return name in self._values

    def _mean(self, names: Sequence[str]) -> float:
        known = [self._values[name] for name in names if self._readable(name)]
        mean = float(np.mean(known)) if known else 0.0
        if self._teacher.skips and mean < 0:
            raise UserError(
                f"{self._db.root}: expected an average score of 0 or more to set the threshold by, got "
                f"{mean:g}; take another --teacher"
            )
        return mean


def label_with_teacher(db_path: str | Path, teacher: str, count: int, **options: Any) -> LabelSummary:
    """Lets a simulated teacher label a DB once: `give` of a `SimulatedLabeller`, which takes the options."""
    return SimulatedLabeller(Path(db_path), teacher, **options).give(count)


def attend(labeller: SimulatedLabeller, db_path: Path, progress: Progress, stop: Callable[[], bool]) -> int:
    """Lets a simulated teacher label during a training run, as labels fall due.

    How many are due follows from the DB's progress.json (lib.preferences.schedule). While the opening still records
    its clips nothing is answered, so that all of them may be asked about.

    Args:
      labeller: the teacher.
      db_path: its DB.
      progress: says how many it has given.
      stop: whether to end.

    Returns:
      Labels given.

    Raises:
      UserError: the DB does not have what the teacher reads.
    """
    reader, count, given = ProgressReader(db_path), LabelCount(db_path), 0
    said: set[str] = set()
    while not stop():
        training = reader.read()
        due = 0 if training is None or training.phase == "opening" else training.due - count.read()
        if training is not None and due > 0 and labeller.count_segments() >= 2:
            summary = labeller.give(due)
            given += summary.written
            for problem in set(summary.problems) - said:
                progress.line(f"left out: {problem}")
            said.update(summary.problems)
            progress.update(f"{training.steps} steps: {count.read()} labels, of {training.due} due")
        time.sleep(_POLL_SECONDS)
    return given
