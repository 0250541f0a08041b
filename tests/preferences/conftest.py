import numpy as np
import pytest

from lib.preferences.segments import Segment, Sidecar


@pytest.fixture
def segment() -> Segment:
    """A small segment with a sidecar, every array different at every step."""
    rng = np.random.default_rng(7)
    steps = 6
    return Segment(
        frames=rng.integers(0, 256, (steps, 5, 4, 3), dtype=np.uint8),
        actions=np.arange(steps, dtype=np.int64),
        sidecar=Sidecar(
            scores=np.array([0, 20, -1, 0.5, 0, 7], np.float32),
            life_lost=np.array([0, 0, 1, 0, 0, 0], np.bool_),
            game_over=np.array([0, 0, 0, 0, 0, 1], np.bool_),
            env_id="SeaquestNoFrameskip-v4",
            num_actions=18,
            policy="v0/model_000012-rw=460-steps=580.dat",
            step=1234,
        ),
    )
