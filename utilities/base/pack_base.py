"""Makes the bundled model of a run: what speaking and fine-tuning need, in half precision.

Of each stage the checkpoint that counts is taken without its optimizer. Voices are kept as latents, so no recording
goes into the package.
"""

import os
import shutil
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np  # noqa: E402
import soundfile  # noqa: E402

from myxtts.config.stages import STAGES  # noqa: E402
from myxtts.data.corpora import load_corpus  # noqa: E402
from myxtts.inference.synthesizer import Synthesizer  # noqa: E402
from myxtts.storage.base_model import BASE_FOLDER  # noqa: E402
from myxtts.storage.checkpoint import CheckpointStore  # noqa: E402
from myxtts.storage.files import write_json, write_whole_folder  # noqa: E402
from myxtts.storage.run_folder import VOCABULARY, chosen_step, read_config  # noqa: E402
from myxtts.storage.speakers import write_speakers  # noqa: E402
from myxtts.text.speech_rates import SPEECH_RATES, measure_rates, write_rates  # noqa: E402

REFERENCES = 4
"""Clips that a voice is taken from."""
CARD = BASE_FOLDER / "CARD.md"
"""What the model is; it is written by hand and stays."""


def half(array: np.ndarray) -> np.ndarray:
    """In half precision, where it is a floating-point array."""
    return array.astype(np.float16) if array.dtype == np.float32 else array


def settings(folder: Path):
    """The run's settings without the paths of the machine it was trained on."""
    config = read_config(folder)
    for name in ("train_data", "val_data", "vocabulary"):
        setattr(config.data, name, None)
    config.training.init_from, config.training.tune, config.training.precision = None, (), None
    config.training.checkpoint_dir, config.training.tensorboard_log_dir = "./checkpoints", None
    return config


def voices(folder: Path, corpus: Path) -> dict:
    """Latents and vector of each speaker of the corpus."""
    synthesizer, by_speaker = Synthesizer.load(folder), {}
    for utterance in load_corpus(corpus).utterances:
        by_speaker.setdefault(utterance.speaker, []).append(str(utterance.wav_path))
    found = {name: synthesizer.voice(paths[:REFERENCES]) for name, paths in sorted(by_speaker.items())}
    return {name: (np.asarray(voice.latents), np.asarray(voice.speaker)) for name, voice in found.items()}


def rates(corpus: Path) -> dict:
    """How long texts take in the corpus, by language; for the self-check."""
    utterances = load_corpus(corpus).utterances
    return measure_rates((one.language, one.text, soundfile.info(one.wav_path).duration) for one in utterances)


def pack(folder: Path, corpus: Path, output: Path) -> int:
    """Writes the model; returns its bytes."""
    config, speakers, page = settings(folder), voices(folder, corpus), CARD.read_bytes()
    with write_whole_folder(output) as temporary:
        for part in STAGES:
            store = CheckpointStore(folder / part)
            files, _ = store.read(chosen_step(store, part), ["model"])
            weights = {name: half(array) for name, array in files["model"].items()}
            copies = {}
            if part == "gpt":
                copies = {VOCABULARY: (folder / VOCABULARY).read_bytes(), SPEECH_RATES: write_rates(rates(corpus))}
            state = {"finished": True, "config": config.to_dict()}
            CheckpointStore(temporary / part).write(0, {"model": weights}, state, copies=copies)
        write_json(temporary / "config.json", config.to_dict())
        shutil.copyfile(folder / VOCABULARY, temporary / VOCABULARY)
        write_speakers(temporary, speakers)
        (temporary / CARD.name).write_bytes(page)
    return sum(path.stat().st_size for path in output.rglob("*") if path.is_file())
