"""`python -m myxtts.inference`, an alias of `myxtts say`."""

from myxtts.cli.say import main

raise SystemExit(main())
