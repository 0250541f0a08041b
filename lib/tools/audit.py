"""Where a reward model is out of data: how much its members disagree on a policy's fresh play."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lib.agent.checkpoints import check_env_of_file, check_policy, env_of, load_policy
from lib.cli import UserError
from lib.devices import resolve_bf16, resolve_device
from lib.envs.make import make_world
from lib.envs.play import Policy, play
from lib.envs.world import World
from lib.files import make_folder
from lib.preferences.segment_db import SegmentDB
from lib.preferences.segments import SEGMENT_LENGTH
from lib.provenance import now
from lib.reporting import Charts
from lib.reward.checkpoints import load_reward_model
from lib.reward.config import FitConfig
from lib.reward.fit import Fit
from lib.reward.model import RewardModel
from lib.reward.report.clips import clip
from lib.reward.report.page import write_page
from lib.reward.report.probes import some_segments
from lib.runs import make_run_dir, write_config

_SEED = 30_000  # recording plays other games, evaluations others again
WINDOWS = 20
"""Windows of 50 steps that each environment plays: a minute of the game."""
OUT_OF_DATA = 0.05
"""An audit says so from this share of fresh steps beyond the DB's 99th percentile on; 1 % is expected."""
_CLIPS = 4
_BINS = 30
_QUANTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True)
class Rated:
    """An ensemble's ratings of N steps."""

    paid: np.ndarray
    """float32 `[N]`, the mean over its members."""
    disagreement: np.ndarray
    """float32 `[N]`, the standard deviation over them, of rewards that each has standardised."""

    @classmethod
    def of(cls, each: np.ndarray) -> "Rated":
        """From what each member pays, float32 `[M, N]`."""
        return cls(each.mean(0), each.std(0))


@dataclass(frozen=True)
class Window:
    """Fifty steps of one game, with their ratings."""

    env: int
    start: int
    """First step, counted in the game."""
    frames: np.ndarray
    """uint8 `[50, H, W, 3]`"""
    scores: np.ndarray
    """float32 `[50]`"""
    rated: Rated


@dataclass(frozen=True)
class Play:
    """N steps of a policy, in the order played."""

    rated: Rated
    game_step: np.ndarray
    """int64 `[N]`: how long each game had been going."""
    windows: list[Window]
    """Those of the largest mean disagreement, at most four, largest first."""


@torch.no_grad()
def play_and_rate(
    policy: Policy, world: World, model: RewardModel, seed: int, device: torch.device, windows: int
) -> Play:
    """Plays a policy while a reward model rates every step.

    Leaves out steps whose action the environment ignored, and windows with a reset.

    Args:
      policy: on `device`.
      world: B environments; they are reset.
      model: an ensemble, on `device`.
      seed: of the games and the actions.
      device: where both compute.
      windows: how many times 50 steps each environment plays.
    """
    envs = world.num_envs
    assert world.spec.frame_shape is not None
    frames = np.empty((SEGMENT_LENGTH, envs, *world.spec.frame_shape), np.uint8)
    each = np.empty((len(model.members), SEGMENT_LENGTH, envs), np.float32)
    scores = np.zeros((SEGMENT_LENGTH, envs), np.float32)
    valid = np.zeros((SEGMENT_LENGTH, envs), bool)
    game_steps = np.zeros((SEGMENT_LENGTH, envs), np.int64)
    since_reset = np.zeros(envs, np.int64)
    all_each, all_steps = [], []
    strangest: list[Window] = []
    for made, turn in enumerate(play(world, policy, seed, device, steps=windows * SEGMENT_LENGTH)):
        t = made % SEGMENT_LENGTH
        frames[t], game_steps[t] = turn.step.frames, since_reset
        inputs = turn.inputs(model.input)
        each[:, t] = model.each(inputs, turn.decision.actions).cpu().numpy()
        outcome = turn.outcome()
        scores[t], valid[t] = outcome.score, ~outcome.reset
        since_reset = np.where(outcome.reset, 0, since_reset + 1)
        if t < SEGMENT_LENGTH - 1:
            continue
        all_each.append(each[:, valid])
        all_steps.append(game_steps[valid])
        for env in np.flatnonzero(valid.all(0)):
            rated = Rated.of(each[:, :, env])
            if len(strangest) < _CLIPS or rated.disagreement.mean() > _strangeness(strangest[-1]):
                window = Window(
                    int(env), int(game_steps[0, env]), frames[:, env].copy(), scores[:, env].copy(), rated
                )
                strangest = sorted([*strangest, window], key=_strangeness, reverse=True)[:_CLIPS]
    return Play(Rated.of(np.concatenate(all_each, 1)), np.concatenate(all_steps), strangest)


