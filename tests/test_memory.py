"""Freed memory that the process keeps."""

import platform
import subprocess
import sys

import pytest


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's")
def test_glibc_takes_the_thresholds() -> None:
    program = "from lib.memory import keep_freed_memory; assert keep_freed_memory()"
    subprocess.run([sys.executable, "-c", program], check=True)  # it is for the whole of a process
