"""The sample corpus: a small set of spoken sentences in several voices, made offline by eSpeak NG.

With it the first training run needs no data and no network. It has the LJSpeech layout (`metadata.csv`, `wavs/`) and a
`speakers.csv` with `id,speaker,language`. Sentences come from a small grammar per language, so that the smallest model
hears every word often; some of each are never spoken in it (`unheard_sentences`), to try whether a model can say what
it has not heard.
"""

import importlib
import itertools
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from myxtts.config.checks import UserError
from myxtts.data.espeak_ng import SpeechJob, speak_to_files
from myxtts.storage.files import CheckpointError, digest_bytes, digest_file, read_json, write_json, write_whole_folder

WORDS_PER_MINUTE = 165
UNHEARD_EVERY = 13
"""Of the sentences that a grammar yields, one in so many is in no clip; a prime, so that every word is among them."""
MANIFEST_FILE = "sample_corpus.json"
# Raise it when the way clips are made changes; a change of voices or sentences is noticed without.
FORMAT_VERSION = 1
_SOURCES = Path(__file__).resolve().parents[1] / "bundled" / "sample"


class SampleCorpusError(UserError):
    """The sample corpus cannot be made; the message says what to do about it."""


class Voice(NamedTuple):
    """One speaker: the eSpeak NG `variant` (a vocal tract) speaking the eSpeak NG language `espeak_language`.

    `language` is the tokenizer's code, written to `speakers.csv`; `pitch` is 0 to 100, eSpeak NG's usual being 50.
    """

    speaker: str
    language: str
    espeak_language: str
    variant: str
    pitch: int


VOICES = (
    Voice("emma", "en", "en-us", "f2", 44),
    Voice("noah", "en", "en-us", "Gene", 46),
    Voice("lena", "de", "de", "f2", 45),
    Voice("jonas", "de", "de", "Gene", 45),
    Voice("carlos", "es", "es", "Gene", 45),
    Voice("chloe", "fr", "fr", "f2", 45),
    Voice("parisa", "fa", "fa", "f2", 45),
    Voice("dawit", "am", "am", "Gene", 45),
)
"""Variants and pitches that the bundled model was trained on, so that a run that starts from it knows them."""


def _sentences(phrases, slots, full_stop):
    return [*phrases, *(" ".join(words) + full_stop for words in itertools.product(*slots))]


_NUM_PHRASES = 6
"""Sentences of each language that its slots do not make; they come first."""
SENTENCES = {
    language: _sentences(**grammar)
    for language, grammar in json.loads((_SOURCES / "sentences.json").read_text(encoding="utf-8")).items()
}
"""All sentences of each language, in a fixed order: its phrases, then every choice of one entry of each slot."""


class Clip(NamedTuple):
    """One sentence to be spoken."""

    id: str
    text: str
    voice: Voice


def make_sample_corpus(root: Path, *, seed: int = 0, num_clips: int = 880, languages: Sequence[str] = ("en",)) -> Path:
    """Makes the sample corpus in `root`, or finds it there whole.

    The corpus is built next to `root` and renamed at the end, so `root` never holds a part of one. A corpus that is
    damaged, or was made with another seed, size or languages, is replaced.

    Args:
        root: Folder of the corpus: new, empty, or with a sample corpus in it. Returned absolute.
        seed: Decides the sentences.
        num_clips: Number of clips, dealt evenly to the `VOICES` of the languages; each lasts 1 to 3 s.
        languages: Codes of some of `SENTENCES`.

    Raises:
        SampleCorpusError: `root` holds something that is not a sample corpus, or the `espeakng-loader` package is not
            installed.
        RuntimeError: eSpeak NG failed.
        ValueError: `num_clips` is below 1 or above what the grammars yield.
    """
    root = Path(root).absolute()
    clips = plan_clips(seed, num_clips, languages)
    plan = digest_bytes(json.dumps([FORMAT_VERSION, WORDS_PER_MINUTE, clips]).encode())
    if _is_complete(root, plan):
        return root
    _require_replaceable(root)
    try:
        importlib.import_module("espeakng_loader")
    except ModuleNotFoundError as error:
        missing = "The sample corpus needs the package espeakng-loader: pip install espeakng-loader"
        raise SampleCorpusError(f"{missing} (or give recordings of your own with --train-data).") from error
    try:
        # Not synced: a corpus that a power failure damaged is noticed by its checksums and made again.
        with write_whole_folder(root, sync=False) as new:
            speak_clips(clips, new)
            files = {path.relative_to(new).as_posix(): digest_file(path) for path in _files(new)}
            write_json(new / MANIFEST_FILE, {"plan": plan, "files": files})
    except OSError:
        # Another process was faster; the same settings make the same corpus.
        if not _is_complete(root, plan):
            raise
    return root


