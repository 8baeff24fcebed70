"""`myxtts say`: speaks a text in the voice of a reference recording."""

import argparse
import dataclasses

from myxtts.cli.errors import exits_with_sentence, require_output


def build_parser() -> argparse.ArgumentParser:
    """The command line of `myxtts say`."""
    parser = argparse.ArgumentParser(prog="myxtts say", description="Speak a text in the voice of a recording.")
    parser.add_argument("--checkpoint", required=True, help="folder of a training run, or of `myxtts convert`")
    parser.add_argument("--text", required=True, help="what to say")
    voice = parser.add_mutually_exclusive_group(required=True)
    voice.add_argument("--reference-audio", nargs="+", metavar="FILE", help="one or more recordings of the voice")
    voice.add_argument("--speaker", metavar="NAME", help="a voice that came with an imported model")
    parser.add_argument("--language", default="en", help="language of the text (default: en)")
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
    arguments = build_parser().parse_args(argv)
    require_output("--output", arguments.output)
    from myxtts.audio.files import write_wav
    from myxtts.inference.synthesizer import Synthesizer, Voice
    from myxtts.storage.speakers import read_speaker
    from myxtts.utils.commons import setup_logging

    setup_logging()
    synthesizer = Synthesizer.load(arguments.checkpoint, arguments.which)
    sampling = synthesizer.config.sampling
    asked = {name: value for name, value in vars(arguments).items() if name in vars(sampling) and value is not None}
    sampling = dataclasses.replace(sampling, **asked)
    named = arguments.speaker and Voice(*read_speaker(arguments.checkpoint, arguments.speaker))
    voice = named or synthesizer.voice(arguments.reference_audio)
    speech = synthesizer.speak(arguments.text, voice, arguments.language, sampling, arguments.seed)
    write_wav(arguments.output, speech.samples, speech.sample_rate)
    seconds = len(speech.samples) / speech.sample_rate
    print(f"Wrote {arguments.output}: {seconds:.2f} s at {speech.sample_rate} Hz, {len(speech.codes)} codes")
    return 0
