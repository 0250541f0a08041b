"""A disk that fills up."""

import contextlib
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def disk_full_after(size: int) -> Iterator[None]:
    """Files cannot grow beyond `size` bytes meanwhile; as with a full disk, what fits is written."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
