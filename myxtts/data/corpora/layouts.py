"""Readers of the known layouts of data sets; `FORMATS` at the end lists them in order of priority."""

import re
from functools import partial
from pathlib import Path

from myxtts.config.checks import UserError, needing
from myxtts.data.corpora import tables
from myxtts.data.corpora.base import CorpusFormat, Place, Reading, to_code
from myxtts.data.corpora.folder import MAX_TRANSCRIPT_BYTES, ClipRefused, CorpusError, CorpusFolder, is_name
from myxtts.storage.files import digest_bytes, user_cache, write_whole
from myxtts.text.languages import LANGUAGES

_STATE, _SPLITS = "state.json", "dataset_dict.json"
_NORMALIZED, _TRANSCRIPTS = ".normalized.txt", ".trans.txt"
_VALIDATION_SETS, _TEST_SETS = {"dev-clean", "dev-other"}, {"test-clean", "test-other"}
_LISTS = (".csv", ".tsv", ".txt", ".list", ".jsonl", ".json")
_USUAL_LISTS = ("metadata.csv", "metadata.tsv", "metadata.txt", "metadata.jsonl")
_MAX_LISTS = 50
_LABEL = re.compile(r"(\d*[.,]?\d+)\s+(\d*[.,]?\d+)\b(.*)")
"""Pattern of a line in a label file: start time, end time, label. Some programs write decimal commas."""
LABELS_FAULT = "has times and labels, not a sentence. Save them as .srt, for myxtts make-dataset."
_ROLE_NAMES = {"training": "train(ing)?", "validation": "val|valid|validation|dev|eval", "test": "test"}
_ROLES = {role: re.compile(f"(^|[_.-])({names})([_.-]|$)") for role, names in _ROLE_NAMES.items()}


def read_datasets(reading: Reading, place: Place) -> None:
    """Reads a Hugging Face `Dataset` or `DatasetDict` that `save_to_disk` wrote."""
    if not {_STATE, _SPLITS} & {*reading.folder.files(place.path)}:
        return
    if not reading.folder.has(place.path, _SPLITS):
        return _read_saved(reading, place)
    names = {path.name: path for path in reading.folder.subfolders(place.path) if reading.folder.has(path, _STATE)}
    if not names:
        raise ClipRefused("unreadable", f"{_SPLITS} exists, but no part of the data set does.")
    training = "train" if "train" in names else next(iter(names))
    tables.read_parts(reading, place, names, training, lambda part: _read_saved(reading, part))


def _read_saved(reading, place):
    """Reads one saved `Dataset`. Its recordings are first extracted to a folder in the user's cache."""
    missing = f"{place.path} was saved by the library datasets, which is not installed"
    with needing(f'{missing}. Install it with: pip install "myxtts[datasets]".'):
        import datasets
    rows = datasets.load_from_disk(str(place.path))
    audio = next((name for name, kind in rows.features.items() if isinstance(kind, datasets.Audio)), None)
    labels = {name: kind for name, kind in rows.features.items() if isinstance(kind, datasets.ClassLabel)}
    is_text = lambda name: getattr(rows.features[name], "dtype", "") in ("string", "large_string")
    names = [name for name in rows.column_names if name == audio or name in labels or is_text(name)]
    columns = dict(zip(names, tables.names_to_columns(["audio" if name == audio else name for name in names])))
    if audio is None or not {"text", "normalized"} & {*columns.values()}:
        columns = ", ".join(rows.column_names)[:200]
        raise UserError(f"{place.path} must have an audio column and a text column. Its columns are: {columns}.")
    rows = rows.select_columns(names).cast_column(audio, datasets.Audio(decode=False))
    source = f"{place.path}\n{rows._fingerprint}\n{(place.path / _STATE).stat().st_mtime_ns}"
    target = (user_cache() / "datasets" / digest_bytes(source.encode(), 8)).resolve()
    target.mkdir(parents=True, exist_ok=True)
    reading.folder.allow(target)
    reading.note("The recordings in ", reading.folder.relative(place.path), f" were extracted to {target}.")
    # All recordings are extracted before the first clip is added, because a folder is listed only once.
    recordings = [_extract(row[audio] or {}, target / f"{number:07}.wav") for number, row in enumerate(rows, 1)]
    for number, (recording, row) in enumerate(zip(recordings, rows.remove_columns(audio)), 1):
        with reading.clip(f"row {number}", number, place.path / _STATE):
            row |= {name: kind.int2str(row[name]) for name, kind in labels.items() if row[name] is not None}
            cells = {columns[n]: " ".join(str(row[n] or "").split()) for n in names if n != audio and columns[n]}
            reading.add(place, cells | {"id": recording}, number, (place.path,))


