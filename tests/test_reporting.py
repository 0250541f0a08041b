"""Curves, lines on the terminal and figures that can be read."""

from __future__ import annotations

import dataclasses
import errno
import io
import math
import time
from pathlib import Path

import cv2
import numpy as np
import pytest

from lib import reporting
from lib.interrupt import Interrupt


def test_points_that_are_drawn_again_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with reporting.Charts(tmp_path) as charts:
        charts.layout({"both": ["loss"]})
        for step in (10, 20, 30):
            charts.scalars({"loss": step}, step)
    # Files are read in the order of their names: the second, then a count as text, 10 before 9.
    later = time.time() + 1
    monkeypatch.setattr(time, "time", lambda: later)
    with reporting.Charts(tmp_path, purge_step=21) as charts:
        for step in (30, 40):
            charts.scalars({"loss": 2 * step}, step)
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [
        (10, 10),
        (20, 20),
        (30, 60),
        (40, 80),
    ]
    assert events.Tags()["tensors"] == ["custom_scalars__config__"]


def test_charts(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.custom_scalar.layout_pb2 import Layout

    picture = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    with reporting.Charts(tmp_path) as charts:
        charts.scalars({"reward": 1.5, "loss": 2.0}, 10)
        charts.scalars({"reward": 2.5}, 20)
        charts.text("config", "lr 7e-4")
        charts.layout({"both": ["reward", "loss"]})
        charts.image("clip", picture)
    charts.close()
    charts.scalars({"reward": 9.0}, 30)
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(event.step, event.value) for event in events.Scalars("reward")] == [(10, 1.5), (20, 2.5)]
    assert "config/text_summary" in events.Tags()["tensors"]
    (layout,) = events.Tensors("custom_scalars__config__")
    together = Layout.FromString(layout.tensor_proto.string_val[0]).category[0]
    assert [(chart.title, chart.multiline.tag) for chart in together.chart] == [("both", ["reward", "loss"])]
    (image,) = events.Images("clip")
    assert (image.width, image.height) == (7, 5)
    shown = cv2.imdecode(np.frombuffer(image.encoded_image_string, np.uint8), cv2.IMREAD_COLOR_RGB)
    assert shown is not None
    assert np.array_equal(shown, picture)

    with reporting.Charts(None) as silent:
        silent.scalars({"reward": 1.0}, 1)
        silent.text("a", "b")
        silent.layout({"both": ["reward"]})
        silent.settings(Settings(0.5, True, Path("v0"), None), "test_reward")
        silent.image("clip", picture)


@dataclasses.dataclass(frozen=True)
class Settings:
    lr: float
    bf16: bool
    save: Path
    model: Path | None
    steps: int = 7


def test_a_run_is_a_row_of_hparams(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import metadata

    with reporting.Charts(tmp_path) as charts:
        charts.settings(Settings(0.5, True, Path("saves/v0"), None), "test_reward", "test_kl")
        charts.scalars({"test_reward": 3.0}, 10)
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(event.step, event.value) for event in events.Scalars("test_reward")] == [(10, 3.0)]
    found = events.PluginTagToContent(metadata.PLUGIN_NAME)
    experiment = metadata.parse_experiment_plugin_data(found[metadata.EXPERIMENT_TAG])
    assert [info.name.tag for info in experiment.metric_infos] == ["test_reward", "test_kl"]
    values = metadata.parse_session_start_info_plugin_data(found[metadata.SESSION_START_INFO_TAG]).hparams
    assert {name: value.number_value or value.string_value for name, value in values.items()} == {
        "lr": 0.5,
        "bf16": 1.0,
        "save": "saves/v0",
        "steps": 7.0,
    }


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_progress_without_a_terminal() -> None:
    out, clock = io.StringIO(), Clock()
    with reporting.Progress(out, interval=10, clock=clock) as progress:
        for second in range(25):
            clock.now = 100 + second
            progress.update(f"step {second}")
        progress.line("saved")
        progress.update("step 25", force=True)
        progress.update("step\n26")
    assert out.getvalue() == "step 0\nstep 10\nstep 20\nsaved\nstep 25\nstep 26\n"


