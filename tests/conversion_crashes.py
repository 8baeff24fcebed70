"""Runs conversions in both directions, with a crash at each (or every n-th) file system operation in turn."""

import itertools
import shutil
from pathlib import Path

import numpy as np
from crash_points import contents, crash_everywhere

from myxtts.interchange.coqui import conversion
from myxtts.interchange.coqui.conversion import CoquiFiles, export_coqui, import_coqui
from myxtts.interchange.coqui.torch_checkpoint import read_torch_checkpoint
from myxtts.storage.files import remove_leftovers


def crash_conversion(monkeypatch, work: Path, released: Path, direction: str, every: int = 1) -> int:
    """Imports (`direction` `in`) or exports (`out`) a model repeatedly, each time with a crash at a later operation.

    Raises:
        AssertionError: A crash left an incomplete output.

    Returns:
        Number of operations of a conversion.
    """
    files, numbers = CoquiFiles.of(released / "model.pth"), itertools.count()

    def make():
        folder = work / str(next(numbers))
        folder.mkdir()
        return folder

    def convert(folder):
        if direction == "in":
            return import_coqui(files, folder / "model")
        return export_coqui(work / "converted", folder / "model" / "model.pth")

    def check(folder, outcome):
        marker = folder / "model" / ("model.pth" if direction == "out" else "")
        assert marker.exists() or isinstance(outcome, BaseException | str), "what was returned is there"
        remove_leftovers(folder)
        remove_leftovers(folder / "model")
        found = contents(folder)
        if marker.exists():
            assert found == expected
        elif direction == "in":
            assert not found
        else:
            assert found.items() <= expected.items()
        shutil.rmtree(folder)

    kept = {path: read_torch_checkpoint(path) for path in released.glob("*.pth")}
    monkeypatch.setattr(conversion, "read_torch_checkpoint", lambda path: kept[path])
    monkeypatch.setattr(conversion, "coqui_settings", lambda *_: {"of": "a shape that is not released"})
    import_coqui(files, work / "converted")
    monkeypatch.setattr(conversion, "_read_part", lambda _, part, __: {part: 0, "mel_stats": np.ones(3)})
    monkeypatch.setattr(conversion, "_released", lambda *_: {"one": np.ones(3, np.float32)})
    first = make()
    convert(first)
    expected = contents(first)
    return crash_everywhere(monkeypatch, make, convert, check, every=every)
