"""Speech synthesis of sentences into files by eSpeak NG.

The state of eSpeak NG is global, and its audio depends slightly on earlier sentences. So `speak_to_files` runs this
module as a script: in a process of its own, with the sentences in a fixed order.
"""

import ctypes
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import soundfile

from myxtts.text.espeak import CHARS_UTF8, load_library

SAMPLE_RATE = 22050
TIMEOUT_SECONDS = 300

# From espeak-ng/speak_lib.h, version 1.52.
POSITION_CHARACTER, RATE, PITCH = 1, 1, 3
CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)


class SpeechJob(NamedTuple):
    """A sentence to speak into a WAV file.

    `language` and `variant` (the vocal tract) are names of eSpeak NG, such as `en-us` and `f2`; `pitch` is 0 to 100.
    """

    path: str
    text: str
    language: str
    variant: str
    pitch: int
    words_per_minute: int


def speak_to_files(jobs: Sequence[SpeechJob]) -> None:
    """Speaks `jobs` in order into 16-bit WAV files at `SAMPLE_RATE`, in a process of its own.

    Raises `RuntimeError` if eSpeak NG fails or does not know a language.
    """
    # -P: no imports from the working folder.
    command = [sys.executable, "-P", "-m", "myxtts.data.espeak_ng"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    options = dict(capture_output=True, text=True, timeout=TIMEOUT_SECONDS, env=environment)
    child = subprocess.run(command, input=json.dumps(jobs), **options)
    if child.returncode != 0:
        raise RuntimeError(f"eSpeak NG failed with exit code {child.returncode}: {child.stderr}")


def _trim_silence(samples):
    """Removes silence (below -50 dB of full scale) at both ends of `(S,)` int16, except 50 ms."""
    loud = np.flatnonzero(np.abs(samples.astype(np.int32)) > 104)
    if not len(loud):
        raise RuntimeError("eSpeak NG produced a silent clip.")
    margin = SAMPLE_RATE // 20
    return samples[max(loud[0] - margin, 0) : loud[-1] + margin]


def _speak(jobs):
    library, chunks = load_library(), []
    # Without argument types, ctypes would pass the size_t and the pointers as C ints.
    text, size, number, pointer = ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint, ctypes.c_void_p
    library.espeak_Synth.argtypes = [text, size, number, ctypes.c_int, number, number, pointer, pointer]

    @CALLBACK
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
        # Breathy variants use random noise, which the library seeds with the time of day.
        call("espeak_ng_SetRandSeed", ctypes.c_long(1))
        chunks.clear()
        data = job.text.encode()
        call("espeak_Synth", data, len(data) + 1, 0, POSITION_CHARACTER, 0, CHARS_UTF8, None, None)
        call("espeak_Synchronize")
        samples = _trim_silence(np.concatenate([np.zeros(0, np.int16), *chunks]))
        soundfile.write(job.path, samples, SAMPLE_RATE, subtype="PCM_16")


if __name__ == "__main__":
    _speak(itertools.starmap(SpeechJob, json.load(sys.stdin)))
