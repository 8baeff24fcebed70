"""One recording: its text, its stretches of speech, which of them become clips, and why the others do not."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from myxtts.apps.datasets.alignment import align, fits_better_than_chance
from myxtts.apps.datasets.checks import ClipFacts, is_steady, judge, measure_clip
from myxtts.apps.datasets.cuts import Atom, choose_clips, find_edges, force_cuts
from myxtts.apps.datasets.decoding import LongAudio
from myxtts.apps.datasets.pieces import (
    SUBTITLE_EXTENSIONS,
    TRANSCRIPT_EXTENSIONS,
    is_subtitles,
    read_subtitles,
    read_transcript,
)
from myxtts.apps.datasets.survey import Survey, survey
from myxtts.apps.datasets.timing import belong_together, fit_timing
from myxtts.apps.datasets.voice_activity import find_speech, to_stretches
from myxtts.apps.datasets.word_aligner import find_sentences, with_times
from myxtts.config.checks import UserError, counted
from myxtts.hearing.recognizers import Recognizer
from myxtts.hearing.silero import SileroModel

PAUSE = "pause"
_SENTENCE_PAUSE_SECONDS = 0.5


@dataclass(frozen=True)
class CutOptions:
    """How recordings are cut.

    Attributes:
        language: Of the speech, a code.
        min_seconds, max_seconds: Of a clip.
        min_snr_db: Speech must stand so far over the pauses.
        force_cut: Whether speech without pauses is cut where it is quietest.
    """

    language: str = "en"
    min_seconds: float = 1.0
    max_seconds: float = 11.5
    min_snr_db: float = 15.0
    force_cut: bool = False


@dataclass(frozen=True)
class Cut:
    """A clip, samples `[start, end)`; `verdict` is `"reason: sentence"` where it is left out, else ""."""

    start: int
    end: int
    text: str
    facts: ClipFacts
    verdict: str = ""


@dataclass(frozen=True)
class Span:
    """Samples `[start, end)` that are no clip, why, and their text as far as it is known."""

    start: int
    end: int
    reason: str
    text: str = ""


@dataclass(frozen=True, eq=False)
class Plan:
    """What is to be made of a recording. `cuts` and `spans` together cover every sample once."""

    survey: Survey
    cuts: list[Cut]
    spans: list[Span]
    notes: list[str] = field(default_factory=list)


def find_text(recording: Path) -> Path | None:
    """The subtitles or the transcript beside a recording: the same name with another ending, also `talk.en.srt`."""
    for extension in (*SUBTITLE_EXTENSIONS, *TRANSCRIPT_EXTENSIONS):
        for path in (recording.with_suffix(extension), *sorted(recording.parent.glob(f"*{extension}"))):
            named = path.stem == recording.stem or path.stem.rpartition(".")[0] == recording.stem
            if named and path.is_file():
                return path
    return None


def plan_source(
    audio: LongAudio,
    text: Path | None,
    options: CutOptions,
    model: SileroModel | None,
    tell: Callable[[str], None],
    finder: Recognizer | None = None,
) -> Plan:
    """Surveys a recording and decides where it is cut. Without `text` the cuts' texts are empty.

    Args:
        finder: Finds the sentences of a transcript, which needs one.

    Raises:
        UserError: The recording or its text cannot be used, or they do not belong together.
    """
    language, pieces = options.language, []
    if text:
        pieces = read_subtitles(text) if is_subtitles(text) else read_transcript(text, language)
    surveyed = survey(audio, model)
    speech, seconds, size = find_speech(surveyed), surveyed.frame_seconds, surveyed.frame_samples
    stretches = to_stretches(speech, seconds)
    if options.force_cut:
        stretches = force_cuts(stretches, surveyed.levels_db, seconds, options.max_seconds)
    steady = [one for one in stretches if is_steady(surveyed, speech, one.start, one.end)]
    stretches = [one for one in stretches if one not in steady]
    if not stretches:
        reason = "no speech was found"
        return Plan(surveyed, [], [Span(0, surveyed.num_samples, reason)], [reason])
    starts, ends = (np.array([getattr(one, side) for one in stretches]) * seconds for side in ("start", "end"))
    notes: list[str] = []
    if not pieces:
        atoms = _plain_atoms(starts, ends)
    else:
        if is_subtitles(text):
            pieces = _in_time(pieces, starts, ends, text, notes)
        else:
            times = find_sentences(finder, audio, surveyed, stretches, pieces, language)
            pieces = with_times(pieces, times, surveyed.seconds)
        atoms = _to_atoms(starts, ends, pieces, text, notes)
    for note in notes:
        tell(note)
    edges = find_edges(stretches, surveyed.levels_db, seconds)
    clips = choose_clips(atoms, edges, seconds, options.min_seconds, options.max_seconds)
    cuts, used = [], set()
    for clip in clips:
        words = " ".join(atom.text for atom in atoms[clip.first : clip.last]).strip()
        facts = measure_clip(surveyed, speech, clip.start, clip.end, sum(map(str.isalnum, words)))
        cuts.append(Cut(clip.start * size, min(clip.end * size, surveyed.num_samples), words, facts))
        used.update(range(clip.first, clip.last))
    verdicts = judge([cut.facts for cut in cuts], options.min_snr_db, [cut.text for cut in cuts])
    cuts = [replace(cut, verdict=verdict) for cut, verdict in zip(cuts, verdicts)]
    left = [_unused_span(atom, stretches, edges, surveyed, options) for k, atom in enumerate(atoms) if k not in used]
    left += [Span(one.start * size, one.end * size, "not like speech") for one in steady]
    return Plan(surveyed, cuts, _fill(cuts, left, surveyed.num_samples), notes)


def _in_time(cues, starts, ends, path, notes):
    """Cues with the times of the recording."""
    timing = fit_timing(cues, starts, ends)
    if not belong_together(timing, len(cues)):
        shares = f"{100 * timing.matched:.0f} % of its cues begin with speech, by chance {100 * timing.chance:.0f} %"
        raise UserError(f"{path} does not belong to the recording: {shares}. Name another with --subtitles.")
    notes += filter(None, [timing.describe()])
    return [timing.move(cue) for cue in cues]


def _to_atoms(starts, ends, pieces, path, notes):
    """Stretches with the pieces that they certainly hold."""
    groups = align(starts, ends, pieces)
    if not fits_better_than_chance(groups, starts, ends, pieces):
        raise UserError(f"{path} does not belong to the recording: its texts in another order would fit as well.")
    atoms, unspoken = [], []
    for group in groups:
        members = pieces[group.first_piece : group.last_piece]
        if group.first == group.last:
            unspoken += [piece.text for piece in members]
            continue
        faults = [piece.fault for piece in members if piece.fault]
        reason = group.doubt or (faults[0] if faults else "" if members else "speech without text")
        words = " ".join(piece.text for piece in members)
        atoms.append(Atom(group.first, group.last, words, bool(members) and members[-1].ends_sentence, reason))
    if unspoken:
        notes.append(f"{counted(len(unspoken), 'text')} not spoken, the first: {unspoken[0][:60]}")
    return atoms


def _plain_atoms(starts, ends) -> list[Atom]:
    """Every stretch alone, for a recognizer; long pauses are taken for ends of sentences."""
    pauses = np.append(starts[1:] - ends[:-1], np.inf)
    return [Atom(k, k + 1, "", bool(pause >= _SENTENCE_PAUSE_SECONDS)) for k, pause in enumerate(pauses)]


def _unused_span(atom, stretches, edges, surveyed, options):
    """The samples of an atom that is in no clip, with the reason."""
    seconds = (edges.finishes[atom.last - 1] - edges.begins[atom.first]) * surveyed.frame_seconds
    known = "where the text is known " if atom.last - atom.first > 1 else ""
    reason = "too short" if seconds < options.min_seconds else "fits no clip"
    reason = f"no pause {known}for {options.max_seconds:g} s" if seconds > options.max_seconds else reason
    size = surveyed.frame_samples
    start, end = stretches[atom.first].start * size, stretches[atom.last - 1].end * size
    return Span(start, end, atom.reason or reason, atom.text)


def _fill(cuts, left, num_samples):
    """Spans between and beside the cuts, pauses included, so that every sample is in one of all."""
    spans, position = [], 0
    for one in [*sorted([*cuts, *left], key=lambda one: one.start), Span(num_samples, num_samples, "")]:
        start, end = max(position, one.start), min(one.end, num_samples)
        if start > position:
            spans.append(Span(position, start, PAUSE))
        if isinstance(one, Span) and end > start:
            spans.append(replace(one, start=start, end=end))
        position = max(position, end)
    return spans
