"""The `myxtts say` command, which synthesizes a given text, the text on standard input, or a list of texts."""

import argparse
import itertools
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import closing, nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import BinaryIO, NamedTuple

from myxtts.audio.encoding import AudioFile, SoundEncoder, check_suffix
from myxtts.cli.arguments import OPTIONS, PlainParser, add_model, add_options
from myxtts.cli.errors import exits_with_sentence, language_code, read_input, require_output
from myxtts.config.checks import UserError, bounded_text, counted, printable, require, without_marks
from myxtts.data.corpora import SUBTITLES
from myxtts.data.corpora.tables import find_dialect, names_to_columns
from myxtts.devices.machine import check_device
from myxtts.devices.tensorflow_start import import_tensorflow
from myxtts.hearing.recognizers import Listening, open_recognizer, settle_recognizer
from myxtts.inference.choices import add_choices
from myxtts.inference.speech import Spoken
from myxtts.inference.text_front import open_text_front
from myxtts.interchange.hub import check_model, local_folder
from myxtts.storage.base_model import BASE_NAME, is_base
from myxtts.storage.files import digest_bytes, partial_path, read_json, write_json, write_text, write_whole
from myxtts.storage.run_folder import chosen_step, stores_in
from myxtts.storage.speakers import composed, default_speaker, language_of, read_speakers
from myxtts.text.language_guess import language_to_read
from myxtts.text.languages import get_language
from myxtts.text.speech_rates import SECONDS_AT_CHAR_LIMIT
from myxtts.utils.commons import progress_bar, setup_logging, standard_output_for_sound, tqdm

MAX_TEXT_BYTES = 16 * 2**20
SHORT_TEXT = 400
"""For texts of at most this many characters, not all graphs are traced: tracing would take longer than it saves."""
MAX_LIST_BYTES = 64 * 2**20
SPOKEN_FILE = "spoken.json"
"""File in the output folder with a digest of each audio file's text, voice and settings, to find outdated files."""
BATCH_SIZE, BATCH_CHARACTERS = 16, 4000
"""Maximum number of texts and of characters in a batch. Audio files and `SPOKEN_FILE` are written after each batch."""
_ID = re.compile(r"[^\W.][\w.-]*")
MAX_ID_BYTES = 200


def build_parser() -> argparse.ArgumentParser:
    """Returns the argument parser of `myxtts say`."""
    parser = PlainParser(prog="myxtts say", description="Speak a text in the voice of a recording.")
    add_model(parser, "; base has a default voice", default=BASE_NAME)
    add_choices(add_options(parser, OPTIONS["say"])["speech"])
    return parser


@exits_with_sentence
def main(argv: list[str] | None = None) -> int:
    """Synthesizes the texts and returns the exit code. Most arguments are checked before TensorFlow is imported."""
    arguments = build_parser().parse_args(argv)
    _check(arguments)
    with standard_output_for_sound() if arguments.stream and not arguments.list_speakers else nullcontext() as sound:
        folder = arguments.checkpoint = local_folder(arguments.checkpoint, arguments.accept_licence)
        if not arguments.list_speakers:
            text, lines = _read(arguments)
            return _say(arguments, text, lines, sound)
    speakers = read_speakers(folder)
    for name, speaker in speakers.items():
        print(printable(name) + (f"\t{speaker.language}" if speaker.language else ""))
    if not speakers:
        raise UserError(f"{folder} has no voices of its own. Give --reference-audio.")
    return 0


