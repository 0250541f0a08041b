"""Clips and thumbnails of a DB, made on request as pictures that a browser plays exactly."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lib.envs.ids import is_atari_id, registered_name
from lib.preferences.segment_db import SegmentDB
from lib.preferences.segments import Segment, Sidecar
from lib.preferences.sprites import encode_png, sprite_sheet

_CACHE_BYTES = 32 << 20
_MAX_ACTIONS = 100_000
"""Limit on the characters of a clip's actions, which are sent in a header; browsers give up on one beyond 256 KB."""
_MAX_NAMES = 2000
"""Limit on the characters of all action names, which are sent in a header."""
_JOYSTICK = (
    *("NOOP", "FIRE", "UP", "RIGHT", "LEFT", "DOWN", "UPRIGHT", "UPLEFT", "DOWNRIGHT", "DOWNLEFT"),
    *("UPFIRE", "RIGHTFIRE", "LEFTFIRE", "DOWNFIRE"),
    *("UPRIGHTFIRE", "UPLEFTFIRE", "DOWNRIGHTFIRE", "DOWNLEFTFIRE"),
)
"""Actions of Atari games that use the whole joystick, for segments recorded before they carried names."""


@dataclass(frozen=True, slots=True)
class Clip:
    """One segment ready to be sent."""

    png: bytes
    meta: str
    """JSON for the player: steps, width, height (pixels), columns of the sheet, actions, names of the actions."""


class ClipStore:
    """Clips of one DB by opaque id, encoded on demand; recent ones stay in memory, up to a budget.

    A browser only ever names ids. They are looked up among the names the DB lists, so no request can form a path.
    """

    def __init__(self, db: SegmentDB) -> None:
        self._db = db
        self._names: dict[str, str] = {}
        self._cache: OrderedDict[tuple[str, str], Clip] = OrderedDict()
        self._cached = 0
        self._lock = threading.Lock()

    def id_of(self, name: str) -> str:
        """The opaque id of a segment, the same in every process."""
        id = hashlib.blake2s(name.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()
        self._names[id] = name
        return id

    def name_of(self, id: str) -> str:
        """The segment behind an id.

        Raises:
          KeyError: No segment of this DB has the id.
        """
        if id not in self._names:
            for name in self._db.names:
                self.id_of(name)
        return self._names[id]

    def clip(self, id: str) -> Clip:
        """The sprite sheet of a segment.

        Raises:
          KeyError: Unknown id.
          SegmentError: The file cannot be read or shown.
        """
        return self._cached_clip(("clip", id), self._encode_clip)

    def thumbnail(self, id: str) -> Clip:
        """The middle frame of a segment at half size. Raises as :meth:`clip`."""
        return self._cached_clip(("thumb", id), self._encode_thumbnail)

    def _cached_clip(self, key: tuple[str, str], encode: Callable[[Segment], Clip]) -> Clip:
        with self._lock:
            if key in self._cache:
                self._cache.move_to_end(key)
                return self._cache[key]
        clip = encode(self._db.load(self.name_of(key[1])))
        with self._lock:
            if key not in self._cache:
                self._cache[key] = clip
                self._cached += len(clip.png)
            while self._cached > _CACHE_BYTES and len(self._cache) > 1:
                self._cached -= len(self._cache.popitem(last=False)[1].png)
        return clip

    def _encode_clip(self, segment: Segment) -> Clip:
        steps, height, width, _ = segment.frames.shape
        sheet, columns = sprite_sheet(segment.frames)
        sidecar = segment.sidecar
        actions = [_numbers(action) if segment.continuous else int(action) for action in segment.actions]
        meta = {
            "steps": steps,
            "width": width,
            "height": height,
            "columns": columns,
            "actions": actions if len(json.dumps(actions)) <= _MAX_ACTIONS else [],
            "names": action_names(sidecar) if sidecar and not segment.continuous else (),
            "game": registered_name(sidecar.env_id)[:200] if sidecar else "",  # a header has its limits
        }
        return Clip(encode_png(sheet), json.dumps(meta, separators=(",", ":")))

    def _encode_thumbnail(self, segment: Segment) -> Clip:
        frame = segment.frames[len(segment.frames) // 2]
        return Clip(encode_png(np.ascontiguousarray(frame[::2, ::2])), "")


def _numbers(action: np.ndarray) -> str:
    """A continuous action as the player shows it, its first four numbers."""
    shown = "  ".join(f"{number:+.1f}" for number in action[:4]).replace("-", "−")
    return shown + (" …" if len(action) > 4 else "")


def action_names(sidecar: Sidecar) -> tuple[str, ...]:
    """The names of a segment's actions, such as "UPFIRE"; () if only numbers are known, or names are too long."""
    names = sidecar.action_names
    if not names and is_atari_id(sidecar.env_id) and sidecar.num_actions == len(_JOYSTICK):
        names = _JOYSTICK
    return names if sum(map(len, names)) <= _MAX_NAMES else ()
