"""Environments taught by preferences: what is recorded and paid in every way games begin anew, and models that change."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import ale_py
import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import RecordEpisodeStatistics
from gymnasium.wrappers.vector import RecordEpisodeStatistics as RecordVectorStatistics

from lib.cli import UserError
from lib.envs.observation import Observer
from lib.preferences.labels import LabelLog
from lib.preferences.segment_db import SegmentDB
from lib.preferences.segments import Sidecar
from lib.preferences.wrappers import EpisodeRecorderWrapper
from lib.reward.checkpoints import load_reward_model, save_reward_model
from lib.reward.model import Member, RewardModel
from lib.reward.network import RewardNet
from lib.reward.wrapper import LiveReward, PreferenceEnv, PreferenceVectorEnv, RewardModelWrapper
from tests.envs.reach import HIGH, LOW, Reach
from tests.envs.reach import SIZE as REACH_SIZE
from tests.reward.clips import grey_db
from tests.reward.counting import SIZE, Counting, Kind, Reads, counting, picture_of, vector

MODES = list(AutoresetMode)
SHAPE = (SIZE, SIZE, 3)


def model_that_pays(amount: float, path: Path, shape: tuple[int, int, int] = SHAPE) -> None:
    """Writes a reward model whose every step is worth `amount`, give or take a little."""
    model = RewardModel([Member(RewardNet(shape, 5), mean=-amount, std=1.0)], torch.device("cpu"))
    save_reward_model(path, model, config={}, parents={}, results={})


def sidecar_of(db: SegmentDB, name: str) -> Sidecar:
    sidecar = db.load(name).sidecar
    assert sidecar is not None
    return sidecar


def by_model(env: PreferenceEnv | PreferenceVectorEnv) -> bool:
    """As a function, since it may say another thing each time."""
    return env.using_reward_from_predictor


class Drive:
    """Plays a vector of `Counting` as a training loop does, whatever its autoreset mode, and knows what is due."""

    def __init__(self, env: Any, ends: list[int], mode: AutoresetMode) -> None:
        self.env, self.mode = env, mode
        self.ends = np.array(ends)
        self.numbers = np.arange(len(ends))
        self.counts = np.zeros(len(ends), int)
        self.over = np.zeros(len(ends), bool)
        self.t = 0
        self.observations, self.infos = env.reset(seed=0)

    def step(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Rewards, what `Reads` makes of the step, the score, and where the step was but a reset."""
        actions = (self.t + self.numbers) % 5
        reset = self.over if self.mode == AutoresetMode.NEXT_STEP else np.zeros_like(self.over)
        due = np.where(reset, 0, 100 * self.numbers + self.counts + actions / 100)
        self.observations, rewards, terminated, truncated, self.infos = self.env.step(actions + 2)
        self.counts = np.where(reset, 0, self.counts + 1)
        score = np.where(reset, 0, 100 * self.numbers + self.counts)
        self.over = terminated | truncated
        assert np.array_equal(self.over, ~reset & (self.counts == self.ends))
        if self.mode != AutoresetMode.NEXT_STEP:
            self.counts[self.over] = 0
        if self.mode == AutoresetMode.DISABLED and self.over.any():
            self.observations, _ = self.env.reset(options={"reset_mask": self.over.copy()})
        self.t += 1
        return rewards, due, score, reset


@pytest.mark.parametrize("mode", MODES)
def test_pays_for_the_frame_that_each_action_was_chosen_on_and_nothing_for_a_reset(
    mode: AutoresetMode,
) -> None:
    ends, judge = [7, 11, 3], Reads()
    drive = Drive(PreferenceVectorEnv(vector(ends, mode), reward=judge), ends, mode)
    resets = 0
    for _ in range(60):
        rewards, due, score, reset = drive.step()
        np.testing.assert_allclose(rewards, due, rtol=1e-6)
        assert np.array_equal(drive.infos["score"], score)
        assert np.array_equal(drive.infos["_score"], ~reset)
        assert np.array_equal(drive.observations[:, 0, 0, 1], drive.counts)
        resets += reset.sum()
    assert judge.calls == 60  # all environments in one call
    assert (resets > 0) == (mode == AutoresetMode.NEXT_STEP)


