"""04_play.py --info: the lineage of everything that the stages write."""

import json
import os
import pickle
import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lib import checkpoints, provenance, runs
from lib.cli import UserError
from lib.preferences import labels
from lib.preferences.answers import Answer, save_answer
from lib.preferences.labels import Label, LabelLog
from lib.preferences.segments import save_segment
from lib.tools.lineage import lineage_text
from tests.reward.clips import clip, grey_db

SCRIPT = Path(__file__).parents[2] / "04_play.py"


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints that all say the same of when and with what they were made."""
    monkeypatch.setattr(provenance, "versions", lambda: {"python": "3.11.7", "torch": "2.0"})
    monkeypatch.setattr(provenance, "git_commit", lambda: "c0ffee")
    monkeypatch.setattr(provenance, "now", lambda: "2026-01-02T03:04:05+00:00")


MADE = ["made 2026-01-02T03:04:05+00:00 by commit c0ffee", "with python 3.11.7, torch 2.0"]


def checkpoint(
    path: Path, kind: str = "policy", parents: Any = None, config: Any = None, **payload: Any
) -> Path:
    checkpoints.save_checkpoint(path, kind, payload, config or {}, parents or {})
    return path


def grown(root: Path) -> Path:
    """v2, finetuned from v1 on a reward model of two DBs; v1 came from v0. Paths are those of `root`."""
    grey_db(root / "db", 6, 12)
    log = LabelLog(root / "db" / "labels.json")
    log.append(
        Label("00/00000000.dat", "01/00000001.dat", 1, teacher="score", parameters={"error_rate": 0.25})
    )
    reward = {
        "dbs": [
            {"db": "db", "labels": 13, "labellers": ["unknown", "score"]},
            {"db": "lost", "labels": 7, "labellers": {"ada": 3, "bob": 4}},
        ],
        "labels": 20,
    }
    record = {
        "file": "r/reward-r.dat",
        "parents": reward,
        "created": provenance.now(),
        "git_commit": provenance.git_commit(),
    }
    checkpoint(
        root / "r" / "reward-r.dat",
        "reward",
        reward,
        {"name": "r", "seed": 3},
        results={"held_out_loss": 0.5},
    )
    checkpoint(root / "v0" / "a.dat", config={"name": "v0", "algo": "a2c", "seed": 0}, steps=100)
    v1 = {"policy": {"file": "v0/a.dat", "steps": 100}}
    checkpoint(root / "v1" / "b.dat", parents=v1, config={"name": "v1", "seed": 1}, steps=200)
    v2 = {"policy": {"file": "v1/b.dat", "steps": 200}, "reward": record}
    (root / "v2").mkdir()
    (root / "v2" / "latest.dat").symlink_to("c.dat")
    games = {"scores": [10.0, 20.0], "steps": [5, 5]}
    return checkpoint(
        root / "v2" / "c.dat", parents=v2, config={"seed": 2, "lr": 0.5}, steps=1300, evaluation=games
    )


def test_a_policy_tells_of_its_policy_its_reward_model_its_dbs_and_who_labelled_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grown(tmp_path)
    monkeypatch.chdir(tmp_path)
    tree = lineage_text(Path("v2/latest.dat"))
    made = [f"│ {line}" for line in MADE]
    assert tree.splitlines()[:13] == [
        "policy v2/latest.dat → c.dat",
        *made,
        "│ seed 2",
        "│ after 1,300 steps",
        "│ score 15.0 ± 63.5 (95 %, 2 games)",  # t of one degree of freedom, 12.706, times 5
        "│ configuration: seed 2, lr 0.5",
        "├─ finetuned from: policy v1/b.dat",
        *(f"│  {line}" for line in made),
        "│  │ name v1, seed 1",
        "│  │ after 200 steps",
        "│  └─ finetuned from: policy v0/a.dat",
    ]
    lines = tree.splitlines()
    at = lines.index("└─ paid by: reward r/reward-r.dat")
    assert lines[at + 1 : at + 6] == [
        *(f"   {line}" for line in made),
        "   │ name r, seed 3",
        "   │ held_out_loss 0.5",
        "   │ fitted to 20 labels",
    ]
    assert "   ├─ fitted on: DB db" in lines
    assert "   │  │ 13 of its labels were used by unknown, score" in lines
    assert "   │  │ 6 segments" in lines
    assert "   │  │ of Grey-v0 with 4 actions" in lines
    assert "   │  └─ labels db/labels.json" in lines
    assert "   │       1 by score, simulated (error_rate 0.25)" in lines
    assert lines[-3:] == [
        "   └─ fitted on: lost",
        "        7 of its labels were used by ada (3), bob (4)",
        "        as recorded; the file is gone",
    ]


def test_the_tree_is_whole_though_every_ancestor_is_gone(tmp_path: Path) -> None:
    """Three rounds: each file keeps what its parents said of theirs."""
    root = tmp_path / "root"
    reward = {
        "dbs": [
            {
                "db": "db",
                "labels": 200,
                "labellers": {"anna": 120, "seaquest teacher": 80},
                "policies": {"v0": 9},
            }
        ],
        "labels": 200,
    }
    made_reward = checkpoint(root / "reward-r.dat", "reward", reward, {"name": "r", "seed": 3})
    path = root / "v0.dat"
    parents: dict[str, Any] = {}
    for version in range(4):
        path = checkpoint(root / f"v{version}.dat", parents=parents, config={"seed": version}, steps=version)
        parents = {
            "policy": {"file": str(path), **provenance.lineage(checkpoints.load_checkpoint(path, "policy"))},
            "reward": {
                "file": str(made_reward),
                **provenance.lineage(checkpoints.load_checkpoint(made_reward, "reward")),
            },
        }
    alone = path.rename(tmp_path / "v3.dat")
    for file in root.iterdir():
        file.unlink()
    tree = lineage_text(alone)
    for version in (2, 1, 0):
        assert f"finetuned from: {root}/v{version}.dat" in tree
        assert f"seed {version}" in tree
    assert tree.count("made 2026-01-02T03:04:05+00:00 by commit c0ffee") == 7, (
        "four policies, three reward models"
    )
    assert tree.count("name r, seed 3") == 3
    used = "200 of its labels were used by anna (120), seaquest teacher (80); recorded by v0 (9)"
    assert tree.count(used) == 3


def test_parents_are_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = grown(tmp_path)
    monkeypatch.chdir("/")
    tree = lineage_text(path)
    assert f"finetuned from: policy {tmp_path}/v0/a.dat" in tree
    assert f"fitted on: DB {tmp_path}/db" in tree


def test_the_record_speaks_where_the_file_is_gone_or_another(tmp_path: Path) -> None:
    path = grown(tmp_path)
    (tmp_path / "r" / "reward-r.dat").unlink()
    checkpoint(tmp_path / "v1" / "b.dat", config={"name": "imposter"}, steps=999)
    tree = lineage_text(path)
    assert "imposter" not in tree
    assert (
        "├─ finetuned from: v1/b.dat\n│    after 200 steps\n│    as recorded; another file has its name now"
        in tree
    )
    assert "└─ paid by: r/reward-r.dat\n   │ made 2026" in tree
    assert "   │ fitted to 20 labels\n   │ as recorded; the file is gone\n" in tree
    assert f"   ├─ fitted on: DB {tmp_path}/db\n" in tree, "the record names its parents"


def test_a_parent_that_cannot_be_read_is_told_of_as_recorded(tmp_path: Path) -> None:
    path = grown(tmp_path)
    (tmp_path / "v1" / "b.dat").write_bytes(b"PK")
    assert "as recorded; " in lineage_text(path)
    assert "got a damaged file" in lineage_text(path)


def test_cycles_end(tmp_path: Path) -> None:
    for name, other in (("a", "b"), ("b", "a"), ("self", "self")):
        checkpoint(tmp_path / f"{name}.dat", parents={"policy": str(tmp_path / f"{other}.dat")})
    last = f"   └─ finetuned from: {tmp_path}/a.dat: described above"
    assert lineage_text(tmp_path / "a.dat").splitlines()[-1] == last
    assert "described above" in lineage_text(tmp_path / "self.dat")


def test_records_within_records_end(tmp_path: Path) -> None:
    record: dict[str, Any] = {}
    for depth in range(60):
        record = {
            "policy": {"file": f"gone{depth}", "parents": record},
            "reward": {"file": "x", "parents": record},
        }
    torch.save({"kind": "policy", "format_version": 1, "parents": record}, tmp_path / "a.dat")
    tree = lineage_text(tmp_path / "a.dat")  # 2⁶⁰ ancestors, each written once
    assert "not followed further" in tree
    assert len(tree.splitlines()) < 2000


def test_every_kind_of_artefact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labels, "git_commit", lambda: "f00d")
    grown(tmp_path)
    trainer = checkpoint(tmp_path / "trainer.dat", "trainer", config={"seed": 4}, steps=5)
    assert lineage_text(trainer).startswith(f"trainer {trainer}\n")
    assert f"policy {tmp_path}/v2/latest.dat" in lineage_text(tmp_path / "v2"), "a folder of checkpoints"
    for folder, artefact in ((tmp_path / "db", "DB"), (tmp_path / "db" / "labels.json", "labels")):
        tree = lineage_text(folder)
        assert tree.startswith(f"{artefact} {folder}\n")
        assert "6 segments" in tree
        assert "asked as: not said" in tree
        assert "1 written by commit f00d" in tree
        assert tree.count("described above") <= 1

    run = runs.make_run_dir(tmp_path / "runs", "a2c", "v9")
    runs.write_config(run, {"name": "v9", "seed": 9, "model": str(tmp_path / "v0" / "a.dat"), "save": "v9"})
    for path in (run, run / "config.json"):
        tree = lineage_text(path)
        assert tree.startswith(f"run {run}\n")
        assert "name v9, seed 9" in tree
        assert "checkpoints in v9" in tree
        assert f"└─ started from: policy {tmp_path}/v0/a.dat" in tree

    torch.save(torch.nn.Linear(2, 1).state_dict(), tmp_path / "bare.dat")
    assert "does not say where it came from" in lineage_text(tmp_path / "bare.dat")


def test_a_segment_tells_of_its_game_and_its_recorder(tmp_path: Path) -> None:
    path = tmp_path / "db" / "00" / "00000001.dat"
    path.parent.mkdir(parents=True)
    one = clip(100, scores=[1, 2, 3, 4, 5])
    assert one.sidecar is not None
    policy = checkpoint(tmp_path / "p.dat", config={"seed": 8})
    for number, by in enumerate(("v0", str(policy), "")):
        sidecar = type(one.sidecar)(
            **{name: getattr(one.sidecar, name) for name in one.sidecar.__slots__} | {"policy": by, "step": 7}
        )
        save_segment(path.with_name(f"{number}.dat"), type(one)(one.frames, one.actions, sidecar))
    save_segment(path.with_name("3.dat"), type(one)(one.frames, one.actions, None))
    first = lineage_text(path.with_name("0.dat"))
    assert "5 steps of 48×48 pixels" in first
    assert "of Grey-v0 with 4 actions, score 15" in first
    assert "begun at step 7" in first
    assert first.endswith("└─ recorded by: the run v0")
    assert f"└─ recorded by: policy {policy}" in lineage_text(path.with_name("1.dat"))
    assert "recorded by" not in lineage_text(path.with_name("2.dat"))
    assert "does not say where it came from" in lineage_text(path.with_name("3.dat"))
    run = runs.make_run_dir(tmp_path / "runs", "a2c", "v7")
    origin = {"run": str(run), "seed": "6", "git_commit": "c0ffee", "model": str(policy)}
    traced = replace(one, sidecar=replace(one.sidecar, policy="v7", origin=origin))
    save_segment(path.with_name("4.dat"), traced)
    tree = lineage_text(path.with_name("4.dat"))
    assert f"run {run}, seed 6, git_commit c0ffee, model {policy}" in tree
    assert "├" not in tree
    assert f"└─ recorded by: {run}" in tree
    assert f"   └─ finetuned from: policy {policy}" in tree
    runs.write_config(run, {"name": "v7", "seed": 6})
    assert f"└─ recorded by: run {run}" in lineage_text(path.with_name("4.dat"))
    whole = lineage_text(tmp_path / "db")
    assert f"recorded by: run {run}" in whole
    assert "of Grey-v0 with 4 actions" in whole
    assert "no game named" in whole
    assert f"recorded by: policy {policy}" in whole


def test_a_db_of_two_games_or_action_sets_says_so(tmp_path: Path) -> None:
    (tmp_path / "00").mkdir()
    for number, (env, actions) in enumerate((("A", 4), ("B", 4), ("A", 6))):
        save_segment(tmp_path / "00" / f"{number}.dat", clip(9, env_id=env, num_actions=actions))
    (tmp_path / "00" / "3.dat").write_bytes(b"broken")
    tree = lineage_text(tmp_path)
    for line in (
        "of A with 4 actions",
        "of B with 4 actions",
        "of A with 6 actions",
        "more than one game",
        "1 of those",
    ):
        assert line in tree


@pytest.mark.parametrize(
    "value",
    [
        *(None, 5, -1, 1.5, float("nan"), float("inf"), True, "", "x" * 10_000, "\x1b[2J\n\r\0", "a\0b"),
        *([], [[]], {}, {"a": {"b": 1}}, (1, 2), b"bytes", torch.zeros(3), [float("nan")], 2**500, {1: 2}),
    ],
    ids=lambda value: repr(value)[:12],
)
def test_whatever_a_checkpoint_says_is_told_on_lines_that_can_be_printed(tmp_path: Path, value: Any) -> None:
    """Each field of the header takes a value of another type."""
    whole: dict[str, Any] = {
        **{"kind": "policy", "format_version": 1, "config": {"seed": 1}, "versions": {"torch": "2"}},
        **{
            "git_commit": "c",
            "created": "t",
            "steps": 3,
            "evaluation": {"scores": [1.0]},
            "results": {"loss": 1},
        },
        "parents": {"policy": {"file": "a"}, "reward": {"file": "b"}, "dbs": [{"db": "d"}], "labels": 3},
    }
    changed = [{**whole, key: value} for key in whole if key not in ("kind", "format_version")]
    changed += [{**whole, key: {inner: value}} for key in ("config", "versions", "evaluation", "results", "parents")
                for inner in ("seed", "name", "scores", "policy", "reward", "dbs", "labels", "trainer")]  # fmt: skip
    changed += [{**whole, "parents": {"policy": {"file": "a", key: value}}} for key in whole]
    changed += [
        {**whole, "parents": {"dbs": [{"db": "d", key: value}, value]}}
        for key in ("db", "labels", "labellers")
    ]
    path = tmp_path / "odd.dat"
    for content in changed:
        torch.save(content, path)
        tree = lineage_text(path)
        assert tree.startswith(f"policy {path}\n")
        assert all(line.isprintable() and len(line) < 2500 for line in tree.split("\n")), tree


@pytest.mark.parametrize(
    "name", ["", "/", "..", "/dev/zero", "/proc/self/mem", "x" * 5000, "a\0b", "~", "loop"]
)
def test_a_parent_may_have_any_name(tmp_path: Path, name: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    tree = lineage_text(checkpoint(tmp_path / "a.dat", parents={"policy": name, "dbs": [name]}))
    parents = [line for line in tree.split("\n") if "finetuned from: " in line or "as recorded; " in line]
    assert len(parents) >= 2 or len(name) > 4000  # longer than any path
    assert all(line.isprintable() for line in tree.split("\n"))


class Hostile:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.system, (f"touch '{self.mark}'",)


def test_strangers_are_refused_in_one_line_and_nothing_of_them_runs(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    torch.save({"kind": "policy", "format_version": 1, "x": Hostile(mark)}, tmp_path / "hostile.dat")
    contents = {
        "pickle.dat": pickle.dumps(Hostile(mark)),
        "protocol0.dat": pickle.dumps([Hostile(mark)], 0),
        "empty.dat": b"",
        "text.txt": b"hello",
        "damaged.dat": b"PK\x03\x04 and nothing more",
        "labels.json": b"no labels\n",
        "other.json": b"[]\n",
    }
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "folder").mkdir()
    for number, config in enumerate((b"", b"[]", b"{}", b"[" * 100_000, b'{"config": 3}', b" " * (2 << 20))):
        (tmp_path / f"run{number}").mkdir()
        (tmp_path / f"run{number}" / "config.json").write_bytes(config)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link.json").symlink_to("labels.json")
    (tmp_path / "loop").symlink_to("loop")
    strangers = [path for path in tmp_path.iterdir() if path.name != "mark"]
    for path in [*strangers, tmp_path / "none", tmp_path / ("x" * 300), Path("/dev/null"), Path("a\0b")]:
        with pytest.raises(UserError) as refused:
            lineage_text(path)
        assert "expected" in str(refused.value), refused.value
        assert "\n" not in str(refused.value)
    assert not mark.exists()
    with pytest.raises(UserError, match=r"hostile.*asks to run posix\.system.*nothing was run"):
        lineage_text(tmp_path / "hostile.dat")


def test_truncated_and_mutated_checkpoints_never_crash(tmp_path: Path) -> None:
    data = checkpoint(tmp_path / "a.dat", parents={"policy": {"file": "x"}}, config={"seed": 1}).read_bytes()
    path = tmp_path / "b.dat"
    for number in range(120):
        changed = bytearray(data)
        if number % 2:
            changed[number * 131 % len(data)] ^= 1 << number % 8
        else:
            del changed[number * 37 % len(data) :]
        path.write_bytes(bytes(changed))
        try:
            assert lineage_text(path)
        except UserError as error:
            assert str(error).startswith((f"{path}: expected", "expected"))  # noqa: PT017  # some bits mean nothing


def test_the_script_prints_it_and_needs_no_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = checkpoint(tmp_path / "a.dat", config={"seed": 5}, steps=3)
    main = runpy.run_path(str(SCRIPT))["main"]
    main(["--info", str(path)])
    assert capsys.readouterr().out == lineage_text(path) + "\n"
    for args, says in (
        ([], "expected -m/--model, got none"),
        (["--info", str(path), "-m", str(path)], "leave out -m"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(args)
        assert ended.value.code == 2
        said = capsys.readouterr().err
        assert says in said
        assert said.count("\n") == 1
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--info", str(tmp_path / "none")],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("04_play.py: error: ")
    assert done.stderr.count("\n") == 1


def test_a_configuration_in_another_encoding_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(
        json.dumps({"config": {"name": "é"}}, ensure_ascii=False).encode("latin-1")
    )
    with pytest.raises(UserError, match="that file is damaged"):
        lineage_text(tmp_path)


def test_a_db_of_answers_names_all_its_models(tmp_path: Path) -> None:
    """Of each prompt they answered in the same order, so that every n-th answer may be by one of them."""
    for prompt in range(20):
        policies = [*("first",) * 4, *("second",) * 2, "third"]
        for number, policy in enumerate(policies):
            answer = Answer(f"prompt {prompt}", "word", finished=True, policy=policy)
            save_answer(tmp_path / f"{prompt:02d}" / f"{number:08d}.dat", answer)
    (tmp_path / "labels.json").touch()
    told = lineage_text(tmp_path)
    assert "140 answers to 20 prompts, 20 of them read" in told
    for name in ("first", "second", "third"):
        assert f"by {name}" in told
