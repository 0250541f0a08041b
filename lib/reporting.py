"""TensorBoard curves, progress on the terminal, and numbers in readable form.

TensorBoard is imported where it is used, so that ``--help`` is instant.
"""

from __future__ import annotations

import contextlib
import math
import operator
import os
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TextIO

from lib.cli import one_line
from lib.interrupt import ask_to_stop

if TYPE_CHECKING:
    import numpy as np

# Two-sided 95 % quantiles of Student's t for 1..5 degrees of freedom, where the expansion below is too coarse.
_T_SMALL = (12.70620, 4.30265, 3.18245, 2.77645, 2.57058)


class Charts:
    """TensorBoard curves of a run; without a folder it does nothing.

    When they cannot be written (a full disk, a deleted folder) it says so once and stops: a run outlives its curves.

    Args:
      run_dir: The run's folder.
      purge_step: Hide existing points from this step on: a resumed run draws them again.
    """

    def __init__(self, run_dir: Path | None, purge_step: int | None = None) -> None:
        self._writer: Any = None
        if run_dir is not None:
            from torch.utils.tensorboard import SummaryWriter

            _silence_writer_thread()
            # A killed process loses half a minute of curves; the default is two minutes.
            self._writer = SummaryWriter(str(run_dir), purge_step=purge_step, flush_secs=30)

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Adds a point to each named curve at a training step."""
        for tag, value in values.items():
            self._write("add_scalar", tag, float(value), step)

    def layout(self, charts: Mapping[str, Iterable[str]]) -> None:
        """Puts several curves on one chart, under TensorBoard's custom scalars: titles and the tags on each."""
        lines = {title: ["Multiline", list(tags)] for title, tags in charts.items()}
        self._write("add_custom_scalars", {"together": lines})

    def settings(self, config: object, *measures: str) -> None:
        """Puts a run into TensorBoard's table of runs, HParams.

        Args:
          config: A dataclass; its numbers, switches, texts and paths are columns.
          measures: Tags of curves whose newest points are columns as well.
        """
        if self._writer is None:
            return
        from torch.utils.tensorboard.summary import hparams

        columns = {
            name: str(value) if isinstance(value, Path) else value
            for name, value in vars(config).items()
            if isinstance(value, (bool, int, float, str, Path))
        }
        for summary in hparams(columns, dict.fromkeys(measures))[:2]:  # the third would say how the run ended
            self._write("file_writer.add_summary", summary)

    def text(self, tag: str, text: str) -> None:
        """Adds a text (Markdown)."""
        self._write("add_text", tag, text, 0)

    def image(self, tag: str, image: np.ndarray) -> None:
        """Adds a picture, uint8 ``[H, W, 3]``, under TensorBoard's images."""
        self._write("add_image", tag, image, 0, dataformats="HWC")

    def flush(self) -> None:
        """Writes what is buffered."""
        self._write("flush")

    def close(self) -> None:
        """Writes what is buffered; later calls do nothing."""
        self._write("close")
        self._writer = None

    def _write(self, method: str, *values: Any, **options: Any) -> None:
        if self._writer is None:
            return
        try:
            operator.attrgetter(method)(self._writer)(*values, **options)
        except OSError as error:
            self._writer = None
            reason = error.strerror or error
            print(f"curves can no longer be written ({reason}); continuing without them", file=sys.stderr)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _silence_writer_thread() -> None:
    """Keeps TensorBoard's own thread from printing a traceback when it cannot write; `Charts` says so in a line."""
    hook = threading.excepthook
    if getattr(hook, "of_charts", False):
        return

    def quieter(args: threading.ExceptHookArgs) -> None:
        if type(args.thread).__name__ != "_AsyncWriterThread" or not isinstance(args.exc_value, OSError):
            hook(args)

    quieter.of_charts = True  # type: ignore[attr-defined]
    threading.excepthook = quieter


class Progress:
    """A run's progress: one live line on a terminal, a plain line every few seconds anywhere else.

    When its reader is gone (`| head`), the process is asked to stop and saves its work. On a full disk, or a terminal that
    was closed without stopping it (`disown`), it goes on and prints nothing more.

    Args:
      stream: Where to print; sys.stdout when None.
      interval: Seconds between plain lines when the stream is no terminal.
      clock: Seconds from any origin.
      quiet: Print nothing, as another process does that.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        interval: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
        quiet: bool = False,
    ) -> None:
        self._stream = sys.stdout if stream is None else stream
        self._live = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._interval = 0.25 if self._live else interval
        self._clock = clock
        self._next = -math.inf
        self._text = ""  # the newest status
        self._shown = ""  # the status last printed
        self._gone = quiet  # whether there is no reader, or none any more

    def update(self, text: str, force: bool = False) -> None:
        """Shows a status line, unless one was shown a moment ago and `force` is not set; close() shows the last."""
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
        """Shows the last status, and leaves it on screen."""
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
            ask_to_stop()
        except OSError as error:  # a run is worth more than its lines
            self._gone = True
            with contextlib.suppress(OSError):  # what is left in its buffer would fail once more at the end
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
                print(f"nothing more is printed: {error.strerror}", file=sys.stderr)


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
    """A time span in two units: "1h02m", "3m05s" or "12s"; "?" when unknown (nan, inf)."""
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
      (mean, half_width): the interval is mean ± half_width; nan where there are too few values.
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


def format_score(scores: Sequence[float] | np.ndarray) -> str:
    """Such as "score 325.0 ± 51.8 (95 %, 10 games)", "score 0.048 ± 0.012 (95 %, 64 games)" or "score 325.0 (1 game)"."""
    count, digits = len(scores), max(1, decimals(*mean_interval(scores)))
    return f"score {format_mean(scores, digits)} " + (f"(95 %, {count} games)" if count > 1 else "(1 game)")


def decimals(mean: float, half_width: float = math.nan) -> int:
    """How many decimals show three digits of a mean, or fewer: two of its interval."""
    size = max(0.0 if math.isnan(half_width) else half_width, abs(mean) / 10)
    return max(0, 1 - math.floor(math.log10(size))) if size else 0


def format_mean(values: Iterable[float], digits: int = 1) -> str:
    """A mean with its 95 % interval, such as "325.0 ± 51.8"; without one for a single value."""
    mean, half = mean_interval(values)
    return f"{mean:.{digits}f}" if math.isnan(half) else f"{mean:.{digits}f} ± {half:.{digits}f}"


def _t_quantile(freedom: int) -> float:
    """The 0.975 quantile of Student's t.

    Source: Abramowitz and Stegun, 26.7.5 (four terms of the Cornish-Fisher expansion); off by less than 2e-4 from
    six degrees of freedom; a table below that.
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
