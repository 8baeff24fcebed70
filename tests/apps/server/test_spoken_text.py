"""Cleaning of texts from chat programs, and mapping of voice names of other servers."""

import json
import time
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="needs the extra server")

from myxtts.apps.server.gate import ApiError  # noqa: E402
from myxtts.apps.server.speech import plain_text, spoken_parts  # noqa: E402
from myxtts.apps.server.voices import OPENAI_VOICES, VoiceBook  # noqa: E402
from myxtts.config.checks import UserError  # noqa: E402

DATA = Path(__file__).resolve().parents[2] / "data"


@pytest.mark.parametrize("written, said", json.loads((DATA / "spoken.json").read_text("utf-8")))
def test_markup_and_addresses_are_not_read_out(written, said):
    assert " ".join(plain_text(written).split()) == said


@pytest.mark.parametrize(
    "text, parts",
    [
        ("One.[pause:1.5s]Two.", (0, [("One.", 1.5), ("Two.", 0)])),
        ("[pause: 2s] One [PAUSE:500ms] 🙂 [pause:1]", (2, [(" One ", 1.5)])),
        ("🙂", (0.1, [])), ("", (0.1, [])), ("…", (0.1, [])), ("[pause:3s]", (3, [])),
    ],
)  # fmt: skip
def test_pauses_and_texts_without_words_are_silence(text, parts):
    assert spoken_parts(text) == parts


@pytest.mark.parametrize(
    "part", "*;[a;_a ;<a;# ;- ;`;www.;\n- ;| ;[pause:; \t;[a](;**a ;```\n;~~~ a\n;<i>;<!--;<a b='c' ".split(";")
)
def test_cleaning_takes_linear_time(part):
    began = time.process_time()
    spoken_parts(part * (4096 // len(part)))
    assert time.process_time() - began < 0.5


def book(speakers, *aliases):
    return VoiceBook(None, speakers, None, *aliases)


def test_voices_of_openai_are_voices_of_the_language():
    voices = book({"de_m1": "de", "en_f1": "en", "en_f2": "en", "en_Gene": "en", "fa_f1": "fa"}, {"nova": "fa_f1"})
    found = {name: voices.find(name, "en").name for name in OPENAI_VOICES}
    assert found.pop("nova") == "fa_f1" and {found["alloy"], found["shimmer"]} <= {"en_f1", "en_f2"}
    assert {found[name] for name, kind in OPENAI_VOICES.items() if kind == "m"} == {"en_Gene"}
    assert voices.find("onyx", "de").name == voices.find("", "de").name == "de_m1"
    kokoro = {name: voices.find(name, "en").name for name in ("af_heart", "bm_george(2)+am_adam", "hf_alpha")}
    assert kokoro["af_heart"] in ("en_f1", "en_f2") and kokoro["hf_alpha"] in ("en_f1", "en_f2")
    assert kokoro["bm_george(2)+am_adam"] == "en_Gene" and voices.find("af_sky", "de").language == "en"
    assert book({"alloy": None, "b": None}).find("alloy", "en").name == "alloy"
    for name in ("Alloy", "en", "af", "xf_heart"):
        with pytest.raises(ApiError):
            voices.find(name, "en")
    with pytest.raises(UserError, match="--voice-map"):
        book({"a": None}, {"alloy": "b"})


def test_voice_whose_name_has_decomposed_letters_is_the_same_voice_and_a_link_is_none(tmp_path, caplog, monkeypatch):
    (tmp_path / "link.wav").symlink_to("x")
    (tmp_path / "Jose\u0301.wav").touch()  # as macOS writes é
    voices = VoiceBook(None, {"Zoé": "fr"}, tmp_path, {"nova": "Zoe\u0301"})
    assert {voices.find(name, "en").name for name in ("José", "Jose\u0301")} == {"José"}
    assert {voices.find(name, "en").name for name in ("Zoé", "Zoe\u0301", "nova")} == {"Zoé"}
    assert "link.wav is no voice: it is a link" in caplog.text
    monkeypatch.setattr(Path, "is_symlink", lambda path: path.unlink())  # by another program, while the list is made
    assert [*voices.all()] == ["Zoé"]
