"""Hypothesis strategies of files for every parser of untrusted input: damaged valid files, and invented ones."""

import bz2
import hashlib
import io
import json
import pickle
import struct
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import soundfile
from hypothesis import strategies as st
from test_download import tarred

from myxtts.audio.files import read_audio
from myxtts.config.checks import UNPRINTABLE
from myxtts.config.config import config_from_dict, read_yaml
from myxtts.data import download
from myxtts.data.corpora import load_corpus
from myxtts.interchange.coqui.settings import read_settings
from myxtts.interchange.coqui.torch_checkpoint import read_torch_checkpoint, write_torch_checkpoint
from myxtts.storage.checkpoint import CheckpointStore, StoredTensors, write_manifest
from myxtts.storage.files import read_json
from myxtts.storage.speakers import read_speaker, read_speakers, write_speakers
from myxtts.text.cleaners import split_sentences
from myxtts.text.languages import LANGUAGES
from myxtts.text.tokenizer import XTTSTokenizer

odd_numbers = st.sampled_from([0, -1, 1, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64, 10**30, 1e308, float("inf")])
odd_texts = st.sampled_from(
    ["", "\0", "\ud800", "../x", "/dev/zero", "\u202e", "=1+1", "a" * 5000, "[STOP]", "%s", "{}"]
)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | odd_numbers | st.text(max_size=20) | odd_texts
values = st.recursive(
    scalars, lambda of: st.lists(of, max_size=4) | st.dictionaries(st.text(max_size=8), of, max_size=4), max_leaves=12
)
"""JSON values."""


@st.composite
def damaged(draw, content: bytes):
    """Draws `content` with some bytes changed, removed, repeated or inserted, so few that parsers read a part of it."""
    content = bytearray(content)
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, max(0, len(content) - 1)))
        kind = draw(st.sampled_from(["alter", "alter", "number", "cut", "drop", "double", "insert"]))
        if kind == "alter" and content:
            content[start] = draw(st.integers(0, 255))
        elif kind == "number":
            number = draw(st.sampled_from([0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**16]))
            content[start : start + 4] = struct.pack(draw(st.sampled_from("<>")) + "I", number)
        elif kind == "cut":
            del content[start:]
        elif kind == "drop":
            del content[start : start + draw(st.integers(1, 64))]
        elif kind == "double":
            content[start:start] = content[start : start + 64] * draw(st.integers(1, 50))
        else:
            content[start:start] = draw(st.binary(max_size=30))
    return bytes(content)


@st.composite
def altered_json(draw, document):
    """Draws `document` as JSON bytes, with some values replaced or removed; sometimes the bytes are damaged, too."""
    document = json.loads(json.dumps(document))
    for _ in range(draw(st.integers(0, 3))):
        place = document
        while isinstance(place, (dict, list)) and place:
            key = (
                draw(st.sampled_from(sorted(place)))
                if isinstance(place, dict)
                else draw(st.integers(0, len(place) - 1))
            )
            if not isinstance(place[key], (dict, list)) or not place[key] or draw(st.integers(0, 3)) == 0:
                if draw(st.integers(0, 3)) == 0:
                    del place[key]
                else:
                    place[key] = draw(values)
                break
            place = place[key]
    content = json.dumps(document).encode()
    return draw(damaged(content)) if draw(st.integers(0, 2)) == 0 else content


# --- Each parser: a strategy of files `{name: content}`, and what reads them from a folder.

odd_letters = "abz ÄéпسلامዐÑ你한'\"=+-@\t\x0b\x1c\u2028\u202e\ufeff\ufffd\0\x1b😀./\\"
usual_cells = "a b wavs/a ../../etc/passwd /etc/passwd c:/x id text speaker audio_file language".split()
cells = st.text(st.sampled_from(odd_letters), max_size=12) | st.sampled_from([*usual_cells, "x" * 70_000, ""])
rows = st.lists(cells, min_size=1, max_size=5)


@st.composite
def corpora(draw):
    """Draws the files of a corpus in any of the layouts, or in several of them at once."""
    lines = draw(st.lists(rows, max_size=8))
    separators = st.sampled_from(["|", "|", "|", ",", "\t"])
    text = draw(st.sampled_from(["\n", "\r\n", "\r"])).join(draw(separators).join(row) for row in lines)
    encoding = draw(st.sampled_from(["utf-8", "utf-8", "utf-8-sig", "utf-16", "latin-1", "utf-32-le"]))
    content = draw(damaged(text.encode(encoding, "replace")))
    names = ["metadata.csv", "speakers.csv", "a.txt", "b.txt", "anna/metadata.csv", "anna/a.txt", "anna/speakers.csv"]
    names += "metadata.jsonl metadata_train.csv train.csv val.txt wav.scp text transcripts.txt x.trans.txt".split()
    files = {name: content for name in draw(st.lists(st.sampled_from(names), min_size=1, max_size=4))}
    return files | dict.fromkeys(draw(st.sets(st.sampled_from(["wavs/a.wav", "a.wav", "b.FLAC", "anna/a.wav"]))), b"x")


