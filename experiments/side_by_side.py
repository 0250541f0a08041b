"""Two policies at play, side by side, as one moving picture (animated WebP).

.venv/bin/python -m experiments.side_by_side V0 V1 --captions "v0" "v1, after 250 comparisons" --out v0-v1.webp
"""

import io
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from lib import cli
from lib.agent.checkpoints import check_env_of_file, check_policy, env_of, load_policy
from lib.cli import UserError, flag
from lib.envs.ids import MAX_SEED
from lib.envs.make import make_world
from lib.envs.play import play
from lib.envs.world import STEPS_PER_SECOND
from lib.files import write_atomic

_WIDTH = 320  # of either picture, about, in pixels
_GAP = 12
_TEXT = 16
_INK, _GROUND = (220, 224, 230), (24, 27, 33)  # legible on light and dark pages


@dataclass(frozen=True)
class SideBySideConfig:
    """Who plays, and what the picture says."""

    left: Path = flag(positional=True, help="policy checkpoint")
    right: Path = flag(positional=True, help="another, for the same environment")
    captions: list[str] = flag(nargs=2, metavar="TEXT TEXT", help="captions below the two pictures")
    out: Path = flag(metavar="FILE", help="animated WebP to write")
    seconds: float = flag(default=12.0, min=0.1, help="seconds of play; when a game ends, the next begins")
    env: str | None = flag("-e", default=None, metavar="ID", help="environment (default: the left policy's)")
    seed: int = flag(
        default=0, min=0, max=MAX_SEED, help="seed of the games and the actions, the same for both"
    )


def played(policy: Path, env: str, steps: int, seed: int) -> Iterator[np.ndarray]:
    """The frames of a policy's games, one game after the other, uint8 `[H, W, 3]` each.

    Raises:
      UserError: no policy there, or one of another environment.
    """
    network, _ = load_policy(policy)
    with closing(make_world(env, num_envs=1)) as world:
        check_policy(network, world, policy)
        for turn in play(world, network.eval().acting(), seed, torch.device("cpu"), steps):
            yield turn.step.frames[0].copy()


def beside(left: np.ndarray, right: np.ndarray, captions: Sequence[str]) -> Image.Image:
    """Two frames, uint8 `[H, W, 3]`, enlarged by whole pixels, with a centred caption below each."""
    scale = max(1, _WIDTH // left.shape[1])
    height, width = left.shape[0] * scale, left.shape[1] * scale
    font = ImageFont.load_default(_TEXT)
    texts = [_wrapped(caption, font, width) for caption in captions]
    below = (_TEXT + 6) * max(text.count("\n") + 1 for text in texts) + _GAP
    picture = Image.new("RGB", (2 * width + _GAP, height + below), _GROUND)
    draw = ImageDraw.Draw(picture)
    for number, (frame, text) in enumerate(zip((left, right), texts, strict=True)):
        x = number * (width + _GAP)
        picture.paste(Image.fromarray(np.repeat(np.repeat(frame, scale, 0), scale, 1)), (x, 0))
        draw.multiline_text(
            (x + width / 2, height + 6), text, _INK, font, anchor="ma", align="center", spacing=6
        )
    return picture


def _wrapped(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int) -> str:
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and font.getlength(longer) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return "\n".join(lines)


def side_by_side(config: SideBySideConfig) -> None:
    """Plays both and writes the picture.

    Raises:
      UserError: something about the flags or the files that the user can mend.
    """
    env = config.env
    if env is None:
        env = env_of(load_policy(config.left)[1])
        check_env_of_file(env, config.left, "--env")
    steps = round(config.seconds * STEPS_PER_SECOND)
    left, right = (played(policy, env, steps, config.seed) for policy in (config.left, config.right))
    first, *others = (beside(*frames, config.captions) for frames in zip(left, right, strict=True))
    file = io.BytesIO()
    options = {"duration": 1000 // STEPS_PER_SECOND, "loop": 0, "lossless": True, "quality": 100, "method": 4}
    first.save(file, "webp", save_all=True, append_images=others, **options)
    try:
        write_atomic(config.out, file.getvalue())
    except OSError as error:
        raise UserError(f"--out {config.out}: could not write the picture: {error.strerror}") from error
    print(f"{config.out}: {config.seconds:g} seconds of {env}, {file.tell() / 1e6:.2f} MB")


def main(argv: Sequence[str] | None = None) -> None:
    side_by_side(cli.parse(SideBySideConfig, argv, description=(__doc__ or "").splitlines()[0]))


if __name__ == "__main__":
    cli.run(main)
