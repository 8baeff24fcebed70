"""`myxtts convert`: released XTTS checkpoints to our folders, and back."""

from collections.abc import Sequence
from pathlib import Path

from myxtts.cli.arguments import PlainParser
from myxtts.cli.errors import exits_with_sentence, require_output
from myxtts.config.checks import UserError
from myxtts.devices.tensorflow_start import filter_native_errors
from myxtts.interchange.coqui.importing import RELEASED_NAMES

_HELD = {
    "dvae": "speech tokenizer; training needs it",
    "mel_stats": "scale of the mel bands",
    "vocab": "text tokenizer",
    "speakers": "voices by name",
    "config": "settings",
}
"""What the files of `RELEASED_NAMES` hold."""


def build_parser() -> PlainParser:
    """The command line of `myxtts convert`."""
    parser = PlainParser(prog="myxtts convert")
    parser.description = "Convert an XTTS v2 checkpoint or a fine-tune of one, and back."
    names = ", ".join(RELEASED_NAMES.values())
    unnamed = "Files that are not named are taken from the folder of model.pth if they have\ntheir released names"
    parser.epilog = f"{unnamed}: {names}."
    direction = parser.add_mutually_exclusive_group(required=True)
    direction.add_argument("--from-coqui", metavar="model.pth", type=Path, help="checkpoint, or its folder")
    direction.add_argument("--to-coqui", metavar="DIR", type=Path, help="folder to make a model.pth of")
    parser.add_argument("--output", required=True, help="folder, or with --to-coqui file, to write")
    released = parser.add_argument_group("files that go with --from-coqui")
    for option, name in RELEASED_NAMES.items():
        released.add_argument(f"--{option.replace('_', '-')}", metavar=name, type=Path, help=_HELD[option])
    which = "with --to-coqui: checkpoint of the GPT to take"
    parser.add_argument("--which", choices=("best", "last"), default="best", help=which)
    return parser


@exits_with_sentence
def main(argv: Sequence[str] | None = None) -> int:
    """Converts; returns the exit code."""
    arguments = build_parser().parse_args(argv)
    require_output("--output", arguments.output, makes_folders=True)
    filter_native_errors()
    return _to_ours(arguments) if arguments.from_coqui else _to_coqui(arguments)


def _to_ours(arguments):
    from myxtts.interchange.coqui.importing import CoquiFiles, find_release, import_coqui

    model = find_release(arguments.from_coqui) or arguments.from_coqui
    given = {option: getattr(arguments, option) for option in RELEASED_NAMES}
    for option, path in {"from_coqui": model, **given}.items():
        if path is not None and not path.is_file():
            raise UserError(f"--{option.replace('_', '-')} must be a file. {path} is not one.")
    files = CoquiFiles.of(model, **given)
    config, coverage = import_coqui(files, arguments.output)
    _print_coverage(coverage)
    for option, path in vars(files).items():
        print(f"{option.replace('_', '-'):9} {path or 'none'}")
    if not any(row.weight and row.weight.startswith("dvae: dvae/") for row in coverage):
        print("There is no DVAE: the model can speak, but training it needs --dvae.")
    model, sampling = config.model, config.sampling
    shape = f"{model.layers} layers of width {model.width}, {model.heads} heads"
    print(f"Wrote {arguments.output}: {shape}, {model.num_text_tokens} text tokens, {model.num_codes} codes")
    drawn = f"temperature {sampling.temperature}, top-k {sampling.top_k}, top-p {sampling.top_p}"
    voice = f"{sampling.reference_seconds:g} s in pieces of {sampling.reference_chunk_seconds:g} s"
    penalty = f"repetition penalty {sampling.repetition_penalty}"
    print(f"Speech by default: {drawn}, {penalty}, voice from {voice}")
    return 0


def _print_coverage(coverage):
    from myxtts.interchange.coqui.importing import count_reasons

    width = max(len(row.name) for row in coverage)
    for row in coverage:
        shape = "x".join(map(str, row.shape)) or "scalar"
        fate = f"used     {row.weight}" if row.weight else f"skipped  {row.reason}"
        print(f"{row.name:{width}}  {shape:>14} {row.dtype:8}  {fate}")
    for file in dict.fromkeys(row.file for row in coverage):
        rows = [row for row in coverage if row.file == file]
        reasons = "".join(f"; {count} skipped: {reason}" for reason, count in count_reasons(rows).items())
        print(f"{file}: {len(rows)} tensors, {sum(row.weight is not None for row in rows)} used{reasons}")


def _to_coqui(arguments):
    from myxtts.interchange.coqui.exporting import export_coqui

    given = [option for option in RELEASED_NAMES if getattr(arguments, option) is not None]
    if given:
        raise UserError(f"--{given[0].replace('_', '-')} goes with --from-coqui; --to-coqui finds all in its folder.")
    if not arguments.to_coqui.is_dir():
        raise UserError(f"--to-coqui must be the folder of a model. {arguments.to_coqui} is not a folder.")
    for path in export_coqui(arguments.to_coqui, arguments.output, arguments.which):
        print(f"Wrote {path}")
    return 0
