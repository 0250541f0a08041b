"""Processes that learn together: what they add up and decide, that they learn what one process learns, and how they end."""

import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lib.agent.actor_critic import ActorCritic, _minibatches
from lib.agent.config import TrainConfig
from lib.agent.dqn import QNet
from lib.agent.kl import KLPenalty
from lib.agent.network import PolicyNet
from lib.agent.replay import Batch
from lib.agent.rollout import Rollout
from lib.agent.sac import SAC, SACNet
from lib.cli import UserError
from lib.envs.make import make_world
from lib.learner import ALONE, Alone, Learner
from lib.preferences.segment_db import SegmentDB
from lib.preferences.teachers import label_with_teacher
from lib.reward.config import FitConfig
from lib.reward.fit import check_alone, fit
from lib.training import newest_reward
from lib.training.ranks import joined
from lib.training.train import _LEARNERS, train
from tests.reward.clips import grey_db
from tests.reward.models import save_unfitted
from tests.scripts import warm
from tests.training.evaluations import one_game
from tests.training.test_resume import differences, state_of

CPU = torch.device("cpu")
STEPS, ENVS = 6, 5


def in_ranks(folder: Path, work: Callable[..., Any], *args: Any, size: int = 2) -> list[Any]:
    """What a function of this module returns in each of some processes that torchrun might have started."""
    statuses = ended(folder, work, *args, size=size)
    assert statuses == [0] * size
    return [torch.load(folder / f"{rank}.dat", weights_only=True) for rank in range(size)]


