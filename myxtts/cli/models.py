"""The commands `myxtts convert`, `myxtts export` and `myxtts push`, which convert and upload models."""

import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from myxtts.cli.arguments import EXAMPLES, LICENCE, OPTIONS, PlainParser, add_model, add_options
from myxtts.cli.errors import exits_with_sentence, require_output
from myxtts.config.checks import require
from myxtts.devices.tensorflow_start import filter_native_errors, import_tensorflow
from myxtts.interchange.coqui.conversion import RELEASED_NAMES, CoquiFiles, export_coqui, find_release, import_coqui
from myxtts.interchange.hub import import_hub, local_folder, model_card, parse_hub_name
from myxtts.interchange.onnx.forms import FORMATS
from myxtts.storage.base_model import FILE, RELEASE, TRAINER, require_kind
from myxtts.storage.run_folder import read_config

_flag = lambda option: f"--{option.replace('_', '-')}"


@exits_with_sentence
def convert(argv: Sequence[str] | None = None) -> int:
    """Converts a released XTTS checkpoint to a model folder, or the reverse; returns the exit code."""
    defaults = f"By default, these files are read from the folder of model.pth:\n{', '.join(RELEASED_NAMES.values())}."
    parser = PlainParser(prog="myxtts convert", description=EXAMPLES["about convert"], epilog=defaults)
    direction = parser.add_mutually_exclusive_group(required=True)
    direction.add_argument("--from-coqui", metavar="model.pth", help="checkpoint, or its folder")
    direction.add_argument("--to-coqui", metavar="DIR", help="model to convert: a folder, base, or hf://owner/name")
    parser.add_argument("--output", required=True, help="folder to write or, with --to-coqui, a .pth file")
    released = parser.add_argument_group("files that belong to --from-coqui")
    for option, name in RELEASED_NAMES.items():
        released.add_argument(_flag(option), metavar=name, type=Path, help=EXAMPLES["released contents"][option])
    parser.add_argument("--which", choices=("best", "last"), default="best", help=EXAMPLES["which to convert"])
    parser.add_argument("--accept-licence", **LICENCE)
    arguments = parser.parse_args(argv)
    require_output("--output", arguments.output, makes_folders=True, replaces=True)
    filter_native_errors()
    given = {option: getattr(arguments, option) for option in RELEASED_NAMES}
    if arguments.from_coqui is None:
        for option, path in given.items():
            require(path is None, _flag(option), "left out with --to-coqui", path)
        folder = local_folder(arguments.to_coqui, arguments.accept_licence, "--to-coqui")
        for path in export_coqui(folder, arguments.output, arguments.which):
            print(f"Wrote {path}")
        return 0
    require_kind(arguments.from_coqui, "--from-coqui", (RELEASE, TRAINER, FILE), "an existing file or its folder")
    model = find_release(arguments.from_coqui) or Path(arguments.from_coqui)
    for option, path in {"from_coqui": model, **given}.items():
        require(path is None or path.is_file(), _flag(option), "a file", path)
    config, coverage = import_coqui(CoquiFiles.of(model, **given), Path(arguments.output))
    width = max(len(row.name) for row in coverage)
    for row in coverage:
        shape = "x".join(map(str, row.array.shape)) or "scalar"
        fate = f"used     {row.weight}" if row.weight else f"skipped  {row.reason}"
        print(f"{row.name:{width}}  {shape:>14} {row.array.dtype!s:8}  {fate}")
    for file in dict.fromkeys(row.file for row in coverage):
        rows = [row for row in coverage if row.file == file]
        unused = Counter(row.reason for row in rows if not row.weight)
        reasons = "".join(f"; {count} skipped: {reason}" for reason, count in unused.most_common())
        print(f"{file}: {len(rows)} tensors, {sum(row.weight is not None for row in rows)} used{reasons}")
    if not any(row.weight and row.weight.startswith("dvae: dvae/") for row in coverage):
        print("No DVAE: the model can speak, but to train it, convert it again with --dvae.")
    shape = config.model
    size = f"{shape.layers} layers of width {shape.width}, {shape.heads} heads"
    print(f"Wrote {arguments.output}: {size}, {shape.num_text_tokens} text tokens, {shape.num_codes} codes")
    return 0


def export_parser() -> PlainParser:
    """Returns the argument parser of `myxtts export`."""
    parser = PlainParser(prog="myxtts export", description=EXAMPLES["about export"])
    add_model(parser, required=True)
    forms = "; ".join(f"{name}: {words}" for name, (words, _) in FORMATS.items())
    add_options(parser, OPTIONS["export"], {"--format": {"choices": tuple(FORMATS), "help": forms}})
    return parser


@exits_with_sentence
def export(argv: Sequence[str] | None = None) -> int:
    """Exports a trained model, prints the results of the export's checks, and returns the exit code."""
    arguments = export_parser().parse_args(argv)
    require_output("--output", arguments.output, makes_folders=True, replaces=True)
    folder = local_folder(arguments.checkpoint, arguments.accept_licence)
    import_tensorflow()
    from myxtts.devices.configuration import configure_for_speech
    from myxtts.interchange.onnx.exporting import export_model
    from myxtts.utils.commons import setup_logging

    configure_for_speech()
    setup_logging()
    export_model(folder, arguments.output, arguments.format, arguments.weights, arguments.which, tell=print)
    for path in sorted(Path(arguments.output).iterdir()):
        size = sum(file.stat().st_size for file in (path, *path.rglob("*")) if file.is_file())
        print(f"Wrote {path}: {size / 1e6:.2f} MB")
    uses = EXAMPLES["exported"] + EXAMPLES["exported page"] * (arguments.format == "web")
    print(uses.replace("{folder}", shlex.quote(str(Path(arguments.output).resolve()))), end="")
    return 0


@exits_with_sentence
def push(argv: Sequence[str] | None = None) -> int:
    """Uploads a model with its model card or, with --card, only prints the card; returns the exit code."""
    parser = PlainParser(prog="myxtts push", description=EXAMPLES["about push"])
    add_model(parser, name="folder")
    add_options(parser, OPTIONS["push"])
    arguments = parser.parse_args(argv)
    repository, _ = parse_hub_name(arguments.target)
    folder = local_folder(arguments.folder, arguments.accept_licence, "FOLDER")
    if arguments.card:
        print(model_card(repository, read_config(folder), folder, arguments.licence), end="")
        return 0
    import_hub()  # fails before the model is loaded
    from myxtts.inference.loading import load_model

    model = load_model(folder, arguments.which)
    print(f"Wrote {model.push_to_hub(arguments.target, arguments.private, arguments.licence)}")
    return 0
