"""What a run says of itself: curves for TensorBoard, progress on the terminal, figures as people read them.

TensorBoard is imported where it is used, so that ``--help`` answers at once.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TextIO

from lib.cli import one_line

if TYPE_CHECKING:
    import numpy as np

# Two-sided 95 % quantiles of Student's t for 1..5 degrees of freedom, where the expansion below is too coarse.
_T_SMALL = (12.70620, 4.30265, 3.18245, 2.77645, 2.57058)


def _say_nothing_of_curves() -> None:
    """TensorBoard's own thread prints a traceback where it cannot write; `Charts` says that in a line."""
    hook = threading.excepthook
    if getattr(hook, "of_charts", False):
        return

    def quieter(args: threading.ExceptHookArgs) -> None:
        if type(args.thread).__name__ != "_AsyncWriterThread" or not isinstance(args.exc_value, OSError):
            hook(args)

    quieter.of_charts = True  # type: ignore[attr-defined]
    threading.excepthook = quieter


class Charts:
    """TensorBoard curves of a run; without a folder it swallows everything.

    Where they cannot be written (the disk is full, the folder is gone) it says so once and swallows what follows: no
    work is lost for the sake of its curves.

    Args:
      run_dir: The run's folder.
      purge_step: Points of this step and later ones that are there already count no more: the run goes on from
        before them and draws them again.
    """

    def __init__(self, run_dir: Path | None, purge_step: int | None = None) -> None:
        self._writer: Any = None
        if run_dir is not None:
            from torch.utils.tensorboard import SummaryWriter

            _say_nothing_of_curves()
            # Half a minute of curves is what a killed process loses; the default is two.
            self._writer = SummaryWriter(str(run_dir), purge_step=purge_step, flush_secs=30)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Any]:
        """The writer; where it fails there is none from then on."""
        try:
            yield self._writer
        except OSError as error:
            self._writer = None
            reason = error.strerror or error
            print(f"curves can no longer be written ({reason}); going on without them", file=sys.stderr)

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Adds a point to each named curve at a training step."""
        if self._writer is not None:
            with self._writing() as writer:
                for tag, value in values.items():
                    writer.add_scalar(tag, float(value), step)

    def layout(self, charts: Mapping[str, Iterable[str]]) -> None:
        """Puts several curves on one chart, under TensorBoard's custom scalars: titles and the tags on each."""
        if self._writer is not None:
            with self._writing() as writer:
                writer.add_custom_scalars(
                    {"together": {title: ["Multiline", list(tags)] for title, tags in charts.items()}}
                )

    def text(self, tag: str, text: str) -> None:
        """Adds a text (Markdown)."""
        if self._writer is not None:
            with self._writing() as writer:
                writer.add_text(tag, text, 0)

    def image(self, tag: str, image: np.ndarray, step: int = 0) -> None:
        """Adds a picture, uint8 ``[H, W, 3]``, under TensorBoard's images."""
        if self._writer is not None:
            with self._writing() as writer:
                writer.add_image(tag, image, step, dataformats="HWC")

    def flush(self) -> None:
        """Writes what is buffered."""
        if self._writer is not None:
            with self._writing() as writer:
                writer.flush()

    def close(self) -> None:
        """Writes what is buffered; calls after it do nothing."""
        if self._writer is not None:
            with self._writing() as writer:
                writer.close()
            self._writer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Progress:
    """How far a run is: one live line on a terminal, a plain line every few seconds anywhere else.

    Where nobody reads it any more (`| head`, a lost connection), the process gets SIGTERM, as a closed terminal would end
    it: what there is of its work is kept.

    Args:
      stream: Where to print; sys.stdout when None.
      interval: Seconds between plain lines when the stream is no terminal.
      clock: Seconds from any origin.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        interval: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = sys.stdout if stream is None else stream
        self._live = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._interval = 0.25 if self._live else interval
        self._clock = clock
        self._next = -math.inf
        self._text = ""  # the newest status
        self._shown = ""  # the status last printed
        self._gone = False  # whether whoever read it has

    def update(self, text: str, force: bool = False) -> None:
        """Shows a status, unless one was shown a moment ago; the newest one is kept for close().

        Args:
          text: One line.
          force: Show it in any case.
        """
        self._text = one_line(text)
        if force or self._clock() >= self._next:
            self._show()

    def line(self, text: str) -> None:
        """Prints a line that stays, above the live one."""
        text = one_line(text)
        if self._live and self._shown:
            self._write(f"\r\x1b[K{text}\n")
            self._show()
        else:
            self._write(text + "\n")

    def close(self) -> None:
        """Shows the newest status if it has not been, and leaves it standing."""
        if self._text and self._text != self._shown:
            self._show()
        if self._live and self._shown:
            self._write("\n")
        self._text = self._shown = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _show(self) -> None:
        self._next = self._clock() + self._interval
        self._shown = self._text
        if self._live:
            # One column stays free: a full row makes some terminals wrap, and the next \r then misses it.
            width = shutil.get_terminal_size().columns - 1
            self._write(f"\r{self._text[:width]}\x1b[K")
        else:
            self._write(self._text + "\n")

    def _write(self, text: str) -> None:
        if self._gone:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except BrokenPipeError:
            self._gone = True
            signal.raise_signal(signal.SIGTERM)


def format_count(value: float) -> str:
    """A number in three significant digits: 1234567 becomes "1.23M", 667.3 "667", 12 "12"."""
    if not math.isfinite(value):
        return "?"
    value = float(f"{value:.3g}")  # first, so that 999,999 becomes 1.00M and not 1000k
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            scaled = value / size
            digits = max(0, 2 - int(math.log10(abs(scaled))))
            return f"{scaled:.{digits}f}{suffix}"
    return f"{value:.3g}"


def format_duration(seconds: float) -> str:
    """A time span in two units: "1h02m", "3m05s" or "12s"; "?" for one that is not known (nan, inf)."""
    if not math.isfinite(seconds):
        return "?"
    whole = max(0, round(seconds))
    if whole >= 3600:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    if whole >= 60:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole}s"


def mean_interval(values: Iterable[float]) -> tuple[float, float]:
    """Mean and half-width of its 95 % confidence interval (Student's t).

    Args:
      values: Independent results, such as the scores of full games.

    Returns:
      (mean, half_width): the interval is mean ± half_width. The half-width of a single value is nan; both are
      nan for none.
    """
    numbers = [float(value) for value in values]
    count = len(numbers)
    if count == 0:
        return math.nan, math.nan
    mean = math.fsum(numbers) / count
    if count == 1:
        return mean, math.nan
    variance = math.fsum((number - mean) ** 2 for number in numbers) / (count - 1)
    return mean, _t_quantile(count - 1) * math.sqrt(variance / count)


def format_mean(values: Iterable[float], digits: int = 1) -> str:
    """A mean with its 95 % interval, such as "325.0 ± 51.8"; a single value goes without one."""
    mean, half = mean_interval(values)
    return f"{mean:.{digits}f}" if math.isnan(half) else f"{mean:.{digits}f} ± {half:.{digits}f}"


def _t_quantile(freedom: int) -> float:
    """The 0.975 quantile of Student's t.

    Source: Abramowitz and Stegun, 26.7.5 (four terms of the Cornish-Fisher expansion); off by less than 2e-4 from
    six degrees of freedom on, tabled below that.
    """
    if freedom <= len(_T_SMALL):
        return _T_SMALL[freedom - 1]
    z = statistics.NormalDist().inv_cdf(0.975)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / freedom ** (power + 1) for power, term in enumerate(terms))
