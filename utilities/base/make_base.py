"""Creates the bundled model: makes its training corpus, trains its four stages and writes the files of the package.

    pip install -e ".[bench,sample]"
    python utilities/base/make_base.py --work runs/base

After an interruption, the same command resumes the run. `myxtts/bundled/base/CARD.md` describes the model.
The package has the best weights of each stage, in half precision and without optimizer states. Its voices are stored as
latents instead of recordings. `calibrate_confidence.py` calibrates the self-check afterwards.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np  # noqa: E402
import soundfile  # noqa: E402
from base_corpus import make_base_corpus  # noqa: E402

from myxtts.config.stages import STAGES  # noqa: E402
from myxtts.data.corpora import load_corpus  # noqa: E402
from myxtts.inference.synthesizer import Synthesizer  # noqa: E402
from myxtts.interchange.hub import without_places  # noqa: E402
from myxtts.storage.base_model import BASE_FOLDER  # noqa: E402
from myxtts.storage.checkpoint import CheckpointStore  # noqa: E402
from myxtts.storage.files import write_json, write_whole_folder  # noqa: E402
from myxtts.storage.run_folder import VOCABULARY, chosen_step, read_config  # noqa: E402
from myxtts.storage.speakers import write_speakers  # noqa: E402
from myxtts.text.speech_rates import SPEECH_RATES, measure_rates, write_rates  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
REFERENCES = 4
"""Number of reference clips of each voice."""


def voices(folder: Path, utterances: list) -> dict:
    """Returns `{speaker: (conditioning latents, speaker vector)}`."""
    synthesizer, by_speaker = Synthesizer.load(folder), {}
    for utterance in utterances:
        by_speaker.setdefault(utterance.speaker, []).append(str(utterance.wav_path))
    found = {name: synthesizer.voice(paths[:REFERENCES]) for name, paths in sorted(by_speaker.items())}
    if len({np.round(voice.latents, 3).tobytes() for voice in found.values()}) < len(found):
        raise SystemExit("The GPT does not tell the voices apart, so it would speak in any of them.")
    return {name: (np.asarray(voice.latents), np.asarray(voice.speaker)) for name, voice in found.items()}


def pack(folder: Path, corpus: Path, output: Path) -> int:
    """Writes the best weights of a run and the voices of `corpus` to the folder `output`; returns its size in bytes."""
    pages = {path.name: path.read_bytes() for path in BASE_FOLDER.glob("*.md")}  # written by hand
    utterances = load_corpus(corpus).utterances
    config, speakers = without_places(read_config(folder)), voices(folder, utterances)
    config.training.init_from, config.training.tune, config.training.precision = None, (), None
    rates = measure_rates((one.language, one.text, soundfile.info(one.wav_path).duration) for one in utterances)
    vocabulary = (folder / VOCABULARY).read_bytes()
    with write_whole_folder(output) as temporary:
        for part in STAGES:
            store = CheckpointStore(folder / part)
            half = lambda array: array.astype(np.float16) if array.dtype == np.float32 else array
            weights = {name: half(array) for name, array in store.open(chosen_step(store, part)).items()}
            copies = {VOCABULARY: vocabulary, SPEECH_RATES: write_rates(rates)} if part == "gpt" else {}
            state = {"finished": True, "config": config.to_dict()}
            CheckpointStore(temporary / part).write(0, {"model": weights}, state, copies=copies)
        write_json(temporary / "config.json", config.to_dict())
        shutil.copyfile(folder / VOCABULARY, temporary / VOCABULARY)
        write_speakers(temporary, speakers)
        for name, content in pages.items():
            (temporary / name).write_bytes(content)
    return sum(path.stat().st_size for path in output.rglob("*") if path.is_file())


def main() -> int:
    """Makes the corpus, trains the model and writes it; returns the exit code of a failed training, else 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder for the corpus and the run")
    parser.add_argument("--output", type=Path, default=BASE_FOLDER, help="folder of the model")
    arguments = parser.parse_args()
    corpus, run = make_base_corpus(arguments.work / "corpus"), arguments.work / "run"
    flags = [f"--config={ROOT / 'configs' / 'base_model.yaml'}", f"--train-data={corpus}", f"--checkpoint-dir={run}"]
    if code := subprocess.run([sys.executable, str(ROOT / "train_main.py"), *flags]).returncode:
        return code
    if not all((CheckpointStore(run / stage).newest_state() or {}).get("finished") for stage in STAGES):
        return 0  # stopped by Ctrl-C, as the training has said
    print(f"{pack(run, corpus, arguments.output)} bytes in {arguments.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
