"""What a finetune's evaluations measure besides the score: learned return, disagreement, KL, and a teacher's view."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from lib.agent.distributions import exact_kl
from lib.agent.evaluate import Observer
from lib.agent.network import ActorPolicy
from lib.envs.play import Turn
from lib.envs.world import World
from lib.preferences.segments import SEGMENT_LENGTH, Segment, Sidecar
from lib.preferences.teachers import Teacher
from lib.reward.model import RewardModel

CHARTED = (
    *("learned", "score", "steps", "kl", "disagreement", "agreement", "preferred"),
    *("refuels", "rescues", "surface"),
)
"""Measures on the one chart of a finetune, if they are measured."""

BY_REWARD = ("learned", "agreement", "disagreement")
"""Of these, those that depend on the reward model: figures of two models are not compared."""

_GAMES = 8  # of an evaluation that clips are cut from: each needs room for the frames of a running one
_CLIPS = 8  # of each of these games


class FreshClips:
    """Cuts clips of 50 steps out of running games and has a teacher value them. No frames are kept.

    A game's clips lie end to end. However long the game, up to eight of them count, each as likely as any
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
        spec = world.spec
        assert spec.frame_shape is not None
        self._frames = np.empty((games, SEGMENT_LENGTH, *spec.frame_shape), np.uint8)
        self._actions = (
            np.empty((games, SEGMENT_LENGTH, spec.num_actions), np.float32)
            if spec.continuous
            else np.empty((games, SEGMENT_LENGTH), np.int64)
        )
        self._observations = (
            None
            if spec.observation_size is None
            else np.empty((games, SEGMENT_LENGTH, spec.observation_size), np.float32)
        )
        self._scores = np.empty((games, SEGMENT_LENGTH), np.float32)
        self._terminal = np.empty((games, SEGMENT_LENGTH), bool)
        self._length, self._begun, self._place = (np.zeros(games, int) for _ in range(3))
        self._start: list[torch.Tensor | None] = [None] * games
        self._clips: dict[tuple[int, int], tuple[float, torch.Tensor | None]] = {}

    def before(self, turn: Turn, learned: torch.Tensor | None) -> None:
        """Copies what the actions of a step were chosen on.

        Args:
          turn: the step.
          learned: float64 `[B]`, the learned return of each game so far, where there is one.
        """
        step = turn.step
        for game in map(int, np.flatnonzero(turn.running[: len(self._frames)])):
            length = self._length[game]
            if length == 0:
                begun = int(self._begun[game])
                self._place[game] = begun if begun < _CLIPS else self._rng.integers(begun + 1)
                self._begun[game] += 1
                self._start[game] = None if learned is None else learned[game].clone()
            if self._place[game] < _CLIPS:
                self._frames[game, length] = step.frames[game]
                self._actions[game, length] = turn.actions[game]
                if self._observations is not None and step.observations is not None:
                    self._observations[game, length] = step.observations[game]

    def after(self, turn: Turn, learned: torch.Tensor | None) -> None:
        """Takes in the outcome, and has the teacher value the clips that it completes.

        Args:
          turn: the step.
          learned: as in `before`, this step included.
        """
        outcome = turn.outcome()
        for game in map(int, np.flatnonzero(turn.counts[: len(self._frames)])):
            at = self._length[game]
            self._scores[game, at], self._terminal[game, at] = outcome.score[game], outcome.terminal[game]
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
            game_over=np.zeros_like(terminal),  # known only one step later, and no teacher needs it
            env_id=self._world.env_id,
            num_actions=self._world.spec.num_actions,
            policy="",
            step=0,
        )
        observations = None if self._observations is None else self._observations[game]
        return Segment(self._frames[game], self._actions[game], sidecar, observations)

    def values(self) -> tuple[list[float], list[float] | None]:
        """The K clips' values to the teacher, and their learned returns if there is a reward model."""
        gained = [learned for _, learned in self._clips.values() if learned is not None]
        returns = torch.stack(gained).tolist() if gained else None
        return [value for value, _ in self._clips.values()], returns


class FinetuneMetrics(Observer):
    """How a reward model, a reference policy and a teacher rate the B games of one evaluation: an `Observer`.

    Sums stay on the device until the games are over.
    """

    def __init__(
        self,
        world: World,
        device: torch.device,
        seed: int,
        reward: RewardModel | None = None,
        reference: ActorPolicy | None = None,
        teacher: Teacher | None = None,
        baseline: Sequence[float] | None = None,
    ) -> None:
        """Keeps state, so every evaluation needs a new one.

        Args:
          world: B games about to begin.
          device: where all networks lie.
          seed: of the choice of clips.
          reward: gives `learned`, the sum of what it pays in a game, and, where it has several members,
            `disagreement`, the mean over the game's steps of their standard deviation.
          reference: gives `kl`, the exact KL of the policy to it, a mean over the game's steps.
          teacher: gives `agreement` and `preferred`.
          baseline: the teacher's values of the reference's clips; None where these games are the reference's.
        """
        self._device = device
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

    def before(self, turn: Turn) -> None:
        if self._clips is not None:
            self._clips.before(turn, self._sums.get("learned"))
        if self._reward is not None:
            inputs = turn.inputs(self._reward.input)
            each = self._reward.each(inputs, turn.decision.actions)
            self._now["learned"] = self._reward.combine(each)
            if "disagreement" in self._sums:
                self._now["disagreement"] = each.std(0, correction=0)
        if self._reference is not None and turn.decision.dist_params is not None:
            reference = self._reference.dist_params(turn.observations)
            self._now["kl"] = exact_kl(turn.decision.dist_params, reference, self._reference.spec.continuous)

    def after(self, turn: Turn) -> None:
        counts = torch.from_numpy(turn.counts).to(self._device, non_blocking=True)
        for name, total in self._sums.items():
            total += torch.where(counts, self._now[name], 0.0)
        if self._clips is not None:
            self._clips.after(turn, self._sums.get("learned"))

    def measures(self, steps: np.ndarray) -> dict[str, np.ndarray]:
        sums = {name: total.cpu().numpy() for name, total in self._sums.items()}
        return {name: total if name == "learned" else total / steps for name, total in sums.items()}

    def clip_values(self) -> list[float]:
        """Each clip's value to the teacher."""
        return [] if self._clips is None else self._clips.values()[0]

    def overall(self) -> dict[str, float]:
        """`agreement` and `preferred`, as far as the teacher can tell clips apart."""
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
    """The change of each measure since the start, relative to its value there: 0.5 is half as much again.

    (x − x₀) / max(abs(x₀), σ₀) with means x and x₀ and the deviation σ₀ over the games at the start: a learned return
    may begin near 0, or below. A measure that was 0 in every game, such as the KL, is returned unscaled.

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
    """One evaluation's figures about the course of a finetune."""

    steps: int  # of training before it
    score: float
    interval: float  # half-width of the score's 95 % interval; 0 where it is not known
    learned: float | None = None  # learned return of a game
    agreement: float | None = None  # of learned reward and teacher on fresh clips
    disagreement: float | None = None  # of the ensemble's members on fresh play
