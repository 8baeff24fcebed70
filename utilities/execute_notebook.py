"""Runs the cells of a notebook in this process and stores the outputs in the notebook, without Jupyter.

    python utilities/execute_notebook.py docs/quickstart.ipynb --folder /tmp/quickstart

Cells run in `--folder`, where the files that they write remain. The notebook is replaced when all cells have succeeded.
"""

import argparse
import ast
import base64
import contextlib
import io
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.cli.errors import exits_with_sentence
from myxtts.devices.tensorflow_start import filter_native_errors
from myxtts.storage.files import read_json, write_json

SHOWN = {"_repr_html_": "text/html", "_repr_png_": "image/png", "_repr_markdown_": "text/markdown"}
"""MIME type of a displayed value, by the method that returns its data."""


def execute(notebook: dict, folder: str | Path) -> dict:
    """Runs the code cells of a notebook in a folder; returns the notebook with their outputs.

    An error in a cell is raised with a note that has the number of the cell.
    """
    names, done, home = {"__name__": "__main__"}, [], str(Path(folder).resolve())
    with contextlib.chdir(folder):
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                number = sum("outputs" in one for one in done) + 1
                outputs = _run("".join(cell["source"]), f"cell {number}", names, home)
                for output in outputs:
                    if output["output_type"] == "execute_result":
                        output["execution_count"] = number
                cell = {**cell, "execution_count": number, "outputs": outputs}
            done.append(cell)
    return {**notebook, "cells": done}


def _run(source, where, names, home):
    """Runs one cell; returns its printed text and the value of its last expression as notebook outputs."""
    body, printed, value = ast.parse(source), io.StringIO(), None
    last = body.body.pop() if body.body and isinstance(body.body[-1], ast.Expr) else None
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(body, where, "exec"), names)
            if last is not None:
                value = eval(compile(ast.Expression(last.value), where, "eval"), names)
    except BaseException as error:
        error.add_note(f"In {where}:\n{source}")
        raise
    outputs = []
    if text := printed.getvalue().replace(home + os.sep, "").replace(home, "."):
        outputs.append({"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)})
    if value is not None:
        outputs.append({"output_type": "execute_result", "metadata": {}, "data": _shown(value)})
    return outputs


def _shown(value):
    data = {"text/plain": repr(value).splitlines(keepends=True)}
    for method, kind in SHOWN.items():
        if shown := getattr(value, method, lambda: None)():
            data[kind] = base64.b64encode(shown).decode() if isinstance(shown, bytes) else shown
    return data


@exits_with_sentence
def main(argv: list[str] | None = None) -> int:
    """Executes a notebook in place."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--folder", type=Path, required=True, help="working folder, created if it does not exist")
    arguments = parser.parse_args(argv)
    filter_native_errors()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    target = arguments.notebook.resolve()
    write_json(target, execute(read_json(target), arguments.folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
