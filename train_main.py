"""Trains XTTS. `python train_main.py --help` lists what can be set; without arguments it trains on a sample corpus."""

import sys

from myxtts.cli.train import main

if __name__ == "__main__":
    sys.exit(main())
