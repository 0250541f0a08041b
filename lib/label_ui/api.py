"""The page's HTTP interface. :mod:`lib.label_ui.access` controls access, the desk does the work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

from fastapi import FastAPI, HTTPException, Query, Request
from fastapi import Path as Segment
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, Response
from starlette.staticfiles import StaticFiles

from lib.cli import UserError
from lib.envs.world import STEPS_PER_SECOND
from lib.label_ui.db import NotSaved
from lib.label_ui.desk import Desk
from lib.label_ui.messages import (
    AnswerReply,
    BatchReply,
    BatchRequest,
    CurveReply,
    DoubtsReply,
    Id,
    Leave,
    Offer,
    RatedClipsReply,
    Said,
    Session,
    Undo,
    UndoReply,
    Vote,
    VoteReply,
)
from lib.label_ui.model_view import ModelView, Order
from lib.preferences.prompts import messages_of
from lib.preferences.segments import SegmentError

STATIC = Path(__file__).parent / "static"

Found = TypeVar("Found")
ClipId = Annotated[str, Segment(pattern=r"^[0-9a-f]{16}$")]


@dataclass(frozen=True, slots=True)
class PageSettings:
    """The page's settings from the command line."""

    name: str | None = None
    speed: float = 2.0
    start_paused: bool = False


def build_api(desk: Desk, settings: PageSettings) -> FastAPI:
    """The application without NiceGUI's pages: the labelling screen, its files, clips and answers."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    def model() -> ModelView:
        if desk.model is None:
            raise HTTPException(404, "This page was started without a reward model.")
        return desk.model

    @app.exception_handler(RequestValidationError)
    def malformed(request: Request, error: Exception) -> Response:
        # FastAPI would repeat what came, of which half a character or NaN cannot be sent.
        return JSONResponse({"error": "this page sends no such message"}, status_code=422)

    @app.exception_handler(NotSaved)
    def not_saved(request: Request, error: Exception) -> Response:
        return JSONResponse({"error": str(error)}, status_code=507)

    @app.exception_handler(UserError)
    def database_gone(request: Request, error: Exception) -> Response:
        return JSONResponse({"error": str(error)}, status_code=503)

    @app.exception_handler(OSError)
    def unreadable(request: Request, error: Exception) -> Response:
        return JSONResponse({"error": f"The database cannot be read: {error}"}, status_code=503)

    @app.get("/label")
    def page() -> Response:
        return FileResponse(STATIC / "label.html", headers={"Cache-Control": "no-cache"})

    @app.get("/model")
    def model_page() -> Response:
        return FileResponse(STATIC / "model.html", headers={"Cache-Control": "no-cache"})

    @app.get("/api/session")
    def session(request: Request) -> Session:
        return Session(
            db=desk.db.id,
            # Guests are asked for their own name.
            name=settings.name if getattr(request.state, "role", None) == "host" else None,
            goal=desk.stats.goal,
            speed=settings.speed,
            start_paused=settings.start_paused,
            strategy=desk.assign.strategy,
            strategies=desk.assign.strategies,
            steps_per_second=STEPS_PER_SECOND,
            model=desk.model.name if desk.model else "",
            answers=desk.db.answers,
        )

    @app.post("/api/batch")
    def batch(ask: BatchRequest) -> BatchReply:
        return desk.assign.batch(ask)

    @app.post("/api/vote")
    def vote(vote: Vote) -> VoteReply:
        return desk.votes.vote(vote)

    @app.post("/api/undo")
    def undo(undo: Undo) -> UndoReply:
        return desk.votes.undo(undo)

    @app.post("/api/leave", status_code=204)
    def leave(leaving: Leave) -> None:
        desk.assign.leave(leaving.page)

    @app.get("/api/history")
    def history(labeller: Annotated[str, Query(max_length=60)], before: Id | None = None) -> list[Said]:
        return desk.votes.history(labeller, before, limit=100)

    @app.get("/api/pair/{clip1}/{clip2}")
    def pair(clip1: ClipId, clip2: ClipId, recheck: bool = False) -> dict[str, Offer | list[Said]]:
        try:
            offer, said = desk.votes.pair(clip1, clip2, recheck)
        except KeyError:
            raise HTTPException(404, "This pair is not in the database.") from None
        return {"offer": offer, "said": said}

    @app.get("/api/model/clips")
    def clips(
        order: Order, text: Annotated[str, Query(max_length=60)] = "", seed: Annotated[int, Query(ge=0)] = 0
    ) -> RatedClipsReply:
        return model().segments(order, text, seed)

    @app.get("/api/model/curve/{id}")
    def curve(id: ClipId) -> CurveReply:
        return _found(model().curve, id)

    @app.get("/api/model/doubts")
    def doubts(labeller: Annotated[str, Query(max_length=60)]) -> DoubtsReply:
        return model().doubts(labeller)

    @app.get("/clip/{id}.png")
    def clip(id: ClipId) -> Response:
        found = _found(desk.db.clip, id)
        return Response(
            found.png, media_type="image/png", headers={"Clip-Meta": found.meta, "Cache-Control": "no-store"}
        )

    @app.get("/text/{id}")
    def text(id: ClipId, response: Response) -> AnswerReply:
        response.headers["Cache-Control"] = "no-store"
        found = _found(desk.db.answer, id)
        return AnswerReply(prompt=messages_of(found.prompt), text=found.text, finished=found.finished)

    @app.get("/thumb/{id}.png")
    def thumbnail(id: ClipId) -> Response:
        found = _found(desk.db.thumbnail, id)
        return Response(found.png, media_type="image/png", headers={"Cache-Control": "private, max-age=60"})

    app.mount("/static", _Static(directory=STATIC))
    return app


class _Static(StaticFiles):
    """Browsers revalidate our own files each time (by ETag), so that an update shows at once."""

    def file_response(self, *args: object, **options: object) -> Response:
        response = super().file_response(*args, **options)  # type: ignore[arg-type]
        response.headers["Cache-Control"] = "no-cache"
        return response


def _found(load: Callable[[str], Found], id: str) -> Found:
    try:
        return load(id)
    except KeyError:
        raise HTTPException(404, "There is no such clip.") from None
    except SegmentError as error:
        raise HTTPException(422, f"A clip cannot be shown and is left out: {error}") from None
