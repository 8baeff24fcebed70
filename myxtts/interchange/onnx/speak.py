"""Speaks text with an exported XTTS model. Needs Python 3.11 or newer,
numpy and onnxruntime; num2words for texts with numbers; py3langid to tell
the language of a text by its words; and espeakng-loader for models that
read phonemes, such as `base`.

    python speak.py --text "Good morning." --voice NAME --output out.wav
    python speak.py --list-voices

From Python: `Speaker(folder).speak("Good morning.", voice="NAME")` returns
float32 samples at `Speaker.sample_rate` Hz. A voice is a name or a WAV file.
The modules in the folder `reading` read numbers, abbreviations and symbols,
and compute noise, speed and fades, as MyXTTS does.
"""

import argparse
import hashlib
import importlib.util
import itertools
import json
import mmap
import os
import re
import sys
import threading
import unicodedata
import wave
from pathlib import Path

import numpy as np

WAV_RULE = "a complete PCM WAV file of 1 to 8 channels at 4000 to 384000 Hz"
SILENT_PEAK = 1e-3
CACHE_ROWS = 64
"""The key-value cache grows to the next multiple of this number of positions."""
RULES = {
    "seed": (int, "sampling seed", "0 to 9223372036854775807", lambda value: 0 <= value < 2**63),
    "speed": (float, "speaking rate", "0.25 to 4.0", lambda value: 0.25 <= value <= 4),
    "temperature": (float, "sampling temperature, 0 is greedy", "at least 0", lambda value: 0 <= value <= 10**9),
    "top_k": (int, "codes to sample from, 0 is all", "at least 0", lambda value: 0 <= value <= 10**9),
    "top_p": (float, "their total probability", "at least 1e-06 and at most 1", lambda value: 1e-6 <= value <= 1),
    "repetition_penalty": (float, "1 is none", "at least 1e-06", lambda value: 1e-6 <= value <= 10**9),
}
"""Parameters of `speak` by name: type, help text, permitted range as text, and a function that checks the range."""


class Vocabulary:
    """Byte-pair tokenizer, read from `vocab.json`."""

    def __init__(self, path):
        document = json.loads(Path(path).read_text(encoding="utf-8"))
        model, self.special = document["model"], [token["content"] for token in document["added_tokens"]]
        self.ids = {token["content"]: token["id"] for token in document["added_tokens"]} | model["vocab"]
        pairs = (tuple(pair.split(" ")) if isinstance(pair, str) else tuple(pair) for pair in model["merges"])
        self.ranks = {pair: rank for rank, pair in enumerate(pairs)}
        self.unknown = self.ids[model["unk_token"]]
        self.characters = frozenset(one for one in self.ids if len(one) == 1) | {" "}
        self.cut = re.compile("(" + "|".join(map(re.escape, sorted(self.special, key=len, reverse=True))) + ")")

    def raw_ids(self, text):
        """Converts a text that contains control tokens, such as `[en]` and `[SPACE]`, to token ids."""
        found = []
        for part in self.cut.split(text):
            runs = ("".join(run) for kind, run in itertools.groupby(part, _kind) if kind != "space")
            merged = (token for run in runs for token in self._merged(run))
            found += [self.ids.get(token, self.unknown) for token in ([part] if part in self.special else merged)]
        return found

    def _merged(self, word):
        """Splits a word into tokens by byte-pair encoding."""
        tokens = list(word)
        while len(tokens) > 1:
            at = min(range(len(tokens) - 1), key=lambda i: self.ranks.get((tokens[i], tokens[i + 1]), float("inf")))
            if (tokens[at], tokens[at + 1]) not in self.ranks:
                break
            tokens[at : at + 2] = [tokens[at] + tokens[at + 1]]
        return tokens


def _kind(character):
    """Returns "space" for white space, True for a character of a word, and False for others, such as punctuation."""
    category = unicodedata.category(character)
    is_word = category[0] in "LM" or category in ("Nd", "Nl", "Pc") or character in "\u200c\u200d"
    return "space" if character.isspace() else is_word


