"""The tab that compares two models and collects votes."""

import random

import gradio as gr

from myxtts.apps.studio.data_sets import EVALUATION
from myxtts.apps.studio.parts import Choices, act, check_words, command_buttons, log_box, report_view, state_line
from myxtts.apps.studio.studio import Studio, Wish
from myxtts.config.checks import UserError

WHICH = ("best", "last")
LETTERS = "AB"


def compare_tab(studio: Studio, said: dict[str, str], choices: Choices) -> None:
    """Two checkpoints with the same seed, optionally blind; votes; an evaluation of both."""
    sides = []
    with gr.Row():
        for number, label in enumerate(("run", "second")):
            with gr.Column():
                sides.append(choices.models(label, elem_id=f"compare_run_{number}"))
                look = dict(show_label=False, elem_id=f"compare_which_{number}")
                sides.append(gr.Radio(WHICH, value="best", label=said["which"], **look))
        with gr.Column():
            language, speaker, recording = choices.voice(sides[0], "compare")
    text = gr.Textbox(said["example"], label=said["text"], lines=2, elem_id="compare_text")
    with gr.Row():
        button = gr.Button(said["compare"], variant="primary", scale=2, elem_id="compare")
        blind = gr.Checkbox(True, label=said["blind"], info=said["blind_help"], elem_id="compare_blind")
        seed = gr.Number(0, label=said["seed"], precision=0, minimum=0)
    verdict = state_line("vote_said")
    with gr.Row():
        sounds = [
            gr.Audio(label=letter, interactive=False, buttons=["download"], elem_id=f"compare_sound_{letter}")
            for letter in LETTERS
        ]
    heard = gr.State(None)

    def compare(first, first_which, second, second_which, text, language, recording, speaker, seed, blind):
        check_words(said, text, recording, speaker)
        yield *[gr.skip()] * 3, said["speaking"]
        order = [(first, first_which), (second, second_which)]
        if blind:
            random.shuffle(order)
        spoken = [studio.speak(Wish(name, text, language, recording, speaker, seed), which) for name, which in order]
        names = [f"{name}@{which}" for name, which in order]
        labels = LETTERS if blind else [f"{letter}: {name}" for letter, name in zip(LETTERS, names)]
        heard = dict(sides=names, blind=blind, text=text, seed=int(seed))
        yield *(gr.Audio(value=sound, label=label) for sound, label in zip(spoken, labels)), heard, ""

    with gr.Row():
        votes = [gr.Button(said[key], elem_id=f"vote_{key}") for key in ("vote_a", "vote_b", "vote_same")]
    headers = [said[key] for key in ("model", "model", "times_better", "times_better", "vote_same")]
    counts = gr.Dataframe(studio.votes.counts, headers=headers, label=said["votes"], interactive=False)
    given = [*sides, text, language, recording, speaker, seed, blind]
    act(button.click, compare, given, [*sounds, heard, verdict], verdict, api_name="compare")

    def vote(heard, better):
        if not heard:
            raise UserError(said["nothing_heard"])
        studio.votes.add(heard["sides"], better, heard["blind"], heard["text"], heard["seed"])
        return None, said["vote_kept"].format(*heard["sides"]), studio.votes.counts()

    for one, better in zip(votes, (0, 1, None)):
        voted = lambda heard, better=better: vote(heard, better)
        act(one.click, voted, [heard], [heard, verdict, counts], verdict, api_name=False)
    _evaluation(studio, said, sides, choices.language)


def _evaluation(studio, said, sides, language):
    with gr.Accordion(said["evaluation"], open=False, elem_id="evaluation_box"):
        sentences = gr.Number(30, label=said["sentences"], precision=0, minimum=1, elem_id="evaluate_sentences")
        button, line = command_buttons(said, "evaluate", lambda: studio.tasks.cancel("evaluate"))
        table = log_box(said["evaluation"], "evaluation", 12)
        shown = lambda: report_view(studio.home / EVALUATION, language)
        page = gr.HTML(shown, elem_id="evaluation_page")

    def evaluate(first, first_which, second, second_which, sentences):
        for lines in studio.evaluate(dict.fromkeys([(first, first_which), (second, second_which)]), sentences):
            yield lines
        yield lines, shown()

    act(button.click, evaluate, [*sides, sentences], [table, page], line, api_name="evaluate")