def plan_clips(seed: int, num_clips: int, languages: Sequence[str] = ("en",)) -> list[Clip]:
    """Chooses the sentences of each voice, none twice in one voice, in a fixed order."""
    unknown = set(languages).difference(SENTENCES)
    if unknown or not languages:
        received = ", ".join(sorted(unknown)) or "none"
        raise SampleCorpusError(f"The sample corpus can be in {', '.join(SENTENCES)}. Received: {received}.")
    voices = [voice for voice in VOICES if voice.language in languages]
    heard = {}
    for language in languages:
        unheard = set(unheard_sentences(language))
        heard[language] = [sentence for sentence in SENTENCES[language] if sentence not in unheard]
    largest = len(voices) * min(map(len, heard.values()))
    if not 1 <= num_clips <= largest:
        raise ValueError(f"num_clips must be from 1 to {largest}, which the grammars yield. Received: {num_clips}.")
    clips = []
    for number, voice in enumerate(voices):
        share = len(range(number, num_clips, len(voices)))
        # A string seeds the same sequence on every platform and Python version.
        sentences = random.Random(f"{seed} {voice.speaker}").sample(heard[voice.language], share)
        clips += [Clip(f"{voice.language}_{voice.speaker}_{k:03d}", text, voice) for k, text in enumerate(sentences)]
    return clips


def speak_clips(clips: Sequence[Clip], root: Path) -> None:
    """Has eSpeak NG speak the clips into an empty folder, in the LJSpeech layout. Raises `RuntimeError` if it fails."""
    (root / "wavs").mkdir()
    paths = [str(root / "wavs" / f"{clip.id}.wav") for clip in clips]
    speak_to_files(
        [SpeechJob(path, text, *speech, WORDS_PER_MINUTE) for path, (_, text, (_, _, *speech)) in zip(paths, clips)]
    )
    _write_tables(clips, root)


def unheard_sentences(language: str) -> list[str]:
    """Sentences of a language's grammar that are in no sample corpus, every word of which is."""
    return SENTENCES[language][_NUM_PHRASES::UNHEARD_EVERY]


def _files(root):
    return sorted(path for path in root.rglob("*") if path.is_file())


def _read_manifest(root):
    """Digest of what the corpus was made from, and one for each of its files; nothing without a whole manifest."""
    try:
        manifest = read_json(root / MANIFEST_FILE)
        return manifest["plan"], manifest["files"]
    except (CheckpointError, KeyError, TypeError):
        return "", {}


def _is_complete(root, plan):
    made_of, files = _read_manifest(root)
    found = ((root / name, digest) for name, digest in files.items())
    return made_of == plan and all(path.is_file() and digest_file(path) == digest for path, digest in found)


def _require_replaceable(root):
    """Raises `SampleCorpusError` when making the corpus in `root` would cost the user a file."""
    _, files = _read_manifest(root)
    made_here = {root / name for name in (MANIFEST_FILE, *files)} if files else set()
    found = _files(root) if root.is_dir() else filter(Path.exists, [root])
    if foreign := next((path for path in found if path not in made_here), None):
        rule = f"{root} must be new, empty or nothing but a sample corpus."
        raise SampleCorpusError(f"{rule} Found: {foreign}. Choose another folder.")


def _write_tables(clips, root):
    metadata = "".join(f"{clip.id}|{clip.text}|{clip.text}\n" for clip in clips)
    speakers = "".join(f"{clip.id},{clip.voice.speaker},{clip.voice.language}\n" for clip in clips)
    languages, voices = {clip.voice.language for clip in clips}, {clip.voice for clip in clips}
    readme = (_SOURCES / "README.md").read_text(encoding="utf-8")
    readme = readme.format(num_clips=len(clips), languages=len(languages), voices=len(voices))
    tables = {"metadata.csv": metadata, "speakers.csv": "id,speaker,language\n" + speakers, "README.md": readme}
    for name, text in tables.items():
        (root / name).write_text(text, encoding="utf-8", newline="\n")
