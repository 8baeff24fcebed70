"""Trains XTTS; without arguments, on a sample corpus. `python train_main.py --help` lists the options."""

from myxtts.cli.train import main
from myxtts.devices.tensorflow_start import run_to_exit

if __name__ == "__main__":
    run_to_exit(main)
