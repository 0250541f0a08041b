"""From nothing to an agent that surfaces for air: Seaquest's score, and two rounds of comparisons.

v0 learns from the score. In each round, clips fork from moments of the policy's play, a simulated teacher compares clips of
one moment and errs in a tenth of its comparisons, and the policy learns by PPO from the score and what the comparisons say:
v2 and v3. The first round is about climbs that are due, and begins with a fit of v0 to the comparisons, v1, because a policy
that never climbs is never paid for it. The second is about fetching divers, too. v4 learns on from the score alone. With
`--rounds 3` the last two steps are made once more: v5 and v6. The control learns from the score alone, from v0, for as many
steps as all of them. The same command continues after the last finished stage, and may ask for more rounds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.air import LONG_PPO, compare, games, record_forks, table
from experiments.measure_config import MeasureConfig
from experiments.pipeline import Pipeline, max_minutes, settle
from lib import cli
from lib.agent.config import TrainConfig
from lib.cli import flag
from lib.reward.config import FitConfig


@dataclass(frozen=True)
class RoundConfig:
    """How much of everything, in each round."""

    out: Path = flag(default=Path("skill-out"), help="folder for everything it makes")
    dev: str = flag(default="cpu", metavar="DEVICE", help="device of every stage")
    seed: int = flag(default=0, min=0, help="seed of every stage")
    threads: int = flag(
        default=0,
        min=0,
        help="threads of networks and emulators; 0: one per core; with 1, run one seed on each core",
    )
    v0_steps: int = flag(default=1_000_000, min=1, help="steps of v0 on the score")
    record_steps: int = flag(default=200_000, min=1, help="steps of play to fork clips from, in each round")
    labels: int = flag(default=1000, min=10, help="comparisons by the teacher, in each round")
    learned_steps: int = flag(
        default=650_000,
        min=1,
        help="steps of PPO on score and learned reward, in each round; the critic learns alone for 164k",
    )
    games: int = flag(default=40, min=2, help="full games that each policy is measured by")
    max_minutes: float | None = max_minutes()


@dataclass(frozen=True)
class SkillConfig(RoundConfig):
    """The same, and what comes after the first round."""

    rounds: int = flag(
        default=2, min=2, help="rounds of comparisons; each after the first ends on the score alone"
    )
    score_steps: int = flag(
        default=1_500_000, min=1, help="steps of PPO on the score alone; the critic learns alone for 123k"
    )


def learn(config: SkillConfig, pipeline: Pipeline) -> dict[str, dict[str, list[float]]]:
    """All stages that are not done.

    Returns:
      The measures of each policy's games, by name.

    Raises:
      TimeUp, UserError, KeyboardInterrupt: see `Pipeline.run`.
    """
    stages = Stages(config, pipeline)
    v0 = stages.v0("v0")
    climbs = stages.compare("1", v0, "alarm", record_prob=0.0015)
    v1 = stages.dpo("v1", v0, climbs)
    v2 = stages.learned("v2", v1, stages.climbs("climbs", climbs), 0.03)
    versions, dbs, newest = {"v0": v0, "v1": v1, "v2": v2}, [climbs], v2
    for round in range(2, config.rounds + 1):
        dbs = [*dbs, stages.compare(str(round), newest, "alarm,sighting", record_prob=0.0008)]
        reward = stages.reward(f"divers-{round}", "A reward model is fitted to all comparisons", dbs)
        learned, scored = f"v{2 * round - 1}", f"v{2 * round}"
        versions[learned] = stages.learned(learned, newest, reward, 0.02)
        versions[scored] = newest = stages.score(scored, versions[learned], config.score_steps)
    control = f"control-{config.rounds}"
    steps = config.rounds * config.learned_steps + (config.rounds - 1) * config.score_steps
    versions[control] = stages.score(control, v0, steps)
    return {name: stages.games(name, model) for name, model in versions.items()}


def main(argv: Sequence[str] | None = None) -> None:
    config = cli.parse(SkillConfig, argv, description=__doc__)
    settle(config, "rounds")
    print(table(learn(config, Pipeline(config.out, config.max_minutes)), config.games))


class Stages:
    """What the stages of all rounds share."""

    def __init__(self, config: RoundConfig, pipeline: Pipeline) -> None:
        self._config, self._pipeline = config, pipeline

    def v0(self, name: str, **more: Any) -> Path:
        """Trains a policy from nothing, by A2C on the score; now and then a game holds a random action."""
        settings: dict[str, Any] = {"network": "small", "hold_prob": 0.01}
        return self.train(
            name, f"{name} learns from the score", None, self._config.v0_steps, **settings | more
        )

    def train(self, name: str, title: str, model: Path | None, steps: int, **more: Any) -> Path:
        """Trains a policy; returns its last checkpoint."""
        return self._pipeline.train(
            name,
            title,
            TrainConfig(
                **self._common(name, model, steps),
                save=self._config.out / name,
                num_envs=32,
                eval_every=200_000,
                eval_games=16,
                **more,
            ),
        )

    def learned(self, name: str, policy: Path, reward: Path, reward_scale: float, **more: Any) -> Path:
        """PPO on the score and a share of the learned reward.

        Held actions keep the games apart: a skilled policy that never errs would lose its lives in all of them at the same
        moment, and a rollout would show one part of a tank.
        """
        settings: dict[str, Any] = {
            "reward": reward,
            "reward_scale": reward_scale,
            "reward_offset": 1.1,
            "score_weight": 1.0,
            "entropy": 0.003,
            "hold_prob": 0.003,
            "critic_warmup": 40,
        }
        title = "PPO on the score and the learned reward"
        return self._ppo(name, title, policy, self._config.learned_steps, **settings | more)

    def score(self, name: str, policy: Path, steps: int) -> Path:
        """PPO on the score alone, at a rate that falls to 0."""
        settings: dict[str, Any] = {"entropy": 0.002, "critic_warmup": 30, "lr_decay_steps": steps}
        return self._ppo(name, "PPO on the score alone", policy, steps, **settings)

    def _ppo(self, name: str, title: str, policy: Path, steps: int, **more: Any) -> Path:
        return self.train(name, f"{name}: {title}", policy, steps, **LONG_PPO, **more)

    def compare(
        self,
        number: str,
        policy: Path,
        kinds: str | None,
        record_prob: float,
        teacher: str = "air",
        **more: Any,
    ) -> Path:
        """Records forks of a policy's play and has them compared; returns their DB."""
        config, db = self._config, self._config.out / f"db-{number}"
        record_forks(
            self._pipeline,
            f"Round {number}: clips fork from moments of play",
            **self._common(f"forks-{number}", policy, config.record_steps),
            db_path=db,
            event_kinds=kinds,
            record_prob=record_prob,
            **more,
        )
        compare(self._pipeline, f"labels-{number}", db, config.labels, config.seed, teacher=teacher)
        return db

    def dpo(self, name: str, policy: Path, db: Path) -> Path:
        """Fits a policy to comparisons: a policy that never climbs is never paid for it."""
        title = f"{name}: the policy is fitted to the comparisons (DPO)"
        settings: dict[str, Any] = {"steps": 25, "beta": 0.03, "lr": 1e-3, "epochs": 6}
        return self.fit(name, title, [db], policy=policy, **settings)

    def climbs(self, name: str, db: Path) -> Path:
        """Fits a reward model to the first round's comparisons."""
        title = "A reward model is fitted to pairs in which no submarine is lost"
        return self.reward(name, title, [db], survived=True)

    def games(self, name: str, model: Path) -> dict[str, list[float]]:
        """Full games of a policy: what `experiments.measures` finds of each, by its name."""
        config = self._config
        measured = MeasureConfig(
            model=model, out=config.out / f"{name}.json", games=config.games, dev=config.dev
        )
        return games(self._pipeline, name, measured)

    def reward(self, name: str, title: str, dbs: list[Path], **more: Any) -> Path:
        """Fits a reward model."""
        return self.fit(name, title, dbs, frame_stride=5, **more)

    def fit(self, name: str, title: str, dbs: list[Path], **more: Any) -> Path:
        """Fits a policy or a reward model to comparisons."""
        config = self._config
        where: dict[str, Any] = {"out": config.out, "runs": config.out / "runs" / name}
        fit = FitConfig(dbs=dbs, name=name, error_rate=0.2, seed=config.seed, dev=config.dev, **where, **more)
        return self._pipeline.fit(name, title, fit)

    def _common(self, name: str, model: Path | None, steps: int) -> dict[str, Any]:
        config = self._config
        return {
            "name": name,
            "model": model,
            "steps": steps,
            "seed": config.seed,
            "dev": config.dev,
            "threads": config.threads,
            "env_threads": config.threads,
            "runs": config.out / "runs" / name,
        }


if __name__ == "__main__":
    cli.run(main)
