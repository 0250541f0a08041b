"""Speed and quality, measured: `python -m benchmarks.run` and others; docs/performance.md."""

from lib import cli

cli.expect_package("torch")
