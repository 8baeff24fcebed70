"""Kaldi's data folders: `wav.scp`, `text` and perhaps `utt2spk`. Commands in `wav.scp` are never run."""

from myxtts.data.corpora.base import CorpusFormat, Place, Reading, Utterance, checked_text
from myxtts.data.corpora.folder import MAX_LINE_CHARACTERS, ClipRefused, CorpusError, is_name

FILES = ("wav.scp", "text")


def read(reading: Reading, place: Place) -> bool:
    """Reads every line of `wav.scp`, with the words and the speaker that the other files give for its utterance."""
    if place.list_path and place.list_path.name != "wav.scp" or not reading.folder.has(place.path, *FILES):
        return False
    if reading.folder.has(place.path, "segments"):
        rule = f"{place.path} has a file segments: its clips are parts of long recordings, which are not cut here"
        way_out = "Cut them first (Kaldi: utils/data/extract_wav_segments_data_dir.sh) and give the folder it makes."
        raise CorpusError(f"{rule}. {way_out}")
    texts = _entries(reading, place.path / "text")
    speakers = _entries(reading, place.path / "utt2spk") if reading.folder.has(place.path, "utt2spk") else {}
    path = place.path / "wav.scp"
    lines = reading.folder.read_lines(path)
    if not lines:
        raise CorpusError(f"{path} is empty: no clips. Write one line 'utterance path' per clip.")
    for number, line in enumerate(lines, 1):
        key, source = [*line.split(None, 1), "", ""][:2]
        with reading.clip(key, number, path):
            reading.add(_line_to_utterance(reading, place, key, source.strip(), number, texts, speakers))
    return True


def _entries(reading, path):
    entries = (line.strip().split(None, 1) for line in reading.folder.read_lines(path))
    return {entry[0]: entry[1] if len(entry) == 2 else "" for entry in entries if entry}


def _line_to_utterance(reading, place, key, source, number, texts, speakers):
    if not key or len(key) + len(source) > MAX_LINE_CHARACTERS or not is_name(key):
        raise ClipRefused("bad id", "The line is empty or too long, or its id holds control or direction characters.")
    if "|" in (source[-1:], source[:1]):
        detail = "wav.scp gives a command instead of a file; it was not run. Write its output to a file, and name that."
        raise ClipRefused("command", detail)
    if key not in texts:
        raise ClipRefused("no text", "The file text has no line for this utterance.")
    text, clip_id, speaker = checked_text(texts[key]), place.prefix + key, speakers.get(key, place.speaker)
    reading.check_new(clip_id, text)
    if not is_name(speaker):
        raise ClipRefused("bad label", "Its speaker is too long or holds control or direction characters.")
    wav_path = reading.folder.find_audio((place.path,), reading.folder.name_to_parts(source))
    return Utterance(clip_id, wav_path, text, speaker, reading.language, number, place.validation)


_HINT = "wav.scp and text (Kaldi, with utt2spk for speakers; files, not commands)"
FORMAT = CorpusFormat("kaldi", 12, _HINT, read, ("wav.scp", "text", "utt2spk"))
