"""The tab in which a model speaks."""

import itertools

import gradio as gr
import numpy as np

from myxtts.apps.studio.parts import Choices, check_words, language_box, shows_errors
from myxtts.apps.studio.player import HUSH, PLAY, Messages
from myxtts.apps.studio.studio import Studio, Wish

_numbers = itertools.count()


def speak_tab(studio: Studio, said: dict[str, str], choices: Choices) -> None:
    """Text and voice to sound, heard while it is made."""
    run = choices.runs("run", elem_id="speak_run")
    text = gr.Textbox("", label=said["text"], lines=3, elem_id="speak_text")
    language = language_box(said, "speak_language")
    recording, speaker = choices.voice(run, "speak")
    with gr.Row():
        seed = gr.Number(0, label=said["seed"], precision=0, minimum=0)
        temperature = gr.Slider(0, 2, 0, label=said["temperature"])
        speed = gr.Slider(0.25, 4, 1, label=said["speed"])
    streamed = gr.Checkbox(True, label=said["streamed"], info=said["streamed_help"], elem_id="speak_streamed")
    with gr.Row():
        button = gr.Button(said["say"], variant="primary", elem_id="speak_say")
        hush = gr.Button(said["hush"], elem_id="speak_hush")
    state = gr.Textbox("", label=said["state"], interactive=False, elem_id="speak_state")
    message = gr.Textbox("", visible="hidden", elem_id="speak_message")
    sound = gr.Audio(label=said["sound"], interactive=False, buttons=["download"], elem_id="speak_sound")

    def say(streamed, run, text, language, recording, speaker, *values):
        check_words(said, run, text, recording, speaker)
        yield said["speaking"], "", None
        wish = Wish(run, text, language, recording, speaker, *values)
        if not streamed:
            rate, samples = studio.speak(wish)
            yield said["spoken"].format(len(samples) / rate), "", (rate, samples)
            return
        parts, messages = [], None
        for rate, samples in studio.stream(wish):
            messages = messages or Messages(f"{next(_numbers)}", rate)
            parts.append(samples)
            spoken = said["so_far"].format(sum(map(len, parts)) / rate)
            yield spoken, messages.add(samples), gr.skip()
        samples = np.concatenate(parts)
        yield said["spoken"].format(len(samples) / rate), gr.skip(), (rate, samples)

    given = [streamed, run, text, language, recording, speaker, seed, temperature, speed]
    speaking = button.click(
        shows_errors(say), given, [state, message, sound], show_progress="minimal", api_name="speak"
    )
    speaking.failure(lambda: "", None, state, api_name=False)
    message.change(None, message, None, js=PLAY)
    hush.click(lambda: said["hushed"], None, state, js=HUSH, cancels=[speaking], api_name=False)
