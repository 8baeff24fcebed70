"""Trains XTTS. `python train_main.py --help` lists what can be set; without arguments it trains on a sample corpus."""

from myxtts.cli.train import main
from myxtts.devices.tensorflow_start import run_to_exit

if __name__ == "__main__":
    run_to_exit(main)
