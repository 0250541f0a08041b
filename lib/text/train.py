"""01_text.py --algo: puts the finetune of a language model together, and runs it."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from lib.agent.checkpoints import CheckpointFolder
from lib.agent.evaluate import Evaluation
from lib.agent.finetune_metrics import BY_REWARD
from lib.checkpoints import storable
from lib.cli import UserError
from lib.devices import resolve_bf16
from lib.interrupt import Interrupt
from lib.learner import Advance, Learner
from lib.provenance import made_by
from lib.reporting import Progress, format_count
from lib.reward.live import LiveReward
from lib.text.config import TextConfig
from lib.text.evaluation import AnswersMeasure, judges_of, side_by_side
from lib.text.language import LanguageModel, Root, load_language_model, read_policy, root_of, save_policy
from lib.text.layers import above
from lib.text.learner import EncodedPrompt, LearnerSettings, TextLearner
from lib.text.memory import tell_memory
from lib.text.record import read_prompts
from lib.text.reward import TextRewardModel, above_states, load_text_reward, trunk_states
from lib.text.roles import kind_of
from lib.training import loop
from lib.training.charts import LOG_SECONDS, ChartsHook
from lib.training.checkpoints import Checkpoints
from lib.training.drift import DRIFTED, Drift, best_of_run
from lib.training.evaluation import EvaluationHook
from lib.training.loop import Hook, Stop
from lib.training.newest_reward import NewestReward
from lib.training.parts import Trained, connect, open_charts, run_folder, set_up, state_to_resume
from lib.training.ranks import joined
from lib.training.recording import Recording

STAGE = "01_text.py"


class TextFolder(CheckpointFolder):
    """`model_<answers>-<run>` folders of `lib.text.language.save_policy`, and the links best, best-learned and latest.

    Args:
      root: where to.
      base: the model that all of them are finetuned from.
    """

    suffix = ""

    def __init__(self, root: Path, base: Root) -> None:
        super().__init__(root)
        self._base = base

    def _name(self, steps: int, games: Evaluation) -> str:
        return f"model_{steps:06d}-{self.run}"

    def _write(self, path: Path, policy: Any, **about: Any) -> None:
        save_policy(path, policy, self._base, storable({**about, **made_by()}))

    def _read(self, path: Path) -> dict[str, Any]:
        return read_policy(path)

    def _drop(self, path: Path) -> None:
        shutil.rmtree(path, ignore_errors=True)


class Words(Hook):
    """The last update's part of the progress line."""

    def __init__(self) -> None:
        self._last: dict[str, torch.Tensor | float] = {}

    def after(self, learner: Learner, made: Advance) -> None:
        self._last = made.scalars

    def words(self) -> str:
        if not self._last:
            return ""
        learned, kl, tokens = (float(self._last[name]) for name in ("learned", "kl_ref", "tokens"))
        return f"  learned {learned:.2f}  KL {kl:.2f}  {tokens:.0f} tokens"


