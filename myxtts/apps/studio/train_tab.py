"""The tab in which runs are planned, started, watched and stopped."""

import gradio as gr
import pandas as pd

from myxtts.apps.studio.parts import Choices, language_box, log_box, shows_errors
from myxtts.apps.studio.studio import Studio
from myxtts.apps.studio.training_form import FLAGS, OWN, XTTS_V2
from myxtts.config.checks import UserError
from myxtts.config.recipes import recipe_names
from myxtts.storage.base_model import BASE_NAME

SECONDS_BETWEEN_LOOKS = 2.0
MOST_POINTS = 600
"""Points of the loss curves."""


def train_tab(studio: Studio, said: dict[str, str], choices: Choices, data_folder: gr.Textbox) -> None:
    """Settings, the plan, start and stop, and the present state of the run that is named in the first box."""
    now = gr.Markdown(elem_id="train_now")
    name = gr.Dropdown(studio.runs(), value=None, label=said["new_run"], allow_custom_value=True, elem_id="train_run")
    form, recipe, stages = _form(studio, said)
    names, given = list(form), [name, recipe, *form.values()]
    data_folder.change(lambda folder: folder, data_folder, form["train_data"], show_progress="hidden", api_name=False)

    def flags(run, recipe, *values):
        return studio.flags(run, recipe, dict(zip(names, values)))

    with gr.Row():
        plan = gr.Button(said["plan"], elem_id="train_plan")
        start = gr.Button(said["start"], variant="primary", elem_id="train_start")
        stop = gr.Button(said["stop"], elem_id="train_stop")
    state = gr.Textbox("", label=said["state"], elem_id="train_state", interactive=False)
    planned = log_box(said["plan"], "train_planned")
    plan.click(shows_errors(lambda *values: studio.plan(flags(*values))), given, planned, api_name="plan")

    def begin(run, *values):
        studio.require_free(run or "")
        asked = flags(run, *values)
        yield said["planning"], gr.skip()
        memory = studio.plan(asked)
        studio.start(run, asked)
        yield said["started"], memory

    def end(run):
        studio.stop(run or "")
        return said["stopping"]

    start.click(shows_errors(begin), given, [state, planned], api_name="start")
    stop.click(shows_errors(end), name, state, api_name="stop")
    _watch(studio, said, name, now, state)
    _fill(studio, name, form, recipe, stages)

    def opened():
        training = studio.training()
        chosen = dict(value=training[0]) if training else {}  # else what was typed meanwhile stays
        sources = gr.Dropdown(choices=_sources(studio, said))
        return gr.Dropdown(choices=studio.runs(), **chosen), sources, _now(studio, said)

    choices.page.load(opened, None, [name, form["init_from"], now], show_progress="hidden", api_name=False)


def _form(studio, said):
    """Boxes by the names of `FLAGS`, the box of the recipe, and the table of the stages."""
    preset = studio.preset(None, None)
    sources = dict(value="", label=said["init_from"], allow_custom_value=True, elem_id="train_init_from")
    boxes = {
        "language": lambda: language_box(said, "train_language"),
        "init_from": lambda: gr.Dropdown(_sources(studio, said), **sources),
    }
    make = lambda name: boxes[name]() if name in boxes else _box(name, said, preset.values[name])
    places = {name: flag.field.metadata["page"] for name, flag in FLAGS.items()}
    with gr.Row():
        form = {name: make(name) for name in ("train_data", "init_from")}
        recipes = [(said["nothing"], ""), (said["own"], OWN), *recipe_names()]
        recipe = gr.Dropdown(recipes, value="", label=said["recipe"], elem_id="train_recipe")
    headers = [said[key] for key in ("stage", "steps", "batch_size", "rate")]
    look = dict(headers=headers, label=said["stages"], interactive=False, elem_id="train_stages")
    stages = gr.Dataframe(preset.stages, **look)
    with gr.Row():
        form |= {name: make(name) for name, place in places.items() if place == "main" and name not in form}
    with gr.Accordion(said["switches"], open=False, elem_id="train_more"):
        form |= {name: make(name) for name, place in places.items() if place == "more"}
    return form, recipe, stages


def _box(name, said, value):
    """The box of a setting; one without a text of its own shows its flag and its help."""
    flag = FLAGS[name]
    words = dict(label=said[name]) if name in said else dict(label=flag.names[0].lstrip("-"), info=flag.help)
    words |= dict(elem_id=f"train_{name}")
    if flag.kind is bool:
        return gr.Checkbox(bool(value), **words)
    if flag.choices:
        return gr.Dropdown([""] * (value is None) + flag.choices, value=value or "", **words)
    if flag.kind in (int, float) and not flag.takes_list:
        return gr.Number(value, precision=0 if flag.kind is int else None, **words)
    return gr.Textbox(value or "", **words)


def _sources(studio, said):
    return [(said["nothing"], ""), (said["base"], BASE_NAME), *studio.runs(), ("XTTS v2", XTTS_V2)]


def _fill(studio, name, form, recipe, stages):
    """Run, source and recipe fill the form."""
    source, outputs = form["init_from"], [recipe, stages, *form.values()]

    def shown(run, source, recipe=None):
        found = studio.preset(run, source, recipe)
        values = [gr.skip() if key == "train_data" and not found.values[key] else found.values[key] for key in form]
        return [found.recipe, found.stages, *values]

    def named(run, source, recipe):
        if run in studio.runs():
            return shown(run, source)
        # The name of a new run changes nothing, but that the settings of the last one go.
        return shown(None, source) if recipe == OWN else [gr.skip()] * len(outputs)

    quiet = dict(show_progress="hidden")
    name.change(shows_errors(named), [name, source, recipe], outputs, **quiet, api_name="settings")
    source.input(shows_errors(shown), [name, source], outputs, **quiet, api_name="start_from")
    recipe.input(shows_errors(shown), [name, source, recipe], outputs, **quiet, api_name="recipe")


def _watch(studio, said, name, now, state):
    """Curves, sample and log of the run, looked at every other second; unchanged ones are not sent again."""
    losses = gr.LinePlot(x="step", y="loss", color="stage", label=said["losses"], elem_id="train_losses")
    look = dict(interactive=False, buttons=["download"], elem_id="train_sample")
    sample = gr.Audio(label=said["sample"], type="filepath", **look)
    log = log_box(said["log"], "log", 12)
    seen = gr.State(None)

    def look_at(run, seen):
        try:
            view = studio.view(run or "")
        except UserError:
            return _now(studio, said), *[gr.skip()] * 4, seen
        words = view.failed or " · ".join([said[view.state], *view.facts])
        newest = str(view.samples[0]) if view.samples else None
        fresh = (run, len(view.losses), newest, view.log[-200:])
        if fresh == seen:
            return _now(studio, said), words, *[gr.skip()] * 3, seen
        kept = view.losses[:: -(-len(view.losses) // MOST_POINTS) or 1]
        table = pd.DataFrame(kept or None, columns=["step", "loss", "stage"])
        is_new = seen is None or (seen[0], seen[2]) != (run, newest)
        return _now(studio, said), words, table, newest if is_new else gr.skip(), view.log, fresh

    outputs = [now, state, losses, sample, log, seen]
    quiet = dict(show_progress="hidden", api_name="state")
    gr.Timer(SECONDS_BETWEEN_LOOKS).tick(look_at, [name, seen], outputs, **quiet)


def _now(studio, said):
    training = studio.training()
    return said["now"].format(", ".join(training)) if training else said["none_now"]
