"""The reported figures of a policy: full games, as everywhere here, and single lives, as in the original's table.

.venv/bin/python -m experiments.measures -m MODEL -o FILE.json [--games 20] [--lives 10] [--reward R] [--reference M]
    [--hold-prob 0.003]
"""

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from experiments.measure_config import MeasureConfig
from lib import cli
from lib.agent.checkpoints import PolicyNetwork, check_env_of_file, check_policy, env_of, load_policy
from lib.agent.config import TrainConfig
from lib.agent.evaluate import Observer, ProbeMeans, evaluate
from lib.agent.exploration import HeldActions
from lib.agent.finetune_metrics import FinetuneMetrics
from lib.agent.network import ActorPolicy, PolicyNet
from lib.cli import UserError
from lib.devices import has_fast_bf16, resolve_device
from lib.envs.control import backflip
from lib.envs.make import make_world
from lib.envs.play import Decision, Policy, Turn, play
from lib.envs.world import World
from lib.files import write_atomic
from lib.reporting import format_mean
from lib.reward.checkpoints import load_reward_model
from lib.training.parts import held_actions

SEED = 20_000
"""Of the first games: others than training's, and than its evaluations'."""


class Lives(NamedTuple):
    """B games up to their first lost life."""

    scores: np.ndarray  # float64 [B], unclipped
    steps: np.ndarray  # int64 [B]


def first_lives(policy: Policy, world: World, seed: int, device: torch.device) -> Lives:
    """Plays one game in every environment until its first life is lost, with sampled actions.

    The original's table is the best of ten of these. The time limit counts as well, and so does the end of a game that has
    no lives.

    Args:
      policy: on `device`.
      world: B environments; they are reset.
      seed: of the games and of the actions.
      device: where the policy computes.
    """
    scores, steps = np.zeros(world.num_envs), np.zeros(world.num_envs, np.int64)
    alive = np.ones(world.num_envs, bool)
    for turn in play(world, policy, seed, device):
        outcome = turn.outcome()
        scores[alive] += outcome.score[alive]
        steps[alive] += 1
        alive &= ~(outcome.terminal | outcome.truncated)
        if not alive.any():
            break
    return Lives(scores, steps)


class Backflip(Observer):
    """The published measure of Hopper's backflip in each game, per step: an observer of `evaluate`."""

    def __init__(self, num_envs: int) -> None:
        self._sums = np.zeros(num_envs)

    def before(self, turn: Turn) -> None:
        assert turn.step.observations is not None
        self._now = backflip(turn.step.observations, turn.actions)

    def after(self, turn: Turn) -> None:
        self._sums += self._now * turn.counts

    def measures(self, steps: np.ndarray) -> dict[str, np.ndarray]:
        return {"backflip": self._sums / steps}


class Disturbed:
    """A policy whose actions give way to held ones now and then."""

    def __init__(self, policy: Policy, held: HeldActions) -> None:
        self.spec, self._policy, self._held = policy.spec, policy, held

    def act(self, observations: torch.Tensor, generator: torch.Generator) -> Decision:
        decision = self._policy.act(observations, generator)
        actions, _ = self._held.replace(decision.actions.cpu().numpy())
        return decision._replace(actions=torch.from_numpy(actions).to(decision.actions.device))


def _reference(path: Path, network: PolicyNetwork) -> PolicyNet:
    """The policy that another's KL is measured to; both have to draw from a distribution."""
    reference = load_policy(path)[0]
    if not isinstance(network, PolicyNet) or not isinstance(reference, PolicyNet):
        kinds = f"a {type(network).__name__} and a {type(reference).__name__}"
        raise UserError(f"--reference {path}: expected two policies of A2C or PPO, got {kinds}")
    return reference


def measure(config: MeasureConfig) -> dict[str, Any]:
    """Plays and writes down `lives` (scores, steps) and `games` (score, steps, measures of each), lists of figures.

    Raises:
      UserError: something about the files that the user can mend.
    """
    device = resolve_device(config.dev)
    bf16, seed = has_fast_bf16(device), SEED + config.seed
    network, origin = load_policy(config.model)
    env_id = config.env or env_of(origin)
    if config.env is None:
        check_env_of_file(env_id, config.model, "--env")
    reward = None if config.reward is None else load_reward_model(config.reward, device, bf16)
    reference = None if config.reference is None else _reference(config.reference, network)
    for net in filter(None, (network, reference)):
        net.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    policy: Policy = network.acting(bf16)
    with contextlib.closing(make_world(env_id, config.lives)) as world:
        check_policy(network, world, config.model)
        lives = first_lives(policy, world, seed, device)
    with contextlib.closing(make_world(env_id, config.games)) as world:
        if reward is not None and config.reward is not None:
            reward.check(world.spec, config.reward, world.env_id)
        metrics = FinetuneMetrics(
            *(world, device, seed, reward), None if reference is None else ActorPolicy(reference, bf16)
        )
        observers: list[Observer] = [ProbeMeans.of(env_id, config.games), metrics]
        if "Hopper" in env_id:
            observers.append(Backflip(config.games))
        as_trained = TrainConfig(name="measures", env=env_id, hold_prob=config.hold_prob)
        if (held := held_actions(as_trained, world, seed)) is not None:
            policy = Disturbed(policy, held)
        played = evaluate(policy, world, seed, device, observers)
    found = {
        "model": str(config.model),
        "trained_steps": origin.get("steps"),
        "seed": config.seed,
        "hold_prob": config.hold_prob,
        "lives": {"scores": lives.scores.tolist(), "steps": lives.steps.tolist()},
        "games": {name: values.tolist() for name, values in played.figures.items()},
    }
    try:
        config.out.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(config.out, (json.dumps(found, indent=1) + "\n").encode())
    except OSError as error:
        raise UserError(f"--out {config.out}: could not be written: {error.strerror}") from error
    print(f"first lives: best {lives.scores.max():g} of {config.lives}, mean {format_mean(lives.scores)}")
    print(f"full games: {played}")
    return found


def main(argv: Sequence[str] | None = None) -> None:
    measure(cli.parse(MeasureConfig, argv, description=(__doc__ or "").splitlines()[0]))


if __name__ == "__main__":
    cli.run(main)
