"""The sample corpus: a small set of spoken sentences in several voices, made offline by eSpeak NG.

With it the first training run needs no data and no network. It has the LJSpeech layout (`metadata.csv`, `wavs/`) and a
`speakers.csv` with `id,speaker,language`. Sentences come from a small grammar per language, so that the smallest model
hears every word often; some of each are never spoken in it (`unheard_sentences`), so that one can try whether a model
says what it has not heard.
"""

import importlib
import itertools
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from myxtts.config.checks import UserError
from myxtts.data.espeak_ng import SpeechJob, speak_to_files
from myxtts.storage.files import CheckpointError, digest_bytes, digest_file, read_json, write_json, write_whole_folder

WORDS_PER_MINUTE = 165
DEFAULT_NUM_CLIPS = 880
DEFAULT_LANGUAGES = ("en",)
UNHEARD_EVERY = 13
"""Of the sentences that a grammar yields, one in so many is in no clip; a prime, so that every word is among them."""
MANIFEST_FILE = "sample_corpus.json"
# Raise it when the way clips are made changes; a change of voices or sentences is noticed without.
FORMAT_VERSION = 1


class SampleCorpusError(UserError):
    """The sample corpus cannot be made; the message says what to do about it."""


class Voice(NamedTuple):
    """One speaker: the eSpeak NG `variant` (a vocal tract) speaking the eSpeak NG language `espeak_language`.

    `language` is the tokenizer's code, written to `speakers.csv`; `pitch` is 0 to 100, eSpeak NG's usual being 50.
    """

    speaker: str
    language: str
    espeak_language: str
    variant: str
    pitch: int


VOICES = (
    Voice("emma", "en", "en-us", "f2", 44),
    Voice("noah", "en", "en-us", "Gene", 46),
    Voice("lena", "de", "de", "f2", 45),
    Voice("jonas", "de", "de", "Gene", 45),
    Voice("carlos", "es", "es", "Gene", 45),
    Voice("chloe", "fr", "fr", "f2", 45),
    Voice("parisa", "fa", "fa", "f2", 45),
    Voice("dawit", "am", "am", "Gene", 45),
)
"""Variants and pitches that the model in the box was trained on, so that a run that starts from it knows them."""


# Per language: its code and full stop, two lines of phrases, then a line for each slot.
_GRAMMARS = """
en .
Good morning, how are you?|Thank you very much.|See you tomorrow.
Where is the station?|I am very happy today.|Please open the door.
My mother|The teacher|Our neighbour|The little girl|The old man
sees|likes|looks for|finds
the red house|a small dog|fresh bread|the blue book|a cup of tea|the green garden
today|now|every day|in the morning

de .
Guten Morgen, wie geht es dir?|Vielen herzlichen Dank.|Wir sehen uns morgen.
Wo ist der Bahnhof?|Ich bin heute sehr froh.|Bitte öffne die Tür.
Meine Mutter|Der Lehrer|Unser Nachbar|Das kleine Mädchen|Der alte Mann
sieht|mag|sucht|findet
heute|jetzt|jeden Tag|am Morgen
das rote Haus|einen kleinen Hund|frisches Brot|das blaue Buch|eine Tasse Tee|den Garten

es .
Buenos días, ¿cómo estás?|Muchas gracias por todo.|Nos vemos mañana.
¿Dónde está la estación?|Hoy estoy muy feliz.|Abre la puerta, por favor.
Mi madre|El maestro|Nuestro vecino|La niña pequeña|El hombre viejo
ve|quiere|busca|encuentra
la casa roja|un perro pequeño|pan fresco|el libro azul|una taza de té|el jardín verde
hoy|ahora|cada día|por la mañana

fr .
Bonjour, comment vas-tu ?|Merci beaucoup pour tout.|À demain, mon ami.
Où est la gare ?|Je suis très heureux aujourd'hui.|Ouvre la porte, s'il te plaît.
Ma mère|Le professeur|Notre voisin|La petite fille|Le vieil homme
voit|aime|cherche|trouve
la maison rouge|un petit chien|du pain frais|le livre bleu|une tasse de thé|le jardin
aujourd'hui|maintenant|chaque jour|le matin

fa .
سلام، حال شما چطور است؟|خیلی ممنون.|فردا می‌بینمت.
ایستگاه کجاست؟|من امروز خیلی خوشحالم.|لطفاً در را باز کن.
مادرم|معلم|همسایه|دختر کوچک|پیرمرد
امروز|اکنون|هر روز|صبح
خانه را|سگ کوچک را|نان تازه را|کتاب آبی را|چای را|باغ سبز را
می‌بیند|می‌خواهد|می‌آورد|دوست دارد

am ።
ሰላም፣ እንዴት ነህ?|በጣም አመሰግናለሁ።|ነገ እንገናኛለን።
ጣቢያው የት ነው?|ዛሬ በጣም ደስ ብሎኛል።|እባክህ በሩን ክፈት።
ልጁ|መምህሩ|ጎረቤታችን|ወንድሜ|አባቴ
ዛሬ|ትናንት|ጠዋት|ማታ
ቤቱን|ትንሹን ውሻ|ዳቦውን|መጽሐፉን|ሻዩን|አትክልቱን
አየ|ወደደ|ፈለገ|አገኘ
"""


