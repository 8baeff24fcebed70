"""Creates a training set from long recordings: analyzes them, aligns their texts, and checks and writes clips."""

import shlex
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from myxtts.apps.datasets.alignment import align, find_sentences, fits_speech
from myxtts.apps.datasets.checks import Segment, cached, judge, listen, measure_clip, steadiness
from myxtts.apps.datasets.recording import LongAudio, Survey, survey
from myxtts.apps.datasets.set_folder import PAUSE, WAVS, clips_of, describe, open_set, source_id, write_report
from myxtts.apps.datasets.speech import Atom, choose_clips, find_edges, force_cuts, to_stretches
from myxtts.apps.datasets.texts import TELLING, Piece, count_letters, is_subtitles, read_text, synchronize
from myxtts.audio.encoding import write_audio
from myxtts.audio.files import MEDIA_EXTENSIONS
from myxtts.config.checks import UserError, counted
from myxtts.data.corpora import TEXTS, files_beside, texts_beside
from myxtts.storage.files import digest_file, write_whole_folder

_HIGHEST_PEAK = 10 ** (-1 / 20)  # -1 dB of full scale


def make_dataset(
    recordings: Sequence[Path], output: Path, options: Namespace, tell: Callable[[str], None] = print
) -> list[dict[str, Any]]:
    """Creates a data set, or adds recordings to an existing set; returns all records of the set (see `SetFolder`).

    Recordings that already have clips in the set are skipped. If a recording fails, the recordings added before it stay
    in the set. `options` are those returned by `command.open_options`. `tell` is called with each message.
    """
    files: dict[Path, None] = {}
    for path in map(Path, recordings):
        found = [at for at in path.glob("[!.]*") if at.suffix.lower() in MEDIA_EXTENSIONS] if path.is_dir() else [path]
        if not found or path.suffix.lower() in TEXTS:
            hint = f"Give recordings ({' '.join(MEDIA_EXTENSIONS)}), or a folder with recordings directly in it"
            if path.is_file() or any(one.suffix.lower() in TEXTS for one in path.glob("*")):
                hint = f"To train on its texts: `myxtts train --train-data {shlex.quote(str(path))}`"
            raise UserError(f"{path} contains no recordings. {hint}.")
        files |= dict.fromkeys(sorted(found))
    if options.text and len(files) > 1:
        raise UserError(f"--subtitles and --transcript are for one recording. Received: {len(files)}.")
    texts = dict.fromkeys(files, options.text) if options.text else texts_beside(files, options.language)
    alike = files_beside(files, MEDIA_EXTENSIONS)
    pieces = {path: read_text(path, text, options) for path, text in texts.items()}
    with open_set(output) as folder:
        known = {one["digest"] for one in folder.records() if clips_of([one])}  # of recordings with any name
        for path, text in texts.items():
            if (digest := digest_file(path)) in known:
                tell(f"{path.name}: already in the data set")
                continue
            if twins := [one.name for one in alike[path] if one.name != path.name and digest_file(one) in known]:
                tell(f"{path.name}: skipped, because {twins[0]} of the same name is in the data set")
                continue
            identity = source_id(path.name, digest)
            say = lambda note: tell(f"{path.name}: {note}")
            if text and not options.text:
                say(f"text from {text.name}, next to it")
            keep = lambda model, name: model and cached(model, folder.path_of(identity, ".heard"), name)
            # A recognizer that aligned the transcript is not also used to check the clips.
            aligns = text and not is_subtitles(text) and options.aligner is options.recognizer
            recognizer = None if aligns else keep(options.recognizer, options.recognizer_name)
            aligner = keep(options.aligner, options.aligner_name)
            caching = Namespace(**vars(options) | dict(recognizer=recognizer, aligner=aligner, recording=path))
            record = _write_source(folder, identity, LongAudio(path), text, pieces[path], caching, say)
            record |= {"id": identity, "name": path.name, "digest": digest}
            folder.hold_back(record, options.validation_share, options.seed)
            folder.add(record)
            if clips_of([record]):
                known.add(digest)
            tell(describe(record))
        write_report(folder.path, records := folder.records())
    return records


