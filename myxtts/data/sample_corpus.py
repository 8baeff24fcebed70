"""The sample corpus: short sentences in several voices, synthesized by eSpeak NG.

With this corpus, a first training run needs neither data nor network. The layout is that of LJSpeech (`metadata.csv`,
`wavs/`), with a `speakers.csv` (`id,speaker,language`). A small grammar per language generates the sentences, so that
each word is frequent. Some sentences are held out for tests (`unheard_sentences`).

eSpeak NG has global state, and its audio depends slightly on earlier sentences. Therefore `speak_to_files` runs this
module as a script in a new process, with the sentences in a fixed order.
"""

import ctypes
import itertools
import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import soundfile

from myxtts.config.checks import UserError, require
from myxtts.storage.files import CheckpointError, digest_bytes, digest_file, read_json, write_json, write_whole_folder
from myxtts.text.espeak import CHARS_UTF8, load_library

SAMPLE_RATE = 22050
TIMEOUT_SECONDS = 300
WORDS_PER_MINUTE = 165
UNHEARD_EVERY = 13
"""Every 13th sentence of a grammar is held out. 13 is prime, so that held-out words also occur in other sentences."""
MANIFEST_FILE = "sample_corpus.json"
_SOURCES = Path(__file__).resolve().parents[1] / "bundled" / "sample"
_NUM_PHRASES = 6
# From espeak-ng/speak_lib.h, version 1.52.
POSITION_CHARACTER, RATE, PITCH = 1, 1, 3


class Voice(NamedTuple):
    """Synthetic speaker. `espeak_language`, `variant` and `pitch` (0 to 100) are settings of eSpeak NG."""

    speaker: str
    language: str
    espeak_language: str
    variant: str
    pitch: int


_GRAMMARS = json.loads((_SOURCES / "sentences.json").read_text(encoding="utf-8"))
VOICES = tuple(Voice(name, code, *how) for code, one in _GRAMMARS.items() for name, *how in one["voices"])
"""Voices of the sample corpus. The bundled model was trained on the same voice variants and pitches."""
SENTENCES = {
    language: [*one["phrases"], *(" ".join(words) + one["full_stop"] for words in itertools.product(*one["slots"]))]
    for language, one in _GRAMMARS.items()
}
"""`{language code: sentences}`: first `_NUM_PHRASES` fixed phrases, then all word combinations of the grammar."""


class Clip(NamedTuple):
    """A clip of the sample corpus: a sentence and its voice."""

    id: str
    text: str
    voice: Voice


def make_sample_corpus(root: Path, *, num_clips: int | None = None, languages: Sequence[str] = ("en",)) -> Path:
    """Creates the sample corpus in `root`, unless it already exists, and returns its absolute path.

    Replaces a sample corpus that is damaged, or that has another number of clips or other languages.

    Args:
        num_clips: Number of clips of 1 to 3 s, distributed evenly over the `VOICES` of the languages. None means 880,
            or 440 if there is only one voice.
        languages: Language codes, keys of `SENTENCES`.

    Raises `UserError` if `root` contains other files, and `RuntimeError` if eSpeak NG fails. Raises `ConfigError` if a
    language is not in `SENTENCES`, or if `num_clips` is not between 1 and the number of distinct clips.
    """
    root = Path(root).absolute()
    clips = plan_clips(num_clips, languages)
    # 1: version of the audio. Changes of voices and sentences change the digest anyway.
    plan = digest_bytes(json.dumps([1, WORDS_PER_MINUTE, clips]).encode())
    if _is_complete(root, plan):
        return root
    _, files = _read_manifest(root)
    made_here = {root / name for name in (MANIFEST_FILE, *files)} if files else set()
    found = _files(root) if root.is_dir() else filter(Path.exists, [root])
    if foreign := next((path for path in found if path not in made_here), None):
        raise UserError(f"{root} must be new, empty or a sample corpus. Found: {foreign}.")
    try:
        # No sync is needed, because checksums detect damage by a power failure.
        with write_whole_folder(root, sync=False) as new:
            speak_clips(clips, new)
            files = {path.relative_to(new).as_posix(): digest_file(path) for path in _files(new)}
            write_json(new / MANIFEST_FILE, {"plan": plan, "files": files})
    except OSError:
        # Another process may have created the same corpus.
        if not _is_complete(root, plan):
            raise
    return root


def plan_clips(num_clips: int | None, languages: Sequence[str] = ("en",)) -> list[Clip]:
    """Returns the clips that `make_sample_corpus` creates for the same arguments. A voice never repeats a sentence."""
    unknown = set(languages).difference(SENTENCES)
    received = ", ".join(sorted(unknown)) or "none"
    require(bool(languages) and not unknown, "The sample corpus", f"in one of {', '.join(SENTENCES)}", received)
    voices = [voice for voice in VOICES if voice.language in languages]
    heard = {language: [*SENTENCES[language]] for language in languages}
    for sentences in heard.values():
        del sentences[_NUM_PHRASES::UNHEARD_EVERY]
    largest = len(voices) * min(map(len, heard.values()))
    num_clips = min(880, 440 * len(voices)) if num_clips is None else num_clips
    require(1 <= num_clips <= largest, "num_clips", f"from 1 to {largest}, the number of different clips", num_clips)
    clips = []
    for number, voice in enumerate(voices):
        share = len(range(number, num_clips, len(voices)))
        # A string seeds the same sequence on every platform and Python version.
        sentences = random.Random(f"0 {voice.speaker}").sample(heard[voice.language], share)
        clips += [Clip(f"{voice.language}_{voice.speaker}_{k:03d}", text, voice) for k, text in enumerate(sentences)]
    return clips


