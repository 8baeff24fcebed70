"""A list of texts, each spoken into a file of its own; what is spoken already is not spoken again."""

import re
import time
from pathlib import Path
from typing import NamedTuple

from myxtts.config.checks import UserError, counted, printable, read_bounded
from myxtts.config.stages import STAGES
from myxtts.storage.checkpoint import CheckpointStore
from myxtts.storage.files import digest_bytes, read_json, write_json
from myxtts.storage.provenance import chosen_step

MAX_LIST_BYTES = 64 * 2**20
MAX_LINES = 1_000_000
SPOKEN_FILE = "spoken.json"
"""What each file of the output folder was spoken from: id -> digest."""
TOGETHER = 16
"""Texts that are drawn together; after each such batch what is done is noted."""
_ID = re.compile(r"[^\W.][\w.-]*")
MAX_ID_BYTES = 200


class Line(NamedTuple):
    """One line of a batch file."""

    number: int
    id: str
    """The name of its file, without the suffix."""
    text: str
    voice: str
    """A recording, a `.voice` file or a speaker of the model; empty for that of the command line."""
    language: str
    """Empty for that of the command line."""


def read_lines(path: str) -> list[Line]:
    """Reads `id|text|voice|language`; blank lines and those that begin with # are passed over.

    Raises:
        UserError: The file or a line of it is not right; the message names the line.
    """
    try:
        content = read_bounded(Path(path), MAX_LIST_BYTES)
    except FileNotFoundError:
        raise UserError(f"--batch must be a file with a line for each text. {path} is not there.") from None
    except ValueError as error:
        raise UserError(f"--batch {path} {error}.") from error
    lines, seen = [], {}
    # Not `splitlines`, which also cuts at characters that are part of a text.
    for number, row in enumerate(re.split("\r\n|\r|\n", content), 1):
        if number > MAX_LINES:
            raise UserError(f"--batch {path} has more than {MAX_LINES:,} lines. Split it.")
        if not row.strip() or row.startswith("#"):
            continue
        where, parts = f"Line {number} of {path}", [part.strip() for part in row.split("|")]
        if not 2 <= len(parts) <= 4:
            raise UserError(
                f"{where} must be id|text, id|text|voice or id|text|voice|language. Received: {row[:80]!r}."
            )
        line = Line(number, *parts, *[""] * (4 - len(parts)))
        if not _ID.fullmatch(line.id) or len(line.id.encode()) > MAX_ID_BYTES:
            rule = f"must begin with an id that can be a file name: letters, digits, _, - and ., {MAX_ID_BYTES} bytes"
            raise UserError(f"{where} {rule}. Received: {line.id[:80]!r}.")
        if (first := seen.setdefault(line.id.casefold(), number)) != number:
            raise UserError(f"{where} has the id of line {first}: {line.id}. Each line needs an id of its own.")
        lines.append(line)
    if not lines:
        raise UserError(f"--batch {path} holds no line to speak.")
    return lines


def in_languages_of_voices(lines: list[Line], arguments) -> list[Line]:
    """The lines, each that names no language in that of its speaker, where it is known and not that of the rest."""
    from myxtts.storage.speakers import read_speakers

    speakers = read_speakers(arguments.checkpoint)
    own = {name: one.language for name, one in speakers.items() if one.language not in (None, arguments.language)}
    return [line._replace(language=line.language or own.get(line.voice, "")) for line in lines]


def say_lines(lines: list[Line], synthesizer, voice, arguments, options: dict, check: dict) -> int:
    """Speaks what is not spoken yet, once all lines have been checked; `check` has options of the self-check."""
    folder = Path(arguments.output_folder)
    folder.mkdir(parents=True, exist_ok=True)
    requests = _requests(lines, synthesizer, voice, arguments)
    file = folder / SPOKEN_FILE
    digests = read_json(file) if file.is_file() else {}
    if not isinstance(digests, dict):
        raise UserError(f"{file} is damaged: it does not say what was spoken. Remove it to speak all texts again.")
    which = (arguments.checkpoint, arguments.which, arguments.language, arguments.sample_rate)
    which += (arguments.decoder, arguments.retries, arguments.g2p, arguments.engine, arguments.recognizer)
    settings = repr((which, sorted(options.items(), key=str), _checkpoints(synthesizer.folder, arguments.which)))
    path_of = lambda line: folder / f"{line.id}.{arguments.format}"
    wanted = {}
    for line, own, _ in requests:
        wanted[line.id] = digest_bytes(repr((line.text, line.language, settings)).encode() + own.latents.tobytes())
    is_spoken = lambda line: digests.get(line.id) == wanted[line.id] and path_of(line).is_file()
    waiting = [request for request in requests if not is_spoken(request[0])]
    if done := len(requests) - len(waiting):
        print(f"{done} of {len(requests)} texts are spoken already, in {printable(str(folder))}", flush=True)
    started = time.monotonic()
    for start in range(0, len(waiting), TOGETHER):
        some, voices, languages = zip(*waiting[start : start + TOGETHER])
        speeches = synthesizer.batch([line.text for line in some], voices, languages, **options, **check)
        for line, speech in zip(some, speeches):
            speech = speech.resampled(arguments.sample_rate) if arguments.sample_rate else speech
            speech.save(path_of(line))
            digests[line.id] = wanted[line.id]
            done += 1
            doubts = "".join(f"; listen to it, {'; '.join(why)}" for why in speech.doubts.values())
            print(f"[{done}/{len(requests)}] {path_of(line).name}: {speech.seconds:.2f} s{doubts}", flush=True)
        write_json(file, digests)
    print(f"Wrote {counted(len(waiting), 'file')} to {printable(str(folder))} in {time.monotonic() - started:.0f} s")
    return 0


def _checkpoints(folder, which):
    """Digests of the checkpoints that speak, by which a model that was trained further is another one."""
    stores = {part: CheckpointStore(folder / part) for part in STAGES}
    return [store.digest(chosen_step(store, part, which)) for part, store in stores.items() if store.steps()]


def _requests(lines, synthesizer, voice, arguments):
    """Line, voice and language of each text; raises `UserError` for the first line that cannot be spoken."""
    from myxtts.inference.voices import stored_voice
    from myxtts.storage.speakers import read_speakers

    voices, requests, speakers = {}, [], read_speakers(arguments.checkpoint)
    if voice is not None:
        voices[""] = voice
    for line in lines:
        name, language = line.voice, line.language or arguments.language
        try:
            synthesizer.text_front.pieces(line.text, language)
            if name in voices:
                pass  # made for a line before
            elif not name:
                raise UserError("It names no voice. Give one in its third column, or --reference-audio for all.")
            elif name in speakers:
                stored = stored_voice(arguments.checkpoint, name, synthesizer.voice)
                voices[name] = synthesizer.as_voice(stored)
            elif (path := Path(arguments.batch).parent / name).is_file():
                voices[name] = synthesizer.as_voice(path)
            else:
                raise UserError(f"Its voice is neither a file beside the list nor a speaker of the model: {name}.")
        except (UserError, OSError) as error:
            raise UserError(f"Line {line.number} of {arguments.batch} cannot be spoken. {error}") from error
        requests.append((line, voices[name], language))
    return requests
