"""`make_dataset`: from long recordings to a data set for training."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from myxtts.apps.datasets.listening import CachedRecognizer, listen
from myxtts.apps.datasets.recording import LongAudio
from myxtts.apps.datasets.report import duration, write_report
from myxtts.apps.datasets.set_folder import TRAINING, VALIDATION, WAVS, SetFolder, open_set, source_id
from myxtts.apps.datasets.source import Options, plan_source
from myxtts.apps.datasets.texts import find_text, is_subtitles, read_subtitles, read_transcript
from myxtts.audio.encoding import wav_header
from myxtts.audio.files import MEDIA_EXTENSIONS, AudioError, to_pcm16
from myxtts.config.checks import UserError, counted
from myxtts.storage.files import digest_bytes, digest_file, write_whole_folder

_HIGHEST_PEAK = 10 ** (-1 / 20)  # -1 dB of full scale
_FADE_SECONDS = 0.005
_ENVELOPE_SECONDS = 0.05
_BLOCK_SHARE, _LEAST_BLOCK_SECONDS, _MOST_BLOCK_SECONDS = 0.1, 20.0, 120.0


def make_dataset(
    recordings: Sequence[Path], output: Path, options: Options = Options(), tell: Callable[[str], None] = print
) -> list[dict[str, Any]]:
    """Creates a data set or adds recordings to it, like `command.make_dataset`; returns the records of all recordings.

    Recordings that the data set has are skipped. If one cannot be used, those before it are kept. `tell` is called with
    progress lines.
    """
    files = _find_recordings(recordings)
    if options.text and len(files) > 1:
        raise UserError(f"--subtitles and --transcript are for one recording. Received: {len(files)}.")
    texts = {path: options.text or find_text(path) for path in files}
    pieces = {path: _read_pieces(path, text, options) for path, text in texts.items()}
    with open_set(output) as folder:
        for path, text in texts.items():
            identity = source_id(path.name, digest := digest_file(path))
            if folder.record_path(identity).is_file():
                tell(f"{path.name}: already in the data set")
                continue
            say = lambda note: tell(f"{path.name}: {note}")
            if text and not options.text:
                say(f"text from {text.name}, next to it")
            cached = _with_caches(options, folder.cache_path(identity), text)
            record = _write_source(folder, identity, LongAudio(path), text, pieces[path], cached, say)
            record |= {"id": identity, "name": path.name, "digest": digest}
            _hold_back(folder, record, options)
            folder.add(record)
            tell(_describe(record))
        records = folder.records()
        write_report(folder.path, records)
    return records


def _find_recordings(paths):
    files: list[Path] = []
    for path in map(Path, paths):
        if not path.exists():
            raise AudioError(path, "missing file", "it does not exist.")
        found = [one for one in path.glob("*") if one.suffix.lower() in MEDIA_EXTENSIONS] if path.is_dir() else [path]
        if not found:
            raise UserError(f"{path} holds no recording ({' '.join(MEDIA_EXTENSIONS)}).")
        files += sorted(found)
    return list(dict.fromkeys(files))


def _read_pieces(path, text, options):
    """Reads the text of a recording; empty if a recognizer transcribes it."""
    if text is None:
        if options.recognizer is None:
            raise UserError(f"{path} has no text. Put subtitles of the same name next to it, or give a --recognizer.")
        return []
    if is_subtitles(text):
        return read_subtitles(text)
    if options.aligner is None:
        hint = "Give a --recognizer, or make subtitles with a tool of docs/make-dataset.md"
        raise UserError(f"{text} has no times and needs a recognizer to align it with {path.name}. {hint}.")
    return read_transcript(text, options.language)


def _with_caches(options, cache, text):
    """Caches the results of the recognizers. One that aligns a transcript does not check it as well."""
    keep = lambda recognizer, name: recognizer and CachedRecognizer(recognizer, cache, name)
    aligns = text and not is_subtitles(text) and options.aligner is options.recognizer
    recognizer = None if aligns else keep(options.recognizer, options.recognizer_name)
    return replace(options, recognizer=recognizer, aligner=keep(options.aligner, options.aligner_name))


def _describe(record):
    """Summarizes a recording in one line: length, clips, and dropped time by reason."""
    seconds, count = defaultdict(float), sum(bool(row["clip"]) for row in record["rows"])
    for row in record["rows"]:
        seconds[row["reason"]] += (row["end"] - row["start"]) / record["sample_rate"]
    whole, clips = duration(record["num_samples"] / record["sample_rate"]), duration(seconds.pop("", 0.0))
    left = [f"{reason} {duration(one)}" for reason, one in sorted(seconds.items(), key=lambda one: -one[1])]
    start = f"{record['name']}: {whole}, {counted(count, 'clip')} of {clips}"
    return f"{start}; dropped: {', '.join(left) or 'nothing'}"


def _write_source(folder, identity, audio, text, pieces, options, tell):
    """Writes the clips of a recording; returns its record."""
    surveyed, segments, notes = plan_source(audio, text, pieces, options)
    gain, rate = _gain(surveyed, options.loudness, notes), surveyed.sample_rate
    for note in notes:
        tell(note)
    with write_whole_folder(folder.path / WAVS / identity) as temporary:
        numbered = enumerate((one for one in segments if one.facts), 1)
        clips = [(one, temporary / f"{number:05d}.wav") for number, one in numbered if not one.reason]
        spans = [(one.start, one.end) for one, _ in clips]
        for (_, file), samples in zip(clips, audio.spans(spans, surveyed.channel)):
            _write_clip(file, samples * np.float32(gain), rate)
        listen(clips, options, text is None, tell)
        for one, file in clips:
            if one.reason:
                file.unlink()
            else:
                one.clip = f"{WAVS}/{identity}/{file.name}"
    step = max(1, round(_ENVELOPE_SECONDS / surveyed.frame_seconds))
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


def _gain(surveyed, loudness, notes):
    """Returns the gain to the target loudness, limited by the peaks."""
    peak = float(surveyed.peaks.max())
    if not np.isfinite(surveyed.loudness) or peak <= 0:
        return 1.0
    gain = 10 ** ((loudness - surveyed.loudness) / 20)
    if gain * peak > _HIGHEST_PEAK:
        gain = _HIGHEST_PEAK / peak
        notes.append(f"gain limited to {20 * np.log10(gain):+.1f} dB by its peaks")
    return gain


def _write_clip(path, samples, sample_rate):
    """Writes a WAV file with faded ends, so that they do not click."""
    count = min(round(_FADE_SECONDS * sample_rate), len(samples) // 2)
    ramp = np.linspace(0, 1, count, endpoint=False, dtype=np.float32)
    samples[:count] *= ramp
    samples[len(samples) - count :] *= ramp[::-1]
    content = to_pcm16(samples)
    path.write_bytes(wav_header(sample_rate, len(content)) + content)  # libsndfile does not report a full disk


def _hold_back(folder: SetFolder, record: dict[str, Any], options: Options) -> None:
    """Marks the clips of some blocks of time for validation, since neighboring clips sound alike."""
    rate, blocks = record["sample_rate"], defaultdict(list)
    length = np.clip(_BLOCK_SHARE * record["num_samples"] / rate, _LEAST_BLOCK_SECONDS, _MOST_BLOCK_SECONDS)
    for row in record["rows"]:
        if row["clip"]:
            blocks[int(row["start"] / rate / length)].append(row)

    def chance(key):
        return int(digest_bytes(f"{options.seed} {record['digest']} {key}".encode(), 8), 16) / 2**64

    count = int(len(blocks) * options.validation_share + chance("count"))
    if options.validation_share > 0 and not folder.has_clips(VALIDATION, record["id"]):
        count = max(count, 1)
    most = len(blocks) if folder.has_clips(TRAINING, record["id"]) else len(blocks) - 1
    for key in sorted(blocks, key=chance)[: max(0, min(count, most))]:
        for row in blocks[key]:
            row["validation"] = True
