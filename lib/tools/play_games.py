"""Plays games to watch: with video, and a reward model's rating of every step."""

import contextlib
from pathlib import Path

import torch

from lib.agent.checkpoints import check_env_of_file, check_policy, env_of, load_policy
from lib.agent.play_config import PlayConfig
from lib.agent.video import VideoWriter, with_reward_strip
from lib.devices import resolve_device
from lib.envs.make import make_world
from lib.envs.play import Policy, play
from lib.envs.reference import ReferenceWorld
from lib.envs.world import STEPS_PER_SECOND, World
from lib.files import make_folder
from lib.reporting import format_score
from lib.reward.checkpoints import load_reward_model
from lib.reward.model import RewardModel
from lib.training.summary import PAGE, read_evaluations, write_summary

_DEFAULT_ENV = "SeaquestNoFrameskip-v4"


def play_games(config: PlayConfig) -> None:
    """Plays full games one after the other, prints a line each and the mean, and records them where asked.

    Raises:
      UserError: something about the flags or the files that the user can mend.
    """
    assert config.model is not None
    device = resolve_device(config.dev)
    network, origin = load_policy(config.model)
    env_id = config.env or env_of(origin) or _DEFAULT_ENV
    if config.env is None:
        check_env_of_file(env_id, config.model, "--env")
    made: World = ReferenceWorld(env_id) if config.reference else make_world(env_id, num_envs=1)
    with contextlib.closing(made) as world:
        check_policy(network, world, config.model)
        reward = None
        if config.reward is not None:
            reward = load_reward_model(config.reward, device)
            reward.check(world.spec, config.reward, world.env_id)
        if config.record is not None:
            make_folder(config.record, "-r")
        policy = network.to(device).eval().acting()
        scores = []
        for game in range(config.games):
            video = None if config.record is None else config.record / f"game-{game + 1:02d}.mp4"
            score, steps, learned = _play_one(world, policy, config.seed + game, device, reward, video)
            scores.append(score)
            said = "" if reward is None else f", learned return {learned:.1f} ({learned / steps:+.3f} a step)"
            print(f"game {game + 1}: score {score:g} in {steps} steps{said}", flush=True)
    print(f"{env_id}: {format_score(scores)}, best {max(scores):g}")
    if config.record is not None:
        print(f"videos in {config.record}")
        if read_evaluations(config.model.parent):
            page, video = config.record / PAGE, config.record / "game-01.mp4"
            about = origin.get("config")
            write_summary(config.model.parent, page, about if isinstance(about, dict) else {}, video)
            print(f"the policy's training and its first game on one page: {page}")


@torch.no_grad()
def _play_one(
    world: World,
    policy: Policy,
    seed: int,
    device: torch.device,
    reward: RewardModel | None,
    record: Path | None,
) -> tuple[float, int, float]:
    """Plays a game to its end; its score, length and learned return."""
    score, steps, paid = 0.0, 0, []
    with contextlib.ExitStack() as stack:
        video = None
        if record is not None:
            video = VideoWriter(record, STEPS_PER_SECOND)
            stack.callback(video.discard)
        for turn in play(world, policy, seed, device):
            picture = None if video is None else turn.step.frames[0].copy()
            learned = 0.0
            if reward is not None:
                inputs = turn.inputs(reward.input)
                learned = float(reward.combine(reward.each(inputs, turn.decision.actions))[0])
            if not turn.counts[0]:  # the game's last frame, on which nothing is done
                break
            paid.append(learned)
            if video is not None and picture is not None:
                video.add(picture if reward is None else with_reward_strip(picture, paid))
            score, steps = score + float(turn.outcome().score[0]), steps + 1
        if video is not None:
            video.close()
            stack.pop_all()
    return score, steps, sum(paid)
