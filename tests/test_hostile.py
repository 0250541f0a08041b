"""No way around the careful loaders: what the code calls, read from its syntax."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# The benchmarks time the original's own way of reading, on files that they have just written.
SHIPPED = [*ROOT.glob("*.py"), *ROOT.glob("lib/**/*.py"), *ROOT.glob("experiments/**/*.py")]
EVERYTHING = [*SHIPPED, *ROOT.glob("benchmarks/**/*.py"), *ROOT.glob("tests/**/*.py")]
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
HIDING = {
    "pickle",
    "marshal",
    "shelve",
    "torch",
    "joblib",
    "os",
}  # modules whose functions keep their surname


def calls(source: str) -> Iterator[tuple[str, ast.Call]]:
    """Every call of a name, dotted names included."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Attribute)):
            yield ast.unparse(node.func), node


def careless(source: str) -> list[str]:
    """Calls that could run what a file holds."""
    found = []
    for name, call in calls(source):
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
        if name in FORBIDDEN:
            found.append(name)
        elif name == "torch.load" and given.get("weights_only") != "True":
            found.append("torch.load without weights_only=True")
        elif name.endswith(".load") and given.get("allow_pickle", "False") != "False":
            found.append(f"{name} with allow_pickle")
        elif "shell" in given and given["shell"] != "False":
            found.append(f"{name} with a shell")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module in HIDING:
            hidden = {alias.name for alias in node.names} & {
                "load",
                "loads",
                "Unpickler",
                "system",
                "popen",
                "hub",
            }
            found += [f"from {node.module} import {name}" for name in sorted(hidden)]
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
    assert {path: what for path, what in found.items() if what} == {}


def test_nothing_anywhere_loads_tensors_without_weights_only() -> None:
    loads = 0
    for path in EVERYTHING:
        for name, call in calls(path.read_text("utf-8")):
            if name == "torch.load":
                loads += 1
                assert any(
                    keyword.arg == "weights_only" and ast.unparse(keyword.value) == "True"
                    for keyword in call.keywords
                ), path
    assert loads > 5
