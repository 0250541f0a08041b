"""Policy checkpoints: one folder keeps the best by each criterion and the latest."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lib.agent import dqn, sac
from lib.agent.dqn import QNet
from lib.agent.evaluate import Evaluation
from lib.agent.network import PolicyNet, policy_from_state
from lib.agent.sac import SACNet
from lib.checkpoints import check_weights, load_checkpoint, save_checkpoint
from lib.cli import UserError, one_line
from lib.envs.world import World
from lib.files import make_folder, remove_stale

PolicyNetwork = PolicyNet | SACNet | QNet
"""Networks whose weights a policy checkpoint may hold."""

LINKS = ("best.dat", "best-learned.dat", "best-teacher.dat", "latest.dat")
"""Names of a folder's links."""


def load_policy(path: Path) -> tuple[PolicyNetwork, dict[str, Any]]:
    """A policy from a checkpoint of ours, of any algorithm, or a bare state_dict of the original's.

    Returns:
      The network on the CPU, and the checkpoint's own fields (`config`, `steps`, …; {} for a bare one).

    Raises:
      UserError: there is no readable policy; says what was expected and what came.
    """
    payload = load_checkpoint(path, "policy")
    state = check_weights(payload.get("state_dict"), str(path))
    return network_of(state, str(path)), {} if payload.get("bare") else payload


def network_of(state: dict[str, torch.Tensor], source: str) -> PolicyNetwork:
    """The network that a state_dict's weights belong to, of any algorithm, on the CPU.

    Args:
      state: the weights.
      source: file they came from, for messages.

    Raises:
      UserError: the weights are of no such network.
    """
    read: Callable[..., PolicyNetwork] = policy_from_state
    if "actor.0.weight" in state:
        read = sac.network_from_state
    elif "levels" in state:
        read = dqn.network_from_state
    return read(state, source)


def save_policy(
    path: Path,
    network: PolicyNetwork,
    steps: int,
    evaluation: dict[str, Any],
    config: Any,
    parents: dict[str, Any],
    **more: Any,
) -> None:
    """Writes a policy checkpoint.

    Args:
      path: the file.
      network: the policy.
      steps: how long it was trained.
      evaluation: figures of games by these very weights; {} for none.
      config: the configuration of what made it.
      parents: what it came from.
      **more: further content.
    """
    payload = {
        "state_dict": network.state_dict(),
        "steps": steps,
        "num_actions": network.spec.num_actions,
        "evaluation": evaluation,
        **more,
    }
    save_checkpoint(path, "policy", payload, config, parents)


def env_of(origin: dict[str, Any]) -> str:
    """The environment that a policy says it was trained in; "" if it names none.

    Args:
      origin: what the checkpoint says of itself, as `load_policy` returns it.
    """
    config = origin.get("config")
    env_id = config.get("env") if isinstance(config, dict) else None
    return env_id if isinstance(env_id, str) else ""


def check_env_of_file(env_id: str, path: Path, flag: str) -> None:
    """Refuses a file that names no environment, or one that would have a module imported, `module:Name-v0`.

    Nothing that a file names is run; a user who trusts the file can name the environment.

    Args:
      env_id: what it names; "" for nothing.
      path: the file, for the message.
      flag: by which the environment can be named.

    Raises:
      UserError: there is none, or it is such an environment, and its module has not been imported already.
    """
    if not env_id:
        raise UserError(f"{path}: expected a policy of 01_a2c.py, which knows its environment; add {flag}")
    module, colon, _ = env_id.partition(":")
    if colon and module not in sys.modules:
        raise UserError(
            f"{path}: names the environment {one_line(env_id[:200])}, but a module is never imported because "
            f"a file names it; if you trust it, add {flag} {one_line(env_id[:200])}"
        )


def check_policy(network: PolicyNetwork, world: World, path: Path, flag: str = "--env") -> None:
    """Refuses a policy whose actions or observations differ from a world's.

    Raises:
      UserError: says what each side has.
    """
    difference = network.spec.difference(world.spec)
    if difference is not None:
        raise UserError(
            f"{path}: a policy for {difference[0]}, but {world.env_id} has {difference[1]}; "
            f"take a policy for this environment, or name the policy's own by {flag}"
        )


