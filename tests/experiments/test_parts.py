"""experiments.parts: what each arm shares with the whole round, and what it changes."""

from pathlib import Path
from typing import Any

import pytest

from experiments import parts, skill
from tests.experiments.paper import Measured


def test_each_arm_changes_its_part_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    out.mkdir()
    paper = Measured(out)
    monkeypatch.setattr(parts, "Pipeline", lambda out, max_minutes: paper)
    parts.main(["--out", str(out), "--learned-steps", "50k"])
    read = paper.read

    def changed(arm: str, stage: str) -> set[str]:
        """Settings of a stage that are not those of the whole round, but for names and folders."""
        theirs, ours = vars(read[f"{arm}-{stage}"]), vars(read[stage])
        return {key for key in theirs if theirs[key] != ours[key]} - {
            "name",
            "save",
            "runs",
            "model",
            "reward",
        }

    assert changed("no-hold", "v0") == changed("no-hold", "v2") == {"hold_prob"}
    assert changed("offset-0", "v2") == {"reward_offset"}
    assert changed("kl-1", "v2") == changed("kl-0.2", "v2") == {"kl"}
    assert changed("kl-0.2-v0", "v2") == {"kl", "kl_reference"}
    assert read["kl-0.2-v0-v2"].kl_reference == out / "v0" / "latest.dat"
    for arm in ("old-teacher", "no-events"):
        assert changed(arm, "v2") == set()
        assert read[f"{arm}-v2"].model == out / f"{arm}-v1.dat"
        assert read[f"{arm}-v2"].reward == out / f"reward-{arm}-climbs.dat"
    assert read["labels-old-teacher-1"].teacher == "seaquest"
    assert (read["forks-no-events-1"].event_prob, read["forks-1"].event_prob) == (0.0, 1.0)
    # What comes before the changed part is made once.
    assert {read[f"{arm}-v2"].model for arm in ("offset-0", "kl-1", "kl-0.2")} == {out / "v1.dat"}
    assert read["v2"].model == out / "v1.dat"
    assert len([name for name in read if name.startswith("forks")]) == 4
    assert "| kl-1-v2 | 2 ± 13 |" in (out / "parts.md").read_text()


def test_a_given_v0_is_not_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stop(Exception):
        pass

    def compare(self: Any, number: str, policy: Path, **more: Any) -> None:
        assert policy == tmp_path / "mine.dat"
        raise Stop

    monkeypatch.setattr(skill.Stages, "compare", compare)
    with pytest.raises(Stop):
        parts.main(["--out", str(tmp_path / "out"), "--arms", "all", "-m", str(tmp_path / "mine.dat")])
