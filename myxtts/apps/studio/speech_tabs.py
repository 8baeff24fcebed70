"""The tabs Speak and Compare of the page. Streamed audio is sent to the browser as PCM in JSON messages."""

import base64
import json
import random
import uuid
from collections.abc import Sequence

import gradio as gr
import numpy as np

from myxtts.apps.studio import parts
from myxtts.apps.studio.folders import EVALUATION, add_vote, count_votes
from myxtts.apps.studio.parts import Choices, act, hint
from myxtts.apps.studio.studio import Studio
from myxtts.apps.studio.texts import PageError

REPEATED_PARTS = 8
"""Number of audio parts in each message. Gradio may drop a message, so each one repeats the latest parts."""


def message_of(speech: str, sample_rate: int, chunks: Sequence[np.ndarray]) -> str:
    """Builds a JSON message with the last `REPEATED_PARTS` parts of streamed audio. `chunks` are all parts so far, each
    `(S,)` int16 at `sample_rate` Hz. `speech` is a unique name of the stream."""
    shown = [base64.b64encode(part.astype("<i2").tobytes()).decode() for part in chunks[-REPEATED_PARTS:]]
    return json.dumps(dict(speech=speech, rate=sample_rate, first=len(chunks) - len(shown), parts=shown))


def speak_tab(studio: Studio, texts: dict[str, str], choices: Choices) -> None:
    """Fills the tab Speak, which synthesizes a text and plays the audio, by default while it is generated."""
    with gr.Row():
        with gr.Column(scale=3):
            text = gr.Textbox(texts["example"], label=texts["text"], lines=4, elem_id="speak_text")
            with gr.Row():
                button = gr.Button(texts["say"], variant="primary", elem_id="speak_say")
                hush = gr.Button(texts["hush"], elem_id="speak_hush")
            state = parts.state_line("speak_state")
            sound = gr.Audio(label=texts["sound"], interactive=False, buttons=["download"], elem_id="speak_sound")
        with gr.Column(scale=2):
            model = choices.models("run", elem_id="speak_run")
            language, speaker, recording = choices.voice("speak", text, model)
            with gr.Accordion(texts["switches"], open=False, elem_id="speak_more"):
                seed = gr.Number(0, label=texts["seed"], precision=0, minimum=0)
                temperature = gr.Slider(0, 2, 0, label=texts["temperature"])
                speed = gr.Slider(0.25, 4, 1, label=texts["speed"])
                look = dict(info=texts["streamed_help"], elem_id="speak_streamed")
                streamed = gr.Checkbox(True, label=texts["streamed"], **look)
    message = gr.Textbox("", visible="hidden", elem_id="speak_message")
    stops = gr.State([])  # gets an item when Stop is pressed: `cancels` of Gradio would lose the audio so far

    def say(stops, streamed, model, text, language, recording, speaker, *values):
        def go_on(done, total):
            if stops:
                raise PageError("hushed")

        stops.clear()
        yield texts["speaking"], "", None
        language, voice, *doubts = studio.reading(text, language, speaker, model)
        options, chunks, speech = (model, text, language, recording, voice, *values), [], uuid.uuid4().hex
        for rate, samples in studio.stream(*options) if streamed else [studio.speak(*options, progress=go_on)]:
            chunks.append(samples)
            if stops:
                break
            if streamed:
                yield texts["so_far"].format(sum(map(len, chunks)) / rate), message_of(speech, rate, chunks), gr.skip()
        samples = np.concatenate(chunks)
        doubts.append("" if recording or voice == speaker else texts["value"].format(voice))
        facts = texts["spoken"].format(len(samples) / rate), texts["hushed"] if stops else hint(texts, *doubts)
        yield texts["dot"].join(filter(None, facts)), gr.skip(), (rate, samples)

    given = [stops, streamed, model, text, language, recording, speaker, seed, temperature, speed]
    act(texts, button.click, say, given, [state, message, sound], state, api_name="speak")
    message.change(None, message, None, js=parts.SCRIPTS["play"])
    hush.click(lambda one: one.append(True), stops, None, js="(one) => (window.hush?.(), [one])", api_name=False)