@pytest.mark.parametrize("kind", ["picture", "vector"])
@pytest.mark.parametrize("mode", MODES)
def test_segments_hold_what_belongs_together_and_cross_no_reset(
    mode: AutoresetMode, kind: Kind, tmp_path: Path
) -> None:
    ends = [60, 100, 110]
    env = PreferenceVectorEnv(
        vector(ends, mode, kind), db=tmp_path, record_prob=1, env_index=4, policy="p.dat"
    )
    drive = Drive(env, ends, mode)
    for _ in range(228):
        drive.step()
    env.close()
    db, begins = SegmentDB(tmp_path), []
    assert len(db.names) == env.recorder.stored
    for name in db.names:
        segment = db.load(name)
        number, first = int(segment.frames[0, 0, 0, 0]), int(segment.frames[0, 0, 0, 1])
        counts = first + np.arange(50)
        assert name.startswith(f"{number + 4:02d}/")
        assert (segment.frames[:, :, :, 0] == number).all()
        assert np.array_equal(segment.frames[:, 3, 5, 1], counts)
        # Actions go up by one at every step, resets included; none is lost or doubled within a segment.
        assert np.array_equal(np.diff(segment.actions) % 5, np.ones(49))
        sidecar = sidecar_of(db, name)
        assert np.array_equal(sidecar.scores, 100 * number + counts + 1)
        assert (sidecar.env_id, sidecar.num_actions, sidecar.policy) == ("Counting", 5, "p.dat")
        over = int(sidecar.game_over.any())
        assert np.flatnonzero(sidecar.life_lost).tolist() == ([19] if first == 0 else []) + [49] * over
        begins.append((number, first))
    # Games of 60 steps: one segment each. Of 100: two. Of 110: two, and ten steps in none.
    assert sorted(set(begins)) == [(0, 0), (1, 0), (1, 50), (2, 0), (2, 50)]
    assert begins.count((0, 0)) == 3
    # The one that ends the second game is its game over; the first game was cut short.
    overs = [np.flatnonzero(sidecar_of(db, name).game_over).tolist() for name in db.names if name[:2] == "05"]
    assert overs == [[], [], [], [49]]


def test_one_is_recorded_while_another_is_not(tmp_path: Path) -> None:
    ends = [250, 250]
    env = PreferenceVectorEnv(vector(ends, AutoresetMode.NEXT_STEP), db=tmp_path, record_prob=0.02)
    drive, alone = Drive(env, ends, AutoresetMode.NEXT_STEP), 0
    for _ in range(240):
        drive.step()
        alone += env.recorder.recording.sum() == 1
    assert alone > 50
    env.close()
    assert env.recorder.record_prob == 0  # no clip begins any more
    db = SegmentDB(tmp_path)
    shown = {name: db.load(name).frames[:, 0, 0, 1] for name in db.names}
    assert all(np.array_equal(counts, counts[0] + np.arange(50)) for counts in shown.values())
    begun = [{counts[0] for name, counts in shown.items() if name.startswith(env)} for env in ("00", "01")]
    assert begun[0]
    assert begun[1]
    assert not begun[0] & begun[1]


def test_frames_and_actions_of_the_first_step_of_a_game_are_recorded_in_every_mode(tmp_path: Path) -> None:
    for mode in MODES:
        drive = Drive(
            PreferenceVectorEnv(vector([55], mode), db=tmp_path / mode.name, record_prob=1), [55], mode
        )
        started = []
        for _ in range(120):
            if drive.counts[0] == 0 and not (mode == AutoresetMode.NEXT_STEP and drive.over[0]):
                started.append(drive.t % 5)
            drive.step()
        db = SegmentDB(tmp_path / mode.name)
        assert [int(db.load(name).actions[0]) for name in db.names] == started[: len(db.names)]
        assert len(db.names) == 2


@pytest.mark.parametrize("mode", MODES)
def test_episode_statistics_inside_count_the_score_and_outside_what_was_paid(mode: AutoresetMode) -> None:
    ends = [7, 4]
    inner = RecordVectorStatistics(vector(ends, mode), stats_key="true")
    drive = Drive(RecordVectorStatistics(PreferenceVectorEnv(inner, reward=Reads())), ends, mode)
    paid, true, seen = np.zeros(2), np.zeros(2), 0
    for _ in range(40):
        rewards, due, score, _ = drive.step()
        paid, true = paid + due, true + score
        for i in np.flatnonzero(drive.over):
            assert drive.infos["episode"]["r"][i] == pytest.approx(paid[i], rel=1e-5)
            assert drive.infos["episode"]["l"][i] == ends[i]
            # Right around a SyncVectorEnv, Gymnasium 1.4 takes a partial reset for one of all games.
            if mode != AutoresetMode.DISABLED:
                assert drive.infos["true"]["r"][i] == true[i]
                assert drive.infos["true"]["l"][i] == ends[i]
            seen += 1
        paid[drive.over] = true[drive.over] = 0
        assert rewards.dtype == np.float64
    assert seen > 8


def test_episode_statistics_around_a_single_environment() -> None:
    inner = RecordEpisodeStatistics(Counting(ends=7), stats_key="true")
    env = RecordEpisodeStatistics(PreferenceEnv(inner, reward=Reads()))
    for _ in range(3):
        env.reset()
        for _ in range(7):
            *_, info = env.step(2)
        assert info["episode"]["r"] == sum(range(7))
        assert info["true"]["r"] == sum(range(1, 8))


