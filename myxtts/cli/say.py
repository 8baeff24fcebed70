"""`myxtts say`: speaks a text, standard input or a list of texts in the voice of a recording."""

import argparse
import io
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import BinaryIO

from myxtts.cli.arguments import PlainParser, add_model
from myxtts.cli.errors import exits_with_sentence, require_output
from myxtts.config.checks import UserError, bounded_text, counted, printable, read_bounded, require
from myxtts.devices.kinds import check_device
from myxtts.inference.choices import add_choices
from myxtts.storage.base_model import BASE_NAME, is_base, require_model_folder

MAX_TEXT_BYTES = 16 * 2**20
"""Of a text file: some thousand pages."""
SHORT_TEXT = 400
"""Characters up to which making graphs of all that is computed takes longer than they save."""
PROGRESS_SECONDS = 10.0
EXAMPLES = """
examples:
  myxtts say --text "Good morning." --output hello.wav
  myxtts say --checkpoint runs/mine --reference-audio me.wav --text "Good morning." --output morning.flac
  myxtts say --checkpoint runs/mine --voice me.voice --text-file book.txt --output book.mp3 --subtitles book.srt
  echo "Good morning." | myxtts say --checkpoint runs/mine --reference-audio a.wav b.wav --stream | aplay
  myxtts say --checkpoint runs/mine --reference-audio me.wav --batch lines.txt --output-folder spoken --format ogg

A batch file has a line `id|text|voice|language` for each file to be written; voice (a recording, a .voice file or a
speaker of the model) and language may be left out. Started again, it continues where it stopped.
"""


def build_parser() -> argparse.ArgumentParser:
    """The command line of `myxtts say`."""
    description = "Speak a text in the voice of a recording."
    parser = PlainParser(prog="myxtts say", description=description, epilog=EXAMPLES)
    add_model(parser, "; base speaks in a voice of its own if none is given", default=BASE_NAME)
    parser.add_argument("words", nargs="?", metavar="TEXT", help="the text, as --text")
    text = parser.add_argument_group("text (default: standard input)")
    one = text.add_mutually_exclusive_group()
    one.add_argument("--text", help="the text")
    one.add_argument("--text-file", metavar="FILE", help="a file with the text; - for standard input")
    one.add_argument("--batch", metavar="FILE", help="a file with a line for each text; see below")
    text.add_argument("--language", help="of the text (default: that of --speaker where it is known, else en)")
    g2p = "write text as it sounds: am, espeak, or none (default: as in training)"
    text.add_argument("--g2p", "--phonemizer", metavar="LANG", help=g2p)
    voice = parser.add_argument_group("voice")
    one = voice.add_mutually_exclusive_group()
    one.add_argument("--reference-audio", nargs="+", metavar="FILE", help="one or more recordings of the voice")
    one.add_argument("--speaker", metavar="NAME", help="a speaker of the training, or of an imported model")
    one.add_argument("--voice", metavar="FILE.voice", help="a voice that --save-voice wrote")
    voice.add_argument("--list-speakers", action="store_true", help="only list the names for --speaker")
    voice.add_argument("--save-voice", metavar="FILE.voice", help="save the voice, so that it loads faster next time")
    _add_output(parser.add_argument_group("output"))
    _add_speech(parser.add_argument_group("speech"))
    return parser


def _add_output(output):
    output.add_argument("--output", metavar="FILE", default="out.wav", help="wav, flac, mp3 or ogg file to write")
    output.add_argument("--stream", action="store_true", help="write the sound to standard output while it is made")
    formats = "a WAV of open length, or 16-bit PCM alone"
    output.add_argument("--stream-format", choices=("wav", "pcm"), default="wav", help=formats)
    output.add_argument("--output-folder", metavar="FOLDER", default="spoken", help="for the files of --batch")
    output.add_argument("--format", choices=("wav", "flac", "mp3", "ogg"), default="wav", help="of those files")
    output.add_argument("--subtitles", metavar="FILE.srt", help="also write what is said when")
    output.add_argument("--sample-rate", type=int, metavar="HZ", help="of the sound (default: the model's)")


