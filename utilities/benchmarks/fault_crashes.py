"""Every operation of a conversion on the file system goes wrong in turn, for `faults.py`."""

import pytest
from conversion_crashes import crash_conversion
from crash_points import MODES, POWER_CUTS
from released_model import write_release


def sweep_conversions(work):
    """The part `conversions`. Returns rows and whether each conversion was whole or not there."""
    work.mkdir()
    released, rows, ok = write_release(work / "released"), [], True
    for direction in ("in", "out"):
        place = work / direction
        place.mkdir()
        try:
            with pytest.MonkeyPatch.context() as patch:
                found = f"{crash_conversion(patch, place, released, direction)} operations: whole or not there"
        except AssertionError as error:
            ok, found = False, f"{error} {' '.join(error.__notes__)}"
        given = f"every operation, {len(MODES)} ways to fail and {len(POWER_CUTS)} kinds of power cut"
        rows.append([f"conversion {direction}", given, found, "all"])
    return rows, ok
