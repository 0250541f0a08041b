"""Rectangles of the picture that a reward model must not see, such as the score. Nothing heavy is imported here."""

from lib.cli import UserError

Mask = tuple[int, int, int, int]
"""Left column, top row, width and height, in pixels of the frame."""

PRESETS: dict[str, Mask] = {
    "seaquest-score": (56, 8, 52, 10),
    "seaquest-lives": (56, 21, 52, 10),
    "pong-score": (16, 1, 112, 20),
    "breakout-score": (36, 5, 44, 10),
    "breakout-lives": (100, 5, 12, 10),
    "qbert-score": (33, 6, 40, 9),
    "beamrider-score": (60, 10, 48, 8),
    "beamrider-lives": (32, 182, 114, 9),
    "enduro-speed": (56, 164, 48, 9),  # the odometer: how fast its last digits roll tells the speed
    "enduro-score": (48, 161, 64, 30),  # the panel with distance, day and cars to pass
}
"""By `<game>-<what is hidden>`, on native Atari frames (210×160). Found by changing the games' memory and looking at
what changes in the picture. Space Invaders has none: its saucer flies through the digits of the score."""


def read_mask(text: str) -> Mask:
    """A rectangle from `X,Y,W,H` or the name of a preset.

    Raises:
      UserError: it is neither.
    """
    if text in PRESETS:
        return PRESETS[text]
    try:
        x, y, width, height = (int(part) for part in text.split(","))
    except ValueError:
        raise UserError(
            f"--mask {text}: expected X,Y,W,H in pixels, such as 56,8,52,10, or one of {', '.join(PRESETS)}"
        ) from None
    if min(x, y) < 0 or min(width, height) < 1:
        raise UserError(
            f"--mask {text}: expected a left column and a top row of at least 0, a width and a height of at least 1"
        )
    return x, y, width, height


def masks_for(texts: list[str], frame_shape: tuple[int, int, int], env_id: str) -> tuple[Mask, ...]:
    """The rectangles to hide in frames of an environment.

    Args:
      texts: as `read_mask` takes them.
      frame_shape: (H, W, 3).
      env_id: the environment; "" where it is not known.

    Raises:
      UserError: one does not lie within the frame, or is a preset of another game.
    """
    masks = []
    for text in texts:
        x, y, width, height = read_mask(text)
        game = text.split("-")[0]
        if text in PRESETS and env_id and game not in env_id.lower():
            raise UserError(f"--mask {text}: a preset of {game}, but the clips are of {env_id}; give X,Y,W,H")
        if y + height > frame_shape[0] or x + width > frame_shape[1]:
            raise UserError(
                f"--mask {text}: expected a rectangle within frames of {frame_shape[0]} rows and {frame_shape[1]} "
                f"columns, got one that reaches row {y + height} and column {x + width}"
            )
        masks.append((x, y, width, height))
    return tuple(masks)
