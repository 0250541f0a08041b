"""Steps a second of training and finetuning, against other training loops; what recording costs."""

import contextlib
import dataclasses
from typing import Protocol

from benchmarks.compare import alternate
from benchmarks.original import GAMES, OriginalTraining, StableBaselines
from benchmarks.ours import Training, finetune_files, ours_by_default
from benchmarks.report import Row, Target, compared
from benchmarks.setup import Setup
from lib.agent.config import TrainConfig
from lib.preferences.segment_db import SegmentDB


class Contender(Protocol):
    def __call__(self) -> int: ...

    def close(self) -> None: ...


def _against(
    name: str, title: str, setup: Setup, config: TrainConfig, theirs: Contender, target: Target, note: str
) -> list[Row]:
    with contextlib.closing(theirs), contextlib.closing(Training(config)) as ours:
        result = alternate(ours, theirs, setup.repeats, setup.seconds)
    note = f"{config.num_envs} environments against {GAMES}; {note}"
    return [compared(name, title, "steps/s", result, target, note)]


def against_sb3(setup: Setup) -> list[Row]:
    """Against Stable-Baselines3 with games that take turns in one process, its default."""
    return _against(
        "train-sb3",
        "A2C training, recording on, against Stable-Baselines3's A2C",
        setup,
        ours_by_default(setup, network="shared"),
        StableBaselines(setup.dev, processes=False),
        Target(3),
        "both with one layer of 512 units under both heads; theirs: A2C with CnnPolicy, make_atari_env (DummyVecEnv, its default), VecFrameStack; records nothing.",
    )


def against_sb3_processes(setup: Setup) -> list[Row]:
    """Against Stable-Baselines3 with a process for each game."""
    return _against(
        "train-sb3-processes",
        "A2C training, recording on, against Stable-Baselines3's A2C with a process for each game",
        setup,
        ours_by_default(setup, network="shared"),
        StableBaselines(setup.dev, processes=True),
        Target(3),
        "theirs: as train-sb3, with SubprocVecEnv.",
    )


def against_original(setup: Setup) -> list[Row]:
    return _against(
        "train-original",
        "A2C training, recording on, against the original's loop",
        setup,
        ours_by_default(setup),
        OriginalTraining(setup.dev),
        Target(4),
        "theirs: ptan's VectorExperienceSourceFirstLast over a SyncVectorEnv of wrap_dqn, fp32; records nothing.",
    )


def finetuning(setup: Setup) -> list[Row]:
    return _against(
        "finetune",
        "Finetuning on an RGB reward model, against a call for every step of every environment",
        setup,
        ours_by_default(setup, **finetune_files(setup.folder)),
        OriginalTraining(setup.dev, reward=True),
        Target(10),
        "theirs: the original's loop with the reward model on the CPU in fp32, a frame a call, above the frame skip; "
        "convolutions of the policy frozen on both sides; ours takes half-size frames, as by default, and also watches the KL to the policy it started from.",
    )


def recording_cost(setup: Setup) -> list[Row]:
    """The same training with and without a DB, in more and shorter turns, as the difference is small.

    At the default rate a segment comes every 5,000 steps, less than once a turn. At ten times that rate most turns save one,
    so the result is an upper bound.
    """
    on = ours_by_default(setup, record_prob=10 * TrainConfig.record_prob)
    off = dataclasses.replace(on, db_path=None)
    with contextlib.closing(Training(on)) as ours, contextlib.closing(Training(off)) as theirs:
        repeats = setup.repeats if setup.quick else 3 * setup.repeats
        result = alternate(ours, theirs, repeats, setup.seconds / 2)
        assert on.db_path is not None
        stored = len(SegmentDB(on.db_path).names)
    return [
        compared(
            "recording",
            "A2C training with recording on, against off",
            "steps/s",
            result,
            Target(0.97),
            f"--record-prob {on.record_prob:g}, ten times the default; {stored} segments were stored meanwhile.",
        )
    ]
