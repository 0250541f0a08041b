"""Every contender does a piece of its work; the benchmarks measure how fast."""

import contextlib
import copy
import dataclasses
import importlib
import itertools
import pickle
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from playwright.sync_api import Error

from benchmarks import emulator, label_page, original, ours, replay, reward_fit, segments, startup
from benchmarks.report import Row
from benchmarks.run import BENCHMARKS, BenchConfig, main, measure
from benchmarks.setup import Setup
from benchmarks.site import large_db
from lib.cli import UserError
from lib.preferences.segment_db import SegmentDB
from lib.preferences.segments import Segment, load_segment, save_segment


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(tmp_path, "cpu", quick=True, repeats=1, seconds=0.0, num_envs=2)


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A DB of four real segments."""
    db = tmp_path_factory.mktemp("clips") / "db"
    ours.record_segments(db, 4, games=4, record_prob=1.0)
    return db


@pytest.mark.slow
def test_relabelling_and_updates_are_measured(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "_RELABELLED", 1000)
    monkeypatch.setattr(replay, "_FILLED", 40)
    monkeypatch.setattr(replay, "_PIECE", 1)
    (row,) = replay.relabelling(setup)
    assert "1,000 steps" in row.title
    assert row.ours is not None
    assert [row.name for row in replay.updates_against_sb3(setup)] == ["updates-sac", "updates-dqn"]


def test_every_benchmark_is_there() -> None:
    for module, function in BENCHMARKS.values():
        assert callable(getattr(importlib.import_module(module), function))


@pytest.mark.slow
def test_our_training_trains_and_records(tmp_path: Path) -> None:
    config = ours.train_config(tmp_path, "cpu", 2, db_path=tmp_path / "db", record_prob=1.0)
    with contextlib.closing(ours.Training(config)) as work:
        assert work.network is not None
        before = copy.deepcopy(work.network.state_dict())
        assert [work(), work()] == [ours.UPDATES_A_PIECE * 5 * 2] * 2
        changed = [not torch.equal(before[name], value) for name, value in work.network.state_dict().items()]
        assert all(changed)
        assert torch.is_grad_enabled()  # it is paused where it leaves nothing switched for the others
    assert len(SegmentDB(tmp_path / "db").names) == 2  # 75 steps each
    assert list((tmp_path / "runs").glob("*/events*"))


@pytest.mark.slow
def test_two_of_ours_take_turns_without_disturbing_each_other(tmp_path: Path) -> None:
    config = ours.train_config(tmp_path, "cpu", 2)
    with contextlib.closing(ours.Training(config)) as alone:
        alone()
        assert alone.network is not None
        expected = alone.network.state_dict()
    with contextlib.closing(ours.Training(config)) as one, contextlib.closing(ours.Training(config)) as two:
        # Both draw from generators of their own.
        one(), two(), two(), one()
        assert one.network is not None
        assert two.network is not None
        for name, value in one.network.state_dict().items():
            assert torch.equal(value, two.network.state_dict()[name])
            assert not torch.equal(value, expected[name])
    assert not (tmp_path / "db").exists()


def test_ours_passes_on_what_a_user_would_be_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        ours.Training(ours.train_config(tmp_path, "cpu", 2, model=tmp_path / "none.dat"))


@pytest.mark.slow
def test_our_finetune_leaves_the_convolutions_and_pays_with_the_model(tmp_path: Path) -> None:
    config = ours.train_config(tmp_path, "cpu", 2, **ours.finetune_files(tmp_path))
    watch = ours.Stopwatch()
    with contextlib.closing(ours.Training(config, watch)) as work:
        assert work.network is not None
        before = copy.deepcopy(work.network.state_dict())
        work()
        for name, value in work.network.state_dict().items():
            assert torch.equal(before[name], value) == name.startswith("conv."), name
    assert watch.seconds.keys() == {"emulator", "reward model", "update", "collect"}
    assert all(seconds > 0 for seconds in watch.seconds.values())


def test_the_emulator_alone_takes_as_many_steps_as_a_piece_of_training(tmp_path: Path) -> None:
    config = ours.train_config(tmp_path, "cpu", 3)
    with contextlib.closing(ours.Emulator(config)) as work:
        assert work() == ours.UPDATES_A_PIECE * 5 * 3


@pytest.mark.parametrize("processes", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_stable_baselines_learns(processes: bool) -> None:
    with contextlib.closing(original.StableBaselines("cpu", processes, games=2, updates_a_piece=2)) as work:
        before = copy.deepcopy(work.model.policy.state_dict())
        assert work() == 20
        assert work() == 20  # continues where it was
        assert work.model.num_timesteps == 40
        after = work.model.policy.state_dict()
        assert not torch.equal(before["action_net.weight"], after["action_net.weight"])


@pytest.fixture(params=[False, True])
def their_training(request: pytest.FixtureRequest) -> Iterator[original.OriginalTraining]:
    with contextlib.closing(original.OriginalTraining("cpu", request.param, games=2, batch=16)) as work:
        yield work


def test_the_originals_loop_learns(their_training: original.OriginalTraining) -> None:
    network = their_training.network
    frozen = not network.conv[0].weight.requires_grad
    before = copy.deepcopy(network.state_dict())
    assert their_training() == 16
    for name, value in network.state_dict().items():
        assert torch.equal(before[name], value) == (frozen and name.startswith("conv.")), name


def test_the_originals_wrapper_pays_for_the_frame_the_action_was_chosen_on() -> None:
    class Film(original.gymnasium.Env):  # type: ignore[name-defined]
        """Step t shows grey t."""

        def reset(self, **_: object):
            self.t = 0
            return np.full((210, 160, 3), 0, np.uint8), {}

        def step(self, _: object):
            self.t += 1
            return np.full((210, 160, 3), self.t, np.uint8), 0.0, False, False, {}

    network = original.OriginalReward(5).eval()
    env = original.PaysPerStep(Film(), network)
    env.reset()
    paid = [env.step(action)[1] for action in (3, 1)]
    frames = torch.stack([torch.full((210, 160, 3), grey, dtype=torch.uint8) for grey in (0, 1)])
    with torch.no_grad():
        expected = network(frames, torch.tensor([3, 1]))
    assert paid == pytest.approx(expected.tolist(), abs=1e-6)


def test_original_networks_have_the_sizes_of_the_original() -> None:
    """Counted by hand: weights and biases of every layer."""
    policy = sum(p.numel() for p in original.OriginalPolicy(18).parameters())
    convs = (4 * 64 + 1) * 32 + (32 * 16 + 1) * 64 + (64 * 9 + 1) * 64
    assert policy == convs + 2 * (3136 + 1) * 512 + (512 + 1) * (18 + 1)
    reward = sum(p.numel() for p in original.OriginalReward(18).parameters())
    # 210×160 becomes 68×52, 32×24, 30×22 and 28×20; each convolution has 16 filters and a batch norm.
    convs = (3 * 49 + 1 + 2) * 16 + (16 * 25 + 1 + 2) * 16 + 2 * (16 * 9 + 1 + 2) * 16
    assert reward == convs + (16 * 28 * 20 + 18 + 1) * 64 + 65


@pytest.mark.slow
def test_original_segments_are_what_the_original_wrote(clips: Path, tmp_path: Path) -> None:
    source = clips / SegmentDB(clips).names[0]
    original.write_original_segment(tmp_path / "plain.dat", source)
    steps = pickle.loads((tmp_path / "plain.dat").read_bytes())
    assert len(steps) == 50
    assert type(steps[0].act) is int
    assert steps[0].obs.shape == (210, 160, 3)
    assert 5.0e6 < (tmp_path / "plain.dat").stat().st_size < 5.1e6
    frames, actions = original.read_original_segment(tmp_path / "plain.dat")
    assert np.array_equal(frames.numpy(), load_segment(source).frames)
    assert np.array_equal(actions.numpy(), load_segment(source).actions)


def test_both_fits_go_through_every_label(tmp_path: Path) -> None:
    db = tmp_path / "db"
    db.mkdir()
    rng = np.random.default_rng(0)
    for at in range(24):  # short clips, so that a fit takes no time
        frames = rng.integers(0, 256, (2, 210, 160, 3), np.uint8)
        save_segment(db / "00" / f"{at:08d}.dat", Segment(frames, np.array([0, at % 18]), None))
    names = SegmentDB(db).names
    lines = [f'{{"sample1": "{a}", "sample2": "{b}", "label": {1 + at % 2}}}\n'
             for at, (a, b) in enumerate(zip(names[::2], names[1::2], strict=True))]  # fmt: skip
    (db / "labels.json").write_text("".join(lines))

    assert reward_fit.theirs(tmp_path / "pickles", db, epochs=2)() == 24
    fit = reward_fit.OurFit(tmp_path, db, epochs=2, dev="cpu")
    assert fit() == 24
    assert (tmp_path / "reward-fit.dat").exists()
    # In a chain of clips a label is torn between those that are fitted on and those held out; it is not counted.
    chain = [f'{{"sample1": "{a}", "sample2": "{b}", "label": 1}}\n' for a, b in itertools.pairwise(names)]
    (db / "labels.json").write_text("".join(chain))
    assert 0 < fit() < 2 * len(chain)


@pytest.mark.slow
def test_a_large_db_holds_as_many_names_as_asked(clips: Path, tmp_path: Path) -> None:
    db = large_db(clips, tmp_path / "large", 150)
    assert len(SegmentDB(db).names) == 150
    load_segment(db / SegmentDB(db).names[-1])
    assert startup.page_time(db, tmp_path / "state") > 0


def test_help_is_timed_and_held_to_its_limit(setup: Setup) -> None:
    (row,) = startup.help_of_scripts(setup, ("04_play.py",))
    assert row.name == "help-04"
    assert row.ours is not None
    assert row.ours > 0
    assert row.target is not None
    assert row.met is (row.ours <= 1.5)


def test_sizes_and_times_of_segments(setup: Setup, clips: Path) -> None:
    size, load = segments.rows(sorted(clips.glob("*/*.dat")), setup, steps=5000)
    assert size.ours == pytest.approx(np.mean([path.stat().st_size for path in clips.glob("*/*.dat")]) / 1e3)
    assert size.theirs is not None
    assert size.theirs > 5000
    assert load.ours is not None
    assert load.ours > 0


@pytest.mark.slow
def test_the_anatomy_adds_up_to_the_whole(tmp_path: Path) -> None:
    config = ours.train_config(tmp_path, "cpu", 2, db_path=tmp_path / "db")
    text = emulator.anatomy(config, pieces=2)
    shares = {part.rsplit(" ", 1)[0]: int(part.rsplit(" ", 1)[1].rstrip("%."))
              for part in text.removeprefix("time: ").split(", ")}  # fmt: skip
    assert shares.keys() == {"update", "policy and observation", "emulator", "recorder", "the rest"}
    assert 97 <= sum(shares.values()) <= 103


def test_time_covered_by_intervals_that_overlap() -> None:
    assert emulator.covered([(5, 7), (0, 2), (1, 3), (1.5, 1.6), (6, 9)]) == 7
    assert emulator.covered([]) == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="would measure")
def test_a_run_prints_and_writes_its_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "gpu", "--quick", "--out", str(tmp_path / "results")]) == 0
    table = capsys.readouterr().out
    assert table.count("not yet measured") == 2
    page = next((tmp_path / "results").glob("*-quick.md"))
    assert page.read_text() == table.removesuffix("\n")
    assert page.with_suffix(".json").exists()


def test_a_benchmark_that_fails_does_not_stop_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: Setup) -> None:
        raise RuntimeError("no such thing")

    monkeypatch.setattr(startup, "help_of_scripts", broken)
    monkeypatch.setattr(startup, "first_page", lambda _: [])
    assert main(["--only", "help", "startup-page", "--out", str(tmp_path)]) == 1
    assert "- `help`: RuntimeError: no such thing" in capsys.readouterr().out


def test_a_folder_that_cannot_be_written_to_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(startup, "help_of_scripts", lambda _: pytest.fail("measured"))
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"--out .*file: expected a folder to write to"):
        main(["--only", "help", "--out", str(tmp_path / "file")])


def test_a_chromium_that_does_not_start_is_such_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: str) -> None:
        raise Error("refused")

    monkeypatch.setattr(time, "sleep", lambda _: None)
    playwright: Any = SimpleNamespace(chromium=SimpleNamespace(connect_over_cdp=refuse))
    with pytest.raises(RuntimeError, match="Chromium did not start"):
        label_page.connect(playwright, 1)


def test_a_run_that_is_stopped_keeps_what_it_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(_: Setup) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(startup, "help_of_scripts", lambda _: [Row("help", "Seconds of --help")])
    monkeypatch.setattr(startup, "first_page", stopped)
    assert main(["--only", "help", "startup-page", "gpu", "--out", str(tmp_path)]) == 1
    (page,) = tmp_path.glob("*.md")
    assert "| help | Seconds of --help |" in page.read_text()
    assert "| startup-page | `startup-page` was stopped |" in page.read_text()
    assert "gpu-train" not in page.read_text()
    with pytest.raises(KeyboardInterrupt):
        main(["--only", "startup-page", "--out", str(tmp_path / "nothing")])
    assert not list((tmp_path / "nothing").iterdir())


def test_measures_are_repeated_at_least_five_times(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Setup] = []

    def keep(setup: Setup) -> list[Row]:
        asked.append(setup)
        return []

    monkeypatch.setattr(startup, "help_of_scripts", keep)
    for quick in (False, True):
        measure("help", dataclasses.replace(BenchConfig(), quick=quick))
    assert all(setup.repeats >= 5 for setup in asked)