def _strangeness(window: Window) -> float:
    return float(window.rated.disagreement.mean())


def rate_dbs(model: RewardModel, dbs: Sequence[Path]) -> tuple[Rated, str]:
    """Rates the steps of some DBs, labelled or not.

    Most clips of a DB have no label, so this shows how much the members differ on data like theirs, not on data that
    they have memorised.

    Returns:
      About 10,000 steps at most, and their environment ("" if unknown).

    Raises:
      UserError: No clip has this model's size of frame.
    """
    each, env_id = [], ""
    for segment in some_segments(model, dbs):
        each.append(model.each_along(segment.frames, segment.actions, segment.observations))
        env_id = env_id or (segment.sidecar.env_id if segment.sidecar else "")
    if not each:
        height, width, _ = model.members[0].network.frame_shape
        raise UserError(
            f"{', '.join(map(str, dbs))}: expected clips of {height}×{width} pixels to compare with, found none"
        )
    return Rated.of(np.concatenate(each, 1)), env_id


@dataclass(frozen=True)
class Finding:
    """Fresh play against the DBs."""

    beyond: float
    """Share of fresh steps on which members differ more than on 99 % of the DBs' steps."""
    limit: float
    """That 99th percentile."""
    quantiles: dict[float, tuple[float, float]]
    """By level: disagreement in the DBs and in fresh play."""
    outside: bool

    @property
    def text(self) -> str:
        """One sentence."""
        if self.outside:
            return "the policy goes where the reward model has little data: record clips of its play and label some of them"
        return "the policy stays where the reward model has data"


def compare(db: Rated, fresh: Rated) -> Finding:
    """Compares fresh play with the DBs."""
    limit = float(np.quantile(db.disagreement, 0.99))
    beyond = float((fresh.disagreement > limit).mean())
    quantiles = {
        level: (float(np.quantile(db.disagreement, level)), float(np.quantile(fresh.disagreement, level)))
        for level in _QUANTILES
    }
    return Finding(beyond, limit, quantiles, beyond > OUT_OF_DATA)


def check_audit(config: FitConfig) -> None:
    """Refuses, before the fit, a setup that could not be audited afterwards.

    Raises:
      UserError: There is no policy, only one member, which cannot disagree with itself, or an environment that only a
        user may name.
    """
    if config.audit is None:
        return
    origin = load_policy(config.audit)[1]
    _environment(config, SegmentDB(config.dbs[0]).environment(), origin)
    members = (
        config.ensemble
        if config.audit_reward is None
        else len(load_reward_model(config.audit_reward).members)
    )
    if members < 2:
        raise UserError(
            f"--audit {config.audit} expected an ensemble, whose members can disagree, got a single reward model; "
            f"fit with --ensemble 3"
        )


def _environment(config: FitConfig, db_env_id: str, origin: dict[str, Any]) -> str:
    """Where to play: in what `--audit-env` names, or else the DBs, or else the policy; refuses what only a user may name."""
    assert config.audit is not None
    if config.audit_env is not None:
        return config.audit_env
    env_id = db_env_id or env_of(origin)
    check_env_of_file(env_id, config.dbs[0] if db_env_id else config.audit, "--audit-env")
    return env_id


