"""`myxtts say --batch`, which speaks each text of a list to a file and skips files that are up to date."""

import re
import time
from pathlib import Path
from typing import NamedTuple

from myxtts.cli.errors import read_input
from myxtts.config.checks import ConfigError, UserError, counted, printable, require
from myxtts.config.stages import STAGES
from myxtts.storage.checkpoint import CheckpointStore
from myxtts.storage.files import digest_bytes, read_json, write_json
from myxtts.storage.run_folder import chosen_step
from myxtts.storage.speakers import read_speakers

MAX_LIST_BYTES = 64 * 2**20
SPOKEN_FILE = "spoken.json"
"""File in the output folder: digests of the text, voice and settings of each audio file, by id."""
BATCH_SIZE = 16
"""Number of texts that are spoken together. `SPOKEN_FILE` is updated after each batch."""
_ID = re.compile(r"[^\W.][\w.-]*")
MAX_ID_BYTES = 200


class Line(NamedTuple):
    """One line of a batch file."""

    number: int
    id: str
    """Name of the audio file without the suffix."""
    text: str
    voice: str
    """A recording, a `.voice` file or a speaker of the model; empty for the voice in the command line."""
    language: str
    """Language code; empty for the language in the command line."""


def read_lines(path: str) -> list[Line]:
    """Reads lines `id|text|voice|language`; skips blank lines and comments (#). Raises `UserError` for a wrong line."""
    # `splitlines` would also split at characters that can be part of a text.
    rows = re.split("\r\n|\r|\n", read_input("--batch", path, MAX_LIST_BYTES))
    lines, seen = [], {}
    for number, row in enumerate(rows, 1):
        if not row.strip() or row.startswith("#"):
            continue
        where, parts = f"Line {number} of {path}", [part.strip() for part in row.split("|")]
        columns = "id|text, id|text|voice or id|text|voice|language"
        require(2 <= len(parts) <= 4, where, columns, repr(row[:80]))
        line = Line(number, *parts, *[""] * (4 - len(parts)))
        is_name = _ID.fullmatch(line.id) and len(line.id.encode()) <= MAX_ID_BYTES
        rule = f"a file name of letters, digits, _, - and ., at most {MAX_ID_BYTES} bytes"
        require(is_name, f"{where}: the id", rule, repr(line.id[:80]))
        if (first := seen.setdefault(line.id.casefold(), number)) != number:
            raise UserError(f"{where} has the id of line {first}: {line.id}. Give each line its own id.")
        lines.append(line)
    if not lines:
        raise UserError(f"--batch {path} has no line to speak.")
    return lines


def in_languages_of_voices(lines: list[Line], arguments) -> list[Line]:
    """Fills in the speaker's language in lines without a language, if it differs from `arguments.language`."""
    speakers = read_speakers(arguments.checkpoint)
    own = {name: one.language for name, one in speakers.items() if one.language not in (None, arguments.language)}
    return [line._replace(language=line.language or own.get(line.voice, "")) for line in lines]


def say_lines(lines: list[Line], synthesizer, voice, arguments, options: dict, check: dict) -> int:
    """Checks all lines, then speaks the lines whose file is missing or out of date; returns the exit code.

    `options` and `check` are keyword arguments of `Synthesizer.batch`.
    """
    folder = Path(arguments.output_folder)
    folder.mkdir(parents=True, exist_ok=True)
    requests = _requests(lines, synthesizer, voice, arguments)
    file = folder / SPOKEN_FILE
    digests = read_json(file) if file.is_file() else {}
    if not isinstance(digests, dict):
        raise UserError(f"{file} is damaged. Remove it to speak all texts again.")
    which = (arguments.checkpoint, arguments.which, arguments.language, arguments.sample_rate)
    which += (arguments.decoder, arguments.retries, arguments.g2p, arguments.engine, arguments.recognizer)
    # Digests of the weights in use, which change when the model is trained further.
    stores = {part: CheckpointStore(synthesizer.folder / part) for part in STAGES}
    speaking = {part: store for part, store in stores.items() if store.steps()}
    digests_of = [store.digest(chosen_step(store, part, arguments.which)) for part, store in speaking.items()]
    settings = repr((which, sorted(options.items(), key=str), digests_of))
    path_of = lambda line: folder / f"{line.id}.{arguments.format}"
    wanted = {}
    for line, own, _ in requests:
        wanted[line.id] = digest_bytes(repr((line.text, line.language, settings)).encode() + own.latents.tobytes())
    is_spoken = lambda line: digests.get(line.id) == wanted[line.id] and path_of(line).is_file()
    waiting = [request for request in requests if not is_spoken(request[0])]
    if done := len(requests) - len(waiting):
        print(f"{done} of {len(requests)} texts are spoken already, in {printable(str(folder))}", flush=True)
    started = time.monotonic()
    for start in range(0, len(waiting), BATCH_SIZE):
        some, voices, languages = zip(*waiting[start : start + BATCH_SIZE])
        speeches = synthesizer.batch([line.text for line in some], voices, languages, **options, **check)
        for line, speech in zip(some, speeches):
            speech = speech.resampled(arguments.sample_rate) if arguments.sample_rate else speech
            speech.save(path_of(line))
            digests[line.id] = wanted[line.id]
            done += 1
            doubts = "".join(f"; low confidence: {'; '.join(why)}" for why in speech.doubts.values())
            print(f"[{done}/{len(requests)}] {path_of(line).name}: {speech.seconds:.2f} s{doubts}", flush=True)
        write_json(file, digests)
    print(f"Wrote {counted(len(waiting), 'file')} to {printable(str(folder))} in {time.monotonic() - started:.0f} s")
    return 0


def _requests(lines, synthesizer, voice, arguments):
    """Returns tuples of line, voice and language. Raises `UserError` for the first line that cannot be spoken."""
    from myxtts.inference.voices import stored_voice

    speakers, requests = read_speakers(arguments.checkpoint), []
    voices = {} if voice is None else {"": voice}

    def make_voice(name):
        if name in speakers:
            return synthesizer.as_voice(stored_voice(arguments.checkpoint, name, synthesizer.voice))
        if name and (path := Path(arguments.batch).parent / name).is_file():
            return synthesizer.as_voice(path)
        rule = "a speaker of the model or a file beside the list"
        raise ConfigError(f"Its voice must be {rule}. Received: {name or 'none, and no --reference-audio for all'}.")

    for line in lines:
        name, language = line.voice, line.language or arguments.language
        try:
            synthesizer.text_front.pieces(line.text, language)
            voices[name] = voices[name] if name in voices else make_voice(name)
        except (UserError, OSError) as error:
            raise UserError(f"Line {line.number} of {arguments.batch} cannot be spoken. {error}") from error
        requests.append((line, voices[name], language))
    return requests
