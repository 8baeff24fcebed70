"""Short recordings of the speakers of a training set, stored in the run so that it can speak in their voices."""

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
"""Maximum length per speaker: twice the longest conditioning clip of training."""
USUAL_SAMPLES = 6 * MODEL_SAMPLE_RATE
"""Clips near this length are preferred: long ones have pauses, short ones are often single words."""
MOST_CLIPS = 24
MOST_SPEAKERS = 200
"""Limits the recordings to about 50 MB."""


def keep_speakers(folder: Path, clips: Sequence[Clip]) -> list[str]:
    """Writes the recordings of a training set's speakers into a run's folder, unless they are up to date.

    Returns:
        Names of the speakers without a recording, since those with the most speech are already `MOST_SPEAKERS`.
    """
    by_speaker = defaultdict(list)
    for clip in clips:
        by_speaker[clip.speaker].append(clip)
    most_first = sorted(by_speaker, key=lambda name: (-sum(clip.num_samples for clip in by_speaker[name]), name))
    known, missing = read_speakers(folder), {}
    for name in most_first[:MOST_SPEAKERS]:
        chosen = _choose(by_speaker[name])
        # The digests show when a recording is out of date.
        sources = tuple(f"{clip.id} {digest_file(clip.wav_path)[:12]}" for clip in chosen)
        if name not in known or known[name].sources != sources:
            missing[name] = (*_record(chosen), sources)
    if missing:
        write_speaker_clips(folder, missing)
    if left_out := most_first[MOST_SPEAKERS:]:
        kept = f"`myxtts say --speaker` takes the {MOST_SPEAKERS} speakers with the most speech"
        logger.info("%s; %d others need --reference-audio.", kept, len(left_out))
    return left_out


def _choose(clips):
    chosen, length = [], 0
    for clip in sorted(clips, key=lambda clip: (abs(clip.num_samples - USUAL_SAMPLES), clip.id))[:MOST_CLIPS]:
        if length < KEPT_SAMPLES:
            chosen.append(clip)
            length += clip.num_samples
    return chosen


def _record(clips):
    """Returns the concatenated clips as FLAC, and the language of the first."""
    samples, file = np.concatenate([load_samples(clip.wav_path) for clip in clips])[:KEPT_SAMPLES], io.BytesIO()
    soundfile.write(file, samples, MODEL_SAMPLE_RATE, format="FLAC", subtype="PCM_16")
    return file.getvalue(), clips[0].language
