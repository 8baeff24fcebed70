"""Letters to sounds by eSpeak NG, which the package `espeakng-loader` brings.

This file imports nothing of MyXTTS: an exported model takes it along.
"""

import ctypes
import itertools
import os
import re
import tempfile
import threading
import unicodedata
from functools import cache
from pathlib import Path

# From espeak-ng/speak_lib.h, version 1.52.
AUDIO_OUTPUT_SYNCHRONOUS, INITIALIZE_DONT_EXIT = 2, 0x8000
CHARS_UTF8, IPA = 1, 2
MAX_DATA_PATH_BYTES = 159
"""The library takes a longer path of its data for missing."""
WITHIN_WORDS = " '’\u200c\u200d"
_LOCK = threading.Lock()


def text_to_ipa(text: str, voice: str) -> str:
    """A cleaned text as it sounds, in IPA with marks of stress; punctuation stays.

    Args:
        voice: eSpeak NG's name of a language, such as `en-us`.

    Raises:
        ValueError: eSpeak NG is not installed, or does not know the language.
    """
    # Punctuation stands apart, as eSpeak NG takes it for pauses and leaves it out.
    parts = [(spoken, "".join(part)) for spoken, part in itertools.groupby(text, _is_spoken)]
    with _LOCK:  # its state is global
        library = load_library()
        if library.espeak_SetVoiceByName(voice.encode()):
            raise ValueError(f"eSpeak NG does not know the language {voice}.")
        return "".join(_sounds(library, part) if spoken else part for spoken, part in parts)


def require_espeak() -> None:
    """Raises `ValueError` unless eSpeak NG is there."""
    with _LOCK:
        load_library()


def _is_spoken(character):
    return unicodedata.category(character)[0] in "LMN" or character in WITHIN_WORDS


def _sounds(library, text):
    """Sounds of a text without punctuation, which keeps the spaces around it."""
    start, end = (" " * (side != text) for side in (text.lstrip(), text.rstrip()))
    if not text.strip():
        return text
    data = ctypes.create_string_buffer(text.encode())
    rest, found = ctypes.c_void_p(ctypes.addressof(data)), []
    while rest.value:  # it takes a clause at a time
        found.append(library.espeak_TextToPhonemes(ctypes.byref(rest), CHARS_UTF8, IPA).decode())
    # Words of another language stand between names of languages in brackets.
    sounds = re.sub(r"\([a-z-]+\)", "", " ".join(filter(None, map(str.strip, found))))
    return f"{start}{sounds}{end}"


@cache
def load_library() -> ctypes.CDLL:
    """eSpeak NG's library, started with its data; one per process, whose state is global. Raises as `text_to_ipa`."""
    try:
        import espeakng_loader
    except ImportError:
        rule = "The model reads text as it sounds, for which it needs the package espeakng-loader (GPL-3.0-or-later)"
        raise ValueError(f"{rule}. Install it with: pip install espeakng-loader") from None
    library, data = ctypes.CDLL(str(espeakng_loader.get_library_path())), Path(espeakng_loader.get_data_path())
    library.espeak_TextToPhonemes.restype = ctypes.c_char_p
    library.espeak_TextToPhonemes.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, ctypes.c_int]
    if len(os.fsencode(data)) > MAX_DATA_PATH_BYTES:
        library.short = tempfile.TemporaryDirectory()  # as long as the library, which reads from there
        (short := Path(library.short.name, "data")).symlink_to(data, target_is_directory=True)
        data = short
    rate = library.espeak_Initialize(AUDIO_OUTPUT_SYNCHRONOUS, 0, os.fsencode(data), INITIALIZE_DONT_EXIT)
    if rate <= 0:
        raise ValueError(f"eSpeak NG could not be started with its data in {data}.")
    return library
