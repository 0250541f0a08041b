"""Policy checkpoints: one folder keeps the best by mean score and the latest."""

from pathlib import Path
from typing import Any

from lib.agent.evaluate import Evaluation
from lib.agent.network import PolicyNet, policy_from_state
from lib.cli import UserError
from lib.runs import load_checkpoint, save_checkpoint


def load_policy(path: Path) -> tuple[PolicyNet, dict[str, Any]]:
    """A policy from a checkpoint of ours or a bare state_dict of the original's.

    Returns:
      The network on the CPU, and what the checkpoint says of itself (`config`, `steps`, …; {} for a bare one).

    Raises:
      UserError: no readable policy there; says what was expected and what came.
    """
    payload = load_checkpoint(path, "policy")
    network = policy_from_state(payload["state_dict"], str(path))
    return network, {} if payload.get("bare") else payload


def check_actions(network: PolicyNet, num_actions: int, path: Path, env_id: str) -> None:
    """Refuses a policy of another action set.

    Raises:
      UserError: says how many actions each side has.
    """
    if network.num_actions != num_actions:
        raise UserError(
            f"{path}: a policy of {network.num_actions} actions, but {env_id} has {num_actions}; "
            f"take the policy of this environment, or name its own with --env"
        )


class CheckpointFolder:
    """`model_<step>-rw=<score>-steps=<steps>.dat` files, of which at most two are kept.

    `best.dat` and `latest.dat` are symbolic links to them, for scripts and for the next stage.
    """

    def __init__(self, root: Path) -> None:
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"--save {root}: expected a folder to write to: {error.strerror}") from error
        self._root = root
        self._best_score = -float("inf")
        self._written: set[str] = set()

    def save(
        self,
        network: PolicyNet,
        steps: int,
        games: Evaluation,
        config: dict[str, Any],
        parents: dict[str, Any],
        evaluated: bool = True,
    ) -> Path:
        """Writes a checkpoint as the latest, and as the best where its mean score is the highest so far.

        Args:
          network: the policy.
          steps: how long it was trained.
          games: what its file name tells.
          config: the configuration of the run.
          parents: what it came from.
          evaluated: whether the games are an evaluation of these very weights; others never make a best.

        Raises:
          UserError: the folder cannot be written to.
        """
        score = float(games.scores.mean())
        name = f"model_{steps:06d}-rw={score:.0f}-steps={games.steps.mean():.0f}.dat"
        try:
            save_checkpoint(
                self._root / name,
                "policy",
                {
                    "state_dict": {key: value.cpu() for key, value in network.state_dict().items()},
                    "steps": steps,
                    "num_actions": network.num_actions,
                    "evaluation": {
                        "scores": games.scores.tolist(),
                        "steps": games.steps.tolist(),
                        **{measure: values.tolist() for measure, values in games.measures.items()},
                    }
                    if evaluated
                    else {},
                },
                config,
                parents,
            )
            self._written.add(name)
            if evaluated and score > self._best_score:
                self._best_score = score
                self._point("best.dat", name)
            self._point("latest.dat", name)
        except OSError as error:
            raise UserError(f"--save {self._root}: could not write {name}: {error.strerror}") from error
        return self._root / name

    def _point(self, link: str, name: str) -> None:
        """Moves a link to a new checkpoint and drops the old one unless the other link still wants it.

        What an earlier run left in the folder is not dropped: it may be hours of work.
        """
        path = self._root / link
        old = path.readlink() if path.is_symlink() else None
        fresh = self._root / f".{link}.new"
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(name)
        fresh.replace(path)
        wanted = {(self._root / other).resolve().name for other in ("best.dat", "latest.dat")}
        if old is not None and old.name in self._written - wanted:
            (self._root / old.name).unlink(missing_ok=True)
