"""The device that networks compute on, whether it is fast in bf16, and its random generators.

torch is imported where it is used, so that ``--help`` answers at once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lib.cli import UserError

if TYPE_CHECKING:
    import torch
    from torch import nn


def resolve_device(name: str) -> torch.device:
    """The device that a ``--dev`` flag names.

    Args:
      name: "cpu", "cuda" or "cuda:N"; of several processes that torchrun starts, "cuda" gives each a GPU of its own.

    Returns:
      The torch device; it exists.

    Raises:
      UserError: The name is invalid, or this machine has no such device.
    """
    import torch

    if name == "cpu":
        return torch.device("cpu")
    match = re.fullmatch(r"cuda(?::([0-9]{1,3}))?", name)
    if not match:
        raise UserError(f"--dev {name}: expected cpu, cuda or cuda:N")
    if not torch.cuda.is_available():
        build = "install a CUDA build" if torch.version.cuda is None else "check the driver with nvidia-smi"
        raise UserError(
            f"--dev {name}: this PyTorch sees no CUDA device (torch {torch.__version__}); {build} or use --dev cpu"
        )
    number, count = match[1] or os.environ.get("LOCAL_RANK"), torch.cuda.device_count()
    if number is None:
        return torch.device("cuda")
    if int(number) >= count:
        raise UserError(
            f"--dev cuda:{number}: expected cuda:0 to cuda:{count - 1}, the devices this PyTorch sees"
        )
    return torch.device(f"cuda:{number}")


def own_threads(threads: int) -> int:
    """The flag's number of threads; if 0, this process's share of the cores under torchrun, else 0."""
    beside = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return threads if threads or beside == 1 else max(1, (os.cpu_count() or 1) // beside)


def half_of_the_cores() -> dict[str, str]:
    """The environment variable of a process that computes beside another: threads that share a core hold each other up."""
    return {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // 2))}


def has_fast_bf16(device: torch.device) -> bool:
    """Whether bf16 is arithmetic that the device does natively rather than emulates."""
    import torch

    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def resolve_bf16(flag: bool | None, device: torch.device) -> bool:
    """Whether to compute in bf16: as ``--bf16`` says, or by default if the device is fast at it."""
    return has_fast_bf16(device) if flag is None else flag


def keep_in_bf16(frozen: nn.Module) -> None:
    """Turns the weights of a network's hidden linear layers into bf16, for a network that computes under autocast.

    Autocast casts weights that are not trained at every call. For a layer of 3136 by 512 and a few dozen rows that takes
    several times as long as the product.
    """
    import torch
    from torch import nn

    for layer in frozen.modules():
        if type(layer) is nn.Linear:  # a head's last layer, of a class of its own, stays
            layer.to(torch.bfloat16)


def random_state(device: torch.device) -> dict[str, Any]:
    """The state of PyTorch's own random generators, including a GPU's."""
    import torch

    cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    return {"cpu": torch.get_rng_state(), "cuda": cuda}


def set_random_state(state: Mapping[str, Any], device: torch.device) -> None:
    """Restores the state of PyTorch's generators; a GPU's only if the run was on one."""
    import torch

    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"], device)
