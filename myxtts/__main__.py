"""`python -m myxtts`: the `myxtts` command where it is not installed."""

import sys

from myxtts.cli.main import main

sys.exit(main())
