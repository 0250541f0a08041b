"""The processes of `torchrun` that learn together.

Everything that all sum or decide goes through one object: `Ranks` in a process that torchrun has started
beside others, else `ALONE`, for which every sum and every decision is its own.
"""

import contextlib
import os
from collections.abc import Iterator
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

from lib.cli import UserError
from lib.devices import resolve_device
from lib.learner import ALONE, Alone

T = TypeVar("T")

_TIMEOUT = timedelta(hours=2)  # that the others wait while the first one evaluates


class Ranks(Alone):
    """Several processes, of which this is one: gloo on CPUs, NCCL on GPUs.

    All methods raise UserError when another process has ended, as soon as its connections are closed.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def everyone(self, number: int) -> list[int]:
        numbers = torch.zeros(self.size, dtype=torch.int64)
        numbers[self.rank] = number
        with self._others_live():
            dist.all_reduce(numbers)
        return numbers.tolist()

    def total(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        # One message, of the widest type among them.
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        with self._others_live():
            dist.all_reduce(flat)
        parts = flat.split([tensor.numel() for tensor in tensors])
        return [part.view(tensor.shape).to(tensor.dtype) for part, tensor in zip(parts, tensors, strict=True)]

    def gather(self, thing: T) -> list[T]:
        things = [thing] * self.size
        with self._others_live():
            dist.all_gather_object(things, thing)
        return things

    @contextlib.contextmanager
    def _others_live(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise UserError(
                f"rank {self.rank} ends because another rank has ended; that rank may have said why; "
                "continue from the last state with --resume"
            ) from error


@contextlib.contextmanager
def joined(dev: str) -> Iterator[Alone]:
    """Joins the other processes that torchrun has started; there may be none.

    Args:
      dev: device of the networks, as in `--dev`.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield ALONE
        return
    backend = "gloo" if dev == "cpu" else "cpu:gloo,cuda:nccl"
    if dev != "cpu":
        torch.cuda.set_device(resolve_device(dev))
    dist.init_process_group(backend, timeout=_TIMEOUT)
    ranks = Ranks(dist.get_rank(), size)
    # Wait for all: a process that fails at once takes away the store through which the others connect.
    ranks.together(False)
    yield ranks
    # After an error this is skipped: the others notice it when this process ends.
    dist.destroy_process_group()