def test_a_single_environment_is_recorded_and_paid(tmp_path: Path) -> None:
    env = PreferenceEnv(Counting(3, ends=60), db=tmp_path, reward=Reads(), record_prob=1, env_index=3)
    for _ in range(2):
        env.reset()
        for count in range(60):
            observation, reward, _, _, info = env.step(2 + count % 5)
            assert reward == pytest.approx(300 + count + count % 5 / 100)
            assert info == {"lives": 3 - (count >= 19), "score": 301.0 + count}
            assert observation[0, 0, 1] == count + 1
    db = SegmentDB(tmp_path)
    assert [name[:2] for name in db.names] == ["03", "03"]
    for name in db.names:
        assert np.array_equal(db.load(name).frames[:, 0, 0, 1], np.arange(50))
        assert np.array_equal(db.load(name).actions, np.arange(50) % 5)


def test_a_reward_that_is_no_number_is_said(tmp_path: Path) -> None:
    counting = Counting(3, ends=60)
    env = PreferenceEnv(gymnasium.wrappers.TransformReward(counting, lambda score: np.nan), db=tmp_path)
    env.reset()
    with pytest.raises(UserError, match="failed: expected finite rewards"):
        env.step(2)


@pytest.mark.parametrize("wrap", [PreferenceEnv, EpisodeRecorderWrapper])
def test_games_too_short_for_any_clip_are_said_once(
    wrap: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    env = wrap(counting(0, 7)(), tmp_path / "db", record_prob=1)
    for _ in range(30):
        env.reset()
        for _ in range(7):
            env.step(2)
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path / 'db'}: no clips come in: no game lasts the 50 steps of a clip"
    ]


@pytest.mark.parametrize("wrap", [PreferenceEnv, EpisodeRecorderWrapper])
def test_ends_may_be_numbers(wrap: Any, tmp_path: Path) -> None:
    class Numbers(Counting):
        def step(self, action: Any) -> Any:
            observation, score, terminated, truncated, info = super().step(action)
            return observation, score, int(terminated), int(truncated), info

    env = wrap(Numbers(ends=60), tmp_path, record_prob=1)
    for _ in range(2):
        env.reset()
        ends = [env.step(2)[2:4] for _ in range(60)]
        assert np.sum(ends) == 1
    assert env.recorder.stored == 2


@pytest.mark.parametrize("kind", [np.int8, np.float32])
def test_ends_in_a_vector_may_be_numbers(kind: Any) -> None:
    class Numbers(gymnasium.vector.VectorWrapper[Any, Any, Any, Any, Any]):
        def step(self, actions: Any) -> Any:
            observations, score, terminated, truncated, infos = super().step(actions)
            return observations, score, terminated.astype(kind), truncated.astype(kind), infos

    env = PreferenceVectorEnv(Numbers(vector([3, 9], AutoresetMode.NEXT_STEP)), reward=Reads())
    env.reset()
    played = [env.step(np.full(2, 2))[-1]["_score"].tolist() for _ in range(5)]
    assert played == [[True, True]] * 3 + [[False, True], [True, True]]


@pytest.mark.parametrize("lives", [None, "three", [2, 3], {"me": 3, "you": 2}])
@pytest.mark.parametrize("wrap", [PreferenceEnv, EpisodeRecorderWrapper, PreferenceVectorEnv])
def test_lives_that_are_no_number_are_not_counted(wrap: Any, lives: Any, tmp_path: Path) -> None:
    class OfTwo(Counting):
        def _info(self) -> Any:
            return {"lives": lives}

    one = OfTwo(ends=60)
    env = wrap(SyncVectorEnv([lambda: one]) if wrap is PreferenceVectorEnv else one, tmp_path, record_prob=1)
    env.reset()
    for _ in range(50):
        env.step(env.action_space.sample())
    assert not sidecar_of(SegmentDB(tmp_path), "00/00000000.dat").life_lost.any()


def test_vectors_unlike_their_space_are_said(tmp_path: Path) -> None:
    class Other(Counting):
        def _observe(self) -> Any:
            return np.zeros(3, np.float32)

    env = PreferenceEnv(Other(kind="vector", render_mode="rgb_array"), tmp_path, record_prob=1)
    env.reset()
    with pytest.raises(UserError, match="expected observations of 2 numbers, as their space says, got 3"):
        env.step(2)


