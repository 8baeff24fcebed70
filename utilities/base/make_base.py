"""Makes the bundled model: its corpus, its four stages and the files of the package.

    pip install -e ".[bench,sample]"
    python utilities/base/make_base.py --work runs/base

Started again, it continues where it stopped, as every run does. `myxtts/bundled/base/CARD.md` says what came of it.
The confidence of its speech is calibrated afterwards, by `calibrate_confidence.py`.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from base_corpus import make_base_corpus
from pack_base import pack

from myxtts.storage.base_model import BASE_FOLDER

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    """Makes what is not there yet; exit code of what failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder for the corpus and the run")
    parser.add_argument("--output", type=Path, default=BASE_FOLDER, help="where the model goes")
    arguments = parser.parse_args()
    corpus = make_base_corpus(arguments.work / "corpus")
    run = arguments.work / "run"
    recipe = ["--config", str(ROOT / "configs" / "base_model.yaml")]
    paths = ["--train-data", str(corpus), "--checkpoint-dir", str(run)]
    if code := subprocess.run([sys.executable, str(ROOT / "train_main.py"), *recipe, *paths]).returncode:
        return code
    print(f"{pack(run, corpus, arguments.output)} bytes in {arguments.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
