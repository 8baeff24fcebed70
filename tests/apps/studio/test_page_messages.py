"""Messages of the page: errors in the language of the page, and parts of streamed audio."""

import base64
import json
from html import unescape
from unittest import mock

import numpy as np
import pytest

from myxtts.apps.studio.texts import TEXTS, PageError
from myxtts.config.checks import UserError


@pytest.mark.parametrize("language, intro", [("en", ""), ("fa", "انجام نشد. پیام برنامه (به انگلیسی):\n\u2068")])
def test_messages_of_commands_follow_a_sentence_in_the_language_of_the_page(language, intro):
    gr = pytest.importorskip("gradio", reason="needs the extra ui")  # slow to import
    from myxtts.apps.studio.parts import act

    def shown(error):
        called = []
        act(TEXTS[language], lambda run, *_, **__: called.append(run), mock.Mock(side_effect=error), [], [], "line")
        steps = called[0]()
        with pytest.raises(gr.Error):
            for step in steps:
                last = step["line"]
        return unescape(last).removeprefix('<span class="wrong">').removesuffix("</span>").removesuffix("\u2069")

    said = "--lr 0 must be <more> than 0."
    assert shown(UserError(said)) == f"{intro}{said}" and shown(FileNotFoundError(2, "No", "a")) == f"{intro}No: a"
    upload = f"/tmp/gradio/{'0a' * 32}/a.wav: /x/_data/my.recordings/b c.wav is no audio"
    assert shown(UserError(upload)) == f"{intro}a.wav: b c.wav is no audio"
    assert shown(PageError("no_text")) == TEXTS[language]["no_text"]


def test_messages_of_a_speech_hold_every_part_in_order():
    tabs = pytest.importorskip("myxtts.apps.studio.speech_tabs", exc_type=ImportError)
    parts, heard = [np.arange(n, n + 5, dtype=np.int16) for n in range(20)], {}
    for count in range(1, len(parts) + 1, tabs.REPEATED_PARTS):  # those between are missed
        reported = json.loads(tabs.message_of("1", 24000, parts[:count]))
        heard |= {reported["first"] + n: base64.b64decode(part) for n, part in enumerate(reported["parts"])}
    assert [heard[n] for n in range(17)] == [part.tobytes() for part in parts[:17]]