def test_games_that_are_left_in_the_middle_are_in_no_segment(tmp_path: Path) -> None:
    mode = AutoresetMode.DISABLED
    env = PreferenceVectorEnv(vector([200, 200], mode), db=tmp_path, record_prob=1)
    env.reset()
    for t in range(90):
        if t == 30:  # the first game alone
            env.reset(options={"reset_mask": np.array([True, False])})
        env.step(np.array([2, 2]))
    db = SegmentDB(tmp_path)
    # The second game's began at its step 0; the first game's began again after the reset.
    assert [(n[:2], int(db.load(n).frames[0, 0, 0, 1])) for n in db.names] == [("00", 0), ("01", 0)]
    assert (db.load(db.names[0]).frames[:, 0, 0, 1] == np.arange(50)).all()


def test_a_call_of_reset_takes_the_place_of_the_step_that_resets() -> None:
    env = PreferenceVectorEnv(vector([3], AutoresetMode.NEXT_STEP), reward=Reads())
    env.reset()
    for _ in range(3):
        _, _, terminated, truncated, _ = env.step(np.array([2]))
    assert terminated | truncated
    env.reset()
    paid = [float(env.step(np.array([3]))[1][0]) for _ in range(5)]
    assert paid == pytest.approx([0.01, 1.01, 2.01, 0, 0.01])


@pytest.mark.parametrize("kind", ["dict", "vector"])
def test_frames_come_from_a_function_of_one_environments_observation(kind: Kind, tmp_path: Path) -> None:
    def frame(observation: Any) -> np.ndarray:
        if kind == "dict":
            assert observation["compass"].shape == (1,)
            return observation["pov"]
        return picture_of(*map(int, observation))

    ends, mode = [60, 70], AutoresetMode.SAME_STEP
    inner = vector(ends, mode, kind)
    env = PreferenceVectorEnv(inner, tmp_path / "vector", Reads(), frame, record_prob=1)
    drive = Drive(env, ends, mode)
    for _ in range(80):
        rewards, due, *_ = drive.step()
        np.testing.assert_allclose(rewards, due, rtol=1e-6)
    assert all(each.renders == 0 for each in inner.envs)  # type: ignore[attr-defined]
    single = PreferenceEnv(counting(9, 60, kind)(), tmp_path / "single", Reads(), frame, record_prob=1)
    single.reset()
    assert [single.step(2)[1] for _ in range(60)] == [900 + count for count in range(60)]
    for folder, number in (("vector", 1), ("single", 9)):
        db = SegmentDB(tmp_path / folder)
        assert np.array_equal(db.load(db.names[-1]).frames, [picture_of(number, t) for t in range(50)])


def test_ales_own_vector_is_recorded(tmp_path: Path) -> None:
    gymnasium.register_envs(ale_py)
    shape: dict[str, Any] = {
        "img_height": 210,
        "img_width": 160,
        "grayscale": False,
        "stack_num": 1,
        "use_fire_reset": False,
    }
    envs = gymnasium.make_vec("ALE/Breakout-v5", 2, noop_max=0, maxpool=True, **shape)
    env = PreferenceVectorEnv(envs, tmp_path, frame_fn=lambda stacked: stacked[-1], record_prob=1)
    observations, _ = env.reset(seed=3)
    frames, lost = [], []
    for t in range(150):
        frames.append(observations[0, -1].copy())
        # Serves, then stands still, so that a ball is lost soon.
        observations, *_, infos = env.step(np.full(2, t % 3 == 0).astype(int))
        lost.append(infos["lives"][0])
    db = SegmentDB(tmp_path)
    assert (np.diff(lost) < 0).any()
    for name in [name for name in db.names if name.startswith("00/")][:2]:
        sidecar = sidecar_of(db, name)
        begin = sidecar.step // 2
        assert np.array_equal(db.load(name).frames, frames[begin : begin + 50])
        fell = np.flatnonzero(np.diff([5, *lost])[begin : begin + 50] < 0)
        assert np.array_equal(np.flatnonzero(sidecar.life_lost), fell)
        assert sidecar.env_id == "ALE/Breakout-v5"


def test_environments_in_processes_of_their_own(tmp_path: Path) -> None:
    ends, mode = [55, 60], AutoresetMode.NEXT_STEP
    # Observations are read in place here, in the memory that the next step writes to.
    envs = AsyncVectorEnv([counting(i, n) for i, n in enumerate(ends)], copy=False)
    drive = Drive(PreferenceVectorEnv(envs, db=tmp_path, reward=Reads(), record_prob=1), ends, mode)
    for _ in range(70):
        rewards, due, *_ = drive.step()
        np.testing.assert_allclose(rewards, due, rtol=1e-6)
    drive.env.close()
    db = SegmentDB(tmp_path)
    assert db.names == ["00/00000000.dat", "01/00000000.dat"]
    assert np.array_equal(db.load(db.names[1]).frames[:, 0, 0, 1], np.arange(50))


