"""Somebody who compares clips, without a browser."""

import itertools
from collections.abc import Sequence

from lib.label_ui.desk import Desk
from lib.label_ui.messages import BatchReply, BatchRequest, Offer, Undo, UndoReply, Vote, VoteReply


class User:
    """Somebody at one tab."""

    _pages = itertools.count()

    def __init__(self, desk: Desk, name: str = "ada") -> None:
        self.desk = desk
        self.name = name
        self.page = f"page{next(self._pages):08d}"
        self._undos = itertools.count()

    def batch(self, want: int = 4, keep: Sequence[Offer] = (), strategy: str | None = None) -> BatchReply:
        return self.desk.assign.batch(
            BatchRequest(
                db=self.desk.db.id,
                page=self.page,
                labeller=self.name,
                keep=list(keep),
                want=want,
                strategy=strategy,
            )
        )

    def take(self) -> Offer:
        return self.batch(1).pairs[0]

    def vote(self, offer: Offer, label: int | None = 1, **more: object) -> VoteReply:
        return self.desk.votes.vote(
            Vote.model_validate(
                {
                    "db": self.desk.db.id,
                    "labeller": self.name,
                    "offer": offer.model_dump(),
                    "label": label,
                    **more,
                }
            )
        )

    def undo(self, target: str, id: str | None = None) -> UndoReply:
        id = id or f"u-{self.page}{next(self._undos):06d}"
        return self.desk.votes.undo(Undo(db=self.desk.db.id, labeller=self.name, id=id, target=target))
