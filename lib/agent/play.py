"""Playing single games to look at: through ptan's agent and wrappers, with video and the learned reward."""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import gymnasium
import numpy as np
import ptan
import torch

from lib.agent.checkpoints import check_env_of_file, check_policy, env_of, load_policy
from lib.agent.play_config import PlayConfig
from lib.agent.video import VideoWriter, with_reward_strip
from lib.cli import UserError
from lib.devices import resolve_device
from lib.envs.atari import FRAME_SKIP, atari_spec, time_limit
from lib.envs.make import make_world
from lib.envs.observation import Viewer
from lib.envs.reference import LastFrames
from lib.envs.world import STEPS_PER_SECOND, bounded_actions
from lib.reporting import format_mean
from lib.reward.checkpoints import load_reward_model
from lib.reward.model import RewardModel

_DEFAULT_ENV = "SeaquestNoFrameskip-v4"


class PlayedStep(NamedTuple):
    """One decision of the agent and what came of it."""

    frame: (
        np.ndarray | None
    )  # uint8 [H, W, 3], what a person sees when the action is chosen; None where nobody looks
    observation: np.ndarray  # uint8 [4, 84, 84] or float32 [D], what the policy sees
    action: np.ndarray  # int64 [] or float32 [A], as the environment takes it
    score: float


class GaussianActionSelector(ptan.actions.ActionSelector):
    """Draws from the parameters of Gaussians (`lib.agent.gaussian`), float `[N, 2A]` to `[N, A]` within the bounds."""

    def __call__(self, parameters: np.ndarray) -> np.ndarray:
        mean, log_std = np.split(parameters, 2, -1)
        drawn = mean + np.exp(log_std) * np.random.standard_normal(mean.shape)
        return bounded_actions(drawn.astype(np.float32), True)


def play_atari(env_id: str, agent: ptan.agent.PolicyAgent, seed: int) -> Iterator[PlayedStep]:
    """One full game of a `…NoFrameskip` environment under `wrap_dqn`, with every life and the unclipped score."""
    limit = time_limit(env_id)
    tap = LastFrames(gymnasium.make(env_id, max_episode_steps=limit * (FRAME_SKIP + 1)))
    env = ptan.common.wrappers.wrap_dqn(tap, episodic_life=False, clip_reward=False, noop_max=30)
    with env:
        # wrap_dqn passes no seed on, so the emulator and the number of no-ops are seeded below it.
        tap.reset(seed=seed)
        env.unwrapped.np_random = np.random.default_rng(seed)
        observation, _ = env.reset()
        for _ in range(limit):
            picture = tap.picture
            action = agent([observation])[0][0]
            seen = np.asarray(observation)
            observation, score, terminated, truncated, _ = env.step(int(action))
            yield PlayedStep(picture, seen, action, float(score))
            if terminated or truncated:
                return


def play_world(
    env_id: str, agent: ptan.agent.PolicyAgent, seed: int, looked_at: bool
) -> Iterator[PlayedStep]:
    """One full game of any other environment; frames are left out unless they are looked at."""
    world = make_world(env_id, num_envs=1)
    try:
        viewer = Viewer(world, torch.device("cpu"))
        step = world.reset(seed)
        while True:
            seen = viewer.look(step)[0].numpy().copy()
            actions = agent([seen])[0]
            picture = step.frames[0].copy() if looked_at else None
            world.send(actions)
            step = world.recv()
            if step.reset[0]:
                return
            yield PlayedStep(picture, seen, actions[0], float(step.score[0]))
    finally:
        world.close()


def play(config: PlayConfig) -> None:
    """Plays the games, prints a line each and the mean, and records them where asked.

    Raises:
      UserError: something about the flags or the files that the user can mend.
    """
    assert config.model is not None
    device = resolve_device(config.dev)
    network, origin = load_policy(config.model)
    env_id = config.env or env_of(origin) or _DEFAULT_ENV
    if config.env is None:
        check_env_of_file(env_id, config.model, "--env")
    world = make_world(env_id, num_envs=1)
    world.close()
    check_policy(network, world, config.model)
    reward = None
    if config.reward is not None:
        reward = load_reward_model(config.reward, device)
        reward.check(world.spec, config.reward, world.env_id)
    if config.record is not None:
        try:
            config.record.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"-r {config.record}: expected a folder to write to: {error.strerror}") from error

    network.to(device).eval()
    agent = ptan.agent.PolicyAgent(
        lambda states: network(states)[0],
        GaussianActionSelector() if network.continuous else ptan.actions.ProbabilityActionSelector(),
        device=device,
        apply_softmax=not network.continuous,
    )
    spec = atari_spec(env_id)
    looked_at = config.record is not None or (reward is not None and reward.input == "frame")
    one_game = (
        play_atari
        if spec is not None and "NoFrameskip" in env_id
        else functools.partial(play_world, looked_at=looked_at)
    )
    np.random.seed(config.seed)  # ptan's action selector draws from NumPy's global generator
    scores = []
    for game in range(config.games):
        score, steps, learned = _play_one(
            one_game(env_id, agent, config.seed + game), game, reward, config.record
        )
        scores.append(score)
        print(
            f"game {game + 1}: score {score:g} in {steps} steps"
            + (
                ""
                if reward is None
                else f", learned return {learned:.1f} ({learned / max(steps, 1):+.3f} a step)"
            ),
            flush=True,
        )
    print(f"{env_id}: score {format_mean(scores)} (95 %, {config.games} games), best {max(scores):g}")
    if config.record is not None:
        print(f"videos in {config.record}")


def _play_one(
    steps: Iterator[PlayedStep], game: int, reward: RewardModel | None, record: Path | None
) -> tuple[float, int, float]:
    """Plays a game to its end; its score, length and learned return."""
    video = None if record is None else VideoWriter(record / f"game-{game + 1:02d}.mp4", STEPS_PER_SECOND)
    score, count, paid = 0.0, 0, []
    try:
        for step in steps:
            if reward is not None:
                frames = None if step.frame is None else step.frame[None]
                learned = reward.rewards(frames, step.action[None], step.observation[None])
                paid.append(float(learned[0]))
            if video is not None and step.frame is not None:
                video.add(step.frame if reward is None else with_reward_strip(step.frame, paid))
            score, count = score + step.score, count + 1
        if video is not None:
            video.close()
    except BaseException:
        if video is not None:
            video.discard()
        raise
    return score, count, sum(paid)
