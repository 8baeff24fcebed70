"""The tab in which a model speaks; the browser plays streamed audio from PCM in messages."""

import base64
import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import gradio as gr
import numpy as np

from myxtts.apps.studio.parts import Choices, act, check_words, state_line
from myxtts.apps.studio.studio import Studio, Wish

_numbers = itertools.count()
REPEATED_PARTS = 8
"""Gradio may drop an update that another one follows at once, so each update repeats the last parts."""

PLAY = Path(__file__).with_name("play.js").read_text(encoding="utf-8")
"""JavaScript that plays the parts of the messages, each once."""
HUSH = "() => { if (window.myxtts_player) { window.myxtts_player.context.close(); window.myxtts_player = null; } }"
"""JavaScript that stops the player."""


def message_of(speech: str, sample_rate: int, parts: Sequence[np.ndarray]) -> str:
    """The message with the newest parts of a speech, each `(S,)` int16, at `sample_rate` in Hz.

    Args:
        speech: Unique name of the speech.
    """
    shown = [base64.b64encode(part.astype("<i2").tobytes()).decode() for part in parts[-REPEATED_PARTS:]]
    return json.dumps(dict(speech=speech, rate=sample_rate, first=len(parts) - len(shown), parts=shown))


def speak_tab(studio: Studio, said: dict[str, str], choices: Choices) -> None:
    """Text and voice to audio, streamed by default."""
    with gr.Row():
        with gr.Column(scale=3):
            text = gr.Textbox(said["example"], label=said["text"], lines=4, elem_id="speak_text")
            with gr.Row():
                button = gr.Button(said["say"], variant="primary", elem_id="speak_say")
                hush = gr.Button(said["hush"], elem_id="speak_hush")
            state = state_line("speak_state")
            sound = gr.Audio(label=said["sound"], interactive=False, buttons=["download"], elem_id="speak_sound")
        with gr.Column(scale=2):
            model = choices.models("run", elem_id="speak_run")
            language, speaker, recording = choices.voice(model, "speak")
            with gr.Accordion(said["switches"], open=False, elem_id="speak_more"):
                seed = gr.Number(0, label=said["seed"], precision=0, minimum=0)
                temperature = gr.Slider(0, 2, 0, label=said["temperature"])
                speed = gr.Slider(0.25, 4, 1, label=said["speed"])
                look = dict(info=said["streamed_help"], elem_id="speak_streamed")
                streamed = gr.Checkbox(True, label=said["streamed"], **look)
    message = gr.Textbox("", visible="hidden", elem_id="speak_message")

    def say(streamed, model, text, language, recording, speaker, *values):
        check_words(said, text, recording, speaker)
        yield said["speaking"], "", None
        wish = Wish(model, text, language, recording, speaker, *values)
        if not streamed:
            rate, samples = studio.speak(wish)
            yield said["spoken"].format(len(samples) / rate), "", (rate, samples)
            return
        parts, speech = [], f"{next(_numbers)}"
        for rate, samples in studio.stream(wish):
            parts.append(samples)
            yield said["so_far"].format(sum(map(len, parts)) / rate), message_of(speech, rate, parts), gr.skip()
        samples = np.concatenate(parts)
        yield said["spoken"].format(len(samples) / rate), gr.skip(), (rate, samples)

    given = [streamed, model, text, language, recording, speaker, seed, temperature, speed]
    speaking = act(button.click, say, given, [state, message, sound], state, api_name="speak")
    message.change(None, message, None, js=PLAY)
    hush.click(lambda: said["hushed"], None, state, js=HUSH, cancels=[speaking], api_name=False)
