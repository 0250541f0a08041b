"""Which folder of lib may import which."""

import ast
from pathlib import Path

LIB = Path(__file__).parents[1] / "lib"
ORDER = ("envs", "preferences", "reward", "agent", "training", "text", "label_ui", "tools")
"""Each folder imports only those before it."""


def imported(path: Path) -> list[str]:
    """The folders of lib that a module imports anywhere in it, in functions as well."""
    modules: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules += [f"{node.module}.{alias.name}" for alias in node.names]
    folders = [module.split(".")[1] for module in modules if module.startswith("lib.")]
    return [folder for folder in folders if folder in ORDER]


def test_imports_run_one_way() -> None:
    assert {path.name for path in LIB.iterdir() if (path / "__init__.py").exists()} == set(ORDER)
    wrong = []
    for path in sorted(LIB.rglob("*.py")):
        folder = path.relative_to(LIB).parts[0]
        allowed = ORDER[: ORDER.index(folder) + 1] if folder in ORDER else ("envs",)
        wrong += [f"{path}: {name}" for name in imported(path) if name not in allowed]
    assert wrong == []


def test_tools_and_label_ui_do_not_import_each_other() -> None:
    wrong = [path for path in (LIB / "tools").rglob("*.py") if "label_ui" in imported(path)]
    assert wrong == []