class Speaker:
    """Speaks texts and clones voices with the exported model in `folder`. `threads` is the number of CPU threads, or 0
    for all cores. None means one thread for a small model, and all cores for other models."""

    def __init__(self, folder=".", threads=None):
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # `myxtts/__init__.py` has not run if this file runs alone
        import onnxruntime

        self.folder = folder = Path(folder)
        self.runtime, self.sessions, self.options = onnxruntime, {}, onnxruntime.SessionOptions()
        self.loading = threading.Lock()
        self.found = {path.stem: path.stat().st_mtime_ns for path in folder.glob("*.onnx")}
        is_small = sum(path.stat().st_size for path in folder.glob("gpt.*")) < 10**8  # one thread is faster then
        self.options.intra_op_num_threads = int(is_small) if threads is None else threads
        try:
            self.config = json.loads((path := folder / "config.json").read_text(encoding="utf-8"))
            self.model, self.sample_rate = self.config["model"], self.config["sample_rate"]
            g2p = (*self.config["written_as_it_sounds"], *["espeak"] * bool(self.config["espeak_voices"]))
            self.vocabulary = Vocabulary(path := folder / "vocab.json")
            with np.load(path := folder / "voices.npz") as voices:
                names = [unicodedata.normalize("NFC", name) for name in voices["names"].tolist()]
                self.voices = dict(zip(names, zip(voices["latents"], voices["speakers"])))
                self.voice_languages = dict(zip(names, voices["languages"].tolist()))
                self.trained = dict(zip(names, voices.get("trained", [False] * len(names))))  # older exports have none
            for name, expected in dict(self.config.get("reading", {})).items():  # older exports have none
                if digest(path := folder / "reading" / name) != expected:
                    raise ValueError("it was changed after the export")
        except (AttributeError, NameError):  # errors of this program: no damaged file raises these
            raise
        except Exception as error:  # the errors of damaged files have no common base class
            raise ValueError(f"{path} is missing or damaged: {type(error).__name__}: {error}") from error
        if not getattr(importlib.util.find_spec("myxtts"), "origin", None):  # not installed (a folder has no origin)
            sys.path.append(str(folder / "reading"))
        from myxtts.text.reading import Reader

        # By its path: the program may have loaded the modules of another version or of another export.
        home = Path(__file__).resolve().parents[2] if __name__.startswith("myxtts.") else folder / "reading/myxtts"
        spec = importlib.util.spec_from_file_location("windows", home / "inference/windows.py")
        spec.loader.exec_module(windows := importlib.util.module_from_spec(spec))
        self.windows = windows
        self.reader = Reader(self.vocabulary.characters, self.vocabulary.cut, g2p)

    def run(self, name, **arrays):
        """Runs the graph `name` and returns its outputs by name. Raises `RuntimeError` if loading or running fails."""
        path = str(self.folder / f"{name}.onnx")
        try:
            if name not in self.sessions:  # first without the lock: loading a graph must not block others
                with self.loading:
                    if name not in self.sessions:
                        if Path(path).stat().st_mtime_ns != self.found.get(name):  # from another export
                            raise ValueError("it was replaced while the model was in use; open the model again")
                        session = self.runtime.InferenceSession(path, self.options, providers=["CPUExecutionProvider"])
                        self.sessions[name] = session, [output.name for output in session.get_outputs()]
            session, names = self.sessions[name]
            return dict(zip(names, session.run(names, arrays)))
        except Exception as error:  # the errors of ONNX Runtime have no other common base class
            raise RuntimeError(f"{path} cannot be run: {error}") from error

    def speak(self, text, voice=None, language=None, seed=0, speed=1.0, **sampling):
        """Synthesizes a text to samples `(S,)` float32. A speed of 2 is twice as fast. `sampling` may contain
        `temperature`, `top_k`, `top_p` and `repetition_penalty`. For the default voice and language, see `choose`."""
        for name, value in dict(sampling, seed=seed, speed=speed).items():
            if name not in RULES:
                raise TypeError(f"speak() has no parameter {name}. Its sampling parameters: {', '.join(RULES)}.")
            kind, _, rule, holds = RULES[name]
            if not holds(value) or kind(value) != value:
                raise ValueError(f"--{name.replace('_', '-')} must be {rule} ({kind.__name__}). Received: {value}.")
        voice, language = self.choose(voice, language, text)
        voice, parts, pieces = self.voice(voice), [], self.sentences(text, language)
        if missing := self.reader.unknown(self.reader.spoken(text, language), language):  # also those of dropped pieces
            print(f"Skipped characters unknown to the model in {language}: {' '.join(missing)}", file=sys.stderr)
        for number, (sentence, pause) in enumerate(pieces):
            ids = self.text_ids(sentence, language)
            samples, codes, stopped = self.sentence(ids, *voice, seed, number, speed, **sampling)
            if not stopped:
                print(f"Cut off after {len(codes)} codes: {sentence}", file=sys.stderr)
            parts += [samples, np.zeros(int(pause * self.sample_rate), np.float32)]
        return np.concatenate(parts[:-1])

    def choose(self, voice=None, language=None, text=""):
        """Returns `(voice, language)`, with defaults for None. The default voice is the only training voice or,
        if there is not exactly one, preferably a voice that speaks the returned language. The default language is that
        of the voice or, if it is not known, that of all training voices. If they differ or `text` does not fit, it is
        a guess from `text`, or English. Raises `ValueError` if the model lacks the language or `text` does not fit."""
        from myxtts.text.language_guess import guess_language, language_to_read
        from myxtts.text.languages import get_language

        languages, own = self.config["languages"], self.voice_languages
        trained = [name for name in own if self.trained[name]]
        given = unicodedata.normalize("NFC", str(voice or ""))
        voice = given if given in own else voice or (trained[0] if len(trained) == 1 else None)
        known = {own[name] for name in ([voice] if own.get(voice) else trained)}
        usual = known.pop() if len(known) == 1 else None
        asked = language and get_language(language, languages).code
        try:
            language, note = language_to_read(text, asked, usual, voice if voice in own else "", languages)
            _, fault = guess_language([text], language, languages)
        except ImportError:  # the letters fit neither `asked` nor `usual`
            language, fault, usual = asked or ("en" if "en" in languages else next(iter(languages))), "", None
            note = f"py3langid is not installed: the text is read as {language}; --language chooses another language."
        get_language(language, languages)  # raises ValueError for a guessed language that the model does not speak
        if fault:
            raise ValueError(f"--text: {fault}")
        if note and language != (asked or usual):
            print(note, file=sys.stderr)
        return voice or max(own, key=lambda name: (own[name] == language, self.trained[name]), default=""), language

    def sentence(self, ids, latents, speaker, seed=0, number=0, speed=1.0, **sampling):
        """Synthesizes a sentence from its token ids. `number` is the index of the sentence in the text. Returns samples
        `(S,)`, codes without the stop code, and whether a stop code was sampled."""
        states, codes = zip(*self.draw(ids, latents, seed, number, **sampling))
        has_audio = len(codes) >= max(2, speed)  # fewer states have no frame
        samples = self.sound(np.concatenate(states), speaker, speed) if has_audio else np.zeros(0, np.float32)
        return self.windows.faded(samples, self.sample_rate), codes[:-1], codes[-1] is not None

    def sentences(self, text, language):
        """Splits a text into sentences or shorter parts. Returns a list of `(part, seconds of pause after it)`."""
        if fault := self.reader.fault(self.reader.spoken(text, language), language):
            raise ValueError(f"The text cannot be spoken in {language}: {fault}. Change --text or --language.")
        ids = lambda read: self.vocabulary.raw_ids(self.reader.tagged(read, language))
        fits = lambda read: len(ids(read)) <= self.model["max_text_tokens"]
        return self.reader.pieces(text, language, self.config["longest_texts"][language], fits)

    def text_ids(self, text, language):
        """Converts a text to token ids, the first of which is the language tag. Drops characters without an id."""
        ids = self.vocabulary.raw_ids(self.reader.tagged(self.reader.spoken(text, language), language))
        return [one for one in ids if one != self.vocabulary.unknown]

    def draw(self, ids, latents, seed=0, sentence=0, max_codes=0, **sampling):
        """Samples the codes of the sentence with index `sentence`. Yields `(GPT state (1, width), code)` for each code.
        The last tuple contains the stop code, or None if `max_codes` codes were sampled without a stop code. If
        `max_codes` is 0, the model's limit applies."""
        model, values = self.model, self.sampling_values(**sampling)
        if len(ids) > model["max_text_tokens"]:
            raise ValueError(f"A sentence must have at most {model['max_text_tokens']} tokens. Received: {len(ids)}.")
        cache, most = Cache(model), model["max_codes"]
        text = np.array([[model["start_text_token"], *ids, model["stop_text_token"]]], np.int32)
        logits, hidden = cache.read(self.run, latents[None], text, model["start_audio_token"], 0)
        seen = np.zeros(logits.shape, bool)
        for number in range(min(max_codes or most, most)):
            noise = self.windows.gumbel_noise(seed, sentence, number, 1, logits.shape[1])
            drawn = self.run("draw", logits=logits, noise=noise, seen=seen, **values)
            code, seen = int(drawn["code"][0]), drawn["now_seen"]
            yield hidden, code
            if code == model["stop_audio_token"]:
                return
            logits, hidden = cache.read(self.run, latents[None, :0], text[:, :0], code, number + 1)
        yield hidden, None

    def sampling_values(self, **sampling):
        """Returns all sampling settings as arrays `(1, 1)`, by name. The model's defaults replace missing settings."""
        kind = lambda name: np.int32 if name == "top_k" else np.float32
        return {name: np.array([[one]], kind(name)) for name, one in {**self.config["sampling"], **sampling}.items()}

    def sound(self, states, speaker, speed=1.0, start=0, end=2**31 - 1):
        """Decodes the GPT states `(n, width)` of a sentence; returns samples `(S,)` of frames `start` to `end`."""
        arrays = dict(latents=self.windows.spoken_faster(states, speed)[None], speaker=speaker[None])
        return self.run("decoder", **arrays, start=np.array([start]), end=np.array([end]))["samples"][0]

    def voice(self, voice):
        """Returns latents `(num_latents, width)` and speaker vector of a voice, given its name or a WAV file's path."""
        if voice in self.voices:
            return self.voices[voice]
        if not Path(voice).is_file():
            raise ValueError(f"--voice must be a WAV file or a name from --list-voices. Received: {voice}.")
        heard = self.config["listening"]
        return self.listen(*read_wav(voice, heard["most_samples"] / heard["sample_rate"] + 1))

    def listen(self, samples, sample_rate):
        """Encodes a recording `(S,)` in [-1, 1]; returns latents and speaker vector, as `voice` does."""
        heard = self.config["listening"]
        length, least = heard["piece_samples"], heard["least_samples"]
        if len(samples) / sample_rate < least / heard["sample_rate"]:
            raise ValueError(f"The recording must be at least {least / heard['sample_rate']:.2g} s long.")
        recording = resampled(samples, sample_rate, heard["sample_rate"])[: heard["most_samples"]]
        samples = recording[: heard.get("conditioning_samples")]  # older exports have none
        if np.ptp(samples) / 2 < SILENT_PEAK:
            raise ValueError(f"The recording is silent: the used part stays below {SILENT_PEAK:g} of full scale.")
        wav = resampled(recording, heard["sample_rate"], heard["speaker_sample_rate"])
        if heard["repeats"]:
            samples = np.resize(samples, max(1, round(len(samples) / length)) * length)
        pieces = [samples[at : at + length] for at in range(0, len(samples), length)]
        pieces = [piece for piece in pieces if len(piece) >= least] or pieces[:1]
        latents = [self.run("conditioning", wav=piece[None])["latents"] for piece in pieces]
        return np.concatenate(latents).mean(axis=0), self.run("speaker", wav=wav[None])["speaker"][0]


