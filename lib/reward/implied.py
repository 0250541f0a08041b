"""The reward that a policy fitted to comparisons implies."""

from __future__ import annotations

import copy
import math
import re

import torch
from torch import nn
from torch.nn import functional as F

from lib.convolutions import Convolutions, kind_of_pictures
from lib.envs.spec import Spec
from lib.heads import mlp
from lib.reward.masks import Mask

_PAID_NATS = 2.0  # at most, either way, for one action


class PolicyRatio(nn.Module):
    """A policy, or its head, as a reward model of what the policy has learned: r̂ = β log π(a|s)/π_ref(a|s).

    Of a policy fitted by DPO that is the reward of which it is the best policy, except for a term of the state (Rafailov et
    al. 2023, arXiv 2305.18290). It pays for what the comparisons made likelier, where they did, and nothing for what
    they left as it was. It sees what the policy sees, and a head the features of the policy's body.

    The ratio of an action that the policy has all but given up has no bound. While it is fitted r̂ has none either; an agent is
    paid for at most 2 nats either way, or a few steps would outweigh the score of a game.

    Attributes:
      policy: the layers that are fitted.
      reference: what they began as; frozen.
      spec: pictures or F features, and the actions.
      frame_shape: (H, W, 3) of the clips.

    Args:
      layers: what it begins as: layers in a row, the convolutions first if the policy is fitted as a whole.
      beta: β, above 0.
      frame_shape: see above.
    """

    beta: torch.Tensor  # float32 []
    most = math.inf  # nats that are paid, either way
    # As of `RewardNet`:
    input, half_size = "observation", False
    masks: tuple[Mask, ...] = ()

    def __init__(self, layers: nn.Sequential, beta: float, frame_shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.policy, self.reference = (copy.deepcopy(layers) for _ in range(2))
        self.reference.requires_grad_(False)
        self.register_buffer("beta", torch.tensor(beta))
        sizes = [layer for layer in layers if isinstance(layer, nn.Linear)]
        whole = isinstance(layers[0], Convolutions)
        actions = sizes[-1].out_features
        self.spec = (
            Spec(actions, frame_shape=frame_shape)
            if whole
            else Spec(actions, observation_shape=(sizes[0].in_features,))
        )
        self.frame_shape = frame_shape

    def changed(self, seen: torch.Tensor) -> torch.Tensor:
        """Total variation ½ Σₐ |π(a|s) − π_ref(a|s)|, the mean over what is seen, as `forward` takes it: a scalar in 0 … 1.

        The share of steps in which it acts otherwise. Unlike the KL it costs the smallest change and never more than 1, so
        the policy changes much in few states rather than a little in all.
        """
        new, old = (layers(seen).float().softmax(-1) for layers in (self.policy, self.reference))
        return 0.5 * (new - old).abs().sum(-1).mean()

    def forward(self, seen: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """r̂, float32 `[N]`, of pictures uint8 `[N, 4, 84, 84]` or features `[N, F]`, and actions int64 `[N]`."""
        new, old = (log_likelihood(layers, seen, actions) for layers in (self.policy, self.reference))
        return self.beta * (new - old).clamp(-self.most, self.most)

    def for_paying(self) -> PolicyRatio:
        """A copy that is no longer fitted, and bounded."""
        paying = copy.deepcopy(self).eval().requires_grad_(False)
        paying.most = _PAID_NATS
        return paying


def log_likelihood(layers: nn.Module, seen: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    """log π(a|s), float32 `[N]`, by a policy's layers, of what `PolicyRatio` takes."""
    return -F.cross_entropy(layers(seen).float(), actions, reduction="none")


def ratio_of(state: dict[str, torch.Tensor], frame_shape: tuple[int, int, int]) -> PolicyRatio | None:
    """The implied reward with the weights of a state_dict; None if they are of another network.

    Raises:
      RuntimeError, IndexError: some weights are missing or do not fit.
    """
    if not any(name.startswith("reference.") for name in state):
        return None
    whole = "reference.0.0.weight" in state
    layers: list[nn.Module] = [Convolutions(kind_of_pictures(state, "reference.0"))] if whole else []
    linear = [value.shape for name, value in state.items() if re.fullmatch(r"reference\.\d+\.weight", name)]
    head = mlp([linear[0][1], *(outputs for outputs, _ in linear)], nn.ReLU)
    network = PolicyRatio(nn.Sequential(*layers, *head), 1.0, frame_shape)
    network.load_state_dict(state)
    return network
