"""What the convolutions of a policy tell about the clips."""

from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.visible import main, told
from lib.cli import UserError
from tests.reward.clips import clip, save

EXAMPLES = Path("examples/seaquest")


def test_what_a_linear_layer_can_tell_it_is_right_about() -> None:
    features = torch.randn(400, 20, generator=torch.Generator().manual_seed(0))
    moments = [str(step // 4) for step in range(400)]
    plain = told(features, (features[:, 3] > 0).numpy(), moments, seed=0)
    assert plain.right > 0.9
    assert plain.steps == 100
    assert plain.base == pytest.approx(0.5, abs=0.15)


def test_steps_of_one_moment_do_not_give_each_other_away() -> None:
    rng = np.random.default_rng(0)
    looks, answers = rng.standard_normal((100, 20)), rng.random(100) < 0.5
    of = np.repeat(np.arange(100), 4)
    hidden = told(torch.from_numpy(looks[of]).float(), answers[of], [str(moment) for moment in of], seed=0)
    assert hidden.right < 0.75


def test_on_the_examples_it_says_how_often_each_probe_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    main([str(EXAMPLES / "db"), "-m", str(EXAMPLES / "v0.dat")])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["air", "diver"]
    assert all("steps of other moments" in line for line in lines)


def test_clips_that_it_cannot_tell_about_are_refused(tmp_path: Path) -> None:
    db = tmp_path / "db"
    (db / "00").mkdir(parents=True)
    one = sorted((EXAMPLES / "db").glob("*/*.dat"))[0]
    (db / "00" / "00000000.dat").write_bytes(one.read_bytes())
    with pytest.raises(UserError, match="expected clips of two moments at least"):
        main([str(db), "-m", str(EXAMPLES / "v0.dat")])
    (db / "00" / "00000001.dat").write_bytes(b"broken")
    with pytest.raises(UserError, match=r"00000001\.dat"):
        main([str(db), "-m", str(EXAMPLES / "v0.dat")])


def test_a_game_without_probes_is_refused(tmp_path: Path) -> None:
    save(tmp_path, 0, clip(190, num_actions=18))
    with pytest.raises(UserError, match="expected clips of an environment with probes"):
        main([str(tmp_path), "-m", str(EXAMPLES / "v0.dat")])
