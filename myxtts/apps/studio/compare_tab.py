"""The tab in which two models say the same, and listeners vote."""

import random

import gradio as gr

from myxtts.apps.studio.parts import Choices, cancel_button, check_words, language_box, log_box, shows_errors
from myxtts.apps.studio.studio import Studio, Wish
from myxtts.config.checks import UserError

WHICH = ("best", "last")
LETTERS = "AB"


def compare_tab(studio: Studio, said: dict[str, str], choices: Choices) -> None:
    """Two checkpoints side by side with the same seed, blind if wanted; votes; an evaluation of both."""
    sides = []
    with gr.Row():
        for number, label in enumerate(("run", "second")):
            with gr.Column():
                sides.append(choices.runs(label, elem_id=f"compare_run_{number}"))
                sides.append(gr.Radio(WHICH, value="best", label=said["which"], elem_id=f"compare_which_{number}"))
    text, language = gr.Textbox("", label=said["text"], lines=2, elem_id="compare_text"), language_box(said)
    recording, speaker = choices.voice(sides[0], "compare")
    seed = gr.Number(0, label=said["seed"], precision=0, minimum=0)
    blind = gr.Checkbox(True, label=said["blind"], info=said["blind_help"], elem_id="compare_blind")
    button = gr.Button(said["compare"], variant="primary", elem_id="compare")
    with gr.Row():
        sounds = [
            gr.Audio(label=letter, interactive=False, buttons=["download"], elem_id=f"compare_sound_{letter}")
            for letter in LETTERS
        ]
    heard = gr.State(None)

    def compare(first, first_which, second, second_which, text, language, recording, speaker, seed, blind):
        for run in (first, second):
            check_words(said, run, text, recording, speaker)
        order = [(first, first_which), (second, second_which)]
        if blind:
            random.shuffle(order)
        spoken = [studio.speak(Wish(run, text, language, recording, speaker, seed), which) for run, which in order]
        names = [f"{run}@{which}" for run, which in order]
        labels = LETTERS if blind else [f"{letter}: {name}" for letter, name in zip(LETTERS, names)]
        heard = dict(sides=names, blind=blind, text=text, seed=int(seed))
        return *(gr.Audio(value=sound, label=label) for sound, label in zip(spoken, labels)), heard, ""

    with gr.Row():
        votes = [gr.Button(said[key], elem_id=f"vote_{key}") for key in ("vote_a", "vote_b", "vote_same")]
    verdict = gr.Textbox("", label=said["state"], interactive=False, elem_id="vote_said")
    headers = [said[key] for key in ("model", "model", "times_better", "times_better", "vote_same")]
    counts = gr.Dataframe(studio.votes.counts, headers=headers, label=said["votes"], interactive=False)
    given = [*sides, text, language, recording, speaker, seed, blind]
    button.click(shows_errors(compare), given, [*sounds, heard, verdict], api_name="compare")

    def vote(heard, better):
        if not heard:
            raise UserError(said["nothing_heard"])
        studio.votes.add(heard["sides"], better, heard["blind"], heard["text"], heard["seed"])
        told_now = said["vote_kept"].format(*heard["sides"])
        return None, told_now, studio.votes.counts()

    for one, better in zip(votes, (0, 1, None)):
        voted = shows_errors(lambda heard, better=better: vote(heard, better))
        one.click(voted, heard, [heard, verdict, counts], api_name=False)
    _evaluation(studio, said, sides)


def _evaluation(studio, said, sides):
    with gr.Accordion(said["evaluation"], open=False, elem_id="evaluation_box"):
        sentences = gr.Number(30, label=said["sentences"], precision=0, minimum=1, elem_id="evaluate_sentences")
        button = gr.Button(said["evaluate"], elem_id="evaluate")
        cancel_button(said, "evaluate_cancel", lambda: studio.tasks.cancel("evaluate"))
        table = log_box(said["evaluation"], "evaluation", 12)

    def evaluate(first, first_which, second, second_which, sentences):
        named = [f"{run}@{which}" for run, which in ((first, first_which), (second, second_which)) if run]
        if not named:
            raise UserError(said["no_run"])
        yield from studio.evaluate(list(dict.fromkeys(named)), sentences)

    button.click(shows_errors(evaluate), [*sides, sentences], table, api_name="evaluate")
