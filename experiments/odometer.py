"""A teacher of Enduro who sees speed, as a person does. Chance hardly ever passes a car, so that clips differ in nothing else at first.

./online.py -e EnduroNoFrameskip-v4 --teacher experiments.odometer:driven …
"""

import numpy as np

from lib.preferences.segments import Segment
from lib.reward.masks import PRESETS

_DIGIT_WIDTH = 8  # pixels
_MOST_ROWS = 5
"""That the last digit rolls in a step: 4 at full speed."""
_PER_CAR = 10.0


def driven(clip: Segment) -> float:
    """How far the car drives, in rows of pixels by which the odometer's last digit rolls, and 10 for each car passed.

    It rolls down. A step's rows are those by which the earlier picture has to move to fit the later one best.
    """
    x, y, width, height = PRESETS["enduro-speed"]
    digit = clip.frames[:, y : y + height, x + width - _DIGIT_WIDTH : x + width]
    before, after = digit[:-1], digit[1:]
    unlike = [
        (after[:, rows:] != before[:, : height - rows]).any(-1).mean((1, 2)) for rows in range(_MOST_ROWS + 1)
    ]
    cars = 0.0 if clip.sidecar is None else clip.sidecar.scores.sum()
    return float(np.argmin(unlike, axis=0).sum() + _PER_CAR * cars)
