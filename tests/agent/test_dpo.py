"""DPO on clips: what a policy pays, and that comparisons of what is done in one situation teach when to do it."""

import dataclasses
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lib.agent import dpo
from lib.agent.checkpoints import load_policy
from lib.agent.dpo import Policies
from lib.agent.network import PolicyNet
from lib.checkpoints import save_checkpoint
from lib.cli import UserError
from lib.envs.observation import grey_resize_cpu, stacked_clip
from lib.envs.world import Step
from lib.learner import ALONE
from lib.preferences.segments import Segment
from lib.reward import clips
from lib.reward.checkpoints import load_reward_model
from lib.reward.config import FitConfig
from lib.reward.epoch import HeldOut, both_returns
from lib.reward.fit import Epoch, fit
from lib.reward.implied import PolicyRatio
from lib.reward.model import ObservingRewards
from lib.reward.report import figures_of, kept_epochs
from lib.tools.fit_labels import fit_labels
from tests.reward.clips import add_labels, clip, save

ACTIONS = 4
RIGHT = [1, 2]
"""What is to be done where the first half of the picture is dark, and where the second one is."""


def shown(half: int, seed: int) -> Segment:
    """A clip in which one half of the picture is dark."""
    bright = clip(190, seed=seed, num_actions=ACTIONS)
    bright.frames[:, :, 24 * half : 24 * (half + 1)] = 0
    return bright


def saved(path: Path, network: PolicyNet) -> Path:
    content = {"state_dict": network.state_dict(), "num_actions": ACTIONS, "steps": 7}
    save_checkpoint(path, "policy", content, {"env": "Grey-v0"}, {})
    return path


def fork_db(root: Path, moments: int, halves: int = 2) -> Path:
    """Two clips of each moment: the preferred one begins with what is right there. What follows says the opposite."""
    root.mkdir()
    rng = np.random.default_rng(0)
    for number in range(moments):
        right = RIGHT[number % halves]
        wrong = int(rng.choice([action for action in range(ACTIONS) if action != right]))
        names: list[str] = []
        for begun, ended in ((right, wrong), (wrong, right)):
            acted = dataclasses.replace(
                shown(number % halves, seed=number), actions=np.array([begun] * 2 + [ended] * 3)
            )
            names.append(save(root, 2 * number + len(names), acted))
        better, worse = names
        add_labels(root, [(better, worse, 1) if rng.random() < 0.5 else (worse, better, 2)])
    return root


def flags(root: Path, **more: Any) -> FitConfig:
    given: dict[str, Any] = {"policy": root / "v0.dat", "steps": 2, "lr": 1e-3, "epochs": 12}
    return FitConfig(
        **{"dbs": [root / "db"], "name": "v1", "out": root, "runs": root / "runs", **given, **more}
    )


def test_what_a_policy_pays_is_how_much_likelier_an_action_has_become() -> None:
    torch.manual_seed(0)
    features, actions = torch.randn(3, 6), torch.tensor([0, 1, 1])
    head = torch.nn.Linear(6, 2)
    network = PolicyRatio(torch.nn.Sequential(head), 0.5, (84, 84, 3))
    assert network(features, actions).tolist() == [0, 0, 0]
    with torch.no_grad():
        network.policy[0].bias += torch.tensor([0.0, 3.0])  # type: ignore[operator]
    old = torch.log_softmax(head(features), 1)
    new = torch.log_softmax(old + torch.tensor([0.0, 3.0]), 1)
    right = 0.5 * (new - old)[torch.arange(3), actions]
    torch.testing.assert_close(network(features, actions), right)
    # An agent is paid no more than 2 β for one action, either way.
    assert right.abs().max() > 1
    torch.testing.assert_close(network.for_paying()(features, actions), right.clamp(-1, 1))


@pytest.mark.parametrize("all_layers", [False, True])
def test_a_fit_is_paid_what_the_policy_pays_though_its_reference_sees_each_clip_once(
    tmp_path: Path, all_layers: bool
) -> None:
    saved(tmp_path / "v0.dat", PolicyNet(ACTIONS, kind="small"))
    fork_db(tmp_path / "db", 40)  # more clips than pass through it together
    material = Policies(flags(tmp_path, all_layers=all_layers, bf16=False))
    pairs = material.data.pairs
    member = material.begin(np.arange(len(pairs)), np.arange(0), 0)
    with torch.no_grad():
        for weight in member.network.policy.parameters():
            weight.add_(0.02 * torch.randn_like(weight))
        paid = member._returns(pairs)
        expected = both_returns(member.network, material.data.segments, pairs, torch.device("cpu"), False)
    assert min(returns.std() for returns in expected) > 1e-3
    for found, right in zip(paid, expected, strict=True):
        torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("bf16", [False, True])
