"""Teaching agents by comparing clips of what they do."""

import os

# PyTorch's idle threads would spin for their next task and keep the emulator's threads off the cores. OpenMP reads
# this when PyTorch is loaded, so it must stand before that.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
