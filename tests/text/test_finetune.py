"""01_text.py --algo: runs, their checkpoints, and how they resume."""

import dataclasses
import itertools
import json
import os
import re
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lib import cli
from lib.cli import UserError
from lib.preferences.answers import Answer
from lib.preferences.segment_db import SegmentDB
from lib.runs import load_state, parse_resumable
from lib.text import memory
from lib.text.config import MAY_DIFFER, TextConfig
from lib.text.evaluation import judges_of
from lib.text.language import load_language_model, merge, read_policy, root_of, save_policy
from lib.text.learner import TextLearner
from lib.text.record import record
from lib.text.reward import (
    Shape,
    TextMember,
    TextRewardModel,
    TextRewardNet,
    load_text_reward,
    save_text_reward,
)
from lib.text.roles import Experience
from lib.text.train import STAGE, finetune
from lib.tools.lineage import lineage_text
from tests.scripts import warm
from tests.text.tiny import save_tiny, tiny, tiny_finetune
from tests.training.test_ranks import in_ranks

CPU = torch.device("cpu")


@pytest.fixture
def config(tmp_path: Path) -> TextConfig:
    return tiny_finetune(tmp_path)


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = load_language_model(folder, CPU).network.state_dict()
    return state


def finetuned(config: TextConfig) -> tuple[Path, Path]:
    """The last checkpoint of a finetune, and the run's folder."""
    checkpoint, run_dir, _ = finetune(config)
    assert checkpoint is not None
    return checkpoint, run_dir


def state_of(run_dir: Path) -> dict[str, Any]:
    state = load_state(run_dir, STAGE)
    assert state is not None
    return state


def publish(config: TextConfig, version: int, upper: int = 2, mean: float = 0.0) -> None:
    """A reward model as 03_reward_train.py --watch would publish it; those of different versions pay differently."""
    assert config.reward is not None
    network = TextRewardNet(load_language_model(config.model, CPU).network.model, Shape(1, upper))
    torch.nn.init.normal_(network.head.weight, generator=torch.Generator().manual_seed(version))
    model = TextRewardModel(load_language_model(config.model, CPU), [TextMember(network, mean, 3.0)])
    save_text_reward(config.reward, model, {}, {"labels": 10 * version}, {}, {"version": version})


@pytest.fixture
def updates(monkeypatch: pytest.MonkeyPatch) -> list[Experience]:
    """What each update has learned from."""
    seen: list[Experience] = []
    learn = TextLearner.learn

    def learning(self: TextLearner, experience: Experience) -> Any:
        seen.append(experience)
        return learn(self, experience)

    monkeypatch.setattr(TextLearner, "learn", learning)
    return seen


def meanwhile(monkeypatch: pytest.MonkeyPatch, happens: Mapping[int, Callable[[], object]]) -> None:
    """Lets something happen within given updates, counted from 1."""
    advance = TextLearner.advance

    def advancing(self: TextLearner) -> Any:
        happens.get(self.updates + 1, lambda: None)()
        return advance(self)

    monkeypatch.setattr(TextLearner, "advance", advancing)