def test_an_environment_in_another_process_may_be_registered_by_any_function(tmp_path: Path) -> None:
    gymnasium.register("TestByFunction-v0", lambda **kwargs: counting(0, 60)())
    make = [lambda: gymnasium.make("TestByFunction-v0", disable_env_checker=True)]
    envs = AsyncVectorEnv(make, context="fork")  # which knows what is registered here
    env = PreferenceVectorEnv(envs, db=tmp_path, record_prob=1)
    env.reset()
    for _ in range(50):
        env.step(env.action_space.sample())
    env.close()
    assert sidecar_of(SegmentDB(tmp_path), "00/00000000.dat").env_id == "TestByFunction-v0"


def test_renders_only_what_is_recorded_or_judged(tmp_path: Path) -> None:
    for options, renders in (
        ({"db": tmp_path, "record_prob": 0.0}, 0),
        ({"db": tmp_path, "record_prob": 1.0}, 20),
        ({"reward": tmp_path / "none"}, 0),
        ({"reward": Reads()}, 20),
        ({"db": tmp_path, "reward": Reads(), "record_prob": 1.0}, 20),
    ):
        inner = Counting(ends=30, kind="vector", render_mode="rgb_array")
        env = PreferenceEnv(inner, **options)
        env.reset()
        for _ in range(20):
            env.step(2)
        assert inner.renders == renders, options


