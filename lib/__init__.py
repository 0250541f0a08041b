"""Teaching agents by comparing clips of what they do."""

import os

# PyTorch's idle threads would spin for their next task, for milliseconds, and keep the emulator's threads off the cores; asleep
# at once, they are late for the next operation. A few microseconds are between the two. OpenMP reads this when PyTorch is
# loaded, so it must stand before that.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