def _add_speech(speech):
    speech.add_argument("--speed", type=float, default=1.0, help="faster or slower at the same pitch")
    speech.add_argument("--seed", type=int, default=0, help="of the draws")
    retries = "how often to sample a sentence again that loops, babbles, breaks off or does not end; not with --stream"
    speech.add_argument("--retries", type=int, default=1, metavar="N", help=retries)
    recognizer = "recognizer that checks each sentence: base, hf://…, a folder, a command with {wav}; not with --stream"
    speech.add_argument("--recognizer", metavar="NAME", help=recognizer)
    own = "(default: the model's own)"
    speech.add_argument("--temperature", type=float, help=f"0 takes the best code every time {own}")
    speech.add_argument("--top-k", type=int, help=f"draw among this many best codes; 0 for all {own}")
    speech.add_argument("--top-p", type=float, help=f"draw among the best codes that reach this probability {own}")
    speech.add_argument("--repetition-penalty", type=float, help=f"1 turns it off {own}")
    add_choices(speech)


@exits_with_sentence
def main(argv: list[str] | None = None) -> int:
    """Speaks; everything that can be wrong is looked at before the first sound, and most of it before TensorFlow."""
    arguments = build_parser().parse_args(argv)
    _check(arguments)
    from myxtts.interchange.hub.fetching import local_folder

    arguments.checkpoint = local_folder(arguments.checkpoint, arguments.accept_licence)
    if arguments.list_speakers:
        return _list_speakers(arguments.checkpoint)
    text, lines = _read(arguments)
    with standard_output_for_sound() if arguments.stream else nullcontext() as sound:
        return _say(arguments, text, lines, sound)


def _read(arguments):
    """Text and lines of a batch, one of them None; both, language, voice and sampling are fit for the model."""
    from myxtts.cli import say_batch
    from myxtts.inference.text_front import open_text_front
    from myxtts.storage.speakers import find_speaker
    from myxtts.text.language_guess import language_to_read
    from myxtts.utils.commons import setup_logging

    setup_logging()
    text = None if arguments.batch else _text(arguments)
    lines = say_batch.read_lines(arguments.batch) if arguments.batch else None
    g2p = None if arguments.g2p is None else () if arguments.g2p == "none" else (arguments.g2p,)
    front, config = open_text_front(arguments.checkpoint, g2p)
    speaker = arguments.speaker
    own, asked = speaker and find_speaker(arguments.checkpoint, speaker).language, arguments.language
    arguments.language, note = language_to_read(text, asked, own, printable(speaker or ""), front.tokenizer.languages)
    if note:
        print(note, file=sys.stderr)
    if lines and asked is None:
        lines = say_batch.in_languages_of_voices(lines, arguments)
    if text is not None:
        front.pieces(text, arguments.language)
    given = {name: value for name, value in vars(arguments).items() if name in vars(config.sampling)}
    arguments.sampling = config.sampling.changed(given)
    for path in [*(arguments.reference_audio or []), *filter(None, [arguments.voice])]:
        if not Path(path).is_file():
            raise UserError(f"{path} is not there: --reference-audio and --voice name files. --speaker takes a name.")
    return text, lines


