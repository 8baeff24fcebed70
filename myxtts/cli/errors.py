"""Errors that a user can mend end a command with one sentence and exit code 2, not with a traceback."""

import functools
import sys


class UserError(ValueError):
    """Something the user gave is wrong; the message names the thing, the rule and the way out."""


def _mendable():
    # Imported when an error has come: several of these modules are slow to import. None of them imports TensorFlow.
    from myxtts.audio.files import AudioError
    from myxtts.config.config import ConfigError
    from myxtts.data.corpora import CorpusError
    from myxtts.data.sample_corpus import SampleCorpusError
    from myxtts.utils.checkpoint import CheckpointError
    from myxtts.utils.devices import DeviceError, PlacementError

    return (UserError, AudioError, ConfigError, CorpusError, SampleCorpusError, CheckpointError, DeviceError,
            PlacementError)


def exits_with_sentence(main):
    """Decorates a command's `main`: errors that a user can mend are printed, and the exit code is 2; 130 on Ctrl-C."""

    @functools.wraps(main)
    def wrapped(argv=None):
        try:
            return main(argv)
        except KeyboardInterrupt:
            print("Stopped at once.", file=sys.stderr, flush=True)
            return 130
        except (ValueError, RuntimeError, OSError) as error:
            # OSError: a disk that is full, gone or read-only.
            if not isinstance(error, (OSError, *_mendable())):
                raise
            print(f"Error: {error}", file=sys.stderr, flush=True)
            return 2

    return wrapped