def _extract(audio, path):
    """Returns the path of the recording in an `audio` cell. A recording stored as bytes is first written to `path`."""
    if (content := audio.get("bytes")) is None:
        return str(audio.get("path") or "")
    if not (path.is_file() and path.stat().st_size == len(content)):
        with write_whole(path) as temporary:
            temporary.write_bytes(content)
    return str(path)


def _with_language(reading, place):
    """Returns `place`, with its language replaced if `lang.txt` (from xtts-finetune-webui) names a known language."""
    path = place.path / "lang.txt"
    code = to_code(reading.folder.read_text(path, 100).strip()) if reading.folder.has(place.path, path.name) else ""
    return place._replace(language=code) if code in LANGUAGES else place


def read_finetune_webui(reading: Reading, place: Place) -> None:
    """Reads a data set of xtts-finetune-webui: `metadata_train.csv` and `metadata_eval.csv`."""
    if reading.folder.has(place.path, "metadata_train.csv"):
        read_lists(reading, _with_language(reading, place))


def read_common_voice(reading: Reading, place: Place) -> None:
    """Reads Common Voice: `train.tsv` (or `validated.tsv`) for training, `dev.tsv` (or `test.tsv`) for validation."""
    files = reading.folder.files(place.path)
    training = [name for name in ("train.tsv", "validated.tsv") if name in files]
    if not training or place.path / "clips" not in reading.folder.subfolders(place.path):
        return
    lists = [training[0], *(name for name in ("dev.tsv", "test.tsv") if name in files)]
    table, *others = (tables.header_table(reading, place, place.path / name) for name in lists)
    if not table:
        raise ClipRefused("unreadable", f"{training[0]} has no header with the columns path and sentence.")
    for name in (name for name, other in zip(lists[1:], others) if not other):
        reading.note("", name, " is not used: it has no header.")
    tables.read_split(reading, place, table, others[0] if others else None, others[1:])


def read_audiofolder(reading: Reading, place: Place) -> None:
    """Reads a Hugging Face AudioFolder: its `metadata.jsonl` or, if it has splits, a metadata file in each split."""
    names = ("metadata.jsonl", "metadata.csv")
    list_of = lambda path: next((path / name for name in names if reading.folder.has(path, name)), None)

    table_of = lambda part: tables.header_table(reading, part, list_of(part.path))
    read = lambda part: tables.read_table(reading, part, table_of(part))
    if reading.folder.has(place.path, "metadata.jsonl"):
        return read(place)
    for root in (place, place.below(place.path / "data")):
        folders = [path for path in reading.folder.subfolders(root.path) if path.name in ("train", *tables.VALIDATION)]
        parts = {path.name: path for path in folders if list_of(path)}
        if "train" in parts and all(table_of(root.below(path)) for path in folders if list_of(path)):
            return tables.read_parts(reading, root, parts, "train", read)


def read_header(reading: Reading, place: Place) -> None:
    """Reads a list that has a header with at least a clip column and a text column."""
    usual = [place.path / name for name in _USUAL_LISTS if reading.folder.has(place.path, name)]
    for path in [place.list_path] if place.list_path else usual:
        if table := tables.header_table(reading, place, path):
            return tables.read_table(reading, _with_language(reading, place), table)