def _say(arguments, text, lines, sound):
    from myxtts.devices.tensorflow_start import import_tensorflow

    import_tensorflow()
    from myxtts.cli import say_batch
    from myxtts.devices.configuration import configure_for_speech
    from myxtts.devices.kinds import device_named
    from myxtts.interchange.onnx.engines import load_synthesizer
    from myxtts.utils.commons import get_device_context

    configure_for_speech()
    with get_device_context(arguments.device and device_named(arguments.device)):
        is_short = text is not None and len(text) <= SHORT_TEXT and sound is None
        options = dict(decoder=arguments.decoder, engine=arguments.engine, traced=not is_short, only_speech=True)
        synthesizer = load_synthesizer(arguments.checkpoint, arguments.which, **options)
        if arguments.g2p:
            synthesizer.set_g2p(() if arguments.g2p == "none" else (arguments.g2p,))
        options = dict(sampling=arguments.sampling, seed=arguments.seed, speed=arguments.speed)
        voice = _voice(arguments, synthesizer)
        if sound is not None:
            stream = synthesizer.stream(text, voice, arguments.language, **options)
            rate = arguments.sample_rate or synthesizer.sample_rate
            play(stream, sound, synthesizer.sample_rate, rate, arguments.stream_format)
            if stream.pieces:
                print(_confidence(stream).capitalize(), file=sys.stderr)
            return 0
        listener = None
        if arguments.recognizer is not None:
            from myxtts.hearing.recognizers import Listening, open_recognizer

            listener = Listening(open_recognizer(arguments.recognizer))
        check = dict(retries=arguments.retries, listener=listener)
        if lines:
            return say_batch.say_lines(lines, synthesizer, voice, arguments, options, check)
        speech = synthesizer.speak(text, voice, arguments.language, **options, **check, progress=_progress())
    if arguments.sample_rate:
        speech = speech.resampled(arguments.sample_rate)
    speech.save(arguments.output)
    if arguments.subtitles:
        speech.save_subtitles(arguments.subtitles)
    codes = counted(len(speech.codes), "code")
    print(
        f"Wrote {arguments.output}: {speech.seconds:.2f} s at {speech.sample_rate} Hz, {codes}, {_confidence(speech)}"
    )
    return 0


def _progress():
    """A function that prints every few seconds how far the speaking of a long text is."""
    printed = time.monotonic()

    def progress(done, total):
        nonlocal printed
        if done < total and time.monotonic() - printed >= PROGRESS_SECONDS:
            printed = time.monotonic()
            print(f"Spoken: {done} of {total} parts of the text", file=sys.stderr, flush=True)

    return progress


def _confidence(spoken):
    """Prints the flagged sentences, and returns the result of the self-check."""
    for sentence, why in spoken.doubts.items():
        print(f"Listen to this one, {'; '.join(why)}: {printable(sentence)}", file=sys.stderr)
    return spoken.summary


def _check(arguments):
    """Raises `UserError` for what can be seen from the command line alone."""
    from myxtts.audio.encoding import check_suffix
    from myxtts.interchange.hub.fetching import is_hub_name
    from myxtts.storage.speakers import read_speakers, some_names

    if not arguments.checkpoint:
        raise UserError("--checkpoint must name the folder of a model. Try: myxtts say --checkpoint runs/mine …")
    is_elsewhere = is_base(arguments.checkpoint) or is_hub_name(arguments.checkpoint)
    if not is_elsewhere:
        require_model_folder(arguments.checkpoint, "A model (--checkpoint)")
    if arguments.list_speakers:
        return
    if arguments.words is not None:
        given = [name for name in ("text", "text_file", "batch") if getattr(arguments, name) is not None]
        if given:
            flag = f"--{given[0].replace('_', '-')}"
            raise UserError(f"{arguments.words} is given besides {flag}. Put text of several words in quotes.")
        arguments.text = arguments.words
    check_device(arguments.device)
    given = arguments.reference_audio or arguments.speaker or arguments.voice or arguments.batch
    if not given and not is_base(arguments.checkpoint):
        names = [] if is_elsewhere else [*read_speakers(arguments.checkpoint)]
        known = f"Try --speaker {names[0]}. {some_names(names)}" if names else "--list-speakers lists the model's."
        raise UserError(f"No voice: give --reference-audio FILE, --voice FILE.voice or --speaker NAME. {known}")
    for one, other in (("batch", "stream"), ("batch", "subtitles"), ("stream", "subtitles"), ("recognizer", "stream")):
        if getattr(arguments, one) and getattr(arguments, other):
            raise UserError(f"--{one} is not allowed with --{other}: give one of them.")
    require(0.25 <= arguments.speed <= 4.0, "--speed", "0.25 to 4.0", arguments.speed)
    require(0 <= arguments.retries <= 100, "--retries", "0 to 100", arguments.retries)
    if (rate := arguments.sample_rate) is not None:
        require(8000 <= rate <= 96000, "--sample-rate", "8000 to 96000 Hz", rate, "Try 24000, 44100 or 48000.")
    if arguments.recognizer is not None:
        from myxtts.hearing.recognizers import settle_recognizer

        settle_recognizer(arguments.recognizer)
    require_output("--subtitles", arguments.subtitles)
    require_output("--save-voice", arguments.save_voice)
    if arguments.batch:
        require_output("--output-folder", arguments.output_folder, makes_folders=True)
        require(not Path(arguments.output_folder).is_file(), "--output-folder", "a folder", arguments.output_folder)
    elif not arguments.stream:
        require_output("--output", arguments.output)
        if not Path(arguments.output).exists() or Path(arguments.output).is_file():
            check_suffix(arguments.output)