class Cache:
    """Key-value cache of the GPT for one sentence."""

    def __init__(self, model):
        self.model, self.filled = model, 0
        heads, depth = model["heads"], model["width"] // model["heads"]
        self.keys = [np.zeros((1, heads, depth, 1), np.float32) for _ in range(model["layers"])]
        self.values = [np.zeros((1, heads, 1, depth), np.float32) for _ in range(model["layers"])]

    def read(self, run, latents, text, code, index):
        """Runs the GPT on latents `(1, N, width)`, text `(1, L)` and code number `index`. Returns logits and state."""
        new, size = latents.shape[1] + text.shape[1] + 1, self.keys[0].shape[3]
        mask = (np.arange(size + new) < self.filled) | (np.arange(size + new) >= size)
        arrays = {f"keys_{i}": one for i, one in enumerate(self.keys)}
        arrays |= {f"values_{i}": one for i, one in enumerate(self.values)}
        arrays |= dict(code=np.array([[code]], np.int32), index=np.array([index], np.int32), mask=mask[None])
        found = run("gpt", latents=latents, text=text, **arrays)
        if self.filled + new > size:
            room = -(-(self.filled + new) // CACHE_ROWS) * CACHE_ROWS - size
            self.keys = [np.pad(one, ((0, 0), (0, 0), (0, 0), (0, room))) for one in self.keys]
            self.values = [np.pad(one, ((0, 0), (0, 0), (0, room), (0, 0))) for one in self.values]
        rows = slice(self.filled, self.filled + new)
        for i in range(self.model["layers"]):
            self.keys[i][..., rows], self.values[i][:, :, rows] = found[f"new_keys_{i}"], found[f"new_values_{i}"]
        self.filled += new
        return found["logits"], found["hidden"]


def resampled(samples, rate, new_rate, zeros=48):
    """Resamples audio `(S,)` with a windowed sinc filter that has `zeros` zero crossings on each side."""
    if rate == new_rate:
        return samples.astype(np.float32)
    cutoff, count = min(1.0, new_rate / rate), len(samples) * new_rate // rate
    half = int(np.ceil(zeros / cutoff))
    padded, parts = np.pad(samples.astype(np.float64), half), [np.zeros(0)]
    for first in range(0, count, 4096):
        place = np.arange(first, min(first + 4096, count)) * (rate / new_rate)
        taps = place.astype(int)[:, None] + np.arange(1 - half, half + 1)
        distance = taps - place[:, None]
        weights = cutoff * np.sinc(cutoff * distance) * np.cos(np.pi / 2 * distance / half) ** 2
        parts.append((padded[taps + half] * weights).sum(axis=1))
    return np.concatenate(parts).astype(np.float32)


def digest(path):
    """Returns the SHA-256 of a text file. Unix and Windows line ends give the same digest."""
    return hashlib.sha256(path.read_text(encoding="utf-8").encode()).hexdigest()


def read_wav(path, seconds=3600):
    """Reads the first `seconds` of a WAV file; returns mono samples `(S,)` in [-1, 1] and the sample rate.
    Averages the channels that are not silent. If they cancel out, uses only the loudest channel."""
    try:
        with open(path, "rb") as place, mmap.mmap(place.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
            if found := re.search(rb"(?s)fmt .{4}\xfe\xff.{22}\x01\0", mapped[: 2**16]):  # PCM, EXTENSIBLE
                mapped[found.start() + 8 : found.start() + 10] = b"\1\0"  # WAVE_FORMAT_PCM: Python 3.11 knows no other
            file = wave.open(mapped)
            width, channels, rate = file.getsampwidth(), file.getnchannels(), file.getframerate()
            content = np.frombuffer(file.readframes(int(seconds * rate)), np.uint8).reshape(-1, channels, width)
            stated = file.getnframes() * channels * width  # not counting the header; huge if unknown to the writer
            is_cut = stated - len(mapped) > 980 and stated < 0x7FFF0000
        if is_cut or not len(content) or not (width <= 4 and channels <= 8 and 4000 <= rate <= 384000):
            raise wave.Error
    except (EOFError, ValueError, RuntimeError, wave.Error) as error:  # ValueError: a cut sample at the end
        raise ValueError(f'{path} is not {WAV_RULE}: `ffmpeg -i "{path}" -ac 1 "{path}-pcm.wav"` makes one.') from error
    whole = np.pad(content ^ (128 * (width == 1)), ((0, 0), (0, 0), (4 - width, 0)))  # 8-bit samples are unsigned
    frames = whole.view("<i4")[..., 0] / 2.0**31
    sounding = np.ptp(frames, axis=0) / 2 >= SILENT_PEAK
    frames = frames[:, sounding | ~sounding.any()]
    mono, loudness = frames.mean(axis=1), np.sqrt(np.mean(frames**2, axis=0))
    return mono if np.sqrt(np.mean(mono**2)) >= 0.1 * max(loudness) else frames[:, loudness.argmax()], rate


def main():
    layout = dict(usage="%(prog)s --text TEXT [options]", formatter_class=argparse.RawDescriptionHelpFormatter)
    add = (parser := argparse.ArgumentParser(description=__doc__, **layout)).add_argument
    add("--text", required="--li" not in " ".join(sys.argv), help='text to speak; "$(cat FILE)" gives that of a file')
    add("--voice", metavar="NAME", help="a name from --list-voices, or a WAV file")
    add("--language", metavar="CODE", help="such as de or German (default: the voice's, else detected)")
    add("--output", metavar="FILE", default="out.wav", help="WAV file to write (default: out.wav)")
    add("--threads", metavar="N", type=int, help="0: all cores (default: 1 for a small model, else 0)")
    add("--list-voices", action="store_true", help="list the voices and exit")
    for name, (kind, what, rule, _) in RULES.items():
        add(f"--{name.replace('_', '-')}", metavar="N", type=kind, default=argparse.SUPPRESS, help=f"{what} ({rule})")
    arguments, folder = vars(parser.parse_args()), Path(__file__).resolve().parent
    if sys.stdout:  # None if it is closed
        sys.stdout.reconfigure(errors="backslashreplace")  # for names in letters that a pipe on Windows cannot carry
    if not 0 <= (arguments["threads"] or 0) <= 256:
        parser.error(f"--threads must be 0 to 256. Received: {arguments['threads']}")
    if sys.version_info < (3, 11) or not importlib.util.find_spec("onnxruntime"):
        parser.error("Python 3.11 or newer with onnxruntime is needed: pip install numpy onnxruntime")
    sys.path.insert(0, str(folder / "reading"))  # prefer these copies, even if MyXTTS is installed
    try:
        speaker = Speaker(folder, arguments.pop("threads"))
    except ValueError as error:
        parser.error(f"{folder} is not a complete export. Export the model again. {error}")
    output, text, voice, language = (arguments.pop(name) for name in ("output", "text", "voice", "language"))
    if arguments.pop("list_voices"):
        return print("\n".join(speaker.voices))
    path = Path(output).resolve()
    if not output.lower().endswith(".wav") or not path.parent.is_dir() or path == Path(voice or "").resolve():
        parser.error(f"--output must be a .wav file in an existing folder, and not the voice. Received: {output}")
    try:
        voice, language = speaker.choose(voice, language, text)
        samples = speaker.speak(text, voice, language, **arguments)
        with open(output, "wb") as place, wave.open(place) as file:
            file.setparams((1, 2, speaker.sample_rate, 0, "NONE", ""))
            file.writeframes(np.rint(np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())
    except (ValueError, OSError, RuntimeError, ImportError) as error:
        fault = f"{error.filename} cannot be used: {error.strerror}." if getattr(error, "filename", None) else error
        parser.error(str(fault))
    print(f"Wrote {output}: {len(samples) / speaker.sample_rate:.2f} s, voice {voice}, language {language}")


if __name__ == "__main__":
    main()