def read_ljspeech(reading: Reading, place: Place) -> None:
    """Reads `place.list_path`, or `metadata.csv` if this is None. Finds the columns of the list by their content."""
    path = place.list_path or place.path / "metadata.csv"
    if not reading.folder.has(path.parent, path.name):
        return
    table = tables.content_table(reading, place, path)
    if not table and has_labels("\n".join(reading.folder.read_lines(path))):
        raise CorpusError(f"{path} {LABELS_FAULT}")
    tables.read_table(reading, place, table or tables.plain_table(reading, place, path))


def read_lists(reading: Reading, place: Place, is_split: bool = False) -> None:
    """Reads a folder with one list of any name, or with lists such as `train.csv`, `val.csv` and `test.csv`. If
    `is_split` is true, reads only folders with both a `metadata.*` list for training and a validation or test list."""
    folder = reading.folder
    usual = [place.path / name for name in _USUAL_LISTS if folder.has(place.path, name)]
    if is_split and not usual:  # VCTK, Kaldi, … have their own texts and speakers
        return
    is_of_lists = lambda path: not (folder.stems(path) or folder.subfolders(path))
    is_held_out = lambda path: any(_ROLES[role].search(path.stem.lower()) for role in ("validation", "test"))
    folders = [place.path, *filter(is_of_lists, folder.walk(place.path, 1))]
    folders = [one for one in folders if not is_split or any(is_held_out(one / name) for name in folder.files(one))]
    lists = next(filter(None, (_find_lists(reading, place, path, is_split) for path in folders)), {})
    roles = {role: [path for path in lists if rule.search(path.stem.lower())] for role, rule in _ROLES.items()}
    training = (not is_split and roles["training"]) or [path for path in usual if path in lists][:1]
    if not lists or is_split and not (training and any(map(is_held_out, lists))):
        return
    if is_split:
        place = _with_language(reading, place)
        used = [lists[path] for path in (*training, *roles["validation"][:1])]
        if any(table.header_line is not None and table.is_guess for table in used):  # a header without a text column
            return
    training = training or [path for path in lists if len(lists) == 1 or not is_held_out(path)]
    if len(training) != 1:
        names = ", ".join(sorted(path.name for path in lists))
        raise CorpusError(f"{place.path} has several lists: {names}. Give the one to train on.")
    for path in (path for path in (*usual, *roles["training"]) if path not in training):
        reading.note("", folder.relative(path), f" is not used, because there is {training[0].name}.")
    held_out = [lists[path] for path in (*roles["validation"], *roles["test"])]
    tables.read_split(reading, place, lists[training[0]], held_out.pop(0) if roles["validation"] else None, held_out)


def _find_lists(reading, place, folder, is_split=False):
    """Returns a folder's lists as `{path: Table}`. Skips `speakers.csv`, reports on clips, unreadable `.txt` and
    `.json` files, and, if `is_split` is true, any other unreadable list."""
    named = [folder / one for one in reading.folder.files(folder) if one.endswith(_LISTS) and one != "speakers.csv"]
    if len(named) > _MAX_LISTS:  # many small files are transcripts or metadata of clips
        named = [path for path in named if path.suffix not in (".txt", ".json")]
    found = {}
    for path in named if len(named) <= _MAX_LISTS else ():
        try:
            if ",verdict,reason,detail," in "".join(reading.folder.read_lines(path)[:1]):
                continue  # a report on clips, such as that of `myxtts doctor data`
            found[path] = tables.header_table(reading, place, path) or tables.content_table(reading, place, path)
        except CorpusError:
            if not is_split and path.suffix not in (".txt", ".json"):  # these need not be lists
                raise
    return {path: table for path, table in found.items() if table}