def _read(arguments):
    """Returns `(text, None)` or, for --batch, `(None, lines)`. Sets `language`, `sampling` etc. in `arguments`."""
    setup_logging()
    text = lines = None
    if arguments.batch:
        lines = read_lines(arguments.batch)
        read = [*(arguments.reference_audio or ()), *(Path(arguments.batch).parent / line.voice for line in lines)]
        files = (Path(arguments.output_folder, f"{line.id}.{arguments.format}") for line in lines)
        lost = {*map(os.path.realpath, files)} & {*map(os.path.realpath, read)}
        rule = "a folder in which no recording of a voice has the name of an output"
        require(not lost, "--output-folder", rule, min(lost, default=None))
    elif arguments.text is not None:
        text = re.sub("[\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", arguments.text)  # from bytes that are not UTF-8
    elif arguments.text_file not in (None, "-"):
        text = read_input("--text-file", arguments.text_file, MAX_TEXT_BYTES)
        rows = [re.split("[|\t]", row) for row in text.splitlines() if row.strip()]
        is_list = all(len(row[0].split()) == 1 and any(map(str.strip, row[1:])) for row in rows)
        is_list |= Path(arguments.text_file).suffix.lower() in (".csv", ".tsv", ".json", ".jsonl", *SUBTITLES)
        rule, hint = "a text, not a list", "--batch speaks lines id|text; standard input speaks a file as it is."
        require(not is_list, "--text-file", rule, arguments.text_file, hint)
    elif arguments.text_file is None and sys.stdin.isatty():
        raise UserError('No text: give --text "…", --text-file FILE, or a text on standard input.')
    else:
        try:
            text = bounded_text(sys.stdin.buffer, MAX_TEXT_BYTES)
        except ValueError as error:
            raise UserError(f"Standard input {error}.") from error
    g2p = None if arguments.g2p is None else () if arguments.g2p == "none" else (arguments.g2p,)
    arguments.text_front, config = open_text_front(arguments.checkpoint, g2p)
    usual = config.data.g2p or ()
    if g2p is not None and {*usual} != {*arguments.text_front.tokenizer.g2p}:
        rule = f"The model was trained with --g2p {' '.join(usual) or 'none'}"
        print(f"{rule}; with --g2p {arguments.g2p}, some of its speech may be hard to understand.", file=sys.stderr)
    speaker, among = arguments.speaker, arguments.text_front.tokenizer.languages
    own = language_of(arguments.checkpoint, speaker)
    arguments.requested, arguments.own = language_code(arguments.language, among), own
    arguments.language, note = language_to_read(text, arguments.requested, own, printable(speaker or ""), among)
    if text is not None:
        arguments.text_front.check(text, arguments.language)
        print(note, end="\n" * bool(note), file=sys.stderr)
        if len(text) > SHORT_TEXT:
            seconds = SECONDS_AT_CHAR_LIMIT * len(text) / get_language(arguments.language).char_limit / arguments.speed
            print(f"This is about {seconds / 60:.1f} min of speech.", file=sys.stderr)
    given = {name: value for name, value in vars(arguments).items() if name in vars(config.sampling)}
    arguments.sampling = config.sampling.changed(given)
    return text, lines


def _say(arguments, text, lines, sound):
    """Speaks either `text` (to the stream `sound` or to --output) or the batch `lines`; returns the exit code."""
    import_tensorflow()
    from myxtts.devices.configuration import configure_for_speech
    from myxtts.interchange.onnx.engines import load_synthesizer

    with configure_for_speech(arguments.device):
        is_short = text is not None and len(text) <= SHORT_TEXT and sound is None
        options = dict(decoder=arguments.decoder, engine=arguments.engine, traced=not is_short, only_speech=True)
        synthesizer = load_synthesizer(arguments.checkpoint, arguments.which, **options)
        synthesizer.tokenizer, synthesizer.text_front = arguments.text_front.tokenizer, arguments.text_front
        options = dict(sampling=arguments.sampling, seed=arguments.seed, speed=arguments.speed)
        voice = _voice(arguments, synthesizer)
        if sound is not None:
            stream = synthesizer.stream(text, voice, arguments.language, **options)
            rate = arguments.sample_rate or synthesizer.sample_rate
            play(stream, sound, synthesizer.sample_rate, rate, arguments.stream_format)
            if stream.pieces:
                print(_confidence(stream).capitalize(), file=sys.stderr)
            return 0
        listener = None if arguments.recognizer is None else Listening(open_recognizer(arguments.recognizer))
        check = dict(retries=arguments.retries, listener=listener)
        write = say_text if lines is None else say_lines
        return write(text if lines is None else lines, synthesizer, voice, arguments, options, check)


def say_text(text: str, synthesizer, voice, arguments, options: dict, check: dict) -> int:
    """Synthesizes `text` to --output, then writes --subtitles; returns 0. After an error, keeps the finished audio."""
    # `options` and `check` are keyword arguments of `Synthesizer.sentences`.
    spoken, partial, place = Spoken(), partial_path(arguments.output), None
    spoken.pieces, rate = (), arguments.sample_rate or synthesizer.sample_rate
    is_web = (arguments.subtitles or "").lower().endswith(".vtt")
    try:
        with progress_bar("speaking", "sentence") as progress, write_whole(arguments.output, partial) as place:
            options = dict(**options, **check, progress=progress)
            sentences = synthesizer.sentences([text], [voice], [arguments.language], **options)
            with closing(sentences), AudioFile(place, arguments.output, rate, synthesizer.sample_rate) as file:
                for piece, samples in sentences:
                    file.write(samples)
                    spoken.pieces += (piece,)
    except BaseException:
        if spoken.pieces and partial.exists():
            kept = f"{printable(str(partial))}: the first {spoken.pieces[-1].end_seconds:.2f} s"
            print(f"Kept {kept}, {_confidence(spoken)}", file=sys.stderr)
            if arguments.subtitles:
                with suppress(OSError):
                    write_text(partial_path(arguments.subtitles), spoken.subtitles(is_web))
        elif place:  # otherwise the partial file is another process's
            partial.unlink(missing_ok=True)
        raise
    if arguments.subtitles:
        write_text(arguments.subtitles, spoken.subtitles(is_web))
    written = f"{file.num_samples / rate:.2f} s at {rate} Hz, {counted(len(spoken.codes), 'code')}"
    print(f"Wrote {arguments.output}: {written}, {_confidence(spoken)}")
    return 0


