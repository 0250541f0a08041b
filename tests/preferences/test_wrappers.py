"""Recording around single environments: what passes through, what is stored, and Stable-Baselines3 on top."""

from pathlib import Path
from typing import Any

import ale_py
import gymnasium
import numpy as np
import pytest
from stable_baselines3 import A2C
from stable_baselines3.common.atari_wrappers import AtariWrapper, MaxAndSkipEnv

from lib.cli import UserError
from lib.envs.moving_dot import MovingDotEnv, dot_position
from lib.preferences.segment_db import SegmentDB
from lib.preferences.segments import Sidecar
from lib.preferences.wrappers import EpisodeRecorderWrapper

gymnasium.register_envs(ale_py)


class Lives(gymnasium.Env[np.ndarray, np.int64]):
    """Observes and draws how far its game is; loses a life at steps 10 and 50, the game at step `ends`."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    observation_space = gymnasium.spaces.Box(0, 999, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(3, start=-1)

    def __init__(self, ends: int, render_mode: str | None = "rgb_array") -> None:
        self.render_mode = render_mode
        self.renders = 0
        self._ends = ends
        self._count = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._count = 0
        return np.zeros(1, np.float32), {"lives": 3}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._count += 1
        lives = 3 - (self._count >= 10) - (self._count >= 50)
        over = self._count == self._ends
        return np.full(1, self._count, np.float32), 100.0 * action, over, False, {"lives": lives}

    def render(self) -> np.ndarray:
        self.renders += 1
        return np.full((6, 8, 3), self._count, np.uint8)


def sidecar_of(db: Path, name: str) -> Sidecar:
    sidecar = SegmentDB(db).load(name).sidecar
    assert sidecar is not None
    return sidecar


def test_changes_nothing_that_passes_through(tmp_path: Path) -> None:
    plain, recorded = MovingDotEnv(), EpisodeRecorderWrapper(MovingDotEnv(), tmp_path, record_prob=0.5)
    assert np.array_equal(plain.reset(seed=4)[0], recorded.reset(seed=4)[0])
    for t in range(100):
        frame, *rest, info = plain.step(t % 5)
        recorded_frame, *recorded_rest, recorded_info = recorded.step(t % 5)
        assert np.array_equal(frame, recorded_frame)
        assert rest == recorded_rest
        assert info.keys() == recorded_info.keys()


def test_stores_the_observation_that_the_action_was_chosen_on(tmp_path: Path) -> None:
    env = EpisodeRecorderWrapper(MovingDotEnv(), tmp_path, env_index=7, record_prob=1, policy="p.dat")
    frame, _ = env.reset(seed=0)
    frames, actions, scores = [], [], []
    for t in range(50):
        frames.append(frame)
        actions.append(t % 5)
        frame, score, *_ = env.step(np.int64(actions[-1]))
        scores.append(score)
    assert env.recorder.stored == 1
    segment = SegmentDB(tmp_path).load("07/00000000.dat")
    assert np.array_equal(segment.frames, frames)
    assert segment.actions.tolist() == actions
    assert segment.sidecar is not None
    assert " ".join(segment.sidecar.action_names) == "NOOP UP RIGHT DOWN LEFT"
    np.testing.assert_allclose(segment.sidecar.scores, np.array(scores, float), rtol=1e-6)
    assert (segment.sidecar.env_id, segment.sidecar.num_actions, segment.sidecar.policy) == (
        "MovingDotEnv",
        5,
        "p.dat",
    )


def test_renders_before_the_step_and_only_while_recording(tmp_path: Path) -> None:
    env = Lives(ends=60)
    recorded = EpisodeRecorderWrapper(env, tmp_path, record_prob=1)
    recorded.reset(seed=0)
    for t in range(50):
        recorded.step(np.int64(t % 3 - 1))
    segment = SegmentDB(tmp_path).load("00/00000000.dat") if recorded.recorder.stored else None
    assert segment is None  # its last step lost a life: whether it ended the game shows at the next
    recorded.step(np.int64(1))
    segment = SegmentDB(tmp_path).load("00/00000000.dat")
    assert segment.frames[:, 0, 0, 0].tolist() == list(range(50))
    assert segment.actions.tolist() == [
        t % 3 for t in range(50)
    ]  # counted from 0, whatever the space's start
    assert segment.sidecar is not None
    assert np.flatnonzero(segment.sidecar.life_lost).tolist() == [9, 49]
    assert not segment.sidecar.game_over.any()

    idle = EpisodeRecorderWrapper(Lives(ends=60), tmp_path / "none", record_prob=0)
    idle.reset()
    for _ in range(20):
        idle.step(np.int64(0))
    assert idle.unwrapped.renders == 0  # type: ignore[attr-defined]


def test_a_game_over_is_marked_at_once_and_never_crossed(tmp_path: Path) -> None:
    env = EpisodeRecorderWrapper(Lives(ends=100), tmp_path, record_prob=1)
    env.reset(seed=0)
    for _ in range(100):
        env.step(np.int64(0))
    assert SegmentDB(tmp_path).names == ["00/00000000.dat", "00/00000050.dat"]
    assert np.flatnonzero(sidecar_of(tmp_path, "00/00000050.dat").game_over).tolist() == [49]

    env.reset()
    for _ in range(30):
        env.step(np.int64(0))
    env.reset()  # in the middle of a game
    for _ in range(51):
        env.step(np.int64(0))
    names = SegmentDB(tmp_path).names
    assert len(names) == 3
    assert SegmentDB(tmp_path).load(names[-1]).frames[:, 0, 0, 0].tolist() == list(range(50))


def test_takes_frames_from_a_function(tmp_path: Path) -> None:
    env = EpisodeRecorderWrapper(
        Lives(ends=60, render_mode=None),
        tmp_path,
        record_prob=1,
        frame_fn=lambda observation: np.full((2, 2, 3), observation[0] + 100, np.uint8),
    )
    env.reset()
    for _ in range(51):
        env.step(np.int64(0))
    assert SegmentDB(tmp_path).load("00/00000000.dat").frames[:, 1, 1, 2].tolist() == list(range(100, 150))


def test_says_what_it_cannot_record(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"Lives shows no picture.*Box float32 \[1\].*frame_fn"):
        EpisodeRecorderWrapper(Lives(ends=60, render_mode=None), tmp_path)
    continuous = Lives(ends=60)
    continuous.action_space = gymnasium.spaces.Box(-1, np.inf, (2,))  # type: ignore[assignment]
    with pytest.raises(UserError, match=r"Lives cannot be used.*upper bound.*Box float32 \[2\]"):
        EpisodeRecorderWrapper(continuous, tmp_path)
    many: Any = gymnasium.vector.SyncVectorEnv([lambda: Lives(ends=60)])
    with pytest.raises(
        UserError, match=r"expected a gymnasium\.Env, got SyncVectorEnv; use PreferenceVectorEnv"
    ):
        EpisodeRecorderWrapper(many, tmp_path)


def test_a_db_is_for_one_environment(tmp_path: Path) -> None:
    env = EpisodeRecorderWrapper(Lives(ends=60), tmp_path, record_prob=1)
    env.reset(seed=0)
    for _ in range(51):
        env.step(np.int64(0))
    EpisodeRecorderWrapper(Lives(ends=60), tmp_path)
    with pytest.raises(UserError, match=r"holds clips of Lives, not of MovingDotEnv; take another folder"):
        EpisodeRecorderWrapper(MovingDotEnv(), tmp_path)


def test_a_reward_that_is_no_number_is_said_at_once(tmp_path: Path) -> None:
    odd = gymnasium.wrappers.TransformReward(MovingDotEnv(), lambda reward: np.inf)
    env = EpisodeRecorderWrapper(odd, tmp_path, record_prob=1)
    env.reset(seed=0)
    with pytest.raises(UserError, match="failed: expected finite rewards"):
        env.step(np.int64(0))


def test_small_pictures_are_recorded_large_enough_for_a_reward_model(tmp_path: Path) -> None:
    env = EpisodeRecorderWrapper(MovingDotEnv(size=21, dot=3, speed=3), tmp_path, record_prob=1)
    frame, _ = env.reset(seed=0)
    for _ in range(50):
        env.step(np.int64(0))
    recorded = SegmentDB(tmp_path).load("00/00000000.dat").frames
    assert recorded.shape == (50, 63, 63, 3)
    assert np.array_equal(recorded[0, 1::3, 1::3], frame)


@pytest.mark.slow
def test_stable_baselines3_trains_while_recording(tmp_path: Path) -> None:
    env = EpisodeRecorderWrapper(MovingDotEnv(), tmp_path, record_prob=0.05, seed=1)
    A2C("CnnPolicy", env, seed=0, device="cpu").learn(110)
    db = SegmentDB(tmp_path)
    assert len(db.names) == env.recorder.stored > 0
    moved = np.diff(dot_position(db.load(db.names[0]).frames), axis=0)
    assert np.abs(moved).sum(axis=1).max() == 4  # one move a step: no two games in one segment


def test_records_seaquest_under_stable_baselines3s_preprocessing(tmp_path: Path) -> None:
    def game() -> gymnasium.Env[Any, Any]:
        return MaxAndSkipEnv(gymnasium.make("SeaquestNoFrameskip-v4"), skip=4)

    recorder = EpisodeRecorderWrapper(game(), tmp_path, record_prob=1)
    env = AtariWrapper(recorder, frame_skip=1, noop_max=7)
    observation, _ = env.reset(seed=11)
    assert observation.shape == (84, 84, 1)
    rng = np.random.default_rng(0)
    for _ in range(60):
        env.step(int(rng.integers(18)))
    segment = SegmentDB(tmp_path).load("00/00000000.dat")
    assert segment.frames.shape == (50, 210, 160, 3)

    replay = game()
    frame, _ = replay.reset(seed=11)
    for recorded, action in zip(segment.frames, segment.actions, strict=True):
        assert np.array_equal(recorded, frame)
        frame, *_ = replay.step(action)