def read_kaldi(reading: Reading, place: Place) -> None:
    """Reads a Kaldi folder (`wav.scp`, `text`, `utt2spk`). A command in `wav.scp` is not run; its clip is rejected."""
    path, folder = place.path / "wav.scp", reading.folder
    if place.list_path and place.list_path.name != path.name or not folder.has(place.path, path.name, "text"):
        return
    if folder.has(place.path, "segments"):
        raise CorpusError(f"Cut the clips of {place.path}/segments first (Kaldi: extract_wav_segments_data_dir.sh).")

    def pairs(name):
        """Returns `[first word, rest of the line]` for each line of a file. A missing part is ""."""
        lines = folder.read_lines(place.path / name) if folder.has(place.path, name) else []
        return [(line.rstrip().split(None, 1) + ["", ""])[:2] for line in lines]

    sources, texts, speakers = pairs(path.name), dict(pairs("text")), dict(pairs("utt2spk"))
    if not sources:
        raise CorpusError(f"{path} is empty: no clips. Write one line 'utterance path' per clip.")
    reading.lists.append(folder.relative(path))
    folder.allow_named([source for _, source in sources if source])
    folder.searched = {*folder.given_roots, place.path}
    for number, (key, source) in enumerate(sources, 1):
        with reading.clip(key, number, path):
            if not key or not is_name(key):
                raise ClipRefused("bad id", "The id is missing, too long or not printable.")
            if "|" in (source[-1:], source[:1]):
                raise ClipRefused("command", "wav.scp has a command, which was not run. Write its output to a file.")
            if key not in texts:
                raise ClipRefused("no text", "The file text has no line for this utterance.")
            cells = {"id": source, "text": texts[key]} | ({"speaker": speakers[key]} if key in speakers else {})
            reading.add(place, cells, number, (place.path, folder.root), name=key)


def read_text_files(reading: Reading, place: Place) -> None:
    """Reads audio files and text files of the same names, in one folder or in two, such as `wav/` and `txt/`."""
    if found := find_texts(reading.folder, place.path):
        audio, texts, suffix = found
        if audio != texts:
            reading.note("Audio from ", ", texts from ".join(map(reading.folder.relative, found[:2])))
        _read_pairs(reading, place, audio, texts, suffix)


def find_texts(folder: CorpusFolder, root: Path) -> tuple[Path, Path, str] | None:
    """Returns a folder of audio files, a folder of text files with the same names, and the suffix of these, or None."""
    places = [root, *folder.walk(root, 1)]
    heard = {path for path in places if folder.stems(path)}
    (audio,) = heard if len(heard) == 1 else [root]
    sides = [path for path in places if path == root or path not in heard]  # other folders are speakers
    found = ((audio, texts, suffix) for suffix in (".txt", ".lab") for texts in sides)
    return next((one for one in found if not folder.stems(audio).isdisjoint(folder.stems(one[1], one[2:]))), None)


def _read_pairs(reading, place, audio, texts, suffix):
    """Adds a clip per name with an audio file in `audio` and a `suffix` file in `texts`. Rejects unpaired files."""
    for stem in sorted(reading.folder.stems(audio) | reading.folder.stems(texts, (suffix,))):
        transcript = texts / f"{stem}{suffix}"
        with reading.clip(place.prefix + stem, None, transcript):
            _add_pair(reading, place, audio / stem, transcript, stem)


def _add_pair(reading, place, audio, transcript, name):
    """Adds the clip `name`: its audio file is `audio` plus any audio suffix, and `transcript` contains its text. Raises
    `ClipRefused` if the clip cannot be used."""
    folder = reading.folder
    if not folder.has(transcript.parent, transcript.name):
        raise ClipRefused("no text", f"There is no {folder.relative(transcript)} for the audio.")
    try:
        text = folder.read_text(transcript, MAX_TRANSCRIPT_BYTES)
    except CorpusError as error:
        raise ClipRefused("unreadable text", str(error)) from error
    name_of_text = folder.relative(transcript)
    if is_labels := has_labels(text):
        raise ClipRefused("unreadable text", f"{name_of_text} {LABELS_FAULT}")
    if is_labels is False:
        reading.note("Two numbers a line are read as text in ", name_of_text)
    reading.add(place, {"id": audio.name, "text": " ".join(text.split())}, None, (audio.parent,), name=name)


