"""The flags of 04_play.py. Imports nothing heavy, so that --help is instant."""

from dataclasses import dataclass, fields
from pathlib import Path

from lib.cli import UserError, as_flag, flag
from lib.envs.ids import MAX_SEED


@dataclass(frozen=True)
class PlayConfig:
    """Some games of one policy, answers of a language model, or the lineage of an artefact."""

    model: Path | None = flag(
        "-m",
        group="most used",
        default=None,
        metavar="FILE",
        help="policy checkpoint; with --prompts, a language model's folder",
    )
    games: int = flag("-n", default=5, min=1, help="full games to play")
    record: Path | None = flag(
        "-r", default=None, metavar="DIR", help="record an mp4 of each game here, or a page of the answers"
    )
    reward: Path | None = flag(
        default=None, metavar="FILE", help="reward model; its reward of each step, or answer, is shown"
    )
    env: str | None = flag("-e", default=None, metavar="ID", help="environment (default: the policy's own)")
    reference: bool = flag(
        default=False,
        help="play an Atari game through ptan's wrappers, one frame at a time (slow), for comparison",
    )
    seed: int = flag(default=0, min=0, max=MAX_SEED, help="seed of the games and the actions")

    prompts: Path | None = flag(
        group="answers of a language model",
        default=None,
        metavar="FILE",
        help="answer these prompts, one a line, instead of playing",
    )
    best_of: int = flag(
        default=16, min=1, help="with --prompts: answers to each, of which --reward picks the best"
    )
    tokens: int = flag(default=64, min=1, max=8192, help="with --prompts: longest answer, in tokens")
    chat: bool | None = flag(
        default=None,
        help="with --prompts: put them into the model's chat template (default: if it has one); "
        "--no-chat with --export-jsonl: write texts, not messages",
    )

    info: Path | None = flag(
        group="files, without playing",
        default=None,
        metavar="FILE",
        help="print the lineage of a checkpoint, segment, labels.json, DB or run",
    )
    export_jsonl: list[Path] = flag(
        default=[],
        nargs=2,
        metavar="DB FILE",
        help="write a DB's labels on answers as prompt, chosen, rejected, each a list of messages",
    )
    import_jsonl: list[Path] = flag(
        default=[],
        nargs=2,
        metavar="FILE DB",
        help="add the answers and labels of such a file to DB, or answers alone: prompt, completion",
    )
    export_reward: list[Path] = flag(
        default=[],
        nargs=2,
        metavar="REWARD FOLDER",
        help="write a reward model for text as a Hugging Face folder for sequence classification",
    )

    dev: str = flag(
        group="machine", default="cpu", metavar="DEVICE", help="device of the networks: cpu, cuda, cuda:1"
    )

    def __post_init__(self) -> None:
        alone = [
            name for name in ("info", "export_jsonl", "export_reward", "import_jsonl") if getattr(self, name)
        ]
        if len(alone) > 1:
            raise UserError(f"{as_flag(alone[0])} and {as_flag(alone[1])}: expected one of them at a time")
        if not alone and self.model is None:
            raise UserError("expected -m/--model, got none; see --help")
        if alone and self.model is not None:
            raise UserError(f"{as_flag(alone[0])} plays nothing; leave out -m, or name its file after --info")
        if alone and self.prompts is not None:
            raise UserError(f"{as_flag(alone[0])} asks no model; leave out --prompts")
        unused, mode = ["best_of", "tokens"], "without --prompts"
        if self.prompts is not None:
            unused, mode = ["games", "env", "reference"], "with --prompts"
        elif alone:
            unused, mode = ["games", "env", "reference", "best_of", "tokens"], f"with {as_flag(alone[0])}"
        for field in fields(self):
            if field.name in unused and getattr(self, field.name) != field.default:
                raise UserError(f"{as_flag(field.name)} has no effect {mode}: leave it out")
        if self.prompts is not None and self.reward is None:
            raise UserError("--prompts expects --reward REWARD, a reward model for text")
