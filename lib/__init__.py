"""Teaching agents by comparing clips of what they do."""

import os

# An idle thread of PyTorch would spin for milliseconds, waiting for its next task, and keep the emulator's threads off the
# cores; one that sleeps at once is late for the next operation. A few microseconds of spinning are the compromise. OpenMP
# reads this when PyTorch is loaded, so it must come first.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