def finetune(config: TextConfig) -> Trained:
    """Finetunes a language model on a learned reward as the configuration says, or resumes a run.

    A resumed run on a CPU ends with the same weights as an uninterrupted one.

    Several processes that torchrun has started learn together (`lib.training.ranks`): each answers its share of the
    prompts of an update and learns from these. The first one does all the rest.

    Raises:
      UserError: the flags, a file, the memory or the disk are insufficient; says what to do.
    """
    if config.model.is_symlink():  # such as saves/latest, which --save saves moves
        config = dataclasses.replace(config, model=config.model.parent / config.model.readlink())
    assert config.name is not None
    assert config.reward is not None
    with contextlib.ExitStack() as stack:
        ranks = stack.enter_context(joined(config.dev))
        first = ranks.rank == 0
        if ranks.size > config.rollout // config.answers:
            raise UserError(
                f"--rollout {config.rollout}: expected at least one prompt for each of the {ranks.size} "
                "processes of torchrun"
            )
        device = set_up(config.dev, 0, config.seed)
        state = state_to_resume(config, STAGE, stack, first, "updates")
        judges = judges_of(config.judge)
        bf16 = resolve_bf16(config.bf16, device)
        language = load_language_model(config.model, device, bf16, config.chat)
        stop = Stop(stack.enter_context(Interrupt()))
        progress = stack.enter_context(Progress(quiet=not first))
        recording = Recording(None, stop)
        load = _reward_loader(language, device, bf16)
        newest = None
        parents: dict[str, Any] = {"policy": {"file": str(config.model), "weights": language.weights}}
        if config.watch_reward:

            def pay_by(model: Any) -> None:
                another = checkpoints.use_reward(model)
                learner.use_reward(model, another)
                evaluation.use_reward(model, another, BY_REWARD if judges else ("score", *BY_REWARD))
                if another and not judges and folder is not None:  # the score is a learned reward, too
                    folder.forget_best("best.dat")

            live = LiveReward(config.reward, load=load)
            newest = NewestReward(config, live, recording, progress, stop, pay_by, ranks)
            reward = newest.first()
        else:
            reward = load(config.reward)
            parents["reward"] = {"file": str(config.reward), **reward.origin}
        prompts, held_out = _prompts(config, language)
        texts = json.dumps([[prompt.prompt for prompt in column] for column in (prompts, held_out)])
        digest = hashlib.sha256(texts.encode()).hexdigest()[:16]
        parents["prompts"] = {"file": str(config.prompts), "texts": digest}
        if state is not None:
            _check_same(config, parents, state["parents"])
            parents = state["parents"]
        at, said = _cut(config, language, prompts[0])
        root = root_of(language, at, config.lora)
        memory = tell_memory(config, language, reward, at, max(len(p.tokens) for p in (*prompts, *held_out)))
        fields = {field.name for field in dataclasses.fields(LearnerSettings)} - {"lr_decay"}
        settings = LearnerSettings(
            **{name: getattr(config, name) for name in fields}, lr_decay=config.updates
        )
        learner = TextLearner(
            language, at, reward, prompts, settings, bf16, lambda: stop.asked, ranks, config.lora
        )

        run_dir = run_folder(config, config.algo or "", ranks, stack)
        folder = None if config.save is None or not first else TextFolder(config.save, root)
        charts = open_charts(config, run_dir, state, first, stack)
        progress.line(
            f"{config.model}: {said}, {len(prompts)} prompts and {len(held_out)} held out, on {device}, "
            f"curves in {run_dir}"
        )
        progress.line(memory)
        if state is not None:
            progress.line(f"resuming after {format_count(state['steps'])} answers")

        monitor = ChartsHook(config, charts, progress, LOG_SECONDS, "answers")
        checkpoints = Checkpoints(config, run_dir, folder, parents, device, monitor, recording, STAGE)
        measure = AnswersMeasure(
            learner, held_out, judges, config.eval_answers, config.eval_best_of, config.seed
        )
        evaluation = EvaluationHook(config, measure, charts, progress, monitor, checkpoints, stop)
        drift = Drift(config, evaluation, checkpoints, progress, stop)
        hooks: list[Hook] = [checkpoints, drift, evaluation, recording, Words(), monitor] if first else []
        if newest is not None:
            hooks.insert(0, newest)
        connect(hooks, learner, monitor, checkpoints, state, device)
        loop.run(learner, hooks, config.steps, stop, ranks.together)
        if first and not stop.asked:
            side_by_side(config, learner, held_out, run_dir, progress)
        stopped = ranks.together(stop.asked)  # torchrun ends the others when one has failed
        where = f"saved {checkpoints.saved}" if checkpoints.saved else "no policy saved: no --save"
        # Learned rewards of two models, which are the score where there is no judge, have no common unit.
        if checkpoints.saved and not stopped and (judges or newest is None):
            where += f"; {best_of_run(evaluation, config, checkpoints.saved.parent / 'best')}"
        if stopped:
            progress.line(f"stopped by request, {where}; resume with --resume {run_dir}")
        else:
            progress.line(f"stopped by {DRIFTED}, {where}" if stop.reason else where)
        return Trained(checkpoints.saved, run_dir, stopped)


