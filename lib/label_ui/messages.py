"""The messages between browser and server, checked on arrival."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, Field, StringConstraints

from lib.preferences.labels import MAX_RESPONSE_MS


def _whole(text: object) -> object:
    """U+FFFD for half a character, such as a cut emoji, which JSON can spell and UTF-8 cannot."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if type(text) is str else text


_TYPED = BeforeValidator(_whole)
"""Marks text that a person typed."""
Id = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]{8,64}$")]
"""Of a page, a pair or a vote. No hyphens: these mark the ids of undone and deleted answers (lib.preferences.labels.UNDO)."""
Person = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=60), _TYPED]
Sample = Annotated[str, StringConstraints(min_length=1, max_length=300)]
Side = Literal[1, 2]


class Offer(BaseModel):
    """A pair in front of a labeller. Its id is the lease's and becomes the vote's."""

    id: Id
    sample1: Sample
    sample2: Sample
    left: Side
    """Which sample is shown on the left."""
    strategy: Annotated[str, StringConstraints(max_length=60)]
    reason: Annotated[str, StringConstraints(max_length=200)] = ""
    repeat: bool = False
    clip1: str = ""
    """Opaque id of sample1's clip; the server fills it in."""
    clip2: str = ""


class BatchRequest(BaseModel):
    """Renews the pairs that a page still holds and asks for more."""

    db: str
    page: Id
    labeller: Person
    keep: Annotated[list[Offer], Field(max_length=50)] = []
    want: Annotated[int, Field(ge=0, le=50)]
    strategy: str | None = None


class Vote(BaseModel):
    db: str
    labeller: Person
    offer: Offer
    label: Literal[0, 1, 2] | None
    """Which sample is better; 0 alike, None cannot tell."""
    response_ms: Annotated[int, Field(ge=0, le=MAX_RESPONSE_MS)] | None = None
    flag: Annotated[str, StringConstraints(strip_whitespace=True, max_length=500), _TYPED] | None = None
    change: bool = False
    """True when the labeller opened a labelled pair in order to change the answer."""


class Undo(BaseModel):
    db: str
    labeller: Person
    id: Annotated[str, StringConstraints(pattern=r"^u-[A-Za-z0-9]{8,64}$")]
    target: Id
    """Id of the vote to take back."""


class Leave(BaseModel):
    """A page was closed or left for another."""

    page: Id


class Standing(BaseModel):
    """Where a labeller and the DB stand."""

    total: int
    """Labels in the DB that a fit can use, everybody's."""
    skipped: int
    """Pairs answered with can't tell."""
    mine: int
    """Pairs that I answered, each counted once."""
    today: int
    """Mine, since midnight where the server runs."""
    per_minute: float | None
    checks: list[bool]
    """Outcomes of my last repeat checks, oldest first: whether I gave the same answer again."""
    goal: int | None
    due: int | None = None
    """Labels that are due for a training run and not given yet; None without such a run, and after its end."""
    over: bool = False
    """Whether that run is over."""


class BatchReply(BaseModel):
    pairs: list[Offer]
    standing: Standing
    notice: str = ""
    """Why there are no more pairs; empty while there are."""
    problems: list[str] = []
    """Segments that were left out and strategies that failed, one sentence each."""
    answers: bool
    """As in `Session`; a page that was opened on an empty DB may learn it only now."""


class VoteReply(BaseModel):
    outcome: Literal["saved", "duplicate", "dropped"]
    reason: str = ""
    standing: Standing


class UndoReply(BaseModel):
    outcome: Literal["undone", "duplicate", "dropped"]
    reason: str = ""
    standing: Standing


class Said(BaseModel):
    """A label as the page shows it."""

    offer: Offer
    label: Literal[0, 1, 2] | None
    labeller: str
    flag: str | None = None


class Session(BaseModel):
    """What a page needs to know when it starts."""

    db: str
    name: str | None
    goal: int | None
    speed: float
    start_paused: bool
    strategy: str
    strategies: list[str]
    steps_per_second: float
    model: str
    """Name of the reward model; empty without one."""
    answers: bool
    """Whether answers of a language model are compared, not clips."""


class AnswerReply(BaseModel):
    """What a labeller sees of an answer: not which model gave it, nor how likely it was."""

    prompt: list[dict[str, str]]
    """`role` and `content` of each message; a text is one by the user."""
    text: str
    finished: bool


class RatedClip(BaseModel):
    """A segment as the reward model sees it."""

    clip: str
    name: str
    total: float | None
    """Learned reward of all its steps, standardised; None until it is rated, or if it cannot be."""


class RatedClipsReply(BaseModel):
    clips: list[RatedClip]
    rated: int
    of: int
    """Segments that the order of this list depends on; `rated` of them have been rated."""


class CurveReply(BaseModel):
    rewards: list[float]
    """Of each step, standardised."""


class Doubt(BaseModel):
    """A label that may be worth a second look."""

    clip: str
    """The segment that was preferred."""
    other: str
    labeller: str
    probability: float
    """How likely the model finds the label, 0 … 1."""
    total: float
    other_total: float


class DoubtsReply(BaseModel):
    doubts: list[Doubt]
    """Least likely first."""
    rated: int
    of: int
    """Labels that could be doubted; the clips of `rated` of them have been rated."""
