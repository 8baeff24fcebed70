"""One recording: its speech, its text, the clips to cut, and why other speech is dropped."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from myxtts.apps.datasets.alignment import align, fits_better_than_chance
from myxtts.apps.datasets.checks import Segment, is_steady, judge, measure_clip
from myxtts.apps.datasets.recording import LongAudio, Survey, survey
from myxtts.apps.datasets.speech import Atom, choose_clips, find_edges, force_cuts, to_stretches
from myxtts.apps.datasets.texts import Piece, count_letters, is_subtitles
from myxtts.apps.datasets.timing import fit_timing
from myxtts.apps.datasets.word_aligner import find_sentences
from myxtts.config.checks import UserError, counted
from myxtts.hearing.networks import DNSMOS, DVector, OnnxEncoder, SileroModel
from myxtts.hearing.recognizers import Recognizer

PAUSE = "pause"
_SENTENCE_PAUSE_SECONDS = 0.5


@dataclass(frozen=True)
class Options:
    """Settings and models of `make_dataset`, as on the command line.

    Attributes:
        text: Subtitles or transcript of a single recording; None takes the file next to each recording.
        speech_model: Voice activity detector; None uses levels alone.
        recognizer: Transcribes recordings without text, and checks the texts of the others.
        aligner: Recognizer that aligns transcripts.
        recognizer_name, aligner_name: Names of the recognizers, for the cache of an interrupted run.
        encoder: Speaker encoder, to drop clips with several voices or another voice.
    """

    text: Path | None = None
    language: str = "en"
    speaker: str = "speaker"
    min_seconds: float = 1.0
    max_seconds: float = 11.5
    min_snr_db: float = 15.0
    force_cut: bool = False
    loudness: float = -23.0
    validation_share: float = 0.05
    seed: int = 0
    speech_model: SileroModel | None = None
    recognizer: Recognizer | None = None
    aligner: Recognizer | None = None
    recognizer_name: str = ""
    aligner_name: str = ""
    encoder: DVector | OnnxEncoder | None = None
    dnsmos: DNSMOS | None = None
    min_dnsmos: float = 0.0


def plan_source(
    audio: LongAudio, text: Path | None, pieces: list[Piece], options: Options
) -> tuple[Survey, list[Segment], list[str]]:
    """Analyzes a recording and selects its clips. Their texts are empty if there are no `pieces` of its `text`.

    Returns:
        The survey; segments in order that cover every sample once, of which those with facts are clips; notes.

    Raises:
        UserError: The recording cannot be used, or the text is that of another one.
    """
    notes: list[str] = []
    surveyed = survey(audio, options.speech_model)
    seconds, size, count = surveyed.frame_seconds, surveyed.frame_samples, surveyed.num_samples
    stretches = to_stretches(surveyed.speech, seconds)
    if options.force_cut:
        stretches = force_cuts(stretches, surveyed.levels_db, seconds, options.max_seconds)
    steady = np.array([is_steady(surveyed, *one) for one in stretches], bool)
    left = [Segment(int(a) * size, int(b) * size, reason="not like speech") for a, b in stretches[steady]]
    stretches = stretches[~steady]
    if not len(stretches):
        reason = "no speech was found"
        return surveyed, [Segment(0, count, reason=reason)], [reason]
    starts, ends = stretches.T * seconds
    if pieces and is_subtitles(text):
        pieces = _corrected(pieces, starts, ends, text, notes)
    elif pieces:
        pieces = find_sentences(options.aligner, audio, surveyed, stretches, pieces, options.language)
    atoms = _to_atoms(starts, ends, pieces, text, notes)
    edges = find_edges(stretches, surveyed.levels_db, seconds)
    clips, used = [], set()
    for first, last, start, end in choose_clips(atoms, edges, seconds, options.min_seconds, options.max_seconds):
        words = " ".join(atom.text for atom in atoms[first:last]).strip()
        facts = measure_clip(surveyed, start, end, count_letters(words))
        clips.append(Segment(start * size, min(end * size, count), words, facts=facts))
        used.update(range(first, last))
    judge(clips, options.min_snr_db)
    for atom in (atom for k, atom in enumerate(atoms) if k not in used):
        length = (edges.finishes[atom.last - 1] - edges.begins[atom.first]) * seconds
        start, end = stretches[atom.first, 0] * size, stretches[atom.last - 1, 1] * size
        left.append(Segment(int(start), int(end), atom.text, atom.reason or _unused(atom, length, options)))
    return surveyed, _with_pauses(clips, left, count), notes


def _corrected(cues, starts, ends, path, notes):
    """Corrects offset and drift of subtitles."""
    timing = fit_timing(cues, starts, ends)
    if not timing.belongs:
        shares = f"{100 * timing.matched:.0f} % of its cues begin with speech, by chance {100 * timing.chance:.0f} %"
        raise UserError(f"{path} does not belong to the recording: {shares}. Name another with --subtitles.")
    notes += filter(None, [timing.describe()])
    return [timing.move(cue) for cue in cues]


def _to_atoms(starts, ends, pieces, path, notes):
    """Assigns the texts to the segments of speech; without texts, each segment is an atom."""
    if not pieces:  # long pauses count as ends of sentences
        pauses = np.append(starts[1:] - ends[:-1], np.inf)
        return [Atom(k, k + 1, "", bool(pause >= _SENTENCE_PAUSE_SECONDS)) for k, pause in enumerate(pauses)]
    atoms = align(starts, ends, pieces)
    if not fits_better_than_chance(atoms, starts, ends, len(pieces)):
        raise UserError(f"{path} does not belong to the recording: its texts in another order would fit as well.")
    unspoken = [atom.text for atom in atoms if atom.first == atom.last]
    if unspoken:
        notes.append(f"{counted(len(unspoken), 'text')} not spoken, the first: {unspoken[0][:60]}")
    return [atom for atom in atoms if atom.first < atom.last]


def _unused(atom, seconds, options):
    """Returns why an atom is in no clip."""
    if seconds > options.max_seconds:
        known = "where the text is known " if atom.last - atom.first > 1 else ""
        return f"no pause {known}for {options.max_seconds:g} s"
    return "too short" if seconds < options.min_seconds else "fits no clip"


def _with_pauses(clips, left, num_samples):
    """Orders all segments and adds the pauses between them; dropped ones are shortened where they overlap clips."""
    segments, position = [], 0
    for one in [*sorted([*clips, *left], key=lambda one: one.start), Segment(num_samples, num_samples)]:
        start, end = max(position, one.start), min(one.end, num_samples)
        if start > position:
            segments.append(Segment(position, start, reason=PAUSE))
        if one.facts:
            segments.append(one)
        elif end > start:
            segments.append(replace(one, start=start, end=end))
        position = max(position, end)
    return segments