def _read_sentences(text):
    for block in text.strip().split("\n\n"):
        head, *lines = block.splitlines()
        language, full_stop = head.split()
        first, second, *slots = (line.split("|") for line in lines)
        yield language, [*first, *second, *(" ".join(words) + full_stop for words in itertools.product(*slots))]


_NUM_PHRASES = 6
"""Sentences of each language that its slots do not make; they come first."""
SENTENCES = dict(_read_sentences(_GRAMMARS))
"""All sentences of each language, in a fixed order: its phrases, then every choice of one entry of each slot."""

README = """# MyXTTS sample corpus

{num_clips} short sentences in {languages} languages by {voices} synthetic voices, 22 050 Hz, 16 bit, mono.
Made on this machine by MyXTTS, to try training without any data. Layout: LJSpeech (`metadata.csv`:
`id|text|normalized text`; `wavs/`) and `speakers.csv`: `id,speaker,language`. `sample_corpus.json` holds a checksum per
file; a damaged corpus is made anew.

The speech is eSpeak NG's (https://github.com/espeak-ng/espeak-ng, GPL-3.0-or-later), reached through the Python package
`espeakng-loader`. The sentences are MyXTTS's own and free for any use. MyXTTS ships neither eSpeak NG nor these clips;
before you pass them on, or a model trained on them, consider eSpeak NG's license.
"""


class Clip(NamedTuple):
    """One sentence to be spoken."""

    id: str
    text: str
    voice: Voice


def make_sample_corpus(
    root: Path, *, seed: int = 0, num_clips: int = DEFAULT_NUM_CLIPS, languages: Sequence[str] = DEFAULT_LANGUAGES
) -> Path:
    """Makes the sample corpus in `root`, or finds it there whole.

    The corpus is built next to `root` and renamed at the end, so `root` never holds a part of one. A corpus that is
    damaged, or was made with another seed, size or languages, is replaced.

    Args:
        root: Folder of the corpus: new, empty, or with a sample corpus in it. Returned absolute.
        seed: Decides the sentences.
        num_clips: Number of clips, dealt evenly to the `VOICES` of the languages; each lasts 1 to 3 s.
        languages: Codes of some of `SENTENCES`.

    Raises:
        SampleCorpusError: `root` holds something that is not a sample corpus, or the `espeakng-loader` package is not
            installed.
        RuntimeError: eSpeak NG failed.
        ValueError: `num_clips` is below 1 or above what the grammars yield.
    """
    root = Path(root).absolute()
    clips = plan_clips(seed, num_clips, languages)
    plan = digest_bytes(json.dumps([FORMAT_VERSION, WORDS_PER_MINUTE, clips]).encode())
    if _is_complete(root, plan):
        return root
    _check_replaceable(root)
    try:
        importlib.import_module("espeakng_loader")
    except ModuleNotFoundError as error:
        missing = "The sample corpus needs the package espeakng-loader, which is not installed."
        way_out = "Run: pip install espeakng-loader  (or give recordings of your own with --train-data)."
        raise SampleCorpusError(f"{missing} {way_out}") from error
    try:
        # Not synced: a corpus that a power failure damaged is noticed by its checksums and made again.
        with write_whole_folder(root, sync=False) as new:
            (new / "wavs").mkdir()
            jobs = [
                SpeechJob(str(new / "wavs" / f"{name}.wav"), text, *speech, WORDS_PER_MINUTE)
                for name, text, (_, _, *speech) in clips
            ]
            speak_to_files(jobs)
            _write_tables(clips, new)
            files = {path.relative_to(new).as_posix(): digest_file(path) for path in _files(new)}
            write_json(new / MANIFEST_FILE, {"plan": plan, "files": files})
    except OSError:
        # Another process was faster; the same settings make the same corpus.
        if not _is_complete(root, plan):
            raise
    return root


