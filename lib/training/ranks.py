"""The processes of `torchrun` that learn together.

Everything that is summed or decided by all goes through one object: `Ranks` in a process that torchrun has started
beside others, else `ALONE`, for which every sum and every decision is its own.
"""

import contextlib
import os
from collections.abc import Iterator
from datetime import timedelta

import torch

from lib.cli import UserError
from lib.learner import ALONE, Alone

_TIMEOUT = timedelta(hours=2)  # that the others wait while the first one evaluates


class Ranks(Alone):
    """Several processes, of which this is one: gloo on CPUs, NCCL on GPUs.

    All methods raise UserError where another process has ended, as soon as its connections are closed.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def everyone(self, number: int) -> list[int]:
        import torch.distributed

        numbers = torch.zeros(self.size, dtype=torch.int64)
        numbers[self.rank] = number
        with self._others_live():
            torch.distributed.all_reduce(numbers)
        return numbers.tolist()

    def total(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        import torch.distributed

        # One message, of the widest type among them.
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        with self._others_live():
            torch.distributed.all_reduce(flat)
        parts = flat.split([tensor.numel() for tensor in tensors])
        return [part.view(tensor.shape).to(tensor.dtype) for part, tensor in zip(parts, tensors, strict=True)]

    def tell(self, text: str) -> str:
        import torch.distributed

        said = [text]
        with self._others_live():
            torch.distributed.broadcast_object_list(said)
        return said[0]

    @contextlib.contextmanager
    def _others_live(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise UserError(
                f"rank {self.rank} ends because another rank has ended, which may have said why; "
                "continue from the last state with --resume"
            ) from error


def own_device(dev: str) -> str:
    """The device of this process's networks: each has a GPU of its own where `--dev` says cuda."""
    return f"cuda:{os.environ['LOCAL_RANK']}" if dev == "cuda" and "LOCAL_RANK" in os.environ else dev


def own_threads(threads: int) -> int:
    """As many as a flag says; where that is 0, this process's part of the machine's cores, or 0 where it is alone."""
    beside = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return threads if threads or beside == 1 else max(1, (os.cpu_count() or 1) // beside)


@contextlib.contextmanager
def joined(dev: str) -> Iterator[Alone]:
    """Joins the other processes that torchrun has started; there may be none.

    Args:
      dev: what the networks compute on, as of `--dev`.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield ALONE
        return
    import torch.distributed

    backend = "gloo" if dev == "cpu" else "cpu:gloo,cuda:nccl"
    if dev != "cpu":
        torch.cuda.set_device(own_device(dev))
    torch.distributed.init_process_group(backend, timeout=_TIMEOUT)
    yield Ranks(torch.distributed.get_rank(), size)
    # Not where an error is under way: the others learn of that by the end of this process.
    torch.distributed.destroy_process_group()