def has_labels(text: str) -> bool | None:
    """Returns whether lines of two numbers and a text are labels rather than a transcript such as "1 2 buckle my shoe";
    None for other texts. If all times have decimals (Audacity), no end may be before its start. Otherwise (HTS), the
    rows must contain letters and sorted times, all durations must be above 0, and at least one duration above 1."""
    rows = [_LABEL.fullmatch(row.strip()) for row in text.split("\n") if row.strip()]
    if not rows[1:] or not all(rows):
        return None
    times = [tuple(float(row[k].replace(",", ".")) for k in (1, 2)) for row in rows]
    lengths = [end - start for start, end in times]
    if all({*".,"} & {*row[1]} and {*".,"} & {*row[2]} for row in rows):
        return min(lengths) >= 0
    has_letters = any(character.isalpha() for row in rows for character in row[3])
    return has_letters and times == sorted(times) and min(lengths) > 0 and max(lengths) > 1


def read_vctk(reading: Reading, place: Place) -> None:
    """Reads VCTK: texts in `txt/SPEAKER/`, and audio in `wav48/SPEAKER/`. Prefers `_mic1` files to `_mic2` files."""
    folders = {path.name: path for path in reading.folder.subfolders(place.path)}
    audio = next((folders[k] for k in ("wav48_silence_trimmed", "wav48", "wav16", "wav") if k in folders), None)
    for path in reading.folder.subfolders(audio) if audio and "txt" in folders else []:
        stems, part = reading.folder.stems(path), place._replace(speaker=path.name)
        for stem in sorted(stems):
            if stem.endswith("_mic2") and stem.replace("_mic2", "_mic1") in stems:
                continue
            name = f"{path.name}/{stem.removesuffix('_mic1').removesuffix('_mic2')}"
            with reading.clip(f"{place.prefix}{path.name}/{stem}", None, path / stem):
                _add_pair(reading, part, path / stem, folders["txt"] / f"{name}.txt", name)


def read_chapters(reading: Reading, place: Place, suffix: str) -> None:
    """Reads LibriSpeech or LibriTTS: `SPEAKER/CHAPTER/` folders with texts in files that end with `suffix`. Uses
    `dev-…` folders for validation and skips `test-…` folders. If there are only such folders, trains on all of them."""
    has_texts = lambda path: any(name.endswith(suffix) for name in reading.folder.files(path))
    chapters = [path for path in reading.folder.walk(place.path, 3) if has_texts(path)]
    of_sets = lambda names: {path for path in chapters if names.intersection(path.relative_to(place.path).parts)}
    held, tests = of_sets(_VALIDATION_SETS), of_sets(_TEST_SETS)
    if held | tests >= {*chapters}:
        held, tests = set(), set()
    for path in (path for path in chapters if path not in tests):
        part = place._replace(speaker=path.parent.name, validation=path in held)
        if suffix == _NORMALIZED:
            _read_pairs(reading, part.below(path), path, path, suffix)
            continue
        for name in filter(lambda name: name.endswith(suffix), reading.folder.files(path)):
            for number, line in enumerate(reading.folder.read_lines(path / name), 1):
                clip, _, text = line.partition(" ")
                with reading.clip(clip, number, path / name):
                    reading.add(part, {"id": clip, "text": text}, number, (path,))
    if tests:
        reading.note("The folders test-… are not used")


def read_mls(reading: Reading, place: Place) -> None:
    """Reads Multilingual LibriSpeech: `audio/`, and `transcripts.txt` with a clip name and a text in each line."""
    path, audio = place.path / "transcripts.txt", place.path / "audio"
    if not (reading.folder.has(place.path, path.name) and audio in reading.folder.subfolders(place.path)):
        return
    for number, line in enumerate(reading.folder.read_lines(path), 1):
        clip, _, text = line.partition("\t")
        speaker, book = [*clip.split("_"), "", ""][:2]
        with reading.clip(clip, number, path):
            reading.add(place, {"id": f"{speaker}/{book}/{clip}", "text": text, "speaker": speaker}, number, (audio,))