def _confidence(spoken):
    """Prints a warning for each sentence with low confidence; returns the result of the self-check in words."""
    for sentence, why in spoken.doubts.items():
        print(f"Low confidence ({'; '.join(why)}): {printable(sentence)}", file=sys.stderr)
    return spoken.summary


def _check(arguments):
    """Raises `UserError` for bad arguments. Sets `text` to a positional text, and `speaker` if there is only one."""
    check_model(arguments.checkpoint)
    if arguments.list_speakers:
        return
    if arguments.words is not None:
        given = {"--text": arguments.text, "--text-file": arguments.text_file, "--batch": arguments.batch}
        if flag := next((flag for flag, value in given.items() if value is not None), None):
            raise UserError(f"{arguments.words} was given in addition to {flag}. Put text with spaces in quotes.")
        arguments.text = arguments.words
    check_device(arguments.device)
    given = arguments.reference_audio or arguments.speaker or arguments.voice or arguments.batch
    if not given and not is_base(arguments.checkpoint):
        if not (only := default_speaker(arguments.checkpoint, "")):
            raise UserError("No voice: give --reference-audio FILE, --voice FILE or --speaker (see --list-speakers).")
        arguments.speaker = only
        print(f"Voice: {printable(only)}, the only speaker of the training data", file=sys.stderr)
    for path in [*(arguments.reference_audio or []), *filter(None, [arguments.voice])]:
        hint = "--speaker takes a name."
        require(Path(path).is_file(), "A voice in --reference-audio or --voice", "an existing file", path, hint)
    for one, other in (("batch", "stream"), ("batch", "subtitles"), ("stream", "subtitles"), ("recognizer", "stream")):
        if getattr(arguments, one) and getattr(arguments, other):
            raise UserError(f"--{one} is not allowed with --{other}: give one of them.")
    used = {name: (arguments.batch, "without --batch") for name in ("output_folder", "format")}
    used["stream_format"] = arguments.stream, "without --stream"
    used["output"] = not (arguments.batch or arguments.stream), "with --batch or --stream"
    for name, (is_used, case) in used.items():
        is_fine = is_used or name not in arguments.given
        require(is_fine, f"--{name.replace('_', '-')}", f"left out {case}", getattr(arguments, name))
    if arguments.stream and sys.stdout.isatty():
        raise UserError("--stream would write audio to a terminal. Pipe it to a player such as aplay, or use --output.")
    require(0.25 <= arguments.speed <= 4.0, "--speed", "0.25 to 4.0", arguments.speed)
    require(0 <= arguments.seed < 2**63, "--seed", "0 to 9223372036854775807", arguments.seed)
    require(0 <= arguments.retries <= 100, "--retries", "0 to 100", arguments.retries)
    if (rate := arguments.sample_rate) is not None:
        require(8000 <= rate <= 96000, "--sample-rate", "8000 to 96000 Hz", rate, "Try 24000, 44100 or 48000.")
        kind = arguments.format if arguments.batch else Path(arguments.output).suffix[1:].lower()
        rates = [base * factor for factor in (1, 2, 4) for base in (8000, 11025, 12000)]
        require(kind != "mp3" or rate in rates, "--sample-rate", f"one of {', '.join(map(str, rates))} for mp3", rate)
        require(kind != "flac" or rate < 2**16 or rate % 10 == 0, "--sample-rate", "a multiple of 10 for flac", rate)
    if arguments.recognizer is not None:
        settle_recognizer(arguments.recognizer)
    read = [*(arguments.reference_audio or ()), arguments.text_file, arguments.voice]
    named = {os.path.realpath(path) for path in read if path}
    output = None if arguments.batch or arguments.stream else arguments.output
    written = {"--output": output, "--subtitles": arguments.subtitles, "--save-voice": arguments.save_voice}
    for flag, path in written.items():
        require_output(flag, path)
        if path is not None:
            require(os.path.realpath(path) not in named, flag, "a file that no other option names", path)
            named.add(os.path.realpath(path))
    if arguments.batch:
        has_voice = arguments.speaker or arguments.voice or arguments.reference_audio
        require(has_voice or not arguments.save_voice, "--save-voice", "left out without a voice", arguments.save_voice)
        require_output("--output-folder", arguments.output_folder, makes_folders=True)
        require(not Path(arguments.output_folder).is_file(), "--output-folder", "a folder", arguments.output_folder)
    elif not arguments.stream:
        check_suffix(arguments.output)