def _text(arguments):
    if arguments.text is not None:
        return arguments.text
    is_file = arguments.text_file not in (None, "-")
    if arguments.text_file is None and sys.stdin.isatty():
        raise UserError('No text: give --text "…", --text-file FILE, or a text on standard input.')
    try:
        if is_file:
            return read_bounded(Path(arguments.text_file), MAX_TEXT_BYTES)
        return bounded_text(sys.stdin.buffer, MAX_TEXT_BYTES)
    except FileNotFoundError:
        raise UserError(f"--text-file must be a file with the text. {arguments.text_file} is not there.") from None
    except ValueError as error:
        raise UserError(f"{f'--text-file {arguments.text_file}' if is_file else 'Standard input'} {error}.") from error


def _voice(arguments, synthesizer):
    """The voice of the command line; None where each line of a batch names its own."""
    from myxtts.inference.voices import stored_voice
    from myxtts.storage.base_model import default_speaker
    from myxtts.text.languages import get_language

    voice = arguments.voice or arguments.reference_audio
    if is_base(arguments.checkpoint) and not (voice or arguments.speaker or arguments.batch):
        language = get_language(arguments.language)
        arguments.speaker = default_speaker(arguments.checkpoint, language.code)
        note = f"The bundled model speaks {language.name}, as {arguments.speaker}"
        print(f"{note}; --list-speakers names its other voices.", file=sys.stderr)
    if arguments.speaker:
        voice = stored_voice(arguments.checkpoint, arguments.speaker, synthesizer.voice)
    if voice is None:
        return None
    voice = synthesizer.as_voice(voice)
    if arguments.save_voice:
        voice.save(arguments.save_voice)
        print(f"Wrote {printable(arguments.save_voice)}: the voice, for --voice")
    return voice


def _list_speakers(folder):
    """Prints the names of the voices that come with a model, a line each."""
    from myxtts.storage.speakers import read_speakers

    speakers = read_speakers(folder)
    if not speakers:
        raise UserError(f"{folder} has no voices of its own. Give --reference-audio.")
    for name, speaker in speakers.items():
        print(printable(name) + (f"\t{speaker.language}" if speaker.language else ""))
    return 0


@contextmanager
def standard_output_for_sound() -> Iterator[BinaryIO]:
    """Yields standard output for bytes; whatever else is written to it meanwhile goes to standard error."""
    sys.stdout.flush()
    try:
        number = sys.stdout.fileno()
    except (AttributeError, io.UnsupportedOperation):
        number = 1
    with os.fdopen(os.dup(number), "wb", buffering=0) as sound:
        os.dup2(2, number)
        try:
            yield sound
        finally:
            sys.stdout.flush()
            os.dup2(sound.fileno(), number)


def play(stream: Iterator, sound: BinaryIO, from_rate: int, to_rate: int, sound_format: str) -> None:
    """Writes a stream of samples as 16-bit PCM, after a WAV header where asked; ends when the reader has gone."""
    from myxtts.audio.encoding import resampled, wav_header
    from myxtts.audio.files import to_pcm16

    started, first_seconds, num_samples = time.monotonic(), None, 0
    try:
        if sound_format == "wav":
            sound.write(wav_header(to_rate))
        for samples in resampled(stream, from_rate, to_rate):
            if first_seconds is None:
                first_seconds = time.monotonic() - started
            num_samples += len(samples)
            sound.write(to_pcm16(samples))
    except BrokenPipeError:
        print("The listener is gone; the rest was not spoken.", file=sys.stderr)
        return
    finally:
        stream.close()
    spoken = f"Spoke {num_samples / to_rate:.2f} s at {to_rate} Hz"
    print(f"{spoken}; the first sound came after {first_seconds:.2f} s", file=sys.stderr)