def test_comparisons_teach_what_to_do_where(tmp_path: Path, bf16: bool) -> None:
    torch.manual_seed(0)
    before = PolicyNet(ACTIONS, kind="small")
    saved(tmp_path / "v0.dat", before)
    fork_db(tmp_path / "db", 60)
    fitted = fit(flags(tmp_path, bf16=bf16), ALONE, Policies, file="{}.dat")
    assert fitted.best.accuracy == 1
    after, origin = load_policy(tmp_path / "v1.dat")
    assert isinstance(after, PolicyNet)
    assert (origin["steps"], origin["config"]["env"]) == (7, "Grey-v0")
    assert origin["parents"]["policy"]["file"] == str(tmp_path / "v0.dat")
    for half, right in enumerate(RIGHT):
        seen = torch.from_numpy(stacked_clip(grey_resize_cpu(shown(half, seed=999).frames)))
        chances = [network(seen)[0].softmax(1)[:, right].mean() for network in (before, after)]
        assert chances[0] < 0.4
        assert chances[1] > 0.8
    for name, value in after.state_dict().items():
        assert torch.equal(value, before.state_dict()[name]) != name.startswith("policy"), name


def judged_worse_each_time(monkeypatch: pytest.MonkeyPatch, interrupt_at: int = 0) -> list[torch.Tensor]:
    """Makes each epoch look worse than the one before, and presses Ctrl-C in epoch `interrupt_at`.

    Returns:
      A list that grows by the weights of each epoch when it is judged.
    """
    evaluated: list[torch.Tensor] = []

    def worse(network: PolicyRatio, *_: object) -> HeldOut:
        evaluated.append(next(network.policy.parameters()).detach().clone())
        if len(evaluated) == interrupt_at:
            signal.raise_signal(signal.SIGINT)
        return HeldOut(0.1 * len(evaluated), 3, 4)

    monkeypatch.setattr(clips, "evaluate_pairs", worse)
    return evaluated


