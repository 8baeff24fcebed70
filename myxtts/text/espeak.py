"""Grapheme-to-phoneme conversion by eSpeak NG, from the package `espeakng-loader`."""

import ctypes
import itertools
import os
import re
import tempfile
import threading
import unicodedata
from functools import cache
from pathlib import Path

from myxtts.config.checks import needing

# From espeak-ng/speak_lib.h, version 1.52.
AUDIO_OUTPUT_SYNCHRONOUS, INITIALIZE_DONT_EXIT = 2, 0x8000
CHARS_UTF8, IPA = 1, 2
WITHIN_WORDS = " '’\u200c\u200d"
LOCK = threading.Lock()
"""Lock that protects the global state of eSpeak NG. Hold it during `load_library` and all calls of the library."""


def text_to_ipa(text: str, voice: str, scripts: tuple[str, ...] = ()) -> str:
    """Converts cleaned text to IPA with stress marks. Keeps punctuation, and letters of scripts that are not converted.

    `voice` is a language of eSpeak NG, such as `en-us`. `scripts` are the Unicode names of the scripts to convert in
    addition to Latin, such as `"CYRILLIC"`. Raises `ValueError` if eSpeak NG is not installed or lacks the language.
    """
    # eSpeak NG removes punctuation, and would say names such as "Ethiopic letter" for letters of other scripts.
    # A single Greek letter is a symbol, which is read as the letter's name.
    known = {"LATIN", "COMBINING", "MODIFIER", *scripts, *["GREEK"] * (not re.search("[\u0370-\u03ff]{2}", text))}

    def is_spoken(character):
        kind, plain = unicodedata.category(character)[0], unicodedata.normalize("NFKC", character)[0]
        is_foreign = kind in "LM" and unicodedata.name(plain, "").partition(" ")[0] not in known
        return kind in "LMN" and not is_foreign or character in WITHIN_WORDS

    parts = [(spoken, "".join(part)) for spoken, part in itertools.groupby(text, is_spoken)]
    with LOCK:
        library = load_library()
        now = lambda: (voice, *library.espeak_GetCurrentVoice().contents)  # the sample corpus may change the voice
        if library.voice != now():  # each call of espeak_SetVoiceByName leaks 1.3 kB
            if library.espeak_SetVoiceByName(voice.encode()):
                raise ValueError(f"eSpeak NG does not know the language {voice}.")
            library.voice = now()
        return "".join(_words_to_ipa(library, part) if spoken else part for spoken, part in parts)


def _words_to_ipa(library, text):
    if not text.strip():
        return text
    start, end = (" " * (side != text) for side in (text.lstrip(), text.rstrip()))
    data = ctypes.create_string_buffer(text.encode())
    rest, clauses = ctypes.c_void_p(ctypes.addressof(data)), []
    while rest.value:
        clauses.append(library.espeak_TextToPhonemes(ctypes.byref(rest), CHARS_UTF8, IPA).decode())
    # eSpeak NG marks words of another language with language codes in brackets.
    return start + re.sub(r"\([a-z-]+\)", "", " ".join(filter(None, map(str.strip, clauses)))) + end


@cache
def load_library() -> ctypes.CDLL:
    """Loads and initializes eSpeak NG, once per process. Raises `ValueError` if it is not installed."""
    with needing("Phonemes need espeakng-loader (GPL-3.0-or-later): pip install espeakng-loader"):
        import espeakng_loader
    library, data = ctypes.CDLL(str(espeakng_loader.get_library_path())), Path(espeakng_loader.get_data_path())
    library.espeak_TextToPhonemes.restype = ctypes.c_char_p
    library.espeak_GetCurrentVoice.restype = ctypes.POINTER(ctypes.c_char_p * 3)  # name, languages, file
    library.espeak_TextToPhonemes.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, ctypes.c_int]
    if len(os.fsencode(data)) > 159:  # the longest path that eSpeak NG accepts
        library.short = tempfile.TemporaryDirectory()  # lives as long as the library, which reads from it
        (short := Path(library.short.name, "data")).symlink_to(data, target_is_directory=True)
        data = short
    if library.espeak_Initialize(AUDIO_OUTPUT_SYNCHRONOUS, 0, os.fsencode(data), INITIALIZE_DONT_EXIT) <= 0:
        raise ValueError(f"eSpeak NG could not be initialized with its data in {data}.")
    library.voice = None
    return library
