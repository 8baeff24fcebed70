"""The tab in which runs are planned, started, watched and stopped."""

from collections.abc import Mapping

import gradio as gr
import pandas as pd

from myxtts.apps.studio.parts import Choices, language_box, log_box, told
from myxtts.apps.studio.studio import Studio, training_flags
from myxtts.config.checks import UserError
from myxtts.config.sizes import MODEL_SIZES
from myxtts.config.stages import STAGES

SECONDS_BETWEEN_LOOKS = 2.0
MOST_POINTS = 600
"""Of the curves of losses."""
PRESETS = ("none", "conservative", "balanced", "aggressive", "auto")
NAMED = ("init_from", "data_gpu", "model_gpu", "optimizations")
"""Flags with a box each, by the names of `training_flags`."""


def train_tab(
    studio: Studio, said: dict[str, str], switches: Mapping[str, str], choices: Choices, data_folder: gr.Textbox
) -> None:
    """Settings, the plan, start and stop, and what the run of the name in the first box does now."""
    now = gr.Markdown(elem_id="train_now")
    name = gr.Dropdown(studio.runs(), value=None, label=said["new_run"], allow_custom_value=True, elem_id="train_run")
    form, boxes, named = _settings(said, switches)
    given = [*form.values(), *boxes, *named]
    data_folder.change(lambda folder: folder, data_folder, form["train_data"], show_progress="hidden", api_name=False)

    def flags(*values):
        switched = values[len(form) : len(form) + len(boxes)]
        return training_flags(
            *values[: len(form)], dict(zip(switches, switched)), **dict(zip(NAMED, values[-len(NAMED) :]))
        )

    with gr.Row():
        plan = gr.Button(said["plan"], elem_id="train_plan")
        start = gr.Button(said["start"], variant="primary", elem_id="train_start")
        stop = gr.Button(said["stop"], elem_id="train_stop")
    state = gr.Textbox("", label=said["state"], elem_id="train_state", interactive=False)
    planned = log_box(said["plan"], "train_planned")
    plan.click(told(lambda *values: studio.plan(flags(*values))), given, planned, api_name="plan")

    def begin(run, *values):
        asked = flags(*values)
        studio.check_free(run or "")
        yield said["planning"], gr.skip()
        memory = studio.plan(asked)
        studio.start(run, asked)
        yield said["started"], memory

    def end(run):
        studio.stop(run or "")
        return said["stopping"]

    start.click(told(begin), [name, *given], [state, planned], api_name="start")
    stop.click(told(end), name, state, api_name="stop")
    _watch(studio, said, name, now, state)

    def settings(run):
        found = _stored(studio, run)
        return [found.get(key, gr.skip()) for key in form]

    name.change(settings, name, list(form.values()), show_progress="hidden", api_name="settings")

    def opened():
        training = studio.training()
        chosen = dict(value=training[0]) if training else {}  # else what was typed meanwhile stays
        return gr.Dropdown(choices=studio.runs(), **chosen), _now(studio, said)

    choices.page.load(opened, None, [name, now], show_progress="hidden", api_name=False)


def _watch(studio, said, name, now, state):
    """Curves, sample and log of the run, and a look at it every other second."""
    losses = gr.LinePlot(x="step", y="loss", color="stage", label=said["losses"], elem_id="train_losses")
    sample = gr.Audio(
        label=said["sample"], type="filepath", interactive=False, buttons=["download"], elem_id="train_sample"
    )
    log = log_box(said["log"], "log", 12)
    seen = gr.State(None)

    def look(run, seen):
        return _now(studio, said), *_shown(studio, said, run, seen)

    outputs = [now, state, losses, sample, log, seen]
    quiet = dict(show_progress="hidden", api_name="state")
    gr.Timer(SECONDS_BETWEEN_LOOKS).tick(look, [name, seen], outputs, **quiet)


def _settings(said, switches):
    """Boxes of the form by the names of `training_flags`, check boxes of switches, and boxes of `NAMED`."""
    form = {"train_data": gr.Textbox("", label=said["folder"], elem_id="train_folder")}
    form["language"] = language_box(said, "train_language")
    with gr.Row():
        form["size"] = gr.Dropdown(list(MODEL_SIZES), value="tiny", label=said["size"], elem_id="train_size")
        form["stage"] = gr.Dropdown(["all", *STAGES], value="all", label=said["stage"], elem_id="train_stage")
        form["batch_size"] = gr.Number(16, label=said["batch"], precision=0, minimum=1, elem_id="train_batch")
        form["epochs"] = gr.Number(500, label=said["epochs"], precision=0, minimum=1)
    with gr.Row():
        form["max_steps"] = gr.Number(0, label=said["steps"], precision=0, minimum=0, elem_id="train_steps")
        form["accumulation"] = gr.Number(1, label=said["accumulation"], precision=0, minimum=1)
        form["save_every"] = gr.Number(1000, label=said["save_every"], precision=0, minimum=1, elem_id="train_save")
    form["amharic_g2p"] = gr.Checkbox(label=said["g2p"])
    with gr.Accordion(said["switches"], open=False):
        boxes = [gr.Checkbox(label=flag.lstrip("-"), info=help_text) for flag, help_text in switches.items()]
        named = [gr.Textbox("", label=said["init_from"], elem_id="train_init")]
        with gr.Row():
            named += [gr.Textbox("", label=said[key]) for key in ("data_gpu", "model_gpu")]
            named.append(gr.Dropdown(list(PRESETS), value="none", label=said["preset"], elem_id="train_preset"))
    return form, boxes, named


def _now(studio, said):
    training = studio.training()
    return said["now"].format(", ".join(training)) if training else said["none_now"]


def _stored(studio, run):
    try:
        return studio.settings(run or "")
    except UserError:  # a name that is being typed
        return {}


def _shown(studio, said, name, seen):
    """State, curves, sample, log, and what of it the page has: what stays as it is is not sent again."""
    try:
        view = studio.view(name or "")
    except UserError:
        return *(gr.skip(),) * 4, seen
    words = view.failed or " · ".join([said[view.state], *view.facts])
    sample = str(view.samples[0]) if view.samples else None
    fresh = (name, len(view.losses), sample, view.log[-200:])
    if fresh == seen:
        return words, *(gr.skip(),) * 3, seen
    kept = view.losses[:: -(-len(view.losses) // MOST_POINTS) or 1]
    table = pd.DataFrame(kept or None, columns=["step", "loss", "stage"])
    is_new = seen is None or (seen[0], seen[2]) != (name, sample)
    return words, table, sample if is_new else gr.skip(), view.log, fresh
