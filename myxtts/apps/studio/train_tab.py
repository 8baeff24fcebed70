"""The tab in which runs are planned, started, watched and stopped."""

import gradio as gr
import pandas as pd

from myxtts.apps.studio.parts import Choices, language_box, log_box, told
from myxtts.apps.studio.studio import Studio
from myxtts.apps.studio.training_form import FLAGS, MORE, OWN, SWITCHES, XTTS_V2, choices_of
from myxtts.config.checks import UserError
from myxtts.config.recipes import recipe_names
from myxtts.config.sizes import MODEL_SIZES
from myxtts.config.stages import STAGES
from myxtts.storage.base_model import BASE_NAME

SECONDS_BETWEEN_LOOKS = 2.0
MOST_POINTS = 600
"""Of the curves of losses."""


def train_tab(studio: Studio, said: dict[str, str], choices: Choices, data_folder: gr.Textbox) -> None:
    """Settings, the plan, start and stop, and what the run of the name in the first box does now."""
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
    plan.click(told(lambda *values: studio.plan(flags(*values))), given, planned, api_name="plan")

    def begin(run, *values):
        studio.check_free(run or "")
        asked = flags(run, *values)
        yield said["planning"], gr.skip()
        memory = studio.plan(asked)
        studio.start(run, asked)
        yield said["started"], memory

    def end(run):
        studio.stop(run or "")
        return said["stopping"]

    start.click(told(begin), given, [state, planned], api_name="start")
    stop.click(told(end), name, state, api_name="stop")
    _watch(studio, said, name, now, state)

    _fill(studio, name, form, recipe, stages)

    def opened():
        training = studio.training()
        chosen = dict(value=training[0]) if training else {}  # else what was typed meanwhile stays
        return (
            gr.Dropdown(choices=studio.runs(), **chosen),
            gr.Dropdown(choices=_sources(studio, said)),
            _now(studio, said),
        )

    choices.page.load(opened, None, [name, form["init_from"], now], show_progress="hidden", api_name=False)


def _fill(studio, name, form, recipe, stages):
    """Run, source and recipe fill the form."""

    def shown(run, source, recipe=None):
        found = studio.preset(run, source, recipe)
        values = [gr.skip() if key == "train_data" and not found.values[key] else found.values[key] for key in form]
        return [found.recipe, found.stages, *values]

    outputs, quiet = [recipe, stages, *form.values()], dict(show_progress="hidden")
    source = form["init_from"]

    def named(run, source, recipe):
        if run in studio.runs():
            return shown(run, source)
        # The name of a new run changes nothing, but that the settings of the last one go.
        return shown(None, source) if recipe == OWN else [gr.skip()] * len(outputs)

    name.change(told(named), [name, source, recipe], outputs, **quiet, api_name="settings")
    source.input(told(shown), [name, source], outputs, **quiet, api_name="start_from")
    recipe.input(told(shown), [name, source, recipe], outputs, **quiet, api_name="recipe")


def _sources(studio, said):
    return [(said["nothing"], ""), (said["base"], BASE_NAME), *studio.runs(), ("XTTS v2", XTTS_V2)]


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


def _form(studio, said):
    """Boxes by the names of `training_form.MAIN` and `MORE`, that of the recipe, and the table of the stages."""
    preset = studio.preset(None, None)
    form = {"train_data": gr.Textbox("", label=said["folder"], elem_id="train_train_data")}
    form["language"] = language_box(said, "train_language")
    with gr.Row():
        form["init_from"] = gr.Dropdown(
            _sources(studio, said),
            value="",
            label=said["init_from"],
            allow_custom_value=True,
            elem_id="train_init_from",
        )
        recipes = [(said["nothing"], ""), (said["own"], OWN), *recipe_names()]
        recipe = gr.Dropdown(recipes, value="", label=said["recipe"], elem_id="train_recipe")
    headers = [said[key] for key in ("stage", "steps", "batch", "rate")]
    stages = gr.Dataframe(
        preset.stages, headers=headers, label=said["stages"], interactive=False, elem_id="train_stages"
    )
    for names in (("model_size", "stage", "batch_size"), ("epochs", "max_steps", "grad_accum", "save_every")):
        with gr.Row():
            form |= {name: _box(name, said[name], None, preset.values[name]) for name in names}
    form["amharic_g2p"] = gr.Checkbox(label=said["g2p"], elem_id="train_g2p")
    with gr.Accordion(said["switches"], open=False, elem_id="train_more"):
        for name in MORE:
            flag = FLAGS[name]
            form[name] = _box(name, flag.names[0].lstrip("-"), flag.help, preset.values[name])
    return form, recipe, stages


def _box(name, label, info, value):
    """The box of a flag by its kind."""
    common, kind = dict(label=label, info=info, elem_id=f"train_{name}"), FLAGS[name].kind
    if kind in SWITCHES:
        return gr.Checkbox(bool(value), **common)
    listed = {"size": MODEL_SIZES, "stage": ("all", *STAGES)}.get(kind)
    if name != "tune" and (listed := listed or choices_of(name)):
        return gr.Dropdown(["", *listed] if value is None else list(listed), value=value or "", **common)
    if kind in ("int", "N", "batch"):
        return gr.Number(value, precision=0, **common)
    return gr.Number(value, **common) if kind == "float" else gr.Textbox(value or "", **common)


def _now(studio, said):
    training = studio.training()
    return said["now"].format(", ".join(training)) if training else said["none_now"]


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
