"""No way around the careful loaders, and checkpoints of the right kind with the wrong content."""

import ast
from pathlib import Path
from typing import Any

import pytest
import torch

from lib.agent.checkpoints import check_env_of_file, load_policy
from lib.agent.network import PolicyNet
from lib.agent.play_config import PlayConfig
from lib.checkpoints import save_checkpoint
from lib.cli import UserError
from lib.reward.checkpoints import load_reward_model
from lib.tools.play_games import play_games
from tests.reward.models import save_unfitted

ROOT = Path(__file__).parents[1]
SHIPPED = [*ROOT.glob("*.py"), *ROOT.glob("lib/**/*.py"), *ROOT.glob("experiments/**/*.py")]
# The benchmarks time the original's own way of reading, on files that they have just written.
OTHERS = [*ROOT.glob("benchmarks/**/*.py"), *ROOT.glob("tests/**/*.py")]
FORBIDDEN = {
    *("eval", "exec", "__import__", "compile", "os.system", "os.popen", "builtins.eval", "builtins.exec"),
    *(
        f"{module}.{name}"
        for module in ("pickle", "cPickle", "dill", "marshal")
        for name in ("load", "loads")
    ),
    *("pickle.Unpickler", "shelve.open", "joblib.load", "yaml.load", "torch.hub.load", "torch.jit.load"),
    *("np.lib.format.read_array", "runpy.run_path", "importlib.import_module"),
}
# Modules whose functions keep their surname.
HIDING = {"pickle", "marshal", "shelve", "torch", "joblib", "os"}
HIDDEN = {"load", "loads", "Unpickler", "system", "popen", "hub"}