def ended(folder: Path, work: Callable[..., Any], *args: Any, size: int = 2) -> list[int | None]:
    """How each of these processes ends; -9 is one that has to be killed, as it hangs."""
    folder.mkdir(exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [
        warm.Process(target=_rank, args=(folder, port, rank, size, work, args)) for rank in range(size)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
        process.kill()  # of use only where it takes longer
        process.join()
    return [process.exitcode for process in processes]


def _rank(
    folder: Path, port: int, rank: int, size: int, work: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    names = {"RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in names.items()}
    torch.set_num_threads(1)
    torch.save(work(*args), folder / f"{rank}.dat")


def says() -> tuple[Any, ...]:
    with joined("cpu") as ranks:
        rank = ranks.rank
        mixed = [torch.tensor(rank + 1), torch.full((2, 2), rank + 0.5, dtype=torch.float64), torch.ones(())]
        decisions = [ranks.together(decision) for decision in (rank == 1, False, True)]
        texts = ranks.gather([f"of {rank}"])
        return ranks.everyone(10 * rank), decisions, ranks.total(mixed), list(ranks.share(5)), texts


@pytest.mark.slow  # as all that starts processes
def test_sums_and_decisions_are_of_all(tmp_path: Path) -> None:
    for rank, (numbers, decisions, sums, share, told) in enumerate(in_ranks(tmp_path, says)):
        assert numbers == [0, 10]
        assert told == [["of 0"], ["of 1"]]
        assert decisions == [True, False, True]
        expected = [torch.tensor(3), torch.full((2, 2), 2.0, dtype=torch.float64), torch.tensor(2.0)]
        for found, right in zip(sums, expected, strict=True):
            torch.testing.assert_close(found, right, rtol=0, atol=0)  # types and shapes too
        assert share == [[0, 1], [2, 3, 4]][rank]


def test_one_process_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with joined("cpu") as ranks:
        assert ranks is ALONE
    tensors = [torch.ones(2)]
    assert ranks.total(tensors) is tensors
    assert (ranks.everyone(7), ranks.together(True), ranks.together(False)) == ([7], True, False)
    assert ranks.share(5) == range(5)


class Of(Alone):
    """One of several processes with so many environments each, as far as minibatches ask."""

    def __init__(self, rank: int, envs: list[int]) -> None:
        self.rank, self.size, self._envs = rank, len(envs), envs

    def everyone(self, number: int) -> list[int]:
        assert number == self._envs[self.rank]
        return self._envs


def test_minibatches_of_all_ranks_are_those_of_one_process() -> None:
    """Step t of environment b is row t·B + b, of B environments of one process or of a rank."""
    torch.manual_seed(3)
    expected = [{divmod(int(row), ENVS) for row in rows} for rows in _minibatches(STEPS, ENVS, 4, CPU)]  # type: ignore[union-attr]
    shares, found = [2, 0, 3], [set[tuple[int, int]]() for _ in expected]
    for rank, envs in enumerate(shares):
        torch.manual_seed(3)
        for rows, pairs in zip(_minibatches(STEPS, envs, 4, CPU, Of(rank, shares)), found, strict=True):
            for row in rows:  # type: ignore[union-attr]
                step, env = divmod(int(row), envs)
                pairs.add((step, env + sum(shares[:rank])))
    assert found == expected


CASES: dict[str, dict[str, Any]] = {
    "a2c": {"lr": 1e-2},
    "ppo": {"algo": "ppo", "lr": 1e-3, "target_kl": 0.02},
    "a2c kl": {"model": Path("m"), "reward": Path("r"), "kl": 0.5, "kl_target": 0.01, "kl_horizon": 30},
    "ppo kl": {"algo": "ppo", "model": Path("m"), "reward": Path("r"), "kl": 0.5, "critic_warmup": 1},
}


def learns(ranks: Alone, case: str, env: str) -> dict[str, Any]:
    """What a rank's share of six made-up rollouts teaches; the shares are of 2 and 3 environments."""
    config = TrainConfig(name="x", env=env, rollout=STEPS, num_envs=ENVS, lr_decay_steps=1000, **CASES[case])
    share = ranks.share(ENVS)
    world = make_world(env, len(share))
    torch.manual_seed(5)
    network, reference = (
        PolicyNet(world.spec.num_actions, world.spec.continuous, world.spec.observation_size)
        for _ in range(2)
    )
    penalty = KLPenalty(reference, config.kl, config.kl_target, config.kl_horizon) if config.kl else None
    learner = ActorCritic(network, world, config, CPU, False, 0, penalty=penalty, ranks=ranks)
    generator = torch.Generator().manual_seed(7)
    said = []
    for _ in range(6):
        played = rollout(network, generator, share, config.reward is not None)
        said.append({name: float(value) for name, value in learner.learn(played).items()})
        learner.updates += 1
    world.close()
    return {"network": network.state_dict(), "said": said}


def rollout(network: PolicyNet, generator: torch.Generator, share: range, learned: bool) -> Rollout:
    """Noise of which a third is invalid, more of it in the first environments than in the last."""
    shape, ours = (STEPS, ENVS), slice(share.start, share.stop)
    observations = 3 + 2 * torch.randn(*shape, network.spec.observation_size or 0, generator=generator)
    if network.spec.continuous:
        actions = torch.randn(*shape, network.spec.num_actions, generator=generator)
    else:
        actions = torch.randint(network.spec.num_actions, shape, generator=generator)
    paid, score, chance = torch.randn(3, *shape, generator=generator)
    chance = chance.sigmoid().numpy()
    off = np.linspace(0.6, 0.1, ENVS)
    seen, last = observations[:, ours], 3 + torch.randn(ENVS, observations.shape[-1], generator=generator)
    with torch.no_grad():
        features = network.features(seen)
        dist_params = network.dist_params(features)
        values = torch.cat([network.values(features), network.values(network.features(last[ours]))[None]])
    return Rollout(
        observations=seen,
        actions=actions[:, ours],
        dist_params=dist_params,
        values=values,
        learned=paid[:, ours] if learned else None,
        score=score.numpy()[:, ours],
        terminal=(chance > 0.7)[:, ours],
        truncated=(chance < 0.2)[:, ours],
        valid=(chance > off)[:, ours],
        held=np.zeros(shape, bool)[:, ours],
    )


OFF_POLICY: dict[str, dict[str, Any]] = {
    "sac": {"env": "Pendulum-v1", "algo": "sac", "lr": 1e-3},
    "dqn": {
        "env": "CartPole-v1",
        "algo": "dqn",
        "lr": 1e-3,
        "target_every": 3,
        "target_step": 0.5,
        "grad_clip": 0.5,
    },
    "dqn qr": {"env": "CartPole-v1", "algo": "dqn", "quantiles": 5, "dueling": True},
}


def learns_from_batches(ranks: Alone, case: str) -> dict[str, Any]:
    """What a rank's share of eight made-up batches teaches; the shares are of 2 and 3 environments of 5."""
    config = TrainConfig(name="x", num_envs=ENVS, batch_size=4 * ENVS, replay_steps=100, **OFF_POLICY[case])
    share = ranks.share(ENVS)
    world = make_world(config.env, len(share))
    torch.manual_seed(5)
    learner: Any = _LEARNERS[config.algo](
        _LEARNERS[config.algo].new_network(config, world), world, config, CPU, False, 0, ranks=ranks
    )
    for optimizer in learner.optimizers.values():
        for group in optimizer.param_groups:
            group["eps"] = 1e-4  # Adam's first steps are of g/|g|: where g is nearly 0, rounding decides
    generator, ours = torch.Generator().manual_seed(7), slice(4 * share.start, 4 * share.stop)

    def drawn(count: int, *_: object) -> Batch:
        """As a replay draws them: of the valid steps, a third of all, the weights are equal and 1 on average."""
        assert count == 4 * len(share)
        batch = made_up_batch(learner.network, generator)
        batch = Batch(*(column[ours] for column in batch))
        return batch._replace(weights=batch.weights / batch.weights.mean().clamp(min=1 / count))

    learner.replay.sample = drawn
    if config.algo == "sac":
        noise = torch.Generator().manual_seed(8)
        learner.learn = lambda batch: learner.learn_with(
            batch, torch.randn(2, 4 * ENVS, 1, generator=noise)[:, ours]
        )
    said = [{name: float(value) for name, value in learner.update().items()} for _ in range(8)]
    world.close()
    return {"network": learner.network.state_dict(), "target": learner.target.state_dict(), "said": said}


def made_up_batch(network: SACNet | QNet, generator: torch.Generator) -> Batch:
    """Four steps of each environment; more of them are valid in the last environments than in the first."""
    count, size = 4 * ENVS, network.spec.observation_size or 0
    observations, following = torch.randn(2, count, size, generator=generator)
    actions = torch.randint(network.spec.num_actions, (count,), generator=generator)
    if network.spec.continuous:
        actions = torch.rand(count, network.spec.num_actions, generator=generator)
    returns, chance = torch.randn(2, count, generator=generator)
    discounts = 0.9 * (torch.rand(count, generator=generator) > 0.2)
    valid = chance.sigmoid() > torch.linspace(0.8, 0.3, count)
    return Batch(observations, actions, returns, discounts, following, valid.float(), torch.arange(count))


ENV_IDS = "CartPole-v1", "Pendulum-v1"


def learns_all() -> dict[Any, dict[str, Any]]:
    with joined("cpu") as ranks:
        found: dict[Any, dict[str, Any]] = {
            (case, env): learns(ranks, case, env) for case in CASES for env in ENV_IDS
        }
        return found | {case: learns_from_batches(ranks, case) for case in OFF_POLICY}


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """All cases in each of two ranks, which are started once."""
    return in_ranks(tmp_path_factory.mktemp("learned"), learns_all)


@pytest.mark.slow
@pytest.mark.parametrize("env", ENV_IDS)
@pytest.mark.parametrize("case", CASES)
def test_two_ranks_learn_what_one_process_learns(case: str, env: str, learned: list[Any]) -> None:
    """Weights, the normaliser's statistics and all that is charted."""
    assert_equal_learning(learns(ALONE, case, env), *(of_rank[case, env] for of_rank in learned))


@pytest.mark.slow
@pytest.mark.parametrize("case", OFF_POLICY)
def test_two_ranks_learn_from_their_replays_what_one_process_learns(case: str, learned: list[Any]) -> None:
    one, (first, second) = learns_from_batches(ALONE, case), (of_rank[case] for of_rank in learned)
    assert_equal_learning(one, first, second)
    for name, right in one["target"].items():
        torch.testing.assert_close(first["target"][name], right, rtol=1e-6, atol=1e-6)


def assert_equal_learning(one: dict[str, Any], first: dict[str, Any], second: dict[str, Any]) -> None:
    """Of one process and of two ranks."""
    for name, right in one["network"].items():
        torch.testing.assert_close(first["network"][name], right, rtol=1e-6, atol=1e-6)
        assert torch.equal(first["network"][name], second["network"][name]), name
    assert len({len(said) for said in (one["said"], first["said"], second["said"])}) == 1
    for said in (first["said"], second["said"]):
        for now, right in zip(said, one["said"], strict=True):
            assert now == pytest.approx(right, rel=1e-4, abs=1e-5)


# --- runs ------------------------------------------------------------------------------------------------------


def flags(root: Path, **more: Any) -> dict[str, Any]:
    """Of a run that makes 60 steps an update and records clips."""
    few: dict[str, Any] = {"env": "Pendulum-v1", "num_envs": 3, "rollout": 20, "steps": 180, "eval_games": 1}
    where: dict[str, Any] = {"runs": root / "runs", "save": root / "save", "db_path": root / "db"}
    return {"name": "x", "record_prob": 0.5, "eval_every": 10**6, "bf16": False} | few | where | more


class Accident(ActorCritic):
    """Something happens to the last process in its second update."""

    what = "nothing"

    def advance(self) -> Any:
        if self._ranks.rank == self._ranks.size - 1 and self.updates == 1:
            if self.what == "SIGTERM":
                signal.raise_signal(signal.SIGTERM)
            if self.what == "SIGKILL":
                os.kill(os.getpid(), signal.SIGKILL)
        return super().advance()


class Dies(Accident):
    what = "SIGKILL"


class IsAsked(Accident):
    what = "SIGTERM"


def trains(learner: type[Learner], settings: dict[str, Any]) -> tuple[Any, ...]:
    """Checkpoint, folder, whether it was stopped; or what an error said."""
    try:
        made = train(TrainConfig(**settings), make_learner=learner, evaluate=one_game, seconds=0.0)
        return (made.checkpoint and str(made.checkpoint), str(made.run_dir), made.stopped)
    except UserError as error:
        return (str(error),)


@pytest.mark.slow
def test_a_run_resumes_with_another_number_of_ranks(tmp_path: Path) -> None:
    """Every environment records into its own folder, and one process alone charts and saves."""
    first, second = in_ranks(tmp_path / "two", trains, Accident, flags(tmp_path))
    assert second == (None, first[1], False)
    (run,) = (tmp_path / "runs").iterdir()
    assert first[1:] == (str(run), False)
    assert Path(first[0]).parent == tmp_path / "save"
    assert state_of(tmp_path)["steps"] == 180
    assert len(list(run.glob("events.*"))) == 1
    names = SegmentDB(tmp_path / "db").names
    assert {name[:2] for name in names} == {"00", "01", "02"}
    firsts = [SegmentDB(tmp_path / "db").load(name).actions[:5].tobytes() for name in names]
    assert len(set(firsts)) == len(names)  # no two play alike

    more = flags(tmp_path, resume=run)
    in_ranks(tmp_path / "three", trains, Accident, more | {"steps": 360}, size=3)
    assert (state_of(tmp_path)["steps"], state_of(tmp_path)["updates"]) == (360, 6)
    assert train(TrainConfig(**more | {"steps": 420}), evaluate=one_game).checkpoint is not None
    assert (state_of(tmp_path)["steps"], state_of(tmp_path)["updates"]) == (420, 7)
    after = SegmentDB(tmp_path / "db").names
    assert len(after) > len(names)
    assert set(after) > set(names)


@pytest.mark.slow
def test_a_run_with_replays_resumes_with_another_number_of_ranks(tmp_path: Path) -> None:
    """Three environments play 60 steps each, and half as many updates are due for those after the first 30 steps."""
    settings = flags(tmp_path, algo="sac", rollout=None, batch_size=9, learning_starts=30, replay_steps=600)
    first, second = in_ranks(tmp_path / "two", trains, SAC, settings)
    assert second == (None, first[1], False)
    (run,) = (tmp_path / "runs").iterdir()
    state = state_of(tmp_path)
    assert (state["steps"], state["updates"], state["replay"]) == (180, 76, None)
    assert {name[:2] for name in SegmentDB(tmp_path / "db").names} == {"00", "01", "02"}

    again = settings | {"resume": run}
    assert train(TrainConfig(**again | {"steps": 240}), evaluate=one_game).checkpoint is not None
    state = state_of(tmp_path)
    assert (state["steps"], state["updates"]) == (240, 76 + 17)  # none until the replay holds 30 steps again
    assert state["replay"]["filled"] == 20
    in_ranks(tmp_path / "three", trains, SAC, again | {"steps": 300}, size=3)
    assert (state_of(tmp_path)["steps"], state_of(tmp_path)["updates"]) == (300, 93 + 16)


@pytest.mark.slow
def test_all_end_when_one_is_asked_to(tmp_path: Path) -> None:
    first, second = in_ranks(tmp_path / "two", trains, IsAsked, flags(tmp_path, steps=10**6))
    assert first[2]
    assert second[2]
    assert state_of(tmp_path)["steps"] == 120


class WaitsInVain(ActorCritic):
    """The last process is asked to end while all wait for labels."""

    def advance(self) -> Any:
        if self._ranks.rank == self._ranks.size - 1:
            asked = SimpleNamespace(sleep=lambda seconds: signal.raise_signal(signal.SIGTERM))
            newest_reward.time = asked  # type: ignore[assignment, attr-defined]
        return super().advance()


@pytest.mark.slow
def test_all_end_when_one_is_asked_to_while_they_wait_for_labels(tmp_path: Path) -> None:
    offers(tmp_path / "reward.dat", 1)
    watched = {"reward": tmp_path / "reward.dat", "watch_reward": True, "labels": 40, "opening_labels": 10}
    settings = flags(tmp_path, **watched, wait_for_labels=15)
    assert ended(tmp_path / "two", trains, WaitsInVain, settings) == [0, 0]
    assert state_of(tmp_path)["steps"] == 120


@pytest.mark.slow
def test_all_end_when_one_is_killed(tmp_path: Path) -> None:
    before = time.monotonic()
    settings = flags(tmp_path, steps=10**6, checkpoint_minutes=0.0)
    assert ended(tmp_path / "two", trains, Dies, settings) == [0, -9]
    assert time.monotonic() - before < 600  # the process that was left would have waited for hours
    (said,) = torch.load(tmp_path / "two" / "0.dat", weights_only=True)
    assert "rank 0 ends because another rank has ended" in said
    assert state_of(tmp_path)["steps"] == 60


@pytest.mark.slow
def test_a_full_disk_of_one_ends_all(tmp_path: Path) -> None:
    (tmp_path / "db").mkdir()
    (tmp_path / "db" / "02").write_text("in the way of the last environment's folder")
    first, second = in_ranks(tmp_path / "two", trains, Accident, flags(tmp_path, steps=10**6))
    assert "another rank could not record" in first[0]
    assert f"saved {tmp_path / 'save'}" in first[0]
    assert "rank 1: could not record to the DB" in second[0]


def trains_elsewhere(root: Path, settings: dict[str, Any]) -> tuple[Any, ...]:
    machine = root / f"machine-{os.environ['RANK']}"
    machine.mkdir()
    os.chdir(machine)
    return trains(Accident, settings)


@pytest.mark.slow
def test_machines_share_the_db_alone(tmp_path: Path) -> None:
    """Two with a working folder each, as if neither saw the other's disk but for the DB."""
    settings = flags(tmp_path, runs=Path("runs"), save=Path("save"))
    first, second = in_ranks(tmp_path / "two", trains_elsewhere, tmp_path, settings)
    assert (str(Path(first[0]).parent), second[0]) == ("save", None)
    assert {path.name for path in (tmp_path / "machine-0").iterdir()} == {"runs", "save"}
    assert not list((tmp_path / "machine-1").iterdir())
    assert {name[:2] for name in SegmentDB(tmp_path / "db").names} == {"00", "01", "02"}


@pytest.mark.slow
def test_record_only_fills_one_db(tmp_path: Path) -> None:
    settings = flags(tmp_path, record_only=True, save=None)
    assert in_ranks(tmp_path / "two", trains, Accident, settings)[0][0] is None
    assert {name[:2] for name in SegmentDB(tmp_path / "db").names} == {"00", "01", "02"}


class Replaced(ActorCritic):
    """The first process replaces the reward model in its second update, and each notes which one pays."""

    def advance(self) -> Any:
        if self._ranks.rank == 0 and self.updates == 1:
            offers(self._config.reward, 2)
        made = super().advance()
        with open(self._config.runs / f"paid-{self._ranks.rank}", "a") as file:
            file.write(f"{self.collector.reward.origin['version']} ")  # type: ignore[union-attr]
        return made


def offers(path: Path | None, version: int) -> None:
    assert path is not None
    pendulum: dict[str, Any] = {"input": "observation", "continuous": True, "observation_size": 3}
    save_unfitted(path, (500, 500, 3), 1, std=1.0, seed=version, version=version, **pendulum)


@pytest.mark.slow
def test_all_take_a_new_reward_model_at_once(tmp_path: Path) -> None:
    offers(tmp_path / "reward.dat", 1)
    settings = flags(tmp_path, steps=300, reward=tmp_path / "reward.dat", watch_reward=True, db_path=None)
    in_ranks(tmp_path / "two", trains, Replaced, settings)
    paid = [(tmp_path / "runs" / f"paid-{rank}").read_text().split() for rank in range(2)]
    assert paid[0] == paid[1] == ["1", "1", "2", "2", "2"]


class Mortal(ActorCritic):
    """One of the processes is killed some seconds of its processor's time after it made some updates."""

    victim, updates_left, seconds = 0, 0, 0.0

    def advance(self) -> Any:
        if self._ranks.rank == self.victim and self.updates_left == 0:
            signal.signal(signal.SIGPROF, signal.SIG_DFL)  # which kills
            signal.setitimer(signal.ITIMER_PROF, self.seconds)
        self.updates_left -= 1
        return super().advance()


def lives(victim: int, updates: int, seconds: float, settings: dict[str, Any]) -> tuple[Any, ...]:
    Mortal.victim, Mortal.updates_left, Mortal.seconds = victim, updates, seconds
    return trains(Mortal, settings)


@pytest.mark.slow
def test_kills_at_random_moments(tmp_path: Path) -> None:
    """Nothing hangs, all files can be read, and no state is lost that was written."""
    rng, steps = np.random.default_rng(20), 0
    settings = flags(tmp_path, steps=10**6, checkpoint_minutes=0.0, record_prob=1.0)
    for _ in range(10):
        victim, updates, seconds = int(rng.integers(2)), int(rng.integers(5)), float(rng.uniform(0.001, 0.1))
        runs = list((tmp_path / "runs").glob("*"))
        life = settings | ({"resume": runs[0]} if runs else {})
        statuses = ended(tmp_path / "life", lives, victim, updates, seconds, life)
        assert statuses == [-signal.SIGPROF if rank == victim else 0 for rank in range(2)]
        (said,) = torch.load(tmp_path / "life" / f"{1 - victim}.dat", weights_only=True)
        assert "another rank has ended" in said
        made = state_of(tmp_path)["steps"] if list(tmp_path.glob("runs/*/state.dat")) else 0
        assert made >= steps
        steps = made
    assert steps > 0
    db = SegmentDB(tmp_path / "db")
    assert db.names
    for name in db.names:
        db.load(name)
    in_ranks(tmp_path / "last", trains, Accident, settings | {"resume": runs[0], "steps": steps + 60})
    assert state_of(tmp_path)["steps"] == steps + 60


# --- fits ------------------------------------------------------------------------------------------------------


def fits(db: Path, root: Path, **flags: Any) -> str:
    """The checkpoint of a fit of three members; or what was said to an error."""
    torch.set_num_threads(1)
    few: dict[str, Any] = {"ensemble": 3, "epochs": 2, "frame_stride": 10, "bf16": False}
    config = FitConfig(dbs=[db], name="x", out=root / "out", runs=root / "runs", **(few | flags))
    try:
        with joined("cpu") as ranks:
            check_alone(config, ranks)
            return str(fit(config, ranks).path)
    except UserError as error:
        return str(error)


def fits_one(db: Path, root: Path) -> str:
    return fits(db, root, ensemble=1)


def expect_the_same(alone: str, together: list[str]) -> None:
    """Three members, in the checkpoints of one process and of several."""
    assert len(set(together)) == 1
    expected, found = (torch.load(path, weights_only=True) for path in (alone, together[0]))
    assert len(found["members"]) == 3
    for payload in (expected, found):
        for name in ("created", "config", "command"):
            payload.pop(name, None)
    assert differences(found, expected) == []


@pytest.mark.slow
def test_members_fitted_side_by_side_are_those_fitted_in_turn(tmp_path: Path) -> None:
    """Bit for bit, with their statistics, their disagreement and all held-out figures."""
    db = grey_db(tmp_path / "db", segments=12, labels=24)
    expect_the_same(fits(db, tmp_path / "alone"), in_ranks(tmp_path / "two", fits, db, tmp_path / "together"))
    runs = list((tmp_path / "together" / "runs").iterdir())
    assert len(runs) == 1
    events = EventAccumulator(str(runs[0])).Reload()
    assert {f"loss/held_out_{member}" for member in (1, 2, 3)} <= set(events.Tags()["scalars"])


def fits_text(db: Path, root: Path, model: Path) -> str:
    from lib.text.fit import Answers

    torch.set_num_threads(1)
    config = FitConfig(
        dbs=[db],
        name="x",
        out=root / "out",
        runs=root / "runs",
        ensemble=3,
        epochs=2,
        model=model,
        cut=2,
        upper=1,
        bf16=False,
    )
    with joined("cpu") as ranks:
        return str(fit(config, ranks, Answers).path)


@pytest.mark.slow
def test_members_fitted_to_answers_side_by_side_are_those_fitted_in_turn(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="language models need requirements-text.txt")
    from tests.text.dbs import answer_db, random_texts
    from tests.text.tiny import save_tiny

    db, model = answer_db(tmp_path / "db", random_texts(16, 2)), save_tiny(tmp_path / "model")
    label_with_teacher(db, "shorter", 16)
    alone = fits_text(db, tmp_path / "alone", model)
    expect_the_same(alone, in_ranks(tmp_path / "two", fits_text, db, tmp_path / "together", model))


@pytest.mark.slow
def test_what_several_processes_cannot_fit(tmp_path: Path) -> None:
    db = grey_db(tmp_path / "db", segments=12, labels=24)
    expected = "--ensemble 1: expected one member or more for each of the 2 processes of torchrun"
    assert in_ranks(tmp_path / "two", fits_one, db, tmp_path) == [expected] * 2
