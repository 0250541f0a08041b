"""Memory of a process that allocates and frees the same large buffers over and over."""

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of malloc.h
_LARGEST = 32 << 20  # bytes; glibc takes no larger threshold of this kind
_KEPT = 1 << 30  # bytes


def keep_freed_memory() -> bool:
    """Has the C library keep what is freed for the next allocation rather than hand it back to the kernel.

    PyTorch on a CPU frees every activation and gradient, and allocates as much again for the next update; each page that went
    back comes again by a fault, and zeroed: 8,300 of them an update of a finetune (docs/performance.md).

    Returns:
      Whether the C library does so; one that is not glibc does not.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    # Setting either ends glibc's own adaptation of both.
    return mallopt is not None and all([mallopt(_MMAP_THRESHOLD, _LARGEST), mallopt(_TRIM_THRESHOLD, _KEPT)])