def _reward_loader(
    language: LanguageModel, device: torch.device, bf16: bool
) -> Callable[[Path], TextRewardModel]:
    """What reads the reward models of a run; all of them are to consist of the layers that the first one has."""
    began: tuple[LanguageModel, dict[str, Any]] | None = None

    def load(path: Path) -> TextRewardModel:
        nonlocal began
        reward = load_text_reward(path, device, bf16, loaded=language if began is None else began[0])
        kind = kind_of(reward)
        if reward.language.vocabulary != language.vocabulary:
            raise UserError(
                f"{path}: expected a reward model on the vocabulary of {language.folder}, got one on that of "
                f"{reward.language.folder}"
            )
        if began is not None and kind != began[1]:
            raise UserError(f"{path}: expected the layers of the first reward model, {began[1]}, got {kind}")
        began = reward.language, kind
        return reward

    return load


def _prompts(config: TextConfig, language: LanguageModel) -> tuple[list[EncodedPrompt], list[EncodedPrompt]]:
    """Those to train on, and those held out."""
    texts = read_prompts(config.prompts)
    if config.eval_prompts is not None:
        held_out = read_prompts(config.eval_prompts, "--eval-prompts")
        left_out = set(held_out)
        texts = [text for text in texts if text not in left_out]
    else:
        kept = len(texts) - max(1, len(texts) // 10)
        texts, held_out = texts[:kept], texts[kept:]
    if not texts:
        raise UserError(
            f"--prompts {config.prompts}: expected prompts to train on beside those held out, found none"
        )
    train, test = (
        [EncodedPrompt(text, tuple(language.encode(text))) for text in column] for column in (texts, held_out)
    )
    for prompt in (*train, *test):
        language.check_room(prompt.tokens, config.tokens)
    return train, test


def _check_same(config: TextConfig, now: dict[str, Any], began: dict[str, Any]) -> None:
    """Refuses other models and prompts than the run began with, whatever their names."""
    for what, flag, role, key in (
        ("model", "-m", "policy", "weights"),
        ("model", "-r", "reward", "created"),
        ("prompts", "--prompts", "prompts", "texts"),
    ):
        if role not in now or role not in began:  # --watch-reward takes any; older states name no prompts
            continue
        made = [parents[role].get(key) for parents in (began, now)]
        if made[0] != made[1]:
            raise UserError(
                f"--resume {config.resume}: expected the {what} of {flag} that the run began with, of {made[0]}, "
                f"but {now[role]['file']} is of {made[1]}"
            )


@torch.no_grad()
def _cut(config: TextConfig, language: LanguageModel, prompt: EncodedPrompt) -> tuple[int, str]:
    """The number of frozen layers, and a line about them."""
    base = language.network.model
    count = len(base.layers)
    if config.lora:
        if config.lora > language.network.config.hidden_size:
            raise UserError(
                f"--lora {config.lora}: expected a rank below the width of {config.model}, "
                f"{language.network.config.hidden_size}"
            )
        return 0, f"adapters of rank {config.lora} on the {count} layers are trained"
    upper = count if config.unfrozen == "all" else int(config.unfrozen)
    if upper > count:
        raise UserError(
            f'--unfrozen {config.unfrozen}: {config.model} has {count} layers; take fewer, or "all"'
        )
    at = count - upper
    spoken = [(prompt.tokens, prompt.tokens)]
    tokens = torch.tensor([[*prompt.tokens, *prompt.tokens]], device=language.device)
    whole = base(input_ids=tokens, use_cache=False).last_hidden_state.float()
    parts = above_states(above(base, at), trunk_states(base, [at], spoken)[at]).float()
    if not torch.allclose(parts, whole, atol=1e-3 * float(whole.abs().max())):
        return 0, f"all {count} layers are trained, because the upper ones cannot be separated from the rest"
    return at, f"the upper {upper} of {count} layers are trained"