def speak_clips(clips: Sequence[Clip], root: Path) -> None:
    """Synthesizes clips into an empty folder, in the LJSpeech layout. Raises `RuntimeError` if eSpeak NG fails."""
    wavs = root / "wavs"
    wavs.mkdir()
    jobs = [SpeechJob(str(wavs / f"{one.id}.wav"), one.text, *one.voice[2:], WORDS_PER_MINUTE) for one in clips]
    speak_to_files(jobs)
    voices = {clip.voice for clip in clips}
    languages = {voice.language for voice in voices}
    readme = (_SOURCES / "README.md").read_text(encoding="utf-8")
    speakers = ["id,speaker,language", *(f"{clip.id},{clip.voice.speaker},{clip.voice.language}" for clip in clips)]
    tables = {
        "metadata.csv": "".join(f"{clip.id}|{clip.text}|{clip.text}\n" for clip in clips),
        "speakers.csv": "\n".join([*speakers, ""]),
        "README.md": readme.format(num_clips=len(clips), languages=len(languages), voices=len(voices)),
    }
    for name, text in tables.items():
        (root / name).write_text(text, encoding="utf-8", newline="\n")


def unheard_sentences(language: str) -> list[str]:
    """Returns the held-out sentences of a language. Each of their words also occurs in other sentences."""
    return SENTENCES[language][_NUM_PHRASES::UNHEARD_EVERY]


def _files(root):
    return sorted(path for path in root.rglob("*") if path.is_file())


def _read_manifest(root):
    """Returns the manifest as `(digest of the planned clips, {file name: digest})`; `("", {})` if it cannot be read."""
    try:
        manifest = read_json(root / MANIFEST_FILE)
        return manifest["plan"], manifest["files"]
    except (CheckpointError, KeyError, TypeError):
        return "", {}


def _is_complete(root, plan):
    made_of, files = _read_manifest(root)
    intact = lambda path, digest: path.is_file() and digest_file(path) == digest
    return made_of == plan and all(intact(root / name, digest) for name, digest in files.items())


class SpeechJob(NamedTuple):
    """Sentence to synthesize to the WAV file `path`. `language` and `variant` are names in eSpeak NG."""

    path: str
    text: str
    language: str
    variant: str
    pitch: int
    words_per_minute: int


def speak_to_files(jobs: Sequence[SpeechJob]) -> None:
    """Synthesizes `jobs`, in order, to 16-bit WAV files at `SAMPLE_RATE`. Raises `RuntimeError` if eSpeak NG fails."""
    # -P prevents imports from the working folder.
    command = [sys.executable, "-P", "-m", "myxtts.data.sample_corpus"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    options = dict(capture_output=True, text=True, timeout=TIMEOUT_SECONDS, env=environment)
    child = subprocess.run(command, input=json.dumps(jobs), **options)
    if child.returncode != 0:
        raise RuntimeError(f"eSpeak NG failed with exit code {child.returncode}: {child.stderr}")


def _speak(jobs):
    library, chunks = load_library(), []
    # Without argument types, ctypes would pass size_t and pointers as C ints.
    text, size, number, pointer = ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint, ctypes.c_void_p
    library.espeak_Synth.argtypes = [text, size, number, ctypes.c_int, number, number, pointer, pointer]

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)
    def receive(samples, num_samples, _events):
        if samples and num_samples:
            chunks.append(np.ctypeslib.as_array(samples, (num_samples,)).copy())
        return 0

    def call(function, *arguments):
        if status := getattr(library, function)(*arguments):
            raise RuntimeError(f"{function}{arguments} must return 0. Received: {status}.")

    library.espeak_SetSynthCallback(receive)
    for job in jobs:
        call("espeak_SetVoiceByName", f"{job.language}+{job.variant}".encode())
        call("espeak_SetParameter", RATE, job.words_per_minute, 0)
        call("espeak_SetParameter", PITCH, job.pitch, 0)
        # Breathy variants use random noise, whose default seed is the time.
        call("espeak_ng_SetRandSeed", ctypes.c_long(1))
        chunks.clear()
        data = job.text.encode()
        call("espeak_Synth", data, len(data) + 1, 0, POSITION_CHARACTER, 0, CHARS_UTF8, None, None)
        call("espeak_Synchronize")
        samples, margin = np.concatenate([np.zeros(0, np.int16), *chunks]), SAMPLE_RATE // 20
        loud = np.flatnonzero(np.abs(samples.astype(np.int32)) > 104)  # -50 dB of full scale
        if not len(loud):
            raise RuntimeError("eSpeak NG produced a silent clip.")
        # Trim silence at both ends to 50 ms.
        samples = samples[max(loud[0] - margin, 0) : loud[-1] + margin]
        soundfile.write(os.fsencode(job.path), samples, SAMPLE_RATE, subtype="PCM_16")


if __name__ == "__main__":
    _speak(itertools.starmap(SpeechJob, json.load(sys.stdin)))
