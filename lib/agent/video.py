"""mp4 videos of games, encoded by FFmpeg through PyAV; no display needed."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import av
import cv2
import numpy as np

from lib.cli import UserError

_SCALE = 3
_STRIP_ROWS = 32
_WINDOW = 150  # steps that the strip looks back
_RANGE = 3.0  # standard deviations at its upper and lower edge
_GOOD, _BAD, _AXIS = (90, 200, 120), (230, 110, 90), (120, 120, 120)


class VideoWriter:
    """Writes frames to an mp4 file that gets its name only when it is complete."""

    def __init__(self, path: Path, rate: int) -> None:
        self._path, self._rate = path, rate
        self._partial = path.with_name(f".{path.name}.partial")
        self._stream: av.VideoStream | None = None
        try:
            self._partial.touch()  # PyAV opens the file only when the first packet comes
            self._container = av.open(str(self._partial), "w", format="mp4")
        except OSError as error:
            raise UserError(f"{path}: could not begin the video: {error.strerror}") from error

    def add(self, frame: np.ndarray) -> None:
        """Appends a frame, uint8 `[H, W, 3]`; all of a video have one size."""
        picture = np.repeat(np.repeat(frame, _SCALE, 0), _SCALE, 1)
        picture = np.pad(picture, ((0, picture.shape[0] % 2), (0, picture.shape[1] % 2), (0, 0)))
        if self._stream is None:
            self._stream = self._container.add_stream("libx264", rate=self._rate, options={"crf": "18"})
            self._stream.height, self._stream.width = picture.shape[:2]
            self._stream.pix_fmt = "yuv420p"
        with self._saying():
            self._container.mux(
                self._stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(picture)))
            )

    def close(self) -> None:
        """Completes the file. Raises UserError, as `add`, when the disk is full; `discard` it then."""
        with self._saying():
            if self._stream is not None:
                self._container.mux(self._stream.encode(None))
            self._container.close()
            self._partial.replace(self._path)

    def discard(self) -> None:
        """Deletes what was written."""
        with contextlib.suppress(OSError):  # it may have failed before
            self._container.close()
        self._partial.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _saying(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UserError(
                f"{self._path}: could not be written: {error.strerror}; make room and start again"
            ) from error


def with_reward_strip(frame: np.ndarray, paid: Sequence[float]) -> np.ndarray:
    """The frame with the learned reward of the last steps drawn below it, newest on the right.

    Args:
      frame: uint8 `[H, W, 3]`.
      paid: the standardised reward of every step so far.

    Returns:
      uint8 `[H + 32, W, 3]`: green above the mean of the fit's segments, red below; the edges are ±3
      standard deviations.
    """
    width = frame.shape[1]
    strip = np.zeros((_STRIP_ROWS, width, 3), np.uint8)
    middle = _STRIP_ROWS // 2
    strip[middle] = _AXIS
    recent = np.asarray(paid[-min(_WINDOW, width) :])
    heights = np.clip(np.round(recent / _RANGE * middle), -middle, middle - 1).astype(int)
    for column, height in enumerate(heights, start=width - len(heights)):
        if height >= 0:
            strip[middle - height : middle + 1, column] = _GOOD
        else:
            strip[middle : middle - height, column] = _BAD
    cv2.putText(strip, f"{paid[-1]:+.1f}", (1, 9), cv2.FONT_HERSHEY_PLAIN, 0.6, (220, 220, 220), 1)
    return np.concatenate([frame, strip])