def compare_tab(studio: Studio, texts: dict[str, str], choices: Choices) -> None:
    """Fills the tab Compare, where users listen to two checkpoints (optionally blind), vote, and run an evaluation."""
    sides = []
    with gr.Row():
        for number, label in enumerate(("run", "second")):
            with gr.Column():
                sides.append(choices.models(label, elem_id=f"compare_run_{number}"))
                kinds = [(texts[one], one) for one in ("best", "last")]
                sides.append(gr.Radio(kinds, value="best", label=texts["which"], elem_id=f"compare_which_{number}"))
        with gr.Column():
            text = gr.Textbox(texts["example"], label=texts["lines"], lines=2, elem_id="compare_text", render=False)
            language, speaker, recording = choices.voice("compare", text, *sides[::2])
    text.render()
    with gr.Row():
        button = gr.Button(texts["compare"], variant="primary", scale=2, elem_id="compare")
        blind = gr.Checkbox(True, label=texts["blind"], info=texts["blind_help"], elem_id="compare_blind")
        seed = gr.Number(0, label=texts["seed"], precision=0, minimum=0)
    verdict = parts.state_line("vote_said")
    with gr.Row():
        look = dict(interactive=False, buttons=["download"])
        sounds = [gr.Audio(label=letter, elem_id=f"compare_sound_{letter}", **look) for letter in "AB"]
    heard = gr.State(None)

    def compare(first, first_which, second, second_which, text, language, recording, speaker, seed, blind):
        language, voice, *doubts = studio.reading(text, language, speaker, first, second)
        doubts.append("" if recording or voice == speaker else texts["value"].format(voice))
        order = [(first, first_which), (second, second_which)]
        if order[0] == order[1]:
            raise PageError("same_models")
        heard, lines = [], [line for line in text.splitlines() if line.strip()] or [text]
        for line in lines:
            yield *[gr.skip()] * 3, texts["speaking"] + texts["value"].format(f"{len(heard) + 1}/{len(lines)}")
            order = random.sample(order, 2) if blind else order
            spoken = [studio.speak(name, line, language, recording, voice, seed, which=which) for name, which in order]
            names = [f"{name}@{which}" for name, which in order]
            heard.append(dict(sides=names, blind=blind, text=line, seed=int(seed or 0), spoken=spoken))
        yield *_players(heard, texts), heard, hint(texts, *doubts)

    with gr.Row():
        votes = [gr.Button(texts[key], elem_id=f"vote_{key}") for key in ("vote_a", "vote_b", "vote_same")]
    headers = [texts[key] for key in ("model_1", "model_2", "wins_1", "wins_2", "vote_same", "p_value")]
    choices.page.load(None, None, None, js=parts.SCRIPTS["vote_keys"])
    shown = texts["value"].format if choices.language == "fa" else lambda value: value  # numbers sort as numbers
    votes_now = lambda: [[*map(shown, row)] for row in count_votes(studio.home)]
    counts = gr.Dataframe(votes_now, label=texts["votes"], headers=headers, interactive=False)
    given = [*sides, text, language, recording, speaker, seed, blind]
    act(texts, button.click, compare, given, [*sounds, heard, verdict], verdict, api_name="compare")

    def vote(heard, better):
        if not heard:
            raise PageError("nothing_heard")
        one, *left = heard
        add_vote(studio.home, one["sides"], better, one["blind"], one["text"], one["seed"])
        notes = texts["vote_kept"].format(*one["sides"]), left and texts["pairs_left"].format(len(left))
        return *_players(left, texts), left, " ".join(filter(None, notes)), votes_now()

    for one, better in zip(votes, (0, 1, None)):
        voted = lambda heard, better=better: vote(heard, better)
        act(texts, one.click, voted, [heard], [*sounds, heard, verdict, counts], verdict, api_name=False)
    _evaluation(studio, texts, sides, choices)


def _players(heard, texts):
    """Returns updates of the two audio players for the first of the remaining comparisons."""
    if not heard:
        return [gr.skip()] * 2
    captions = [texts["value"].format(name) for name in heard[0]["sides"]]
    labels = "AB" if heard[0]["blind"] else map("{}: {}".format, "AB", captions)
    return [gr.Audio(value=one, label=label) for one, label in zip(heard[0]["spoken"], labels)]


def _evaluation(studio, texts, sides, choices):
    with gr.Accordion(texts["evaluation"], open=False, elem_id="evaluation_box"):
        sentences = gr.Number(30, label=texts["sentences"], precision=0, minimum=1, elem_id="evaluate_sentences")
        evaluate_on = parts.command(studio, texts, "evaluate", "evaluate")
        shown = lambda: parts.report_view(studio.home / EVALUATION, choices.language)
        page = gr.HTML(shown, elem_id="evaluation_page")

    evaluate_on(choices, studio.evaluate, [*sides, sentences], [page], lambda *_: ("", shown()))
