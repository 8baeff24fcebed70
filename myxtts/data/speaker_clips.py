"""A short recording of each speaker of a training set, kept with the run so that it can speak in their voices."""

import io
import logging
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import soundfile

from myxtts.audio.files import load_samples
from myxtts.config.rates import MODEL_SAMPLE_RATE
from myxtts.data.pipeline import Clip
from myxtts.storage.files import digest_file
from myxtts.storage.speakers import read_speakers, write_speaker_clips

logger = logging.getLogger(__name__)

KEPT_SAMPLES = 12 * MODEL_SAMPLE_RATE
"""Of each speaker: two pieces of the longest length that a voice is taken from in training."""
USUAL_SAMPLES = 6 * MODEL_SAMPLE_RATE
"""Clips near this length are taken first: long ones have pauses, short ones are often words alone."""
MOST_CLIPS = 24
MOST_SPEAKERS = 200
"""Those with the most speech are kept: some 50 MB at most."""


def keep_speakers(folder: Path, clips: Sequence[Clip]) -> list[str]:
    """Writes the recordings of the speakers of a training set into the folder of a run, unless they are there.

    Returns:
        Names of the speakers that were left out because there are too many.
    """
    by_speaker = defaultdict(list)
    for clip in clips:
        by_speaker[clip.speaker].append(clip)
    most_first = sorted(by_speaker, key=lambda name: (-sum(clip.num_samples for clip in by_speaker[name]), name))
    chosen = {name: _choose(by_speaker[name]) for name in most_first[:MOST_SPEAKERS]}
    known = {name: speaker.sources for name, speaker in read_speakers(folder).items()}
    sources = {name: _sources(some) for name, some in chosen.items()}
    missing = {name: some for name, some in chosen.items() if known.get(name) != sources[name]}
    if missing:
        write_speaker_clips(folder, {name: (*_record(some), sources[name]) for name, some in missing.items()})
    if left_out := most_first[MOST_SPEAKERS:]:
        kept = f"The {MOST_SPEAKERS} speakers with the most speech can be named with `myxtts say --speaker`"
        logger.info("%s; %d others need --reference-audio.", kept, len(left_out))
    return left_out


def _choose(clips):
    chosen, length = [], 0
    for clip in sorted(clips, key=lambda clip: (abs(clip.num_samples - USUAL_SAMPLES), clip.id))[:MOST_CLIPS]:
        if length < KEPT_SAMPLES:
            chosen.append(clip)
            length += clip.num_samples
    return chosen


def _sources(clips):
    """The clips' ids, each with the digest of its file: a voice is recorded again when its audio changed."""
    return tuple(f"{clip.id} {digest_file(clip.wav_path)[:12]}" for clip in clips)


def _record(clips):
    """FLAC content of the clips one after the other, and the language of the first."""
    samples, file = np.concatenate([load_samples(clip.wav_path) for clip in clips])[:KEPT_SAMPLES], io.BytesIO()
    soundfile.write(file, samples, MODEL_SAMPLE_RATE, format="FLAC", subtype="PCM_16")
    return file.getvalue(), clips[0].language
