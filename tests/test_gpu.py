"""On a GPU: the same figures as on a CPU, nobody waits for it in an update, and the four stages run there."""

from pathlib import Path

import numpy as np
import pytest
import torch

from lib.agent.actor_critic import update
from lib.agent.config import TrainConfig
from lib.agent.kl import KLPenalty
from lib.agent.network import PolicyNet, autocast
from lib.agent.rollout import Collector
from lib.envs.make import make_world
from lib.envs.observation import Viewer
from lib.reward.model import Member, RewardModel
from lib.reward.network import RewardNet
from tests.scripts import call_anew

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]

CPU, GPU = torch.device("cpu"), torch.device("cuda")
SEAQUEST = "SeaquestNoFrameskip-v4"
DOT = "-e MovingDot-v0 --eval-games 2 --num-envs 4 --dev cuda"


def call(folder: Path, command: str) -> str:
    return call_anew(folder, *command.split()).stdout


def test_observations_are_those_of_a_cpu() -> None:
    world = make_world(SEAQUEST, 3)
    try:
        viewers = Viewer(world, CPU), Viewer(world, GPU)
        step, rng = world.reset(0), np.random.default_rng(0)
        for _ in range(60):
            ours, theirs = (viewer.look(step).cpu().int() for viewer in viewers)
            assert (ours - theirs).abs().max() <= 1
            assert torch.equal(viewers[1].frames().cpu(), torch.from_numpy(np.asarray(step.frames)))
            world.send(rng.integers(0, world.spec.num_actions, 3))
            step = world.recv()
    finally:
        world.close()


@pytest.mark.parametrize("bf16", [False, True])
def test_the_networks_say_the_same_as_on_a_cpu(bf16: bool) -> None:
    torch.manual_seed(0)
    observations = torch.randint(0, 256, (8, 4, 84, 84), dtype=torch.uint8)
    frames, actions = torch.randint(0, 256, (8, 210, 160, 3), dtype=torch.uint8), torch.arange(8)
    network = PolicyNet(18)
    judge = RewardNet((210, 160, 3), 18)
    torch.nn.init.normal_(judge.out[-1].weight, std=0.1)  # type: ignore[arg-type]
    said = []
    for device in (CPU, GPU):
        network.to(device)
        with torch.no_grad(), autocast(device, bf16):
            logits, values = network(observations.to(device))
        model = RewardModel([Member(judge.eval(), 0.5, 2.0)], device, bf16)
        said.append(
            (100 * logits.cpu(), values.cpu(), model.pay(frames.to(device), actions.to(device)).cpu())
        )
    for ours, theirs in zip(*said, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0.05 if bf16 else 0.01, atol=0.05 if bf16 else 0.005)


@pytest.mark.parametrize(
    "config",
    [
        TrainConfig(name="a2c"),
        TrainConfig(name="a2c", reward=Path("r.dat"), freeze_convs=True),
        TrainConfig(name="ppo", algo="ppo", minibatches=2),
    ],
)
def test_no_update_waits(config: TrainConfig) -> None:
    torch.manual_seed(0)
    world = make_world("MovingDot-v0", 4)
    network, penalty = PolicyNet(5).to(GPU), KLPenalty(PolicyNet(5).to(GPU), 0.1, 0.1, 1000)
    network.body.requires_grad_(not config.freeze_convs)
    trainable = [parameter for parameter in network.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(trainable, lr=1e-3, fused=True)
    reward = None
    if config.reward is not None:
        assert world.spec.frame_shape is not None
        reward = RewardModel([Member(RewardNet(world.spec.frame_shape, 5), 0.0, 1.0)], GPU, bf16=True)
    try:
        collector = Collector(world, 5, GPU, seed=0, bf16=True, reward=reward)
        before = {name: weight.clone() for name, weight in network.state_dict().items()}
        for _ in range(3):
            rollout = collector.collect(network, config.one_pass, keep_features=config.freeze_convs)
            torch.cuda.set_sync_debug_mode("error")
            try:
                parts = update(network, optimizer, rollout, config, bf16=True, penalty=penalty)
                penalty.adapt(parts["kl_ref"], 20)
            finally:
                torch.cuda.set_sync_debug_mode("default")
    finally:
        world.close()
    assert not torch.equal(before["policy.0.weight"], network.state_dict()["policy.0.weight"])
    assert all(np.isfinite(part.item()) for part in parts.values())


@pytest.mark.slow
def test_the_four_stages(tmp_path: Path) -> None:
    call(
        tmp_path,
        f"01_a2c.py -n v0 {DOT} --steps 1000 --save v0 --db-path db --record-prob 0.5 --checkpoint-minutes 0",
    )
    call(tmp_path, "02_label_ui.py -d db --teacher score --count 20")
    call(tmp_path, "03_reward_train.py -n r -o . db --epochs 2 --ensemble 2 --frame-stride 10 --dev cuda")
    finetune = f"01_a2c.py -n v1 {DOT} --steps 400 -m v0/latest.dat -r reward-r.dat --finetune --algo ppo --kl 1 --save v1"
    assert "learned" in call(tmp_path, finetune)
    (begun,) = (tmp_path / "runs").glob("*a2c-v0")
    assert "\n1.40k steps: score" in call(tmp_path, f"01_a2c.py --resume {begun} --steps 1400")
    # What was made on a GPU serves where there is none.
    call(
        tmp_path, "04_play.py -m v1/latest.dat -e MovingDot-v0 -n 1 -r videos --reward reward-r.dat --dev cpu"
    )


@pytest.mark.parametrize(
    "flags", ["--algo sac -e Pendulum-v1", "--algo dqn -e MovingDot-v0 --priority 0.5 --quantiles 4"]
)
def test_a_replay_on_the_gpu_is_filled_learned_from_and_resumed(flags: str, tmp_path: Path) -> None:
    small = "--num-envs 4 --learning-starts 40 --eval-games 2 --dev cuda --replay-steps 1000"
    call(tmp_path, f"01_a2c.py -n g {flags} {small} --steps 400 --save g")
    (run,) = (tmp_path / "runs").iterdir()
    assert "resuming after 400 steps" in call(tmp_path, f"01_a2c.py --resume {run} --steps 800")
    assert "score" in call(tmp_path, "04_play.py -m g/latest.dat -n 1 --dev cuda")