def test_a_policy_is_fitted_for_every_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A hundred noisy held-out pairs cannot say when to stop."""
    evaluated = judged_worse_each_time(monkeypatch)
    saved(tmp_path / "v0.dat", PolicyNet(ACTIONS, kind="small"))
    fork_db(tmp_path / "db", 12)
    fitted = fit(flags(tmp_path, epochs=3, patience=1), ALONE, Policies, file="{}.dat")
    first, second, third = re.findall(r"^epoch .*$", capsys.readouterr().out, re.MULTILINE)
    assert not any("*" in line or "at least" in line for line in (first, second, third))
    assert third.endswith(", 0s to go)")
    assert fitted.best.loss == pytest.approx(0.3)
    assert all(epoch.counts for epoch in fitted.history)
    after, _ = load_policy(tmp_path / "v1.dat")
    assert isinstance(after, PolicyNet)
    assert torch.equal(next(after.policy.parameters()), evaluated[-1])


def test_an_interrupt_keeps_the_last_epoch_of_a_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluated = judged_worse_each_time(monkeypatch, interrupt_at=2)
    saved(tmp_path / "v0.dat", PolicyNet(ACTIONS, kind="small"))
    fork_db(tmp_path / "db", 12)
    fit(flags(tmp_path, epochs=5), ALONE, Policies, file="{}.dat")
    assert "stopped by request; keeping epoch 2\n" in capsys.readouterr().out
    after, _ = load_policy(tmp_path / "v1.dat")
    assert isinstance(after, PolicyNet)
    assert torch.equal(next(after.policy.parameters()), evaluated[1])


@pytest.mark.parametrize("all_layers", [False, True])
def test_fitted_as_a_whole_it_learns_to_see(tmp_path: Path, all_layers: bool) -> None:
    torch.manual_seed(0)
    before = PolicyNet(ACTIONS, kind="small")
    with torch.no_grad():
        before.conv[0].weight.zero_()  # type: ignore[operator]
        before.conv[0].bias.fill_(0.1)  # type: ignore[operator]
    saved(tmp_path / "v0.dat", before)
    fork_db(tmp_path / "db", 60)
    fit(flags(tmp_path, all_layers=all_layers), ALONE, Policies, file="{}.dat")
    after, _ = load_policy(tmp_path / "v1.dat")
    assert isinstance(after, PolicyNet)
    seen = [
        torch.from_numpy(stacked_clip(grey_resize_cpu(shown(half, seed=999).frames))) for half in range(2)
    ]
    chosen = [after.acting().dist_params(half).argmax(1).tolist() for half in seen]
    assert (chosen == [[right] * 5 for right in RIGHT]) == all_layers


@pytest.mark.parametrize(
    ("kind", "all_layers"), [("separate", False), ("shared", False), ("small", False), ("small", True)]
)
def test_a_fitted_policy_implies_a_reward(tmp_path: Path, kind: str, all_layers: bool) -> None:
    torch.manual_seed(0)
    before = PolicyNet(ACTIONS, kind=kind)
    saved(tmp_path / "v0.dat", before)
    fork_db(tmp_path / "db", 12)
    made = fit(flags(tmp_path, epochs=2, all_layers=all_layers), ALONE, Policies, file="{}.dat")
    after, _ = load_policy(tmp_path / "v1.dat")
    assert isinstance(after, PolicyNet)
    for name, value in after.state_dict().items():
        fitted = name.startswith("policy") or (all_layers and name.startswith("conv"))
        assert torch.equal(value, before.state_dict()[name]) != fitted, name
    reward = load_reward_model(tmp_path / "reward-v1.dat")
    assert reward.origin["parents"]["labels"] == 12

    def paid_and_expected(frames: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        seen, steps = torch.from_numpy(stacked_clip(grey_resize_cpu(frames))), torch.arange(5)
        old, new = (network(seen)[0].log_softmax(1)[steps, actions] for network in (before, after))
        return reward.rewards_along(frames, actions), (new - old).detach().numpy()

    both = [paid_and_expected(*made.data.segments.get(index)[:2]) for index in range(24)]
    paid, expected = (np.stack(each) for each in zip(*both, strict=True))
    # In standard deviations over the steps that are fitted to, and never shifted: what is as likely as before is worth 0.
    assert paid[:, :2].std(ddof=1) == pytest.approx(1, rel=1e-3)
    assert np.abs(expected).max() < 2
    np.testing.assert_allclose(paid, expected / expected[:, :2].std(ddof=1), rtol=1e-3, atol=1e-4)
    # Step by step, as wrappers pay; a game begins with other pictures in the stack than a clip.
    frames, actions = made.data.segments.get(0)[:2]
    paying = ObservingRewards(reward, 1)
    steps = [
        paying.rewards(frames[t : t + 1], actions[t : t + 1], np.array([t == 0]))[0]
        for t in range(len(frames))
    ]
    np.testing.assert_allclose(steps[3:], paid[0, 3:], rtol=1e-3, atol=1e-4)


def _rising(history: list[Epoch]) -> list[Epoch]:
    return [dataclasses.replace(epoch, held_out_loss=float(epoch.epoch)) for epoch in history]


def test_the_report_of_a_fitted_policy_is_of_the_reward_it_implies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved(tmp_path / "v0.dat", PolicyNet(ACTIONS, kind="small"))
    fork_db(tmp_path / "db", 40)
    fitted = fit_labels(flags(tmp_path, epochs=18))
    # Over whole clips the opposite would come out: what follows the steps that are fitted to is the other action.
    share = figures_of(fitted).held_out
    assert (
        (share.hits, share.count) == (fitted.best.correct, fitted.best.decided) == (share.count, share.count)
    )
    assert kept_epochs(dataclasses.replace(fitted, history=_rising(fitted.history)))[0].epoch == len(
        fitted.history
    )
    assert f"report in {tmp_path}/reward-v1.report.html" in capsys.readouterr().out
    page = (tmp_path / "reward-v1.report.html").read_text()
    assert "reward-v1" in page
    assert "The epoch was chosen" not in page, "all are made"
    # It shows what a policy is fitted with, which leaves out no step and pulls no weight to 0.
    assert (fitted.config.frame_stride, fitted.config.l2) == (1, 0.0)


@pytest.mark.parametrize("all_layers", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_where_it_is_kept_a_policy_goes_on_as_before(tmp_path: Path, all_layers: bool) -> None:
    torch.manual_seed(2)
    before = PolicyNet(ACTIONS, kind="small")
    saved(tmp_path / "v0.dat", before)
    # Comparisons where the first half is dark, and play where the second one is.
    fork_db(tmp_path / "db", 30, halves=1)
    (tmp_path / "play").mkdir()
    for number in range(20):
        save(tmp_path / "play", number, shown(1, seed=100 + number))
    moved = {}
    for keep in (None, tmp_path / "play"):
        fit(flags(tmp_path, keep=keep, all_layers=all_layers, seed=2), ALONE, Policies, file="{}.dat")
        after, _ = load_policy(tmp_path / "v1.dat")
        for half in range(2):
            seen = torch.from_numpy(stacked_clip(grey_resize_cpu(shown(half, seed=999).frames)))
            old, new = (network(seen)[0].softmax(1) for network in (before, after))
            moved[keep is not None, half] = float((new - old).detach().abs().sum(1).mean() / 2)
    assert moved[False, 0] > 0.3
    assert moved[False, 1] > 0.3
    assert moved[True, 0] > 0.3
    assert moved[True, 1] < 0.1


def left(step: Step) -> np.ndarray:
    """A probe: how bright the first half of the picture is."""
    brightness: np.ndarray = np.asarray(step.frames)[:, :, :24].mean((1, 2, 3))
    return brightness


@pytest.mark.slow
def test_a_policy_is_kept_only_where_a_probe_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dpo, "probes", lambda env_id: {"left": left})
    torch.manual_seed(1)
    before = PolicyNet(ACTIONS, kind="small")
    saved(tmp_path / "v0.dat", before)
    fork_db(tmp_path / "db", 30, halves=1)
    (tmp_path / "play").mkdir()
    for number in range(20):  # what the comparisons are about among the rest
        save(tmp_path / "play", number, shown(number % 2, seed=100 + number))
    moved = {}
    for where in (None, "left=1:255"):
        asked = flags(tmp_path, keep=tmp_path / "play", keep_where=where, keep_weight=3.0, seed=1)
        fit(asked, ALONE, Policies, file="{}.dat")
        after, _ = load_policy(tmp_path / "v1.dat")
        for half in range(2):
            seen = torch.from_numpy(stacked_clip(grey_resize_cpu(shown(half, seed=999).frames)))
            old, new = (network(seen)[0].softmax(1) for network in (before, after))
            moved[where is not None, half] = float((new - old).detach().abs().sum(1).mean() / 2)
    assert moved[False, 0] < 0.1, "it is held where it is to change"
    assert moved[True, 0] > 0.3
    assert moved[True, 1] < 0.1


def test_a_range_of_what_to_keep_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path / "v0.dat", PolicyNet(ACTIONS, kind="small"))
    fork_db(tmp_path / "db", 12)
    (tmp_path / "play").mkdir()
    save(tmp_path / "play", 0, shown(0, seed=1))
    asked = {"keep": tmp_path / "play", "keep_where": "left=1:255"}
    with pytest.raises(UserError, match=r"left=1:255: expected for Grey-v0 no range: it has no probes"):
        Policies(flags(tmp_path, **asked))
    monkeypatch.setattr(dpo, "probes", lambda env_id: {"left": left})
    with pytest.raises(UserError, match=r"left=1:255: no step of .*play is in this range; widen it"):
        Policies(flags(tmp_path, **asked))
    with pytest.raises(UserError, match=r"expected for Grey-v0 one of its probes, left"):
        Policies(flags(tmp_path, **asked | {"keep_where": "right=0:1"}))
    for text in ("left", "left=1", "=0:1", "left=2:1", "left=a:b", "left=nan:1"):
        with pytest.raises(UserError, match=f"{text}: expected PROBE=MIN:MAX, such as oxygen=0.5:1"):
            flags(tmp_path, keep=tmp_path / "play", keep_where=text)
    with pytest.raises(UserError, match="--keep-where expects --keep DB"):
        flags(tmp_path, keep_where="left=0:1")


def test_the_change_of_a_policy_is_the_share_of_steps_in_which_it_acts_otherwise() -> None:
    head = torch.nn.Linear(1, 2)
    with torch.no_grad():
        head.weight.zero_()
        head.bias.copy_(torch.tensor([0.5, 0.5]).log())
    network = PolicyRatio(torch.nn.Sequential(head), 1.0, (84, 84, 3))
    assert network.changed(torch.zeros(3, 1)).item() == 0
    with torch.no_grad():
        network.policy[0].bias.copy_(torch.tensor([0.8, 0.2]).log())  # type: ignore[operator]
    assert network.changed(torch.zeros(3, 1)).item() == pytest.approx(0.3)


def test_play_to_keep_is_of_the_same_game_whatever_module_registers_it(tmp_path: Path) -> None:
    saved(tmp_path / "v0.dat", PolicyNet(ACTIONS, kind="small"))
    fork_db(tmp_path / "db", 12)  # as PreferenceEnv names it
    (tmp_path / "play").mkdir()
    save(tmp_path / "play", 0, clip(190, num_actions=ACTIONS, env_id="package.mine:Grey-v0"))  # as -e does
    assert Policies(flags(tmp_path, keep=tmp_path / "play")).kept is not None


def test_play_to_keep_has_to_be_of_the_same_game(tmp_path: Path) -> None:
    saved(tmp_path / "v0.dat", PolicyNet(ACTIONS, kind="small"))
    fork_db(tmp_path / "db", 12)
    (tmp_path / "play").mkdir()
    with pytest.raises(UserError, match=r"--keep .*play: expected clips of ordinary play, found none"):
        Policies(flags(tmp_path, keep=tmp_path / "play"))
    save(tmp_path / "play", 0, clip(190, num_actions=ACTIONS + 2))
    with pytest.raises(UserError, match=r"--keep .*play: expected 4 actions like the labelled clips, got 6"):
        Policies(flags(tmp_path, keep=tmp_path / "play"))
    (tmp_path / "play" / "00" / "00000000.dat").unlink()
    save(tmp_path / "play", 0, clip(190, num_actions=ACTIONS, env_id="Green-v0"))
    with pytest.raises(
        UserError, match=r"--keep .*play: expected clips of Grey-v0 like the labelled clips, got Green-v0"
    ):
        Policies(flags(tmp_path, keep=tmp_path / "play"))
    (tmp_path / "play" / "00" / "00000000.dat").write_bytes(b"broken")
    with pytest.raises(UserError, match=r"--keep .*play: "):
        Policies(flags(tmp_path, keep=tmp_path / "play"))
    with pytest.raises(UserError, match="--all-layers expects --policy POLICY"):
        flags(tmp_path, policy=None, all_layers=True)
    with pytest.raises(UserError, match="--keep expects --policy POLICY"):
        flags(tmp_path, policy=None, keep=tmp_path / "play")
    with pytest.raises(UserError, match="--nll-weight expects --policy POLICY"):
        flags(tmp_path, policy=None, nll_weight=0.4)


def test_a_fit_does_not_replace_its_policy(tmp_path: Path) -> None:
    fork_db(tmp_path / "db", 12)
    policy = saved(tmp_path / "v0.dat", PolicyNet(ACTIONS))
    before = policy.read_bytes()
    with pytest.raises(UserError, match=r"-n v0: .*v0\.dat is the policy of --policy"):
        fit_labels(flags(tmp_path, name="v0"))
    assert policy.read_bytes() == before
    with pytest.raises(UserError, match=r"nowhere\.dat: .*no such file"):
        fit_labels(flags(tmp_path, name="v0", policy=tmp_path / "nowhere.dat"))


def test_what_cannot_be_fitted_is_refused(tmp_path: Path) -> None:
    fork_db(tmp_path / "db", 12)
    for network in (PolicyNet(ACTIONS, observation_size=3), PolicyNet(ACTIONS, continuous=True)):
        saved(tmp_path / "v0.dat", network)
        expected = "expected a policy that sees pictures and chooses among actions, from a2c or ppo"
        with pytest.raises(UserError, match=expected):
            Policies(flags(tmp_path))
    saved(tmp_path / "v0.dat", PolicyNet(ACTIONS + 1))
    with pytest.raises(UserError, match="expected 4 actions like the clips, got 5"):
        Policies(flags(tmp_path))
    (tmp_path / "numbers").mkdir()
    moving = dataclasses.replace(clip(190), actions=np.zeros((5, ACTIONS), np.float32))
    first, second = (save(tmp_path / "numbers", number, moving) for number in range(2))
    add_labels(tmp_path / "numbers", [(first, second, 1)])
    saved(tmp_path / "v0.dat", PolicyNet(ACTIONS))
    with pytest.raises(UserError, match="expected actions of 4 numbers like the clips, got 4 actions"):
        Policies(flags(tmp_path, dbs=[tmp_path / "numbers"]))
    for name, value in {
        "half_frames": True,
        "watch": True,
        "ensemble": 3,
        "mask": ["0,0,2,2"],
        "shift": 2,
    }.items():
        with pytest.raises(UserError, match="--policy fits"):
            flags(tmp_path, **{name: value})