def audit(config: FitConfig, fit: Fit | None = None) -> Path:
    """Plays the policy of `--audit` and writes `OUT/reward-NAME.audit.html`; prints what it found.

    Args:
      config: the flags.
      fit: what came of the fit; None takes the reward model of `--audit-reward`.

    Returns:
      The page.

    Raises:
      UserError: something about the files that the user can mend.
    """
    assert config.audit is not None
    device = resolve_device(config.dev)
    bf16 = resolve_bf16(config.bf16, device)
    if fit is None:
        assert config.audit_reward is not None
        checkpoint, model = config.audit_reward, load_reward_model(config.audit_reward, device, bf16)
        run_dir = make_run_dir(config.runs, "audit", config.name)
        write_config(run_dir, config)
    else:
        checkpoint, model, run_dir = fit.path, fit.model, fit.run_dir
    if len(model.members) < 2:
        raise UserError(
            f"{checkpoint}: only one member was fitted, and an audit needs several; fit it to the end"
        )
    network, origin = load_policy(config.audit)
    db, db_env_id = rate_dbs(model, config.dbs)
    env_id = _environment(config, db_env_id, origin)
    world = make_world(env_id, config.audit_games)
    try:
        check_policy(network, world, config.audit, "--audit-env")
        model.check(world.spec, checkpoint, world.env_id)
        policy = network.to(device).eval().acting(bf16)
        fresh = play_and_rate(policy, world, model, _SEED + config.seed, device, WINDOWS)
    finally:
        world.close()
    finding = compare(db, fresh.rated)
    path = config.out / f"reward-{config.name}.audit.html"
    make_folder(config.out, "-o")
    subtitle = f"{config.audit} in {env_id}, rated by {checkpoint} · {now()}"
    title = f"reward-{config.name}: audit"
    write_page("audit.html", path, title=title, subtitle=subtitle, **_page(db, fresh, finding))
    with Charts(run_dir) as charts:
        charts.scalars(_numbers(db, fresh, finding), 0)
        charts.text("audit/finding", finding.text)
    low, high = finding.quantiles[0.5]
    print(
        f"audit: members disagree by {high:.2f} on {len(fresh.game_step)} steps of {config.audit} (median; {low:.2f} in the "
        f"DB), {finding.beyond:.1%} of them beyond the DB's 99th percentile: {finding.text}; see {path}"
    )
    return path


def _numbers(db: Rated, play: Play, finding: Finding) -> dict[str, float]:
    numbers = {
        "audit/beyond_the_99th_percentile": finding.beyond,
        "audit/paid_db": float(db.paid.mean()),
        "audit/paid_fresh": float(play.rated.paid.mean()),
    }
    for level, (in_db, in_play) in finding.quantiles.items():
        numbers |= {f"audit/disagreement_{level:g}_db": in_db, f"audit/disagreement_{level:g}_fresh": in_play}
    return numbers


def _page(db: Rated, play: Play, finding: Finding) -> dict[str, object]:
    """The values for templates/audit.html."""
    from lib.reward.report import plots  # Matplotlib takes a second to import

    fresh = play.rated
    top = max([finding.limit, *(float(window.rated.disagreement.max()) for window in play.windows)])
    strangest = [
        clip(
            f"{_strangeness(window):.2f} on average",
            f"game {window.env + 1}, from step {window.start}",
            window.frames,
            window.rated.disagreement,
            (0.0, top),
            "disagreement",
            window.scores,
            [np.full(len(window.scores), finding.limit)],
        )
        for window in play.windows
    ]
    places, slots = np.unique(play.game_step // SEGMENT_LENGTH, return_inverse=True)
    means = [float(fresh.disagreement[slots == at].mean()) for at in range(len(places))]
    middles = ((places + 0.5) * SEGMENT_LENGTH).tolist()
    unit = "standard deviation over members"
    paid_unit = "standard deviations over the fit's clips"
    return {
        "db": db,
        "fresh": fresh,
        "finding": finding,
        "out_of_data": OUT_OF_DATA,
        "strangest": strangest,
        "charts": {
            "disagreement": plots.histogram(
                "disagreement of the members", unit, *_shares(db.disagreement, fresh.disagreement)
            ),
            "paid": plots.histogram("learned reward", paid_unit, *_shares(db.paid, fresh.paid)),
            "along": plots.along_the_game(middles, means, finding.limit),
        },
    }


def _shares(db: np.ndarray, fresh: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Bin edges, and the share of either side's steps in each bin; what lies beyond an end counts in the last bin."""
    both = np.concatenate([db, fresh])
    low, high = np.quantile(both, [0.002, 0.998])
    edges = np.linspace(0.0 if both.min() >= 0 else low, max(high, low + 1e-6), _BINS + 1)
    one, two = (np.histogram(side.clip(edges[0], edges[-1]), edges)[0] / len(side) for side in (db, fresh))
    return edges, one, two