@pytest.mark.slow
def test_a_new_reward_model_pays_from_the_next_update_on(
    config: TextConfig,
    updates: list[Experience],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    reward = tmp_path / "reward.dat"
    reward.unlink()
    watching = dataclasses.replace(config, watch_reward=True, critic_warmup=1, eval_updates=4)
    models: dict[int, TextRewardModel] = {}

    def published(version: int) -> None:
        publish(config, version)
        models[version] = load_text_reward(reward, CPU)

    monkeypatch.setattr("lib.training.newest_reward.time.sleep", lambda seconds: published(1))
    happens = {2: lambda: published(2), 3: lambda: publish(config, 3, upper=1)}
    with monkeypatch.context() as until_resumed:
        meanwhile(until_resumed, happens)
        checkpoint, run_dir = finetuned(watching)
    for version, seen in zip((1, 1, 2, 2), updates, strict=True):
        np.testing.assert_allclose(seen.scores, models[version].rate(seen.answers), atol=1e-5)
    assert not np.allclose(models[1].rate(updates[3].answers), models[2].rate(updates[3].answers), atol=0.1)
    said = capsys.readouterr().out
    assert "waiting for one" in said
    assert "0 steps: loaded reward model 1, of 10 labels" in said
    assert "16 steps: loaded reward model 2, of 20 labels" in said
    assert "expected the layers of the first reward model" in said
    parent = read_policy(checkpoint)["parents"]["reward"]
    assert (parent["version"], parent["parents"]["labels"]) == (2, 20)
    state = state_of(run_dir)
    assert state["parents"]["reward"]["version"] == 2
    assert state["new_reward_at"] == 2

    published(3)
    finetuned(dataclasses.replace(watching, resume=run_dir, updates=5))
    np.testing.assert_allclose(updates[4].scores, models[3].rate(updates[4].answers), atol=1e-5)


def test_without_a_judge_best_forgets_what_another_reward_model_paid(
    config: TextConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(config, 1, mean=-150.0)  # pays 50 more
    meanwhile(monkeypatch, {2: lambda: publish(config, 2)})
    finetune(
        dataclasses.replace(config, watch_reward=True, judge=[], eval_updates=1, eval_best_of=1, updates=3)
    )
    for link in ("best", "best-learned"):
        assert read_policy(tmp_path / "saves" / link)["parents"]["reward"]["version"] == 2


def watches(root: Path) -> list[int]:
    """Which reward model paid in each update of this process."""
    config = cli.parse(TextConfig, json.loads((root / "flags.json").read_text()))
    paid: list[int] = []
    advance = TextLearner.advance

    def advancing(self: TextLearner) -> Any:
        paid.append(self.roles.reward.origin["version"])
        if self.updates == 1 and os.environ["RANK"] == "1":
            publish(config, 2)
        return advance(self)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(TextLearner, "advance", advancing)
        finetune(config)
    return paid


@pytest.mark.slow
def test_all_ranks_take_the_same_reward_model(config: TextConfig, tmp_path: Path) -> None:
    publish(config, 1)
    watching = dataclasses.replace(config, watch_reward=True, save=None, updates=3, eval_updates=9)
    (tmp_path / "flags.json").write_text(json.dumps(cli.words(watching)))
    assert in_ranks(tmp_path, watches, tmp_path) == [[1, 1, 2]] * 2


@pytest.mark.slow
def test_a_run_leaves_small_folders_that_are_models(
    config: TextConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint, run_dir = finetuned(config)
    saved = tmp_path / "saves"
    assert (saved / "latest").resolve() == checkpoint.resolve()
    about = read_policy(saved / "latest")
    assert (about["at"], about["steps"], about["config"]["algo"]) == (2, 32, "ppo")
    assert about["parents"]["policy"]["file"] == str(config.model)
    assert {"scores", "shorter", "learned", "kl", "finished", "distinct_2"} <= about["evaluation"].keys()
    assert about["evaluation"]["scores"] == about["evaluation"]["shorter"]
    before, after = _weights(config.model), _weights(saved / "latest")
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved
    assert all("layers.2" in name or "layers.3" in name or "norm" in name for name in moved)
    said = capsys.readouterr().out
    assert "the upper 2 of 4 layers are trained, 18 prompts and 2 held out" in said
    assert "memory: " in said
    assert "32 answers: shorter " in said
    assert "before" in said
    assert "after" in said
    assert (run_dir / "before-after.html").is_file()

    merge(saved / "latest", tmp_path / "whole")
    assert not (tmp_path / "whole" / "policy.json").exists()
    assert len({path.stat().st_mode for path in (tmp_path / "whole").iterdir()}) == 1
    merged = _weights(tmp_path / "whole")
    assert all(torch.equal(merged[name], after[name]) for name in after)
    with pytest.raises(UserError, match="already exists"):
        merge(saved / "latest", tmp_path / "whole")
    with pytest.raises(UserError, match="is already a whole model"):
        merge(tmp_path / "whole", tmp_path / "another")

    told = lineage_text(saved)
    assert "32" in told
    assert f"finetuned from: language model {config.model}" in told

    # A second round: its answers join those of the first model, and a finetune of it is one of the same root.
    db = tmp_path / "db"
    for model in (config.model, saved / "latest"):
        record(TextConfig(model=model, prompts=config.prompts, db_path=db, tokens=8, answers=1))
    assert len(SegmentDB(db).names) == 40
    assert len({name.rpartition("/")[0] for name in SegmentDB(db).names}) == 20
    again, _ = finetuned(
        dataclasses.replace(config, model=saved / "latest", unfrozen="1", save=tmp_path / "saves2", updates=1)
    )
    about = read_policy(again)
    assert (about["at"], about["folder"]) == (2, str(config.model))
    load_language_model(again, CPU)


@pytest.mark.slow
def test_a_later_run_into_the_same_folder_leaves_checkpoints_and_resumes_when_its_link_moved(
    config: TextConfig, tmp_path: Path
) -> None:
    saved, short = tmp_path / "saves", dataclasses.replace(config, updates=1)
    first, _ = finetuned(short)
    before = (first / "top.safetensors").read_bytes()
    second, run_dir = finetuned(dataclasses.replace(short, model=saved / "latest", seed=5))
    assert (saved / "latest").resolve() == second.resolve() != first.resolve()
    assert (first / "top.safetensors").read_bytes() == before
    assert read_policy(second)["parents"]["policy"]["file"] == str(first)
    again = ["--resume", str(run_dir), "--updates", "2"]
    resumed, _ = finetuned(parse_resumable(TextConfig, MAY_DIFFER, again))
    kept = {path.name for path in saved.glob("model_*")}
    assert {first.name, resumed.name} <= kept <= {first.name, second.name, resumed.name}


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["reinforce", "grpo"])  # rloo: test_dialogues.py
def test_every_algorithm_runs(algo: str, config: TextConfig) -> None:
    answers = 1 if algo == "reinforce" else 4
    changed = dataclasses.replace(
        config, algo=algo, answers=answers, updates=1, unfrozen="all", eval_updates=9
    )
    assert read_policy(finetuned(changed)[0])["at"] == 0


_CALLS = itertools.count()


def ever_worse(answer: Answer) -> float:
    """A judge whom every answer displeases more than those before."""
    return -float(next(_CALLS))


@pytest.mark.slow
def test_a_run_that_a_judge_likes_ever_less_ends_where_asked(
    config: TextConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    judge = ["tests.text.test_finetune:ever_worse"]
    changed = {"judge": judge, "drift_patience": 1, "stop_on_drift": True, "eval_updates": 1, "kl": 0.0}
    checkpoint, _ = finetuned(dataclasses.replace(config, updates=30, **changed))  # type: ignore[arg-type]
    said = capsys.readouterr().out
    assert re.search(r"drift: since \S+ answers the learned return rose .* while the score fell", said)
    assert "stopped by --stop-on-drift" in said
    assert "no checkpoint beat the policy it started from" in said
    assert read_policy(checkpoint)["steps"] < 30 * config.rollout


def killed_in_the_third_update(flags: list[str]) -> None:
    """Lives as a process."""
    step = TextLearner._step

    def stepping(self: TextLearner, *args: Any) -> Any:
        if self.updates == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return step(self, *args)

    pytest.MonkeyPatch().setattr(TextLearner, "_step", stepping)
    torch.set_num_threads(1)
    finetune(cli.parse(TextConfig, flags))


@pytest.mark.slow
def test_a_killed_run_ends_as_if_it_had_not_been(config: TextConfig, tmp_path: Path) -> None:
    """By SIGKILL, in the middle of an update, with a state written before each."""
    whole, whole_run = finetuned(config)
    flags = cli.words(
        dataclasses.replace(config, runs=tmp_path / "killed", save=tmp_path / "k", checkpoint_minutes=0.0)
    )
    killed = warm.Process(target=killed_in_the_third_update, args=(flags,))
    killed.start()
    killed.join()
    assert killed.exitcode == -signal.SIGKILL
    [run_dir] = (tmp_path / "killed").iterdir()
    assert state_of(run_dir)["updates"] == 2
    resumed, resumed_run = finetuned(dataclasses.replace(config, resume=run_dir, save=tmp_path / "k"))
    ends = [state_of(run) for run in (whole_run, resumed_run)]
    for role in ("top", "critic"):
        assert all(torch.equal(value, ends[1][role][name]) for name, value in ends[0][role].items())
    assert ends[0]["examiner"]["readings"] == ends[1]["examiner"]["readings"]
    one, other = _weights(whole), _weights(resumed)
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.slow
def test_what_does_not_fit_is_refused_in_one_line(
    config: TextConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = finetune(dataclasses.replace(config, updates=1))
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"unfrozen": "9"}, "--unfrozen 9: .* has 4 layers"),
        (
            {"judge": ["operator:lt"]},
            "--judge operator:lt: expected a function of one answer, got one of two",
        ),
        ({"judge": ["nobody"]}, "--judge nobody: expected critics, no-questions"),
        ({"judge": ["nowhere:taste"]}, "--judge nowhere:taste: expected package.module:function"),
        (
            {"judge": ["shorter", "elsewhere:shorter"]},
            "--judge elsewhere:shorter: expected another name than shorter, which another figure has",
        ),
        ({"tokens": 255}, "prompt and answer of at most 256 tokens"),
        ({"eval_prompts": Path("nowhere.txt")}, "--eval-prompts nowhere.txt: expected a text file"),
        ({"resume": done.run_dir, "updates": 1}, "its 1 updates are done"),
    )
    for options, match in wrong:
        with pytest.raises(UserError, match=match):
            finetune(dataclasses.replace(config, **options))
    other = save_tiny(tmp_path / "other", initializer_range=0.3)
    with pytest.raises(UserError, match="expected the model of -m that the run began with"):
        finetune(dataclasses.replace(config, resume=done.run_dir, model=other))
    with open(config.prompts, "a") as file:  # one that was held out would be trained on
        file.write("w9\n")
    with pytest.raises(UserError, match="expected the prompts of --prompts that the run began with"):
        finetune(dataclasses.replace(config, resume=done.run_dir))
    monkeypatch.setattr(memory, "_free", lambda device: 1e5)
    with pytest.raises(
        UserError, match=r"memory: 0.0 GB of weights.*too little: take fewer layers \(--unfrozen\)"
    ):
        finetune(config)


@pytest.mark.parametrize(
    ("flags", "match"),
    [
        ("--prompts p", "expected --db-path DB"),
        ("--prompts p --db-path d -r r", "--reward has no effect without --algo: leave it out"),
        ("--prompts p --db-path d --watch-reward", "--watch-reward has no effect without --algo"),
        ("--algo ppo", "--algo ppo expects --name"),
        ("--algo ppo -n x -r r --prompts p --db-path d", "--db-path has no effect with --algo ppo"),
        ("--algo ppo -n x -r r --prompts p --lora 8 --unfrozen 2", "leave out --unfrozen"),
        ("--algo ppo -n x -r r --prompts p --stop-on-drift", "--stop-on-drift expects a judge"),
        ("--algo ppo -n x -r r --prompts p --unfrozen few", 'expected a number of layers, or "all"'),
        ("--algo rloo -n x -r r --prompts p --answers 1", "expected --answers 2 or more"),
        ("--algo grpo -n x -r r --prompts p --rollout 63", "expected a multiple of --answers, 4"),
        (
            "--algo grpo -n x -r r --prompts p --critic-warmup 5",
            "--critic-warmup has no effect with --algo grpo",
        ),
        ("--algo dpo -n x --db-path d --save s --lora 8", "--lora has no effect with --algo dpo"),
        ("--algo dpo -n x --db-path d --save s --judge positive", "--judge has no effect with --algo dpo"),
        ("--algo dpo -n x --db-path d --save s --kl 0", "dpo expects β above 0"),
    ],
)
def test_flags_that_do_not_go_together(flags: str, match: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.parse(TextConfig, ["-m", "m", *flags.split()])
    assert match in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["score", "steps", "scores", "interval", "length", "reward", "run", "agreement", "best_of_4"]
)
def test_a_judge_has_no_other_figures_name(name: str) -> None:
    with pytest.raises(UserError, match=f"expected another name than {name}, which another figure has"):
        judges_of([f"elsewhere:{name}"])


def test_memory_counts_keys_of_their_own_width(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_free", lambda device: float("inf"))
    config = dataclasses.replace(tiny_finetune(tmp_path), tokens=8192, batch_size=10_000, micro_batch=1)
    language = tiny(tmp_path / "wide", "qwen3", head_dim=64)
    network = TextRewardNet(language.network.model, Shape(1, 2))
    reward = TextRewardModel(language, [TextMember(network, 0.0, 1.0)])
    # 81,920,000 tokens × 4 layers × keys and values of 2 heads × 64 × 4 bytes = 335.5 GB, and logits
    assert "about 335.6 GB of activations" in memory.tell_memory(config, language, reward, 2, 0)


def test_hostile_checkpoints_are_refused(tmp_path: Path) -> None:
    language, good = tiny(tmp_path / "model"), tmp_path / "good"
    save_policy(good, language, root_of(language, 2), {})
    about, top = (good / "policy.json").read_text(), (good / "top.safetensors").read_bytes()
    bad = tmp_path / "bad"
    bad.mkdir()
    for changed, weights, match in (
        ("[]", top, "policy.json cannot be read"),
        ("[" * 10**5, top, "policy.json cannot be read"),
        (json.dumps(json.loads(about) | {"at": -1}), top, "policy.json cannot be read"),
        (json.dumps(json.loads(about) | {"at": 1}), top, "expected layers 2 and up"),
        (json.dumps(json.loads(about) | {"folder": str(bad)}), top, "expected upper layers of a whole model"),
        (json.dumps(json.loads(about) | {"weights": "0"}), top, "was finetuned from a model of weights 0"),
        (about, b"\x80\x04}.", "expected layers 3 and up"),
        (about, top[:-4], "expected layers 3 and up"),
    ):
        (bad / "policy.json").write_text(changed)
        (bad / "top.safetensors").write_bytes(weights)
        with pytest.raises(UserError, match=match):
            load_language_model(bad, CPU)


def test_a_reward_model_shares_the_language_model_in_memory(config: TextConfig, tmp_path: Path) -> None:
    language = load_language_model(config.model, CPU)
    assert load_text_reward(tmp_path / "reward.dat", CPU, loaded=language).language is language
