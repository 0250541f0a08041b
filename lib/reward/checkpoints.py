"""Files of reward models: ours, and those of the original experiment."""

from pathlib import Path
from typing import Any

import torch

from lib.checkpoints import check_weights, load_checkpoint, save_checkpoint
from lib.cli import UserError
from lib.envs.world import MAX_OBSERVATION
from lib.provenance import lineage
from lib.reward.features import PolicyBody, PolicyFeatures
from lib.reward.implied import PolicyRatio, ratio_of
from lib.reward.model import Member, RewardModel
from lib.reward.network import INPUTS, RewardNet, conv_features


def save_reward_model(
    path: Path,
    model: RewardModel,
    config: Any,
    parents: dict[str, Any],
    results: dict[str, Any],
    refit: dict[str, Any] | None = None,
) -> None:
    """Writes a reward checkpoint, atomically.

    Args:
      path: the file.
      model: the model.
      config: the configuration of the fit.
      parents: the DBs it was fitted on.
      results: figures of the fit.
      refit: with --watch, `version` and what the next refit needs (lib.reward.refit).
    """
    network = model.members[0].network
    payload = {
        "frame_shape": list(network.frame_shape),
        "num_actions": model.spec.num_actions,
        "input": model.input,
        "continuous": model.spec.continuous,
        "observation_size": network.spec.observation_size,
        **({} if model.features is None else {"features": model.features.state_dict()}),
        "disagreement": model.disagreement,
        "half_size": network.half_size,
        "masks": [list(mask) for mask in network.masks],
        "members": [member.saved() for member in model.members],
        "results": results,
        **(refit or {}),
    }
    save_checkpoint(path, "reward", payload, config, parents)


def load_reward_model(
    path: Path, device: torch.device | None = None, bf16: bool = False, pessimism: float = 0.0
) -> RewardModel:
    """Reads a reward checkpoint of ours, or a bare state_dict of the original's (Atari frames, unstandardised).

    Args:
      path: the file.
      device: where it will compute; the CPU when None.
      bf16: whether it computes in bf16.
      pessimism: k of `RewardModel`.

    Raises:
      UserError: the file is no readable reward model, or pessimism was asked of a model that is no ensemble.
    """
    payload = load_checkpoint(path, "reward")
    device = device or torch.device("cpu")
    origin: dict[str, Any] = {}
    features: PolicyBody | None = None
    if payload.get("bare"):
        state = payload["state_dict"]
        hidden = state.get("out.0.weight")
        if hidden is None or hidden.ndim != 2:
            raise UserError(
                f"{path}: expected the weights of a reward model (conv.*, out.*); is it a policy?"
            )
        shape = (210, 160, 3)
        num_actions = hidden.shape[1] - conv_features(shape)
        if num_actions < 1:
            raise UserError(
                f"{path}: expected the reward network for 210×160×3 frames, whose out.0 takes "
                f"{conv_features(shape)} features and the actions; it takes {hidden.shape[1]} in all"
            )
        network = _network(state, path, frame_shape=shape, num_actions=num_actions)
        members: list[Member[RewardNet | PolicyRatio]] = [Member(network, 0.0, 1.0)]
    else:
        if payload.get("input") == "text":
            raise UserError(f"{path}: a reward model for text, which cannot rate games")
        _check_payload(payload, path)
        if payload["input"] not in INPUTS:
            raise UserError(
                f"{path}: expected a reward model of {'s or '.join(INPUTS)}s, got one of {payload['input']!r}"
            )
        form = {
            "frame_shape": tuple(payload["frame_shape"]),
            "num_actions": payload["num_actions"],
            "masks": [tuple(mask) for mask in payload["masks"]],
            "input": payload["input"],
            "continuous": payload["continuous"],
            "observation_size": payload.get("observation_size"),
            "half_size": payload.get("half_size", False),  # files of 0.1.0 have neither
            "linear": "linear.weight" in payload["members"][0]["state_dict"],
        }
        members = [
            Member(_network(member["state_dict"], path, **form), float(member["mean"]), float(member["std"]))
            for member in payload["members"]
        ]
        origin = lineage(payload)
        if "features" in payload:
            of_body = isinstance(members[0].network, PolicyRatio)
            features = (PolicyBody if of_body else PolicyFeatures)(
                check_weights(payload["features"], str(path)), path
            )
    if pessimism and len(members) == 1:
        raise UserError(
            f"{path}: --pessimism {pessimism:g} expected an ensemble, whose members can disagree, got a single "
            f"reward model; fit one with 03_reward_train.py --ensemble 3"
        )
    return RewardModel(
        members, device, bf16, origin, pessimism, float(payload.get("disagreement", 0.0)), features
    )


def _check_payload(payload: dict[str, Any], path: Path) -> None:
    """Refuses a reward checkpoint whose parts are not what this code wrote.

    Raises:
      UserError: names the part.
    """

    def are_numbers(values: Any, count: int, kinds: tuple[type, ...], low: float, high: float) -> bool:
        return (
            isinstance(values, (list, tuple))
            and len(values) == count
            and all(type(value) in kinds and low <= value <= high for value in values)
        )

    members, masks = payload.get("members"), payload.get("masks")
    right = {
        "frame_shape": are_numbers(payload.get("frame_shape"), 3, (int,), 1, 4096),
        "num_actions": are_numbers([payload.get("num_actions")], 1, (int,), 1, 1024),
        "input": isinstance(payload.get("input"), str),
        "continuous": isinstance(payload.get("continuous"), bool),
        "half_size": isinstance(payload.get("half_size", False), bool),
        "observation_size": payload.get("observation_size") is None
        or are_numbers([payload["observation_size"]], 1, (int,), 1, MAX_OBSERVATION),
        "masks": isinstance(masks, (list, tuple)) and all(are_numbers(m, 4, (int,), 0, 4096) for m in masks),
        "disagreement": are_numbers([payload.get("disagreement")], 1, (int, float), 0, 1e9),
        "members": isinstance(members, (list, tuple))
        and 1 <= len(members) <= 100
        and all(isinstance(member, dict) for member in members),
    }
    for key, fits in right.items():
        if not fits:
            raise UserError(
                f"{path}: expected a reward checkpoint of this project, but its {key} is "
                "invalid; fit it again"
            )
    for member in members or ():
        mean, std = member.get("mean"), member.get("std")
        if not are_numbers([mean], 1, (int, float), -1e9, 1e9) or not are_numbers(
            [std], 1, (int, float), 1e-9, 1e9
        ):
            raise UserError(
                f"{path}: expected a mean and a standard deviation above 0 for each member; fit it again"
            )
        check_weights(member.get("state_dict"), str(path))


def _network(state: dict[str, torch.Tensor], path: Path, **form: Any) -> RewardNet | PolicyRatio:
    """The network of these weights; `form` holds further arguments of `RewardNet`."""
    try:
        ratio = ratio_of(state, form["frame_shape"])
        if ratio is not None:
            return ratio
        network = RewardNet(**form)
        network.load_state_dict(state)
    except (RuntimeError, ValueError, IndexError) as error:
        size, shape = form.get("observation_size"), form["frame_shape"]
        seen = f"{'×'.join(map(str, shape))} frames" if size is None else f"observations of {size} numbers"
        reason = " ".join(str(error).split())
        raise UserError(f"{path}: expected the reward network for {seen}: {reason[:200]}") from error
    return network