def read_corpus(folder):
    corpus = load_corpus(folder)
    assert all(Path(u.wav_path).is_relative_to(folder.resolve()) for u in corpus.utterances)
    assert len({u.id for u in corpus.utterances}) == len(corpus.utterances)
    shown = [*corpus.notes, *(u.speaker + u.language for u in corpus.utterances), *(r.id for r in corpus.rejections)]
    assert not any(UNPRINTABLE.search(one) for one in shown)


def _sounds():
    sound = 0.3 * np.sin(np.arange(6000) / 9)
    for name, form, subtype in (
        ("a.wav", "WAV", "PCM_16"),
        ("b.wav", "WAV", "FLOAT"),
        ("c.wav", "WAV", "IMA_ADPCM"),
        ("d.wav", "RF64", "PCM_24"),
        ("a.flac", "FLAC", "PCM_16"),
        ("a.ogg", "OGG", "VORBIS"),
        ("a.mp3", "MP3", "MPEG_LAYER_III"),
    ):
        buffer = io.BytesIO()
        soundfile.write(buffer, sound, 22050, format=form, subtype=subtype)
        yield name, buffer.getvalue()


SOUNDS = dict(_sounds())
sounds = st.sampled_from(sorted(SOUNDS)).flatmap(lambda name: st.fixed_dictionaries({name: damaged(SOUNDS[name])}))


def read_sound(folder):
    (path,) = folder.iterdir()
    assert np.isfinite(read_audio(path, max_seconds=60).samples).all()


def _released():
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = {"model": {"a": np.ones((2, 3), np.float32), "b": np.arange(4)}, "step": 3, "config": {"x": [1.5]}}
        write_torch_checkpoint(Path(folder, "model.pth"), checkpoint)
        return Path(folder, "model.pth").read_bytes()


RELEASED = _released()
with zipfile.ZipFile(io.BytesIO(RELEASED)) as _archive:
    PICKLED = _archive.read("archive/data.pkl")
OPCODES = b"(.0125FIJKLMNPQRSTUVXabcdeghijloqrstu}]\x80\x81\x82\x85\x86\x87\x88\x89\x8a\x8c\x8e\x8f\x90\x92\x93\x94\x95"


@st.composite
def checkpoint_files(draw):
    """Draws a `.pth` file that is damaged as a whole, or a valid one with a damaged, invented or arbitrary pickle."""
    kind = draw(st.integers(0, 3))
    if kind == 0:
        return {"model.pth": draw(damaged(RELEASED))}
    made_up = st.lists(st.sampled_from([bytes([code]) for code in OPCODES]) | st.binary(max_size=4), max_size=60)
    pickles = damaged(PICKLED), made_up.map(b"".join), values.map(lambda value: pickle.dumps(value, 2))
    pickled = draw(pickles[kind - 1])
    if draw(st.booleans()):
        magic = pickle.dumps(0x1950A86A20F9469CFC6C, 2)
        return {"model.pth": magic + pickle.dumps(1001, 2) + pickle.dumps({}, 2) + pickled + pickle.dumps(["0"], 2)}
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(RELEASED)) as source, zipfile.ZipFile(buffer, "w") as target:
        for entry in source.infolist():
            content = pickled if entry.filename.endswith("data.pkl") else source.read(entry)
            target.writestr(zipfile.ZipInfo(entry.filename), content)
    return {"model.pth": buffer.getvalue()}


def _safetensors():
    with tempfile.TemporaryDirectory() as folder:
        write_speakers(folder, {"Ana": (np.ones((1, 2, 4), np.float32), np.ones((1, 6), np.float32))})
        content = next(Path(folder).iterdir()).read_bytes()
    size = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + size]), content[8 + size :]


HEADER, DATA = _safetensors()


@st.composite
def tensor_files(draw):
    header = draw(
        altered_json(HEADER) | altered_json(HEADER | {"x": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}})
    )
    size = draw(
        st.just(len(header)) | st.just(len(header)) | odd_numbers.filter(lambda n: isinstance(n, int) and n >= 0)
    )
    return {"speakers.safetensors": draw(damaged(struct.pack("<Q", size % 2**64) + header + DATA))}


def read_voices(folder):
    for name in read_speakers(folder):
        read_speaker(folder, name)
    dict(StoredTensors(folder / "speakers.safetensors"))


CONFIG = {
    "model": {"size": "nano", "layers": 2, "speaker_channels": [16, 32, 64, 128]},
    "data": {"batch_size": 4, "max_seconds": 5.5, "conditioning_seconds": [1, 2]},
    "training": {"gpt": {"max_steps": 3, "learning_rate": 1e-3}, "seed": 1, "checkpoint_dir": "x", "ema": None},
    "sampling": {"temperature": 0.7},
}
yaml_texts = st.text(st.sampled_from("&*[]{}:,-?!|>'\"#%@`<~ \nab10.e_\t"), max_size=200).map(str.encode)


def read_config(folder):
    config_from_dict(read_yaml(folder / "run.yaml"))