def _voice(arguments, synthesizer):
    """Returns the voice that the flags select. Returns None for a batch without voice flags."""
    voice = arguments.speaker or arguments.voice or arguments.reference_audio
    if is_base(arguments.checkpoint) and not (voice or arguments.batch):
        language = get_language(arguments.language)
        voice = default_speaker(arguments.checkpoint, language.code)
        note = f"The bundled model speaks {language.name} in the voice {voice}"
        print(f"{note}; --list-speakers lists the others.", file=sys.stderr)
    if voice is None:
        return None
    voice = synthesizer.as_voice(voice)
    if arguments.save_voice:
        voice.save(arguments.save_voice)
        print(f"Wrote {printable(arguments.save_voice)}: the voice, for --voice")
    return voice


def play(stream: Iterator, sound: BinaryIO, from_rate: int, to_rate: int, sound_format: str) -> None:
    """Writes audio arrays to `sound` as 16-bit PCM or WAV, until the stream ends or the reader closes the pipe."""
    encoder = SoundEncoder(sound_format, to_rate, is_open=True, from_rate=from_rate)
    started, first_seconds, seconds = time.monotonic(), None, 0.0
    try:
        for samples in itertools.chain(stream, [None]):
            left = memoryview(encoder.end() if samples is None else encoder.add(samples))
            seconds += 0 if samples is None else len(samples) / from_rate
            if left and first_seconds is None:
                first_seconds = time.monotonic() - started
            while left:
                left = left[sound.write(left) :]  # a nearly full disk may take only a part
    except BrokenPipeError:
        print("The pipe was closed; the rest of the text was not spoken.", file=sys.stderr)
        return
    finally:
        stream.close()
    print(f"Spoke {seconds:.2f} s at {to_rate} Hz; first audio after {first_seconds:.2f} s", file=sys.stderr)


class Line(NamedTuple):
    """One line of a batch file."""

    number: int
    id: str
    """Name of the audio file to write, without its suffix."""
    text: str
    voice: str
    """A recording, a `.voice` file or a speaker of the model; empty for the voice given on the command line."""
    language: str
    """Language code; empty for the language given on the command line."""


def read_lines(path: str) -> list[Line]:
    """Reads lines `id|text|voice|language`; skips header, blank and `#` lines. Raises `UserError` for a bad line."""
    # `splitlines` would also split at characters that can be part of a text.
    rows = re.split("\r\n|\r|\n", read_input("--batch", path, MAX_LIST_BYTES))
    first = next((row for row in rows if row.strip() and not row.startswith("#")), "")
    columns_of = lambda separator: names_to_columns(first.replace('"', "").split(separator))
    found = next((one for one in "|\t;," if {"id", "text"} <= {*columns_of(one)}), None)  # texts have commas
    dialect = find_dialect(rows, found or next((one for one in "|\t;" if one in first), "|"))
    columns, forms = Line._fields[1:], "id|text, id|text|voice or id|text|voice|language"
    if found:  # a column with an unknown name is the first field that no other column names
        named = ["voice" if name == "speaker" else name for name in columns_of(found)]
        unnamed = (name for name in columns if name not in named)
        columns, forms = [name or next(unnamed, "") for name in named], printable(first[:80])
    lines, seen = [], {}
    for number, row in enumerate(rows, 1):
        if not row.strip() or row.startswith("#") or found and row is first:
            continue
        where, parts = f"Line {number} of {path}", [part.strip() for part in dialect.split(row) or ()]
        require(2 <= len(parts) <= len(columns), where, forms.replace("|", dialect.separator), repr(row[:80]))
        line = Line(number, *(dict(zip(columns, parts)).get(name, "") for name in Line._fields[1:]))
        is_name = _ID.fullmatch(without_marks(line.id)) and len(line.id.encode()) <= MAX_ID_BYTES
        rule = f"a file name of letters, digits, _, - and ., at most {MAX_ID_BYTES} bytes"
        require(is_name, f"{where}: the id", rule, repr(line.id[:80]))
        if (first := seen.setdefault(line.id.casefold(), number)) != number:
            raise UserError(f"{where} repeats the id of line {first}: {line.id}. Give each line its own id.")
        lines.append(line)
    if not lines:
        raise UserError(f"--batch {path} has no lines to speak.")
    return lines