class CheckpointFolder:
    """`model_<step>-rw=<score>-steps=<steps>.dat` files; of a run only its bests are kept and what a link points to.

    The symbolic links are for scripts and for the next stage: `best.dat` by mean score and `latest.dat`, and in a
    finetune `best-learned.dat` by learned return and `best-teacher.dat` by the teacher's preference for it over the
    policy that it started from, where these are measured.

    Another kind of checkpoint is a subclass with its own suffix, `_name`, `_write`, `_read` and `_drop`.

    Attributes:
      root: the folder.
      run: name of the run's own folder, which no other run has; checkpoints keep it, because several runs may save here.
    """

    suffix = ".dat"
    run = ""

    def __init__(self, root: Path) -> None:
        make_folder(root, "--save")
        remove_stale(root)
        self.root = root
        self._best: dict[str, float] = {}
        self._own: dict[str, str] = {}  # of each best, even where another run's has taken the link
        self._written: set[str] = set()
        self._kept: set[str] = set()

    def save(
        self,
        policy: Any,
        steps: int,
        games: Evaluation,
        config: dict[str, Any],
        parents: dict[str, Any],
        evaluated: bool = True,
    ) -> Path:
        """Writes a checkpoint as the latest, and as the best by each criterion for which it is the highest so far.

        Args:
          policy: what to save, a `LearnedPolicy`.
          steps: how long it was trained.
          games: figures for its file name.
          config: the configuration of the run.
          parents: what it came from.
          evaluated: whether the games are an evaluation of these very weights; others never make a best.

        Raises:
          UserError: the folder cannot be written to.
        """
        name = self._name(steps, games)
        evaluation: dict[str, Any] = {}
        if evaluated:
            columns = {"scores": games.scores, "steps": games.steps, **games.measures}
            evaluation = {measure: values.tolist() for measure, values in columns.items()} | games.overall
        try:
            self._write(
                self.root / name,
                policy,
                steps=steps,
                evaluation=evaluation,
                config=config,
                parents=parents,
                run=self.run,
            )
            self._written.add(name)
            for link, value in _criteria(evaluation).items():
                if value > self._best.get(link, -float("inf")):
                    self._best[link], self._own[link] = value, name
                    self._point(link, name)
            self._point("latest.dat", name)
            self._prune()
        except OSError as error:
            raise UserError(f"--save {self.root}: could not write {name}: {error.strerror}") from error
        return self.root / name

    def _name(self, steps: int, games: Evaluation) -> str:
        return f"model_{steps:06d}-rw={float(games.scores.mean()):.0f}-steps={games.steps.mean():.0f}{self.suffix}"

    def _write(self, path: Path, policy: Any, **about: Any) -> None:
        """Writes a checkpoint, and about it `steps`, `evaluation`, `config`, `parents` and `run`."""
        save_policy(path, policy.network, **about)

    def _read(self, path: Path) -> dict[str, Any]:
        """What a checkpoint says of itself. Raises UserError."""
        return load_policy(path)[1]

    def _drop(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def _at(self, link: str) -> Path:
        return self.root / (link.removesuffix(".dat") + self.suffix)

    def state(self) -> dict[str, Any]:
        """What a resumed run needs to know of the folder, for `restore`."""
        best = {"best": dict(self._best), "own": dict(self._own)}
        return {**best, "written": sorted(self._written), "kept": sorted(self._kept)}

    def restore(self, state: dict[str, Any], steps: int) -> None:
        """Continues a run from its state, and includes what the run wrote after that state: bests of their criterion.

        Args:
          state: what `state` said.
          steps: how long the policy had been trained by then.
        """
        self._best, self._own = dict(state["best"]), dict(state.get("own", {}))  # older states lack "own"
        self._written, self._kept = set(state["written"]), set(state["kept"])
        for link in LINKS:
            try:
                content = self._read(self._at(link))
            except UserError:  # not there
                continue
            if content.get("run") == self.run and content.get("steps", 0) > steps:
                name = self._at(link).resolve().name
                self._written.add(name)
                if link in (found := _criteria(content["evaluation"])):
                    self._best[link], self._own[link] = found[link], name

    def keep_best(self) -> Path:
        """Keeps the best by mean score permanently, even if a later one is better.

        Returns:
          The file.
        """
        path = self.root / self._at("best.dat").readlink()
        self._kept.add(path.name)
        return path

    def forget_best(self, link: str) -> None:
        """Makes the next evaluation the best by a criterion whose measure has changed.

        Args:
          link: of LINKS.
        """
        self._best.pop(link, None)
        self._own.pop(link, None)

    def _point(self, link: str, name: str) -> None:
        """Moves a link to a new checkpoint."""
        fresh = self.root / f".{link}.new"
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(name)
        fresh.replace(self._at(link))

    def _prune(self) -> None:
        """Deletes the checkpoints that no link needs any more.

        Files of another run are kept: they may be hours of work.
        """
        wanted = {self._at(link).resolve().name for link in LINKS} | self._kept | set(self._own.values())
        for name in self._written - wanted:
            self._drop(self.root / name)
        self._written &= wanted


def _criteria(evaluation: dict[str, Any]) -> dict[str, float]:
    """What the best is chosen by, by the name of its link, of an evaluation as a checkpoint keeps it; {} for none."""
    measures = {"best.dat": "scores", "best-learned.dat": "learned", "best-teacher.dat": "preferred"}
    return {link: float(np.mean(evaluation[name])) for link, name in measures.items() if name in evaluation}
