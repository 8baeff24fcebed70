"""Helpers of tests of commands."""

import re


def sentence_of(capsys, main, *argv):
    """Runs a command that must fail with an error that a user can fix; returns its one-line message."""
    capsys.readouterr()
    try:
        code = main([str(argument) for argument in argv])
    except SystemExit as exit:  # argparse
        code = exit.code
    error = capsys.readouterr().err
    assert code == 2, error
    assert "Traceback" not in error
    last = error.strip().splitlines()[-1]
    assert re.match(r"Error: |.*: error: ", last), error
    return last