def say_lines(lines: list[Line], synthesizer, voice, arguments, options: dict, check: dict) -> int:
    """Checks all lines, then synthesizes those whose audio file is missing or out of date; returns the exit code."""
    # `options` and `check` are keyword arguments of `Synthesizer.batch`.
    folder = Path(arguments.output_folder)
    name_of = lambda line: f"{line.id}.{arguments.format}"
    with progress_bar("checking", "line") as progress:
        requests = _requests(lines, synthesizer, voice, arguments, progress)
    file = folder / SPOKEN_FILE
    digests = read_json(file) if file.is_file() else {}
    if not isinstance(digests, dict):
        raise UserError(f"{file} is damaged. Remove it to speak all texts again.")
    which = (arguments.which, arguments.language, arguments.sample_rate)
    which += (arguments.decoder, arguments.retries, arguments.g2p, arguments.engine, arguments.recognizer)
    # Digests of the weights in use, which change when the model is trained further.
    stores = stores_in(synthesizer.folder).items()
    digests_of = [store.digest(chosen_step(store, part, arguments.which)) for part, store in stores]
    settings = repr((which, sorted(options.items(), key=str), digests_of))
    digest = lambda line, own, code: digest_bytes(repr((line.text, code, settings)).encode() + own.latents.tobytes())
    wanted = {name_of(request[0]): digest(*request) for request in requests}
    is_spoken = lambda name: digests.get(name) == wanted[name] and (folder / name).is_file()
    waiting = [request for request in requests if not is_spoken(name_of(request[0]))]
    new, done = len(waiting), len(requests) - len(waiting)
    if done:
        print(f"{done} of {len(requests)} texts were already spoken, in {printable(str(folder))}", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    while waiting:
        sizes = itertools.accumulate(len(line.text) for line, *_ in waiting[:BATCH_SIZE])
        count = max(1, sum(size <= BATCH_CHARACTERS for size in sizes))
        some, voices, languages = zip(*waiting[:count])
        waiting = waiting[count:]
        speeches = synthesizer.batch([line.text for line in some], voices, languages, **options, **check)
        for one, speech in zip(some, speeches):
            speech.save(folder / name_of(one), arguments.sample_rate)
            digests[name_of(one)] = wanted[name_of(one)]
            done += 1
            print(f"[{done}/{len(requests)}] {name_of(one)}: {speech.seconds:.2f} s, {_confidence(speech)}", flush=True)
        write_json(file, digests)
    print(f"Wrote {counted(new, 'file')} to {printable(str(folder))} in {time.monotonic() - started:.0f} s")
    return 0


def _requests(lines, synthesizer, voice, arguments, progress):
    """Returns `(line, voice, language)` for each line. Raises `UserError` for the first line that cannot be spoken."""
    speakers, requests, voices, notes = read_speakers(arguments.checkpoint), [], {}, {}
    own_of = cache(lambda name: language_of(arguments.checkpoint, name if name in speakers else None))
    for line in lines:
        name = composed(line.voice) if composed(line.voice) in speakers else line.voice
        own = own_of(name) if name else arguments.own
        try:
            asked = line.language or arguments.requested
            language, note = language_to_read(line.text, asked, own, printable(name), synthesizer.languages)
            synthesizer.text_front.check(line.text, language)
            if (key := (name, not (name or voice) and language)) not in voices:
                found, rule = Path(arguments.batch).parent / name, "a speaker of the model or a file beside the list"
                require(not name or name in speakers or found.is_file(), "Its voice", rule, name)
                voices[key] = synthesizer.as_voice(voice if not name else name if name in speakers else found, language)
        except (UserError, OSError) as error:
            raise UserError(f"Line {line.number} of {arguments.batch} cannot be spoken. {error}") from error
        notes.setdefault(note, []).append(line.number)
        requests.append((line, voices[key], language))
        progress(len(requests), len(lines))
    for note in filter(None, notes):
        tqdm.write(f"{counted(len(notes[note]), 'line')}, the first is line {notes[note][0]}: {note}", file=sys.stderr)
    return requests
