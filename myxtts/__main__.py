"""`python -m myxtts`: the `myxtts` command where it is not installed."""

from myxtts.cli.main import run

run()