def careless(source: str) -> list[str]:
    """Calls that could run what a file holds."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module in HIDING:
            hidden = {alias.name for alias in node.names} & HIDDEN
            found += [f"from {node.module} import {name}" for name in sorted(hidden)]
        if not (isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Attribute))):
            continue
        name = ast.unparse(node.func)
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        if name in FORBIDDEN:
            found.append(name)
        elif name == "torch.load" and given.get("weights_only") != "True":
            found.append("torch.load without weights_only=True")
        elif name.endswith(".load") and given.get("allow_pickle", "False") != "False":
            found.append(f"{name} with allow_pickle")
        elif "shell" in given and given["shell"] != "False":
            found.append(f"{name} with a shell")
    return found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("torch.load(path)", ["torch.load without weights_only=True"]),
        ("torch.load(path, weights_only=False)", ["torch.load without weights_only=True"]),
        ("torch.load(path, 'cpu', weights_only=safe)", ["torch.load without weights_only=True"]),
        ("torch.load(path, weights_only=True)", []),
        ("from torch import load", ["from torch import load"]),
        ("import pickle\npickle.loads(data)", ["pickle.loads"]),
        ("from pickle import Unpickler", ["from pickle import Unpickler"]),
        ("np.load(path, allow_pickle=True)", ["np.load with allow_pickle"]),
        ("np.load(path)", []),
        ("subprocess.run(line, shell=True)", ["subprocess.run with a shell"]),
        ("model.eval()", []),
        ("eval(text)", ["eval"]),
        ("re.compile(text)", []),
    ],
)
def test_what_counts_as_careless(source: str, found: list[str]) -> None:
    assert careless(source) == found


def test_nothing_that_a_file_holds_can_run() -> None:
    found = {str(path.relative_to(ROOT)): careless(path.read_text("utf-8")) for path in SHIPPED}
    assert len(found) > 40
    # A teacher of the user's own, by the name that was typed; test_teachers.py sees to it that none comes from a file.
    typed = {"lib/preferences/teachers.py": ["importlib.import_module"]}
    assert {path: what for path, what in found.items() if what} == typed


def test_nothing_else_loads_tensors_without_weights_only() -> None:
    sources = {path: path.read_text("utf-8") for path in OTHERS}
    loading = {path: source for path, source in sources.items() if "torch.load" in source}
    assert len(loading) > 5
    for path, source in loading.items():
        assert "torch.load without weights_only=True" not in careless(source), path


WEIGHTS = PolicyNet(4).state_dict()
HEAD = "policy.2.weight"
POLICIES: dict[str, tuple[dict[str, Any], str]] = {
    "none": ({}, "expected weights by name, got none"),
    "a list": ({"state_dict": [1]}, "got a list"),
    "numbers": ({"state_dict": dict.fromkeys(WEIGHTS, 1)}, "got a int as conv.0.weight"),
    "keys": ({"state_dict": {1: torch.zeros(1)}}, "got a Tensor as 1"),
    "a bomb": ({"state_dict": {**WEIGHTS, HEAD: torch.zeros(1).expand(10**9, 512)}}, "plain numbers"),
    "no actions": ({"state_dict": {**WEIGHTS, HEAD: torch.zeros(0, 512)}}, "1 to 1024 actions, got 0"),
    "complex": ({"state_dict": {k: v.to(torch.complex64) for k, v in WEIGHTS.items()}}, "plain numbers"),
    "sparse": ({"state_dict": {**WEIGHTS, HEAD: WEIGHTS[HEAD].to_sparse()}}, "plain numbers"),
    "nan": ({"state_dict": {**WEIGHTS, HEAD: WEIGHTS[HEAD] * float("nan")}}, "weights that are not finite"),
    "version 0": ({"state_dict": WEIGHTS, "format_version": 0}, "got a file that holds"),
    "version true": ({"state_dict": WEIGHTS, "format_version": True}, "got a file that holds"),
}


@pytest.mark.parametrize("name", POLICIES)
def test_policies_with_wrong_content_are_refused(tmp_path: Path, name: str) -> None:
    content, says = POLICIES[name]
    path = tmp_path / "p.dat"
    torch.save({"kind": "policy", "format_version": 1, **content}, path)
    with pytest.raises(UserError, match=r"^\S+p\.dat: ") as refused:
        load_policy(path)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.slow(0)
@pytest.mark.parametrize("config", [None, [1], "x", 3, {"env": 5}, {"env": ""}, {1: 2}], ids=repr)
def test_a_policy_whose_configuration_is_none_is_played_in_the_default_environment(
    tmp_path: Path, config: Any
) -> None:
    path = tmp_path / "p.dat"
    torch.save({"kind": "policy", "format_version": 1, "state_dict": WEIGHTS, "config": config}, path)
    with pytest.raises(UserError, match="a policy for 4 actions, but SeaquestNoFrameskip-v4 has 18 actions"):
        play_games(PlayConfig(model=path))


def test_no_module_is_imported_for_a_files_sake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gymnasium imports the first half of an environment named module:Name-v0."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "planted.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w')")
    path, env = tmp_path / "p.dat", "planted:Name-v0"
    save_checkpoint(path, "policy", {"state_dict": WEIGHTS}, {"env": env}, {})
    with pytest.raises(UserError, match=f"p.dat: names the environment {env}, .*add --env {env}"):
        play_games(PlayConfig(model=path))
    with pytest.raises(UserError, match=r"db: names the environment planted:Name-v0, .*add --audit-env"):
        check_env_of_file(env, tmp_path / "db", "--audit-env")
    assert not (tmp_path / "mark").exists()
    with pytest.raises(UserError, match="no environment"):
        play_games(PlayConfig(model=path, env=env))  # named by whoever plays, it is
    assert (tmp_path / "mark").exists()
    check_env_of_file("lib.envs.moving_dot:MovingDot-v0", path, "--env")  # is imported anyway


WRONG: dict[str, list[Any]] = {
    "frame_shape": [None, "abc", [1, 2], [-48, 48, 3], [48.0, 48.0, 3], [10**5, 10**5, 3]],
    "num_actions": [None, "4", -4, 10**9, True],
    "members": [None, [], [1], 3],
    "mean": [None, "x", float("nan")],
    "std": [None, "x", float("nan"), 0.0, -1.0],
    "state_dict": [None, [1], {"a": 1}],
    "masks": ["abc", [[1]], [[-5, 0, 3, 3]], [[0, 0, 10**9, 1]]],
    "disagreement": ["x", [], float("nan")],
    "input": [[1], "smell"],
}
REWARDS = [(key, value) for key, values in WRONG.items() for value in values]


@pytest.mark.slow(0)
@pytest.mark.parametrize(("key", "value"), REWARDS, ids=[f"{key} {value!r}"[:40] for key, value in REWARDS])
def test_reward_models_with_wrong_content_are_refused(tmp_path: Path, key: str, value: Any) -> None:
    path = save_unfitted(tmp_path / "r.dat", (48, 48, 3), 4)
    content = torch.load(path, weights_only=True)
    load_reward_model(path)
    inner = content["members"][0] if key in content["members"][0] else content
    inner[key] = value
    torch.save(content, path)
    with pytest.raises(UserError, match=r"^\S+r\.dat: ") as refused:
        load_reward_model(path)
    assert "\n" not in str(refused.value)


def test_what_a_checkpoint_need_not_say_may_be_missing(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "p.dat", "policy", {"state_dict": WEIGHTS}, {}, {})
    assert load_policy(tmp_path / "p.dat")[0].spec.num_actions == 4
