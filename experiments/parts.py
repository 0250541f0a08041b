"""What each part of `experiments.skill`'s first round is worth: the round as it is, and with one part changed at a time.

v0 learns from the score, clips fork from its play and are compared, v1 is fitted to the comparisons, and v2 learns by PPO from
the score and a reward model of them. What comes before the changed part is shared. Ends in parts.md. The same command
continues after the last finished stage; it may name more arms.

    .venv/bin/python -m experiments.parts [--arms all no-events …] [-m V0] [--seed 0]
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.air import table
from experiments.pipeline import Pipeline, settle
from experiments.skill import RoundConfig, Stages
from lib import cli
from lib.cli import flag


@dataclass(frozen=True)
class Arm:
    """A round, by what is changed in it."""

    title: str
    v0: dict[str, Any] = field(default_factory=dict)
    """Flags of 01_a2c.py for v0."""
    clips: dict[str, Any] = field(default_factory=dict)
    """Arguments of `Stages.compare`."""
    v2: dict[str, Any] = field(default_factory=dict)
    """Flags of 01_a2c.py for v2."""
    kl_to_v0: bool = False
    """Whether v2's KL penalty refers to v0 in place of v1."""


ARMS = {
    "all": Arm("the round as it is"),
    "no-hold": Arm(
        "no held actions, in v0, clips and v2",
        v0={"hold_prob": 0.0},
        clips={"hold_prob": 0.0},
        v2={"hold_prob": 0.0},
    ),
    "old-teacher": Arm("teacher `seaquest` in place of `air`", clips={"teacher": "seaquest"}),
    "no-events": Arm(
        "as many clips, from random moments alone",
        clips={"event_prob": 0.0, "kinds": None, "record_prob": 0.006},
    ),
    "offset-0": Arm("reward offset 0", v2={"reward_offset": 0.0}),
    "kl-1": Arm("KL penalty 1 to v1", v2={"kl": 1.0}),
    "kl-0.2": Arm("KL penalty 0.2 to v1", v2={"kl": 0.2}),
    "kl-0.2-v0": Arm("KL penalty 0.2 to v0", v2={"kl": 0.2}, kl_to_v0=True),
}


@dataclass(frozen=True)
class PartsConfig(RoundConfig):
    """How much of everything, and which arms."""

    out: Path = flag(default=Path("runs/parts"), help="folder for everything it makes")
    arms: list[str] = flag(default=list(ARMS), choices=tuple(ARMS), metavar="ARM", help="rounds to compare")
    model: Path | None = flag(
        "-m", default=None, metavar="FILE", help="v0 of all arms but no-hold (default: trained here)"
    )


def compare_arms(config: PartsConfig, stages: Stages) -> dict[str, dict[str, list[float]]]:
    """Runs what is missing of each arm.

    Returns:
      The measures of each policy's games, by name.

    Raises:
      TimeUp, UserError, KeyboardInterrupt: see `Pipeline.run`.
    """
    rows = {}
    for name in config.arms:
        arm = ARMS[name]
        # What is not changed is that of the whole round.
        of_v0, of_clips, of_v2 = (
            f"{name}-" if changed else "" for changed in (arm.v0, arm.v0 or arm.clips, name != "all")
        )
        v0 = config.model if config.model and not of_v0 else stages.v0(f"{of_v0}v0", **arm.v0)
        clips: dict[str, Any] = {"kinds": "alarm", "record_prob": 0.0015, **arm.clips}
        db = stages.compare(f"{of_clips}1", v0, **clips)
        v1 = stages.dpo(f"{of_clips}v1", v0, db)
        learning = arm.v2 | ({"kl_reference": v0} if arm.kl_to_v0 else {})
        v2 = stages.learned(f"{of_v2}v2", v1, stages.climbs(f"{of_clips}climbs", db), 0.03, **learning)
        for version, policy in ((f"{of_v0}v0", v0), (f"{of_clips}v1", v1), (f"{of_v2}v2", v2)):
            rows[version] = stages.games(version, policy)
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    config = cli.parse(PartsConfig, argv, description=(__doc__ or "").splitlines()[0])
    settle(config, "arms")
    rows = compare_arms(config, Stages(config, Pipeline(config.out, config.max_minutes)))
    arms = "\n".join(f"- {name}: {ARMS[name].title}" for name in config.arms)
    page = f"{table(rows, config.games)}\n\n{arms}\n"
    (config.out / "parts.md").write_text(page)
    print(page)


if __name__ == "__main__":
    cli.run(main)
