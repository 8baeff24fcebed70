"""`python -m myxtts.inference`: the same as `myxtts say`."""

from myxtts.cli.say import main

raise SystemExit(main())