def test_a_model_may_come_late_and_be_replaced_while_it_pays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, now = tmp_path / "reward.dat", [0.0]
    live = LiveReward(path, every=10, clock=lambda: now[0])
    env = PreferenceEnv(Counting(ends=1000), reward=live)
    env.reset()

    def pays() -> float:
        return float(env.step(2)[1])

    def later() -> None:
        now[0] += 10

    assert pays() == 0
    assert not by_model(env)
    model_that_pays(3, path)
    assert pays() == 0  # nobody has looked yet
    later()
    assert pays() == pytest.approx(3, abs=0.3)
    assert by_model(env)
    model_that_pays(-5, path)
    now[0] += 9
    assert pays() == pytest.approx(3, abs=0.3)
    later()
    assert pays() == pytest.approx(-5, abs=0.3)
    assert not caplog.records

    whole = path.read_bytes()
    for broken in (b"", whole[: len(whole) // 2], b"\0" * 1000):
        path.write_bytes(broken)
        for _ in range(3):
            later()
            assert pays() == pytest.approx(-5, abs=0.3)
        assert len(caplog.records) == 1
        assert "reward.dat: expected a reward checkpoint" in caplog.text
        assert "\n" not in caplog.records[0].getMessage()
        caplog.clear()
    path.unlink()
    later()
    assert pays() == pytest.approx(-5, abs=0.3)
    model_that_pays(50, path, (48, 48, 3))  # of another environment
    for _ in range(3):
        later()
        assert pays() == pytest.approx(-5, abs=0.3)
    assert len(caplog.records) == 1
    assert "48×48" in caplog.text
    model_that_pays(7, path)
    later()
    assert pays() == pytest.approx(7, abs=0.3)


def test_the_first_model_has_to_be_of_this_environment(tmp_path: Path) -> None:
    path, now = tmp_path / "reward.dat", [0.0]
    env = PreferenceVectorEnv(
        vector([7], AutoresetMode.NEXT_STEP), reward=LiveReward(path, clock=lambda: now[0])
    )
    env.reset()
    env.step(np.array([2]))
    model_that_pays(1, path, (48, 48, 3))
    now[0] = 11
    with pytest.raises(UserError, match=r"reward\.dat.*48×48.*Counting has frames of 44×44"):
        env.step(np.array([2]))
    with pytest.raises(UserError, match="48×48"):
        PreferenceEnv(Counting(), reward=path).reset()
    path.write_bytes(b"nonsense")
    with pytest.raises(UserError, match=r"reward\.dat: expected a reward checkpoint"):
        PreferenceEnv(Counting(), reward=path)


def test_wrappers_that_share_a_file_share_its_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[Path] = []

    def load(path: Path, *rest: Any) -> RewardModel:
        loaded.append(path)
        return load_reward_model(path, *rest)

    monkeypatch.setattr("lib.reward.checkpoints.load_reward_model", load)
    model_that_pays(2, tmp_path / "reward.dat")
    live = LiveReward(tmp_path / "reward.dat")
    envs = [PreferenceEnv(Counting(i), reward=live) for i in range(3)]
    for env in envs:
        env.reset()
        assert env.step(2)[1] == pytest.approx(2, abs=0.3)
    assert len(loaded) == 1


@pytest.mark.parametrize("record_prob", [0.0, 1.0])
def test_switching_between_the_true_and_the_learned_reward(record_prob: float, tmp_path: Path) -> None:
    env = PreferenceEnv(Counting(ends=1000), db=tmp_path, reward=Reads(), record_prob=record_prob)
    env.reset()
    assert by_model(env)
    assert env.step(2)[1] == 0
    env.switch_to_true_reward()
    assert not by_model(env)
    assert env.step(2)[1] == 2
    env.switch_to_predicted_reward()
    assert by_model(env)
    assert env.step(2)[1] == 2
    assert env.step(2)[4]["score"] == 4


def test_what_pays_without_a_model(tmp_path: Path) -> None:
    path = tmp_path / "reward.dat"
    waiting = PreferenceVectorEnv(vector([9], AutoresetMode.NEXT_STEP), reward=path, true_reward_first=True)
    waiting.reset()
    assert waiting.step(np.array([2]))[1].tolist() == [1]
    assert not by_model(waiting)

    plain = PreferenceEnv(Counting(), db=tmp_path / "db")
    plain.reset()
    assert plain.step(2)[1] == 1
    assert not by_model(plain)
    with pytest.raises(UserError, match="Counting: expected reward="):
        plain.switch_to_predicted_reward()
    with pytest.raises(UserError, match="Counting: expected db="):
        PreferenceEnv(Counting(), reward=Reads()).save_preferences(tmp_path / "copy")


def test_preferences_go_from_one_environment_to_another(tmp_path: Path) -> None:
    grey_db(tmp_path / "mine", segments=6, labels=4)
    grey = Counting()
    grey.spec = EnvSpec("Grey-v0")
    mine, yours = (PreferenceEnv(grey, db=tmp_path / name, record_prob=0) for name in ("mine", "yours"))
    labels = LabelLog(tmp_path / "mine" / "labels.json").read()
    named = {name for label in labels for name in label.pair}
    saved = mine.save_preferences(tmp_path / "saved")
    assert (saved.labels, saved.segments) == (4, len(named))
    loaded = yours.load_preferences(tmp_path / "saved")
    assert (loaded.labels, loaded.segments) == (4, len(named))
    assert LabelLog(tmp_path / "yours" / "labels.json").read() == labels
    assert set(SegmentDB(tmp_path / "yours").names) == named
    assert yours.load_preferences(tmp_path / "saved").labels == 0
    with pytest.raises(UserError, match="saved: holds clips of Grey-v0, not of Counting"):
        PreferenceEnv(Counting(), db=tmp_path / "other").load_preferences(tmp_path / "saved")
    assert len(SegmentDB(tmp_path / "mine").names) == 6


@pytest.mark.parametrize("mode", MODES)
def test_a_model_of_observations_sees_the_last_four_steps_of_each_game(
    mode: AutoresetMode, tmp_path: Path
) -> None:
    path, ends = tmp_path / "reward.dat", [7, 5]
    torch.manual_seed(0)
    network = RewardNet(SHAPE, 5, input="observation")
    torch.nn.init.normal_(network.out.get_submodule("2").weight)  # type: ignore[arg-type]
    model = RewardModel([Member(network.eval(), mean=0.0, std=1.0)], torch.device("cpu"))
    save_reward_model(path, model, config={}, parents={}, results={})
    env = PreferenceVectorEnv(vector(ends, mode), reward=path)
    drive, observer = Drive(env, ends, mode), Observer(2, SHAPE, torch.device("cpu"))
    for t in range(40):
        frames = drive.observations.copy()
        seen = observer.push(torch.from_numpy(frames), torch.from_numpy(drive.counts == 0)).numpy()
        due = model.rewards(frames, np.zeros(2, int), seen)
        if t == 20:  # after steps that the model did not see, it is as if the games began
            env.switch_to_true_reward()
        rewards, _, score, reset = drive.step()
        if t < 20:
            np.testing.assert_allclose(rewards, np.where(reset, 0, due), atol=1e-5)
        else:
            assert np.array_equal(rewards, score)
    env.switch_to_predicted_reward()
    frames = drive.observations.copy()
    fresh = Observer(2, SHAPE, torch.device("cpu")).push(
        torch.from_numpy(frames), torch.ones(2, dtype=torch.bool)
    )
    rewards, _, _, reset = drive.step()
    due = model.rewards(frames, np.zeros(2, int), fresh.numpy())
    np.testing.assert_allclose(rewards, np.where(reset, 0, due), atol=1e-5)


def test_says_what_it_cannot_serve(tmp_path: Path) -> None:
    mode = AutoresetMode.NEXT_STEP
    for make, one in (
        (PreferenceEnv, lambda kind: Counting(kind=kind)),
        (PreferenceVectorEnv, lambda kind: gymnasium.vector.SyncVectorEnv([lambda: Counting(kind=kind)])),
    ):
        with pytest.raises(UserError, match=r"Counting shows no picture.*frame_fn"):
            make(one("vector"), db=tmp_path)
        grey = make(one("picture"), tmp_path, None, lambda o: o[..., 0], record_prob=1)
        grey.reset()
        with pytest.raises(UserError, match=r"frame_fn of Counting: expected pictures.*got uint8 \[44, 44\]"):
            grey.step(np.array([2]) if make is PreferenceVectorEnv else 2)
    envs = vector([7], mode)
    envs.single_action_space = gymnasium.spaces.Box(-1, np.inf, (2,))
    with pytest.raises(UserError, match=r"Counting cannot be used.*upper bound.*Box float32 \[2\]"):
        PreferenceVectorEnv(envs, db=tmp_path)


class Agents:
    """As PettingZoo's: no environment of Gymnasium."""


@pytest.mark.parametrize(
    ("make", "env", "says"),
    [
        (PreferenceEnv, Agents(), r"a gymnasium\.Env, got Agents; .*several agents"),
        (PreferenceVectorEnv, Agents(), r"a gymnasium\.vector\.VectorEnv, got Agents; .*several agents"),
        (PreferenceEnv, vector([7], AutoresetMode.NEXT_STEP), "got SyncVectorEnv; use PreferenceVectorEnv"),
        (PreferenceVectorEnv, Counting(), r"got Counting; use PreferenceEnv"),
        (PreferenceEnv, gymnasium.Env(), r"Env cannot be used: expected its observation_space .*got None"),
    ],
)
def test_says_what_is_no_environment(make: Any, env: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=says) as caught:
        make(env, db=tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize(
    ("later", "says"),
    [
        ([[1], [2, 3]], r"expected pictures, uint8 \[H, W, 3\], got a list of unequal parts"),
        (np.zeros((0, 0, 3), np.uint8), r"got uint8 \[0, 0, 3\]"),
        (None, "got None"),
        (
            np.zeros((45, 44, 3), np.uint8),
            "every picture to be of 44×44 pixels as the first was, got 45×44; resize",
        ),
    ],
)
def test_pictures_that_change_are_said(many: bool, later: Any, says: str, tmp_path: Path) -> None:
    inner = Counting(kind="vector", render_mode="rgb_array")
    env: Any = (
        PreferenceVectorEnv(gymnasium.vector.SyncVectorEnv([lambda: inner]), tmp_path, record_prob=1)
        if many
        else PreferenceEnv(inner, tmp_path, record_prob=1)
    )
    env.reset(seed=0)
    action = np.array([2]) if many else 2
    env.step(action)
    inner.render = lambda: later  # type: ignore[method-assign]
    with pytest.raises(UserError, match=rf"render\(\) of Counting: .*{says}"):
        env.step(action)


def reach_model(path: Path, frame: bool = False) -> RewardModel:
    """Writes a reward model for `Reach`, of its vectors or of its pictures."""
    torch.manual_seed(3)
    shape = (REACH_SIZE, REACH_SIZE, 3)
    network = (
        RewardNet(shape, 2, continuous=True)
        if frame
        else RewardNet(shape, 2, continuous=True, input="observation", observation_size=5)
    )
    save_reward_model(path, RewardModel([Member(network, 0, 1)], torch.device("cpu")), {}, {}, {})
    return load_reward_model(path)


def flat(seen: dict[str, Any]) -> np.ndarray:
    return np.array([*seen["at"], *np.eye(3)[seen["goal"]]], np.float32)


def test_dicts_and_numbers_are_recorded_and_paid_as_the_house_has_them(tmp_path: Path) -> None:
    model, inner = reach_model(tmp_path / "m.dat"), Reach(render_mode="rgb_array")
    env = PreferenceEnv(
        inner, db=tmp_path / "db", reward=LiveReward(tmp_path / "m.dat", wait=False), record_prob=1
    )
    seen, _ = env.reset(seed=0)
    rng, shares, before, paid = np.random.default_rng(0), [], [], []
    for _ in range(51):
        share = rng.uniform(-1, 1, (2, 1)).astype(np.float32)
        shares.append(share[:, 0])
        before.append(flat(seen))
        seen, reward, *_ = env.step(np.asarray(LOW + (share + 1) / 2 * (HIGH - LOW), np.float32))
        paid.append(float(reward))
    expected = model.rewards(None, np.array(shares), np.array(before))
    np.testing.assert_allclose(paid, expected, rtol=1e-4, atol=1e-5)
    segment = SegmentDB(tmp_path / "db").load("00/00000000.dat")
    np.testing.assert_allclose(segment.actions, shares[:50], atol=1e-6)
    assert segment.observations is not None
    np.testing.assert_allclose(segment.observations, before[:50], rtol=1e-6)


def test_a_model_of_vectors_asks_for_no_picture(tmp_path: Path) -> None:
    model = reach_model(tmp_path / "m.dat")
    envs = gymnasium.vector.SyncVectorEnv([lambda: Reach("rgb_array") for _ in range(3)])
    env = PreferenceVectorEnv(envs, reward=tmp_path / "m.dat")
    observations, _ = env.reset(seed=1)
    before = [flat({name: values[i] for name, values in observations.items()}) for i in range(3)]
    drawn = [inner.unwrapped.drawn for inner in envs.envs]  # type: ignore[attr-defined]
    _, rewards, *_ = env.step(np.broadcast_to(LOW, (3, 2, 1)).copy())
    low = -np.ones((3, 2), np.float32)
    np.testing.assert_allclose(rewards, model.rewards(None, low, np.array(before)), rtol=1e-5)
    assert [inner.unwrapped.drawn for inner in envs.envs] == drawn  # type: ignore[attr-defined]


def test_a_picture_is_needed_only_where_somebody_looks_at_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blind, no_picture, path = Reach(), "Reach.* shows no picture.*rgb_array", tmp_path / "m.dat"
    PreferenceEnv(blind).reset(seed=0)
    of_vectors = reach_model(path)
    now = [0.0]
    env = PreferenceEnv(blind, reward=LiveReward(path, every=10, clock=lambda: now[0]))
    seen, _ = env.reset(seed=0)
    _, reward, *_ = env.step(LOW.copy())
    low = -np.ones((1, 2), np.float32)
    assert reward == pytest.approx(float(of_vectors.rewards(None, low, flat(seen)[None])[0]), abs=1e-5)
    with pytest.raises(UserError, match=no_picture):
        PreferenceEnv(blind, db=tmp_path / "db", reward=of_vectors)

    of_frames = reach_model(path, frame=True)
    for reward_of_frames in (Reads(), of_frames, path):
        with pytest.raises(UserError, match=no_picture):
            PreferenceEnv(blind, reward=reward_of_frames)
    now[0] = 11
    env.step(LOW.copy())
    assert env.using_reward_from_predictor
    assert [record.getMessage().endswith("the previous model stays") for record in caplog.records] == [True]
    assert "shows no picture" in caplog.text
    path.unlink()
    late = PreferenceEnv(blind, reward=LiveReward(path, every=0))
    late.reset(seed=0)
    reach_model(path, frame=True)
    with pytest.raises(UserError, match=no_picture):
        late.step(LOW.copy())


def test_a_model_of_vectors_says_which_actions_it_lacks(tmp_path: Path) -> None:
    network = RewardNet((9, 9, 3), 7, input="observation", observation_size=5)
    env = RewardModelWrapper(Reach(), RewardModel([Member(network, 0, 1)], torch.device("cpu")))
    with pytest.raises(UserError, match=r"for 7 actions, but Reach.* has actions of 2 numbers"):
        env.reset(seed=0)


@pytest.mark.parametrize("by_path", [True, False])
def test_a_model_of_any_input_may_be_given_itself(by_path: bool, tmp_path: Path) -> None:
    for frame in (True, False):
        model = reach_model(tmp_path / "m.dat", frame)
        inner = Reach("rgb_array")
        env = RewardModelWrapper(inner, tmp_path / "m.dat" if by_path else model)
        seen, _ = env.reset(seed=2)
        picture = inner.render()[None]
        _, reward, *_ = env.step(np.asarray((LOW + HIGH) / 2))
        middle = np.zeros((1, 2), np.float32)
        expected = model.rewards(picture, middle) if frame else model.rewards(None, middle, flat(seen)[None])
        assert reward == pytest.approx(float(expected[0]), rel=1e-4, abs=1e-5)


def test_a_model_of_other_vectors_is_refused(tmp_path: Path) -> None:
    network = RewardNet(
        (REACH_SIZE, REACH_SIZE, 3), 2, continuous=True, input="observation", observation_size=4
    )
    model = RewardModel([Member(network, 0, 1)], torch.device("cpu"))
    env = RewardModelWrapper(Reach("rgb_array"), model)
    with pytest.raises(
        UserError, match=r"observations of 4 numbers.*but Reach.* has observations of 5 numbers"
    ):
        env.reset(seed=0)


def test_pytorch_is_imported_only_with_a_model() -> None:
    program = (
        "import sys; from lib.reward.wrapper import PreferenceEnv; from lib.envs.moving_dot import MovingDotEnv; "
        "env = PreferenceEnv(MovingDotEnv(), reward='/nowhere.dat'); env.reset(); env.step(0); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
