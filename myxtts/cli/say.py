"""`myxtts say`: speaks a text in the voice of a reference recording."""

import argparse
import dataclasses

from myxtts.cli.errors import exits_with_sentence, require_output
from myxtts.config.checks import UserError, printable


def build_parser() -> argparse.ArgumentParser:
    """The command line of `myxtts say`."""
    parser = argparse.ArgumentParser(prog="myxtts say", description="Speak a text in the voice of a recording.")
    parser.add_argument("--checkpoint", required=True, help="folder of a training run, or of `myxtts convert`")
    parser.add_argument("--text", help="what to say")
    voice = parser.add_mutually_exclusive_group(required=True)
    voice.add_argument("--reference-audio", nargs="+", metavar="FILE", help="one or more recordings of the voice")
    voice.add_argument("--speaker", metavar="NAME", help="a speaker of the training, or of an imported model")
    voice.add_argument("--list-speakers", action="store_true", help="only list the names for --speaker")
    parser.add_argument("--language", default="en", help="language of the text (default: en)")
    parser.add_argument("--g2p", metavar="LANG", help="write text as it sounds: am, or none (default: as in training)")
    parser.add_argument("--output", default="out.wav", help="wav file to write (default: out.wav)")
    parser.add_argument("--which", choices=("best", "last"), default="best", help="checkpoint to speak with")
    parser.add_argument("--temperature", type=float, help="0 takes the best code every time")
    parser.add_argument("--top-k", type=int, help="draw among this many best codes; 0 for all")
    parser.add_argument("--top-p", type=float, help="draw among the best codes that reach this probability")
    parser.add_argument("--repetition-penalty", type=float, help="1 turns it off")
    parser.add_argument("--seed", type=int, default=0, help="of the draws (default: 0)")
    return parser


@exits_with_sentence
def main(argv: list[str] | None = None) -> int:
    """Speaks and writes one wav file."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if arguments.list_speakers:
        return list_speakers(arguments.checkpoint)
    if arguments.text is None:
        parser.error("the following arguments are required: --text")
    require_output("--output", arguments.output)
    from myxtts.audio.files import write_wav
    from myxtts.inference.synthesizer import Synthesizer
    from myxtts.inference.voices import stored_voice
    from myxtts.text.language_guess import guess_language
    from myxtts.utils.commons import setup_logging

    setup_logging()
    synthesizer = Synthesizer.load(arguments.checkpoint, arguments.which)
    if arguments.g2p:
        synthesizer.set_g2p(() if arguments.g2p == "none" else (arguments.g2p,))
    sampling = synthesizer.config.sampling
    asked = {name: value for name, value in vars(arguments).items() if name in vars(sampling) and value is not None}
    sampling = dataclasses.replace(sampling, **asked)
    named = arguments.speaker and stored_voice(arguments.checkpoint, arguments.speaker, synthesizer.voice)
    voice = named or synthesizer.voice(arguments.reference_audio)
    language, told = guess_language([arguments.text], arguments.language)
    if told:
        print(told)
    speech = synthesizer.speak(arguments.text, voice, language, sampling, arguments.seed)
    write_wav(arguments.output, speech.samples, speech.sample_rate)
    seconds = len(speech.samples) / speech.sample_rate
    print(f"Wrote {arguments.output}: {seconds:.2f} s at {speech.sample_rate} Hz, {len(speech.codes)} codes")
    return 0


def list_speakers(folder: str) -> int:
    """Prints the names of the voices that come with a model, a line each."""
    from myxtts.storage.speakers import read_speakers

    speakers = read_speakers(folder)
    if not speakers:
        raise UserError(f"{folder} has no voices of its own. Give --reference-audio.")
    for name, speaker in speakers.items():
        print(printable(name) + (f"\t{speaker.language}" if speaker.language else ""))
    return 0
