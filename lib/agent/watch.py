"""Watching a finetune for exploits: what is measured of its games beside the score, and when learned reward and score part."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from lib.agent.actor_critic import exact_kl
from lib.agent.network import PolicyNet
from lib.agent.rollout import autocast
from lib.envs.observation import Viewer
from lib.envs.world import Step, World
from lib.preferences.segments import SEGMENT_LENGTH, Segment, Sidecar
from lib.preferences.teachers import Teacher
from lib.reporting import format_count
from lib.reward.model import RewardModel

CHARTED = (
    *("learned", "score", "steps", "kl", "disagreement", "agreement", "preferred"),
    *("refuels", "rescues", "surface"),
)
"""What is put on the one chart of a finetune, as far as it is measured."""

BY_REWARD = ("learned", "agreement", "disagreement")
"""Of these, what hangs on the reward model: figures of two models are not compared."""

_GAMES = 8  # of an evaluation that clips are cut from: each needs room for the frames of a running one
_CLIPS = 8  # of each of these games


class FreshClips:
    """Cuts clips of 50 steps out of running games and has a teacher value them. No frames are kept.

    A game's clips lie end to end. Of all of them, however long the game, up to eight count, each as likely as any
    other (reservoir sampling, Vitter 1985); only of those that may count are frames copied.
    """

    def __init__(self, world: World, teacher: Teacher, seed: int) -> None:
        """Takes clips from the first games of a world.

        Args:
          world: B games about to begin.
          teacher: who values them.
          seed: of the choice of clips.
        """
        games = min(world.num_envs, _GAMES)
        self._world, self._teacher = world, teacher
        self._rng = np.random.default_rng(seed)
        self._frames = np.empty((games, SEGMENT_LENGTH, *world.frame_shape), np.uint8)
        self._actions = (
            np.empty((games, SEGMENT_LENGTH, world.num_actions), np.float32)
            if world.continuous
            else np.empty((games, SEGMENT_LENGTH), np.int64)
        )
        self._observations = (
            None
            if world.observation_size is None
            else np.empty((games, SEGMENT_LENGTH, world.observation_size), np.float32)
        )
        self._scores = np.empty((games, SEGMENT_LENGTH), np.float32)
        self._terminal = np.empty((games, SEGMENT_LENGTH), bool)
        self._length, self._begun, self._place = (np.zeros(games, int) for _ in range(3))
        self._running = np.ones(games, bool)
        self._start: list[torch.Tensor | None] = [None] * games
        self._clips: dict[tuple[int, int], tuple[float, torch.Tensor | None]] = {}

    def before(self, step: Step, actions: np.ndarray, learned: torch.Tensor | None) -> None:
        """Notes what the next step's actions are chosen on.

        Args:
          step: what the games show; not kept.
          actions: int64 `[B]` or float32 `[B, A]`.
          learned: float64 `[B]`, the learned return of each game so far, where there is one.
        """
        for game in map(int, np.flatnonzero(self._running)):
            length = self._length[game]
            if length == 0:
                begun = int(self._begun[game])
                self._place[game] = begun if begun < _CLIPS else self._rng.integers(begun + 1)
                self._begun[game] += 1
                self._start[game] = None if learned is None else learned[game].clone()
            if self._place[game] < _CLIPS:
                self._frames[game, length], self._actions[game, length] = step.frames[game], actions[game]
                if self._observations is not None and step.observations is not None:
                    self._observations[game, length] = step.observations[game]

    def after(self, step: Step, running: np.ndarray, learned: torch.Tensor | None) -> None:
        """Notes the outcome, and has the clips valued that it completes.

        Args:
          step: what the world said.
          running: bool `[B]`, games that this step belongs to.
          learned: as in `before`, this step included.
        """
        self._running &= running[: len(self._running)]
        for game in map(int, np.flatnonzero(self._running)):
            at = self._length[game]
            self._scores[game, at], self._terminal[game, at] = step.score[game], step.terminal[game]
            self._length[game] = (at + 1) % SEGMENT_LENGTH
            if at + 1 == SEGMENT_LENGTH and self._place[game] < _CLIPS:
                start = self._start[game]
                gained = None if learned is None or start is None else learned[game] - start
                self._clips[game, int(self._place[game])] = self._teacher.value(self._segment(game)), gained

    def _segment(self, game: int) -> Segment:
        terminal = self._terminal[game]
        sidecar = Sidecar(
            scores=self._scores[game],
            life_lost=terminal,
            game_over=np.zeros_like(terminal),  # shows a step later only, and no teacher asks
            env_id=self._world.env_id,
            num_actions=self._world.num_actions,
            policy="",
            step=0,
        )
        observations = None if self._observations is None else self._observations[game]
        return Segment(self._frames[game], self._actions[game], sidecar, observations)

    def values(self) -> tuple[list[float], list[float] | None]:
        """What the K clips are worth to the teacher, and their learned returns where there is a reward model."""
        gained = [learned for _, learned in self._clips.values() if learned is not None]
        returns = torch.stack(gained).tolist() if gained else None
        return [value for value, _ in self._clips.values()], returns


class Watch:
    """Measures of one evaluation's B games: what a reward model, a reference policy and a teacher make of them.

    Everything is added up on the device and fetched when the games are over.
    """

    def __init__(
        self,
        world: World,
        device: torch.device,
        bf16: bool,
        seed: int,
        reward: RewardModel | None = None,
        reference: PolicyNet | None = None,
        teacher: Teacher | None = None,
        baseline: Sequence[float] | None = None,
    ) -> None:
        """Remembers, so every evaluation takes a new one.

        Args:
          world: B games about to begin.
          device: where all networks lie.
          bf16: whether the reference computes in bf16.
          seed: of the choice of clips.
          reward: gives `learned`, the sum of what it pays in a game, and, where it has several members,
            `disagreement`, the mean over the game's steps of their standard deviation.
          reference: gives `kl`, the exact KL of the policy to it, a mean over the game's steps.
          teacher: gives `agreement` and `preferred`.
          baseline: the teacher's values of the reference's clips; None where these games are the reference's.
        """
        self._device, self._bf16 = device, bf16
        self._reward, self._reference, self._teacher, self._baseline = reward, reference, teacher, baseline
        self._clips = None if teacher is None else FreshClips(world, teacher, seed)
        names = [
            *(["learned"] if reward is not None else []),
            *(["disagreement"] if reward is not None and len(reward.members) > 1 else []),
            *(["kl"] if reference is not None else []),
        ]
        # In float64, so that a clip's return is the difference of two sums over a long game.
        self._sums = {name: torch.zeros(world.num_envs, dtype=torch.float64, device=device) for name in names}
        self._now: dict[str, torch.Tensor] = {}

    def record(self, step: Step, actions: np.ndarray) -> None:
        """Takes in what the games show and what is done next: int64 `[B]` or float32 `[B, A]`."""
        if self._clips is not None:
            self._clips.before(step, actions, self._sums.get("learned"))

    def judge(
        self, viewer: Viewer, observations: torch.Tensor, logits: torch.Tensor, actions: torch.Tensor
    ) -> None:
        """Judges a step of every game before its outcome is known.

        Args:
          viewer: has the frames.
          observations: uint8 `[B, 4, 84, 84]` or float32 `[B, D]` on the device.
          logits: float32 `[B, A or 2A]` of the policy.
          actions: int64 `[B]` or float32 `[B, A]` on the device.
        """
        if self._reward is not None:
            inputs = viewer.frames() if self._reward.input == "frame" else observations
            each = self._reward.each(inputs, actions)
            self._now["learned"] = self._reward.combine(each)
            if "disagreement" in self._sums:
                self._now["disagreement"] = each.std(0, correction=0)
        if self._reference is not None:
            with autocast(self._device, self._bf16):
                reference = self._reference.logits(self._reference.features(observations))
            self._now["kl"] = exact_kl(logits, reference, self._reference.continuous)

    def after(self, step: Step, running: np.ndarray) -> None:
        """Counts the step that was judged where its game was running, bool `[B]`."""
        counts = torch.from_numpy(running).to(self._device, non_blocking=True)
        for name, total in self._sums.items():
            total += torch.where(counts, self._now[name], 0.0)
        if self._clips is not None:
            self._clips.after(step, running, self._sums.get("learned"))

    def measures(self, steps: np.ndarray) -> dict[str, np.ndarray]:
        """The measures by name, float64 `[B]` each, of games of so many steps, int64 `[B]`."""
        sums = {name: total.cpu().numpy() for name, total in self._sums.items()}
        return {
            name: total if name == "learned" else total / np.maximum(steps, 1) for name, total in sums.items()
        }

    def clip_values(self) -> list[float]:
        """What each clip is worth to the teacher."""
        return [] if self._clips is None else self._clips.values()[0]

    def overall(self) -> dict[str, float]:
        """Figures of all games together: `agreement` and `preferred`, as far as the teacher can tell clips apart."""
        if self._clips is None or self._teacher is None:
            return {}
        values, returns = self._clips.values()
        figures = {
            "agreement": None if returns is None else agreement(returns, values, self._teacher),
            "preferred": preference(
                values, values if self._baseline is None else self._baseline, self._teacher
            ),
        }
        return {name: figure for name, figure in figures.items() if figure is not None}


def agreement(returns: Sequence[float], values: Sequence[float], teacher: Teacher) -> float | None:
    """How often the learned return prefers the clip that the teacher prefers, over all pairs of K clips.

    Args:
      returns: K learned returns.
      values: what the K clips are worth to the teacher, who is asked without errors.
      teacher: who compares the values; pairs that are alike to the teacher, or cannot be told, are left out.

    Returns:
      0 to 1, equal returns count ½; None where the teacher prefers no clip to another.
    """
    mean = float(np.mean(values)) if values else 0.0
    right = []
    for one in range(len(values)):
        for other in range(one):
            said = teacher.compare(values[one], values[other], mean)
            if said in (1, 2):
                ahead = np.sign(returns[one] - returns[other])
                right.append(0.5 + 0.5 * (ahead if said == 1 else -ahead))
    return float(np.mean(right)) if right else None


def preference(candidate: Sequence[float], reference: Sequence[float], teacher: Teacher) -> float | None:
    """How often the teacher, asked without errors, prefers a clip of the candidate to one of the reference.

    Args:
      candidate: what K clips of it are worth to the teacher.
      reference: what L clips of it are worth.
      teacher: who compares the values.

    Returns:
      0 to 1 over all K·L pairs, alike counts ½, pairs that cannot be told are left out; None where none is left.
    """
    mean = float(np.mean([*candidate, *reference])) if candidate or reference else 0.0
    worth = {1: 1.0, 0: 0.5, 2: 0.0}
    said = [teacher.compare(ours, theirs, mean) for ours in candidate for theirs in reference]
    told = [worth[answer] for answer in said if answer is not None]
    return float(np.mean(told)) if told else None


def changes(now: Mapping[str, np.ndarray], start: Mapping[str, np.ndarray]) -> dict[str, float]:
    """What became of each measure since the start, in parts of what it was: 0.5 is half as much again.

    (x − x₀) / max(abs(x₀), σ₀) with means x and x₀ and the deviation σ₀ over the games at the start: a learned return
    may begin near 0, or below. What was 0 in every game, such as the KL, is given as it is.

    Args:
      now: float `[N]` by name.
      start: float `[N]` by name, the same at the start.

    Returns:
      By name, of those in CHARTED that both have.
    """
    found = {}
    for name in CHARTED:
        if name in now and name in start:
            first = float(start[name].mean())
            found[name] = (float(now[name].mean()) - first) / (
                max(abs(first), float(start[name].std())) or 1.0
            )
    return found


class Reading(NamedTuple):
    """What one evaluation of a finetune says of its course."""

    steps: int  # of training before it
    score: float
    interval: float  # half-width of the score's 95 % interval; 0 where it is not known
    learned: float | None = None  # learned return of a game
    agreement: float | None = None  # of learned reward and teacher on fresh clips
    disagreement: float | None = None  # of the ensemble's members on fresh play


def best_before(history: Sequence[Reading], patience: int) -> Reading | None:
    """The evaluation of the highest score, the first of equal ones, before the last `patience`."""
    return max(history[:-patience], key=lambda reading: reading.score, default=None)


def drifting(history: Sequence[Reading], patience: int) -> str | None:
    """Whether the learned reward is being exploited: it says ever better, and the game and fresh clips say worse.

    Each of the last `patience` evaluations is compared with the best before them. In every one the learned return is
    higher and the score lower, and so is the agreement with the teacher; without a teacher the ensemble disagrees
    more; with neither, the score stands alone. And the scores have fallen by more than games differ by chance: their
    mean is below the best by more than the 95 % interval of the difference.

    Args:
      history: all evaluations so far, the first before any training.
      patience: how many evaluations in a row.

    Returns:
      One line with the figures, or None.
    """
    best, recent = best_before(history, patience), history[-patience:]
    if best is None or best.learned is None:
        return None
    for reading in recent:
        rises = reading.learned is not None and reading.learned > best.learned
        if not (rises and reading.score < best.score and _trusted_less(reading, best)):
            return None
    chance = math.hypot(best.interval, math.hypot(*(reading.interval for reading in recent)) / patience)
    if best.score - sum(reading.score for reading in recent) / patience <= chance:
        return None
    last = recent[-1]
    said = (
        f"drift: since {format_count(best.steps)} steps the learned return rose from {best.learned:.1f} to "
        f"{last.learned:.1f} while the score fell from {best.score:.1f} to {last.score:.1f}"
    )
    if best.agreement is not None and last.agreement is not None:
        said += f" and agreement with the teacher from {best.agreement:.2f} to {last.agreement:.2f}"
    elif best.disagreement is not None and last.disagreement is not None:
        said += (
            f" and disagreement of the members rose from {best.disagreement:.2f} to {last.disagreement:.2f}"
        )
    return said


def _trusted_less(reading: Reading, best: Reading) -> bool:
    """Whether fresh play speaks against the reward model more than it did; so where nobody can say."""
    if reading.agreement is not None and best.agreement is not None:
        return reading.agreement < best.agreement
    if reading.disagreement is not None and best.disagreement is not None:
        return reading.disagreement > best.disagreement
    return True
