"""Answers: written once however often they are sent, undone, changed, looked up."""

from __future__ import annotations

import dataclasses
import secrets
from typing import Literal

import numpy as np

from lib.label_ui.db import LabelledDB
from lib.label_ui.ledger import Labeller, display_name
from lib.label_ui.messages import Offer, Said, Undo, UndoReply, Vote, VoteReply
from lib.label_ui.model_view import recheck_query
from lib.label_ui.stats import Statistics
from lib.preferences.labels import OPENED, RECHECK, Label, pair_of
from lib.preferences.queries import Leases, Query


class Votes:
    """Writes answers and undoes them.

    Both are idempotent: a page sends a message until it has a reply, and an id that is in labels.json already, written
    by this process or another, changes nothing more.

    Args:
      db: The DB.
      leases: The pairs that pages hold.
      stats: Tells labellers where they stand.
      rng: Draws the sides of a recheck.
    """

    def __init__(self, db: LabelledDB, leases: Leases, stats: Statistics, rng: np.random.Generator) -> None:
        self._db = db
        self._leases = leases
        self._stats = stats
        self._rng = rng

    def vote(self, vote: Vote) -> VoteReply:
        """Writes an answer to disk. An answer sent twice is written once.

        A vote counts even when its lease has run out or an earlier process granted it; when somebody else has
        answered the pair meanwhile, both answers are kept. It is dropped, and the reply says so, when its labeller
        has already answered the pair another time.

        Raises:
          NotSaved: the disk is full, the DB read-only or gone.
          UserError: the vote is about another DB.
        """
        who: Labeller = (vote.labeller, None)
        offer, db = vote.offer, self._db
        db.expect(vote.db)
        with db.lock:
            db.sync()

            def reply(outcome: Literal["saved", "duplicate", "dropped"], reason: str = "") -> VoteReply:
                return VoteReply(outcome=outcome, reason=reason, standing=self._stats.standing(who))

            if offer.id in db.ledger.ids:
                return reply("duplicate")
            gone = "one of its clips is no longer in the database"
            if offer.sample1 == offer.sample2 or not db.holds((offer.sample1, offer.sample2)):
                return reply("dropped", gone)
            lease = self._leases.find(offer.id)
            if lease is not None:
                asked = db.offer(lease.id, lease.query, lease.left)
                if (asked.sample1, asked.sample2) != (offer.sample1, offer.sample2):
                    return reply("dropped", "it does not name the pair that was asked")
                offer = asked
            before = db.ledger.standing.get(pair_of(offer.sample1, offer.sample2), {}).get(who)
            again = offer.repeat or vote.change or offer.strategy == RECHECK
            if before is not None and not again:
                return reply("dropped", "you have already answered this pair, perhaps in another tab")
            strategy = offer.strategy
            if before is not None and strategy == OPENED:  # a change of mind about what was asked then
                strategy = before.strategy or strategy
            label = Label(
                sample1=offer.sample1,
                sample2=offer.sample2,
                label=vote.label,
                annotator=vote.labeller,
                time=db.now(),
                response_ms=vote.response_ms,
                left=offer.left,
                flag=vote.flag or None,
                strategy=strategy,
                repeat=offer.repeat and before is not None,
                id=offer.id,
            )
            if not db.write(label):
                return reply("dropped", gone)
            self._leases.release(offer.id)
            return reply("saved")

    def undo(self, undo: Undo) -> UndoReply:
        """Takes an answer back; the pair may then be asked again.

        Raises:
          NotSaved: as for :meth:`vote`.
        """
        who: Labeller = (undo.labeller, None)
        db = self._db
        db.expect(undo.db)
        with db.lock:
            db.sync()

            def reply(outcome: Literal["undone", "duplicate", "dropped"], reason: str = "") -> UndoReply:
                return UndoReply(outcome=outcome, reason=reason, standing=self._stats.standing(who))

            if undo.id in db.ledger.ids:
                return reply("duplicate")
            entry = db.ledger.entry(who, undo.target)
            if entry is None:
                return reply("dropped", "that answer was already replaced or taken back")
            line = entry.before or dataclasses.replace(entry.label, cancelled=True, time=db.now())
            db.write_back(dataclasses.replace(line, id=undo.id))
            return reply("undone")

    def delete(self, label: Label) -> None:
        """Cancels anybody's label, unless its labeller has changed it meanwhile.

        Raises:
          NotSaved: as for :meth:`vote`.
        """
        db = self._db
        with db.lock:
            db.sync()
            if db.ledger.standing.get(label.pair, {}).get(label.labeller) == label:
                id = "d-" + secrets.token_hex(12)
                db.write_back(dataclasses.replace(label, cancelled=True, time=db.now(), id=id))

    def history(self, labeller: str, before: str | None, limit: int) -> list[Said]:
        """A labeller's answers that can be undone, oldest first.

        Args:
          labeller: Whose answers.
          before: Only answers before the one of this vote id.
          limit: How many at most, the latest of them.
        """
        with self._db.lock:
            self._db.sync()
            labels = [
                entry.label
                for entry in self._db.ledger.history[(labeller, None)]
                if _is_ours(entry.label.id) and self._db.holds(entry.label.pair)
            ]
            ids = [label.id for label in labels]
            if before in ids:
                labels = labels[: ids.index(before)]
            return [self._said(label) for label in labels[-limit:]]

    def pair(self, clip1: str, clip2: str, recheck: bool = False) -> tuple[Offer, list[Said]]:
        """A pair by its clips' ids, with everybody's labels on it, to view or change.

        Args:
          clip1: Id of a clip.
          clip2: Id of another.
          recheck: The pair is asked anew because the reward model doubts a label on it: sides are drawn, and no answer is shown.

        Raises:
          KeyError: no such clip.
        """
        db = self._db
        with db.lock:
            db.sync()
            name1, name2 = db.name_of(clip1), db.name_of(clip2)
            if name1 == name2 or not db.holds((name1, name2)):  # labels may name segments that are gone
                raise KeyError(clip2)
            if recheck:
                left = int(self._rng.integers(1, 3))
                return db.offer(secrets.token_hex(12), recheck_query(name1, name2), left), []
            said = list(db.ledger.standing.get(pair_of(name1, name2), {}).values())
            left = 1
            if said:
                name1, name2, left = said[-1].sample1, said[-1].sample2, said[-1].left or left
            query = Query(name1, name2, OPENED, "opened from the existing labels")
            return db.offer(secrets.token_hex(12), query, left), [self._said(label) for label in said]

    def _said(self, label: Label) -> Said:
        query = Query(label.sample1, label.sample2, label.strategy or "", "", label.repeat)
        # Labels without an id of ours can be looked at but not undone.
        id = label.id if label.id is not None and _is_ours(label.id) else secrets.token_hex(12)
        return Said.model_validate(
            {
                "offer": self._db.offer(id, query, label.left or 1),
                "label": label.label,
                "labeller": display_name(label.labeller),
                "flag": label.flag,
            }
        )


def _is_ours(id: str | None) -> bool:
    """Whether it is the id of a vote from a page."""
    return id is not None and id.isascii() and id.isalnum() and 8 <= len(id) <= 64
