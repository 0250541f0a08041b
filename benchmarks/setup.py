"""How benchmarks measure."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Setup:
    """How to measure, and where to write."""

    folder: Path
    """Empty; whatever is written there is thrown away."""
    dev: str
    quick: bool
    repeats: int
    seconds: float
    """Of each contender in each repeat."""
    num_envs: int | None
    """Environments of ours, where they are not to be the default."""
