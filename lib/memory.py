"""Memory of a process that allocates and frees the same large buffers again and again."""

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of malloc.h
_LARGEST = 32 << 20  # bytes; glibc takes no larger threshold of this kind
_KEPT = 1 << 30  # bytes


def keep_freed_memory() -> bool:
    """Makes the C library keep freed memory for the next allocation instead of returning it to the kernel.

    PyTorch on a CPU frees every activation and gradient, and allocates as much for the next update. A page handed back
    costs a fault and is zeroed when it is needed again: 8,300 of them per update of a finetune (docs/performance.md).

    Returns:
      Whether the C library can; only glibc does.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    # Setting either ends glibc's own adaptation of both.
    return mallopt is not None and all([mallopt(_MMAP_THRESHOLD, _LARGEST), mallopt(_TRIM_THRESHOLD, _KEPT)])