def read_m_ailabs(reading: Reading, place: Place) -> None:
    """Reads M-AILABS: books such as `de_DE/by_book/female/SPEAKER/BOOK/`, each with a `metadata.csv` and `wavs/`. A
    direct subfolder of `place` that looks like a book may be a speaker's folder in another layout. If there is such a
    subfolder, reads nothing, unless the path of `place` contains `by_book` or the user chose the format `m-ailabs`."""
    folder = reading.folder
    is_book = lambda path: folder.has(path, "metadata.csv") and path / "wavs" in folder.subfolders(path)
    books = [path for path in folder.walk(place.path, 5) if is_book(path)]
    is_named = len(reading.formats) == 1 or "by_book" in place.path.parts
    if not is_named and any(path.parent == place.path for path in books):
        return
    for path in books:
        parts = path.parts[-6:]
        if parts[-2] == "mix":
            reading.note("The book ", folder.relative(path), " was skipped: it has several unnamed readers.")
        elif is_name(parts[-2]):
            locale = next((part for part in parts if re.fullmatch("[a-z]{2}_[A-Z]{2}", part)), "")
            book = place.below(path, speaker=parts[-2], language=locale)
            tables.read_table(reading, book, tables.plain_table(reading, book, path / "metadata.csv"))


def read_speaker_folders(reading: Reading, place: Place) -> None:
    """Reads a folder with one subfolder per speaker. Each subfolder may have its own layout."""
    folders = reading.folder.subfolders(place.path) if place.path == reading.folder.root else []
    read = partial(reading.read, reading.formats)
    parts = {path.name: path for path in folders}
    if "train" in parts:
        tables.read_parts(reading, place, parts, "train", read)
        if reading.utterances or reading.rejections:
            return
    for path in folders:
        try:
            if is_name(path.name) and read(place.below(path, speaker=path.name)):
                continue
            why = "it has no known format, or its name is not printable."
        except ClipRefused as refused:
            why = refused.detail
        reading.note("The folder ", reading.folder.relative(path), f" was left out: {why}")


_CHAPTERS = "SPEAKER/CHAPTER/ with {} files"
FORMATS = (
    CorpusFormat("datasets", 2, f"{_STATE} and .arrow files (Hugging Face datasets)", read_datasets),
    CorpusFormat("finetune-webui", 4, "metadata_train.csv (xtts-finetune-webui)", read_finetune_webui),
    CorpusFormat("common-voice", 6, "train.tsv or validated.tsv, and audio in clips/", read_common_voice),
    CorpusFormat("lists", 7, "train.csv or metadata.csv, and val.csv", partial(read_lists, is_split=True)),
    CorpusFormat("audiofolder", 8, "a metadata.jsonl, or one in train/ (Hugging Face)", read_audiofolder),
    CorpusFormat("header", 10, "a list that begins with column names, as file|text", read_header, takes_list=True),
    CorpusFormat("kaldi", 12, "wav.scp and text, perhaps utt2spk (Kaldi)", read_kaldi, takes_list=True),
    CorpusFormat("vctk", 14, "wav48/ and txt/ (VCTK)", read_vctk),
    CorpusFormat("mls", 16, "transcripts.txt and audio/ (MLS)", read_mls),
    CorpusFormat("ljspeech", 20, "a metadata.csv of lines id|text, and wavs/", read_ljspeech, takes_list=True),
    CorpusFormat("text-files", 30, "audio files and .txt or .lab files of the same names", read_text_files),
    CorpusFormat("libritts", 32, _CHAPTERS.format(_NORMALIZED), partial(read_chapters, suffix=_NORMALIZED)),
    CorpusFormat("librispeech", 33, _CHAPTERS.format(_TRANSCRIPTS), partial(read_chapters, suffix=_TRANSCRIPTS)),
    CorpusFormat("m-ailabs", 34, "SPEAKER/BOOK/ with a metadata.csv and wavs/ each (M-AILABS)", read_m_ailabs),
    CorpusFormat("lists", 36, "one list of clips, or train.csv and val.csv", read_lists),
    CorpusFormat("speaker-folders", 40, "one such folder per speaker", read_speaker_folders),
)