def test_progress_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "9")
    monkeypatch.setenv("TERM", "xterm")
    out, clock = Terminal(), Clock()
    progress = reporting.Progress(out, clock=clock)
    progress.line("start")
    for tick in range(4):
        clock.now = 100 + tick / 10
        progress.update(f"step {tick} and more")
    progress.line("saved")
    progress.close()
    progress.close()
    assert out.getvalue() == (
        "start\n\rstep 0 a\x1b[K\rstep 3 a\x1b[K\r\x1b[Ksaved\n\rstep 3 a\x1b[K\n"  # as it is sent
    )


def test_progress_on_a_dumb_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    out = Terminal()
    with reporting.Progress(out) as progress:
        progress.update("a")
    assert out.getvalue() == "a\n"


@pytest.mark.parametrize(
    ("number", "stops"), [(errno.EPIPE, True), (errno.EIO, False), (errno.ENOSPC, False)]
)
@pytest.mark.parametrize("before", [False, True])
def test_a_run_outlives_what_it_prints(number: int, stops: bool, before: bool) -> None:
    """No reader, who may have gone by the same Ctrl-C; a terminal that is gone; a full disk."""

    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(number, "broken")

    with Interrupt() as interrupt, reporting.Progress(Broken()) as progress:
        interrupt.asked = before
        progress.line("a")
        progress.line("b")
        assert interrupt.asked == (stops or before)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (12, "12"),
        (1.5, "1.5"),
        (667.3, "667"),
        (999.6, "1.00k"),
        (1234, "1.23k"),
        (12_345, "12.3k"),
        (123_456, "123k"),
        (999_999, "1.00M"),
        (1_234_567, "1.23M"),
        (-12_345_678, "-12.3M"),
        (8e9, "8.00G"),
        (math.nan, "?"),
    ],
)
def test_format_count(value: float, text: str) -> None:
    assert reporting.format_count(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0s"),
        (12.4, "12s"),
        (59.7, "1m00s"),
        (185, "3m05s"),
        (3599.9, "1h00m"),
        (3720, "1h02m"),
        (100_000, "27h46m"),
        (math.inf, "?"),
        (math.nan, "?"),
    ],
)
def test_format_duration(seconds: float, text: str) -> None:
    assert reporting.format_duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "quantile"),
    [
        (2, 12.7062),
        (3, 4.3027),
        (4, 3.1824),
        (5, 2.7764),
        (6, 2.5706),
        (7, 2.4469),
        (10, 2.2622),
        (20, 2.0930),
        (30, 2.0452),
        (100, 1.9842),
        (10_001, 1.9602),
    ],
)
def test_mean_interval_against_tabled_t(count: int, quantile: float) -> None:
    values = np.random.default_rng(count).normal(5.0, 2.0, count)
    mean, half_width = reporting.mean_interval(values)
    assert mean == pytest.approx(values.mean())
    assert half_width * math.sqrt(count) / values.std(ddof=1) == pytest.approx(quantile, abs=2e-4)


def test_mean_interval_of_few_values() -> None:
    mean, half_width = reporting.mean_interval([3])
    assert mean == 3
    assert math.isnan(half_width)
    assert all(math.isnan(number) for number in reporting.mean_interval([]))
    assert reporting.mean_interval([2, 2, 2]) == (2, 0)


def test_small_scores_keep_their_digits() -> None:
    assert reporting.format_score([300, 350]) == "score 325.0 ± 317.7 (95 %, 2 games)"
    assert reporting.format_score([0.040, 0.050, 0.045]) == "score 0.045 ± 0.012 (95 %, 3 games)"
    assert reporting.format_score([0.048]) == "score 0.0480 (1 game)"
    assert reporting.format_score([0, 0]) == "score 0.0 ± 0.0 (95 %, 2 games)"


def test_a_mean_is_printed_with_its_interval_where_there_is_one() -> None:
    assert reporting.format_mean([1.0, 3.0], 2) == "2.00 ± 12.71"
    assert reporting.format_mean([540.0]) == "540.0"
