"""Writes a model with random weights in the layout and size of XTTS v2's release, for tests at full size.

    python utilities/parity/make_release.py XTTS-v2
    myxtts say --checkpoint XTTS-v2 --speaker "Ana Ruiz" --text "the quick brown fox" --output fox.wav

Takes ten seconds and writes 464 million weights, 2.1 GB. The model speaks noise of the maximum duration, because it
never predicts the stop code.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from released_model import SETTINGS, write_release  # noqa: E402

from myxtts.config.model import ModelConfig  # noqa: E402
from myxtts.text.languages import LANGUAGES  # noqa: E402
from myxtts.text.tokenizer import XTTSTokenizer  # noqa: E402

LANGUAGES_OF_XTTS = "en es fr de it pt pl tr ru nl cs ar zh hu ko ja hi".split()
NUM_TEXT_TOKENS = 6681
"""Size of XTTS v2's vocabulary."""


def vocabulary() -> XTTSTokenizer:
    """Returns a tokenizer of the release's size and languages, trained on random words."""
    random, letters = np.random.default_rng(0), "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(random.choice([*letters], random.integers(3, 9))) for _ in range(12_000)]
    texts = [(" ".join([*letters, *words, *words]), "en"), *((LANGUAGES[one].code, one) for one in LANGUAGES_OF_XTTS)]
    return XTTSTokenizer.train(texts, NUM_TEXT_TOKENS)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    config = ModelConfig(size="big", num_text_tokens=NUM_TEXT_TOKENS)
    write_release(folder, config, settings=SETTINGS | {"model_args": {}})
    vocabulary().save(folder / "vocab.json")