def _write_source(folder, identity, audio, text, pieces, options, tell):
    """Selects, checks and writes the clips of a recording with the id `identity`. The returned record lacks the id."""
    surveyed, segments, notes = plan_source(audio, text, pieces, options)
    gain, peak, rate = 1.0, float(surveyed.peaks.max()), surveyed.sample_rate
    if np.isfinite(surveyed.loudness) and peak > 0:
        gain = 10 ** ((options.loudness - surveyed.loudness) / 20)
        if gain * peak > _HIGHEST_PEAK:
            gain = _HIGHEST_PEAK / peak
            notes.append(f"gain limited to {20 * np.log10(gain):+.1f} dB by its peaks")
    for note in notes:
        tell(note)
    with write_whole_folder(folder.path / WAVS / identity) as temporary:
        numbered = enumerate((one for one in segments if one.facts), 1)
        clips = [(one, temporary / f"{number:05d}.wav") for number, one in numbered if not one.reason]
        spans = audio.spans([(one.start, one.end) for one, _ in clips], surveyed.channel)
        for (_, file), samples in zip(clips, spans):
            samples, fade = samples * np.float32(gain), min(round(0.005 * rate), len(samples) // 2)
            ramp = np.linspace(0, 1, fade, endpoint=False, dtype=np.float32)  # without it, the ends click
            samples[:fade] *= ramp
            samples[len(samples) - fade :] *= ramp[::-1]
            write_audio(file, samples, rate)
        listen(clips, options, text is None, tell)
        for one, file in clips:
            if one.reason:
                file.unlink()
            else:
                one.clip = f"{WAVS}/{identity}/{file.name}"
    step = max(1, round(0.05 / surveyed.frame_seconds))
    peaks = np.pad(surveyed.peaks, (0, -len(surveyed.peaks) % step)).reshape(-1, step).max(axis=1)
    return {
        "speaker": options.speaker,
        "language": options.language,
        "sample_rate": rate,
        "num_samples": surveyed.num_samples,
        "loudness": round(surveyed.loudness, 2) if np.isfinite(surveyed.loudness) else None,
        "gain_db": round(20 * float(np.log10(gain)), 2),
        "notes": notes,
        "rows": [asdict(one) for one in segments],
        "envelope_seconds": step * surveyed.frame_seconds,
        "envelope": bytes(np.minimum(99, 100 * peaks / max(peaks.max(), 1e-9)).astype(np.uint8)).hex(),
    }


def plan_source(
    audio: LongAudio, text: Path | None, pieces: list[Piece], options: Namespace
) -> tuple[Survey, list[Segment], list[str]]:
    """Analyzes a recording and selects its clips. `pieces` are the cues or sentences of the file `text`.

    Returns the `Survey`, segments that cover the whole recording (clips, dropped speech and pauses), and notes for the
    user. A segment that has `facts` and no `reason` is a clip.

    Raises `UserError` if the recording cannot be used, or if the text belongs to another recording."""
    notes: list[str] = []
    surveyed = survey(audio, options.speech_model)
    seconds, size, count = surveyed.frame_seconds, surveyed.frame_samples, surveyed.num_samples
    spoken = to_stretches(surveyed.speech, seconds)
    if options.force_cut:
        spoken = force_cuts(spoken, surveyed.levels_db, seconds, options.max_seconds)
    steady = [steadiness(surveyed, *one) for one in spoken]
    left = [Segment(*one, "", "not like speech", why) for one, why in zip((spoken * size).tolist(), steady) if why]
    spoken = spoken[np.array(steady, str) == ""]
    if not len(spoken):
        return surveyed, [Segment(0, count, reason="no speech found")], ["no speech found"]
    starts, ends = spoken.T * seconds
    if pieces:
        shift = 0.0
        if is_subtitles(text):
            moved, note = synchronize(pieces, starts, ends, text)
            shift, pieces, notes = moved[0].start - pieces[0].start, moved, [note] if note else []
        else:
            pieces = find_sentences(options.aligner, audio, surveyed, spoken, pieces, options.language)
        atoms = align(starts, ends, pieces)
        if (is_subtitles(text) or len(pieces) >= TELLING) and not fits_speech(atoms, starts, ends, len(pieces), shift):
            raise UserError(f"{text} does not belong to the recording: its texts do not fit the speech.")
        if unspoken := [atom.text for atom in atoms if atom.first == atom.last]:
            notes.append(f"{counted(len(unspoken), 'text')} not spoken in the recording, such as: {unspoken[0][:60]}")
        atoms = [atom for atom in atoms if atom.first < atom.last]
    else:  # long pauses count as ends of sentences
        pauses = np.append(starts[1:] - ends[:-1], np.inf)
        atoms = [Atom(k, k + 1, "", bool(pause >= 0.5)) for k, pause in enumerate(pauses)]
    edges = find_edges(spoken, surveyed.levels_db, seconds)
    clips, used = [], set()
    for first, last, start, end in choose_clips(atoms, edges, seconds, options.min_seconds, options.max_seconds):
        words = " ".join(atom.text for atom in atoms[first:last]).strip()
        facts = measure_clip(surveyed, start, end, count_letters(words))
        clips.append(Segment(start * size, min(end * size, count), words, facts=facts))
        used.update(range(first, last))
    judge(clips, options.min_snr)
    for atom in (atom for k, atom in enumerate(atoms) if k not in used):
        length = (edges.finishes[atom.last - 1] - edges.begins[atom.first]) * seconds
        start, end = spoken[atom.first, 0] * size, spoken[atom.last - 1, 1] * size
        unused = "too short" if length < options.min_seconds else "fits no clip"
        if length > options.max_seconds:
            known = "with a certain text boundary " if atom.last - atom.first > 1 else ""
            unused = f"no pause {known}for {options.max_seconds:g} s"
        left.append(Segment(int(start), int(end), atom.text, atom.reason or unused))
    return surveyed, _with_pauses(clips, left, count), notes


def _with_pauses(clips, left, num_samples):
    """Returns `clips`, dropped speech (`left`) and pauses as one list, sorted by time. Where dropped speech overlaps a
    clip, the dropped speech is shortened."""
    segments, position, starts = [], 0, [clip.start for clip in clips]
    for one in [*sorted([*clips, *left], key=lambda one: one.start), Segment(num_samples, num_samples)]:
        start, following = max(position, one.start), [at for at in starts if at >= one.start and not one.facts]
        end = min([one.end, num_samples, *following])
        if start > position:
            segments.append(Segment(position, start, reason=PAUSE))
        if one.facts:
            segments.append(one)
        elif end > start:
            segments.append(replace(one, start=start, end=end))
        position = max(position, end)
    return segments