def plan_clips(seed: int, num_clips: int, languages: Sequence[str] = DEFAULT_LANGUAGES) -> list[Clip]:
    """Chooses the sentences of each voice, none twice in one voice, in a fixed order."""
    voices = [voice for voice in VOICES if voice.language in languages]
    if unknown := set(languages).difference(SENTENCES):
        known = ", ".join(SENTENCES)
        raise SampleCorpusError(f"The sample corpus can be in {known}. Received: {', '.join(sorted(unknown))}.")
    if not voices:
        raise SampleCorpusError(f"The sample corpus needs a language: one or more of {', '.join(SENTENCES)}.")
    heard = {language: _heard_sentences(language) for language in languages}
    largest = len(voices) * min(map(len, heard.values()))
    if not 1 <= num_clips <= largest:
        raise ValueError(f"num_clips must be from 1 to {largest}, which the grammars yield. Received: {num_clips}.")
    clips = []
    for number, voice in enumerate(voices):
        share = len(range(number, num_clips, len(voices)))
        # A string seeds the same sequence on every platform and Python version.
        sentences = random.Random(f"{seed} {voice.speaker}").sample(heard[voice.language], share)
        clips += [Clip(f"{voice.language}_{voice.speaker}_{k:03d}", text, voice) for k, text in enumerate(sentences)]
    return clips


def unheard_sentences(language: str) -> list[str]:
    """Sentences of a language's grammar that are in no sample corpus, every word of which is."""
    return SENTENCES[language][_NUM_PHRASES::UNHEARD_EVERY]


def _heard_sentences(language):
    unheard = set(unheard_sentences(language))
    return [sentence for sentence in SENTENCES[language] if sentence not in unheard]


def _files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


def _read_manifest(root: Path) -> tuple[str, dict[str, str]]:
    """The digest of what the corpus was made from, and one for each of its files; nothing without a whole manifest."""
    try:
        manifest = read_json(root / MANIFEST_FILE)
        return manifest["plan"], manifest["files"]
    except (CheckpointError, KeyError, TypeError):
        return "", {}


def _is_complete(root: Path, plan: str) -> bool:
    made_of, files = _read_manifest(root)
    found = ((root / name, digest) for name, digest in files.items())
    return made_of == plan and all(path.is_file() and digest_file(path) == digest for path, digest in found)


def _check_replaceable(root: Path) -> None:
    """Raises `SampleCorpusError` when making the corpus in `root` would cost the user a file."""
    _, files = _read_manifest(root)
    made_here = {root / name for name in (MANIFEST_FILE, *files)} if files else set()
    found = _files(root) if root.is_dir() else filter(Path.exists, [root])
    foreign = next((path for path in found if path not in made_here), None)
    if foreign is not None:
        rule = f"{root} must be new, empty or nothing but a sample corpus."
        raise SampleCorpusError(f"{rule} Found: {foreign}. Choose another folder.")


def _write_tables(clips: list[Clip], root: Path) -> None:
    metadata = "".join(f"{clip.id}|{clip.text}|{clip.text}\n" for clip in clips)
    speakers = "".join(f"{clip.id},{clip.voice.speaker},{clip.voice.language}\n" for clip in clips)
    languages, voices = {clip.voice.language for clip in clips}, {clip.voice for clip in clips}
    readme = README.format(num_clips=len(clips), languages=len(languages), voices=len(voices))
    tables = {"metadata.csv": metadata, "speakers.csv": "id,speaker,language\n" + speakers, "README.md": readme}
    for name, text in tables.items():
        (root / name).write_text(text, encoding="utf-8", newline="\n")
