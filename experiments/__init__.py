"""What was tried, as commands: `python -m experiments.NAME`; docs/experiments.md."""

from lib import cli

cli.expect_package("torch")
