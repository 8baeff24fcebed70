"""`python -m myxtts.inference`: the same as `myxtts say`."""

import sys

from myxtts.cli.say import main

sys.exit(main())