VOCABULARY = json.loads(XTTSTokenizer.train([("hello world hello there", "en"), ("", "fa"), ("", "ja")], 60).to_json())


def read_vocabulary(folder):
    tokenizer = XTTSTokenizer.from_file(folder / "vocab.json")
    if "en" in tokenizer.languages:
        tokenizer.decode(tokenizer.encode("hello [STOP] wörld", "en"))


def _checkpoint():
    with tempfile.TemporaryDirectory() as folder:
        store = CheckpointStore(folder)
        store.write(
            1, {"model": {"a": np.ones(2, np.float32)}}, {"finished": True, "history": [{"step": 1}]}, best=True
        )
        return {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


CHECKPOINT = _checkpoint()
STATE, MANIFEST = (f"step_00000001/{name}.json" for name in ("state", "manifest"))


@st.composite
def checkpoints(draw):
    """Draws a checkpoint with one changed JSON file; a file `sign` makes `read_checkpoint` update the checksums."""
    name = draw(st.sampled_from([STATE, MANIFEST, "best.json"]))
    altered = draw(altered_json(json.loads(CHECKPOINT[name])))
    return CHECKPOINT | {name: altered} | ({"sign": b""} if draw(st.booleans()) else {})


def read_checkpoint(folder):
    step_folder = folder / "step_00000001"
    if (folder / "sign").exists() and (step_folder / "manifest.json").read_bytes() == CHECKPOINT[MANIFEST]:
        write_manifest(step_folder)
    store = CheckpointStore(folder)
    store.best_step()
    if (step := store.newest_sound(lambda said: None)) is not None:
        store.read(step, ("model",))


SETTINGS = {"model_args": {"gpt_n_heads": 2, "gpt_layers": 30}, "temperature": 0.6, "top_k": 40, "gpt_cond_len": 20}


TARRED = tarred({"LJ/metadata.csv": b"a|b|c\n", f"LJ/wavs/{'a' * 120}é.wav": bytes(600), "LJ/b": b""}, "w")


def read_archive(folder):
    content = bz2.compress((folder / "a.tar").read_bytes())
    (folder / "a.myxtts-part").write_bytes(content)
    known = download.Archive("a", "http://127.0.0.1:9/", hashlib.sha256(content).hexdigest(), len(content), 10**6)
    download.download_ljspeech(folder / "out", known)


_WORDS = (
    "1 12 1,234.56 10^9 ١٢٣ ۴٫۵ 12:30 3/4 £5 $1.2m Dr. e.g. 'n' ... ?! \" « » [STOP] [en] አማርኛ سلام‌ها 你好 日本語 한글 "
    "Ⅷ ½ ₂ x² € 1900s 99999999999999999999999 0x1F 1e400 a@b.c http://x.y/?z=1 #5 ±3° -40 C++ 2nd 1er 10:99 31.12.1999"
).split()
repeated = st.tuples(st.text(min_size=1, max_size=3) | st.sampled_from(_WORDS), st.integers(1, 2000))
texts = (
    st.text(max_size=60)
    | st.lists(st.sampled_from(_WORDS) | st.text(max_size=5), max_size=30).map(" ".join)
    | repeated.map(lambda pair: pair[0] * pair[1])
)
TOKENIZER = XTTSTokenizer.train([("hello world", "en"), *(("", code) for code in sorted(LANGUAGES))], 120)


def read_text(folder):
    language, text = (folder / "text").read_text("utf-8", "surrogatepass").split("\n", 1)
    TOKENIZER.check(text, language)
    TOKENIZER.decode(TOKENIZER.encode(text, language))
    "".join(split_sentences(text, language))


spoken = st.tuples(st.sampled_from(sorted(LANGUAGES)), texts).map(
    lambda pair: "\n".join(pair).encode("utf-8", "surrogatepass")
)
PARSERS = {
    "lists": (corpora(), read_corpus),
    "audio": (sounds, read_sound),
    ".pth": (checkpoint_files(), lambda folder: read_torch_checkpoint(folder / "model.pth")),
    "safetensors": (tensor_files(), read_voices),
    "YAML": (st.fixed_dictionaries({"run.yaml": altered_json(CONFIG) | yaml_texts}), read_config),
    "vocab.json": (st.fixed_dictionaries({"vocab.json": altered_json(VOCABULARY)}), read_vocabulary),
    "checkpoint JSON": (checkpoints(), read_checkpoint),
    "config.json": (
        st.fixed_dictionaries({"config.json": altered_json(CONFIG)}),
        lambda run: config_from_dict(read_json(run / "config.json")),
    ),
    "released config.json": (
        st.fixed_dictionaries({"config.json": altered_json(SETTINGS)}),
        lambda folder: read_settings(folder / "config.json", None),
    ),
    "archives": (st.fixed_dictionaries({"a.tar": damaged(TARRED)}), read_archive),
    "text": (st.fixed_dictionaries({"text": spoken}), read_text),
}
"""By name: a strategy for the files of a folder, and the function that reads them."""
