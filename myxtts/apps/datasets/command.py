"""`myxtts make-dataset`: cuts long recordings into a training set."""

import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from myxtts.api import naming_arguments
from myxtts.cli.arguments import PlainParser, add_options, keywords
from myxtts.cli.errors import exits_with_sentence, language_code
from myxtts.config.checks import UserError, counted, printable, read_toml, require
from myxtts.data.corpora import TextsMissing, refuse_other_kinds
from myxtts.devices.tensorflow_start import filter_native_errors
from myxtts.storage.files import AnyPath

COMMAND = read_toml(__file__, "options.toml")


def build_parser() -> PlainParser:
    """Builds the argument parser of `myxtts make-dataset`."""
    parser = PlainParser(prog="myxtts make-dataset", description=COMMAND["about"])
    add_options(parser, COMMAND["options"])
    return parser


@exits_with_sentence
def main(argv: Sequence[str] | None = None) -> int:
    """Runs `myxtts make-dataset`; returns the exit code."""
    arguments = build_parser().parse_args(argv)
    filter_native_errors()
    try:
        print(_make(arguments))
    except KeyboardInterrupt:
        print("Finished recordings are in the set. Repeat the command to continue.", file=sys.stderr)
        raise
    return 0


@naming_arguments(build_parser)
def make_dataset(recordings: AnyPath | Sequence[AnyPath], output: AnyPath, **options) -> Path:
    """Creates a checked training set from long recordings, like `myxtts make-dataset`; returns its folder.

    Args:
        recordings: Files or folders.
        output: New folder, or an earlier data set to add to.
        options: Options of the command, with underscores: `transcript="talk.txt"`, `one_voice=True`.

    Raises `UserError` if a recording, text or option is unusable. A note on the error translates flags in the message
    to Python arguments."""
    print(_make(keywords(build_parser(), {"recordings": recordings, "output": output, **options})))
    return Path(output)


def _make(arguments):
    """Creates or extends the data set; returns a summary for the user."""
    output, options = Path(arguments.output), open_options(arguments)
    from myxtts.apps.datasets import make
    from myxtts.apps.datasets.set_folder import REPORT, SEGMENTS, TRAINING, VALIDATION, clips_of, describe_doubts

    records = make.make_dataset(arguments.recordings, output, options, lambda line: print(printable(line), flush=True))
    if not (clips := clips_of(records)):
        raise UserError(f"No clip was made. The reasons are in {output / SEGMENTS} and {output / REPORT}.")
    minutes, held = sum(clip["seconds"] for clip in clips) / 60, sum(clip["validation"] for clip in clips)
    lists = f"{TRAINING} {len(clips) - held}, {VALIDATION} {held}"
    made = f"{output}: {counted(len(clips), 'clip')} of {minutes:.1f} min ({lists}). Dropped speech: {output / REPORT}"
    return "\n".join(map(printable, [made, *describe_doubts(clips, options.speaker)]))


def open_options(arguments: Namespace) -> Namespace:
    """Checks the arguments of the command and loads the models that the arguments name.

    Returns a copy of the arguments with these attributes set: the path `text`, the models `recognizer`, `aligner`,
    `encoder`, `speech_model` and `dnsmos` (each None if not used), and the names `recognizer_name` and `aligner_name`.
    """
    opened = Namespace(**vars(arguments))
    low, high, least = arguments.min_seconds, arguments.max_seconds, arguments.min_dnsmos
    lengths = "0.2 or more, below --max-seconds of at most 30"
    require(0.2 <= low < high <= 30, "--min-seconds", lengths, f"{low:g}, {high:g}")
    require(0 <= (share := arguments.validation_share) < 1, "--validation-share", "0 or more and below 1", share)
    require(-60 <= arguments.loudness <= -5, "--loudness", "from -60 to -5 LUFS", arguments.loudness)
    opened.speaker = speaker = arguments.speaker or Path(arguments.output).resolve().name
    is_name = speaker.strip() and not any(mark in speaker for mark in "|\n\r")
    require(is_name, "--speaker", "a name without | and line breaks", repr(speaker))
    require(least is None or 1 <= least <= 5, "--min-dnsmos", "from 1 to 5", least)
    if arguments.speaker_encoder and not arguments.one_voice:
        raise UserError("--speaker-encoder needs --one-voice.")
    from myxtts.hearing import networks
    from myxtts.hearing.recognizers import open_recognizer

    opened.language = language_code(arguments.language)
    text, name = arguments.subtitles or arguments.transcript, arguments.recognizer
    for path in filter(None, (*arguments.recordings, text)):
        if not (os.path.exists(path) or str(path).startswith("hf:")):
            raise UserError(f"{printable(os.fspath(path))}: it does not exist.")
        with suppress(TextsMissing):
            refuse_other_kinds(path)
    if "pocketsphinx" in (name, arguments.aligner):
        require(opened.language.partition("-")[0] == "en", "--language", "en with pocketsphinx", opened.language)
    opened.text, opened.recognizer_name, opened.aligner_name = text and Path(text), name, arguments.aligner or name
    opened.recognizer = open_recognizer(name, True) if name else None
    opened.aligner = open_recognizer(arguments.aligner, True) if arguments.aligner else opened.recognizer
    detector = None if arguments.vad == "energy" else arguments.vad_model or networks.find_silero()
    if detector is None and arguments.vad == "silero":
        raise UserError('--vad silero needs pip install "myxtts[recordings]", or --vad-model FILE and onnxruntime.')
    opened.encoder = networks.find_encoder(arguments.speaker_encoder) if arguments.one_voice else None
    if arguments.one_voice and opened.encoder is None:
        raise UserError(f"--one-voice needs a speaker encoder: {networks.ENCODER_HINT}.")
    opened.dnsmos = networks.DNSMOS.load() if least else None
    if least and opened.dnsmos is None:
        raise UserError(f"--min-dnsmos needs DNSMOS: {networks.DNSMOS_HINT}.")
    opened.speech_model = detector and networks.SileroModel(Path(detector))
    return opened
