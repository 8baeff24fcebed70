"""The tab to plan, start, watch and stop runs."""

import gradio as gr
import pandas as pd

from myxtts.apps.studio import processes
from myxtts.apps.studio.parts import Choices, act, language_box, log_box, state_line
from myxtts.apps.studio.run_view import named_folder, view_run
from myxtts.apps.studio.studio import Studio
from myxtts.apps.studio.training_form import FLAGS, OWN, XTTS_V2
from myxtts.config.checks import UserError
from myxtts.config.config import recipe_names
from myxtts.config.stages import STAGES
from myxtts.storage.base_model import BASE_NAME

SECONDS_BETWEEN_LOOKS = 2.0


def train_tab(studio: Studio, said: dict[str, str], choices: Choices) -> None:
    """Settings, plan, start and stop, and the state of the run named in the first box."""
    now = gr.Markdown(elem_id="train_now")
    name, form, recipe, stages = _form(studio, said, choices.language)
    names, given = list(form), [name, recipe, *form.values()]
    shared = dict(show_progress="hidden", api_name=False)
    choices.data_folder.change(lambda folder: folder, choices.data_folder, form["train_data"], **shared)

    def flags(run, recipe, *values):
        return studio.flags(run, recipe, dict(zip(names, values)))

    with gr.Row():
        start = gr.Button(said["start"], variant="primary", elem_id="train_start")
        stop = gr.Button(said["stop"], elem_id="train_stop")
        plan = gr.Button(said["plan"], elem_id="train_plan")
    notice, state = state_line("train_notice"), state_line("train_state")
    planned = log_box(said["plan"], "train_planned", visible=False)

    def estimate(*values):
        yield said["planning"]
        yield "", gr.Textbox(studio.plan(flags(*values)), visible=True)

    def begin(run, *values):
        processes.require_free(named_folder(studio.home, run))
        yield said["planning"], gr.Textbox(visible=False)
        studio.plan(asked := flags(run, *values))  # raises for invalid settings
        processes.start_training(studio.home / run, asked)
        yield said["started"]

    def end(run):
        processes.stop_training(named_folder(studio.home, run))
        return said["stopping"]

    act(plan.click, estimate, given, [notice, planned], notice, api_name="plan")
    act(start.click, begin, given, [notice, planned], notice, api_name="start")
    act(stop.click, end, [name], [notice], notice, api_name="stop")
    _watch(studio, said, name, now, state)
    _fill(studio, name, form, recipe, stages, notice)

    def opened():
        training = studio.training()
        chosen = dict(value=training[0]) if training else {}  # else the typed name stays
        fresh = (gr.Dropdown(choices=_sources(studio, said)), gr.Dropdown(choices=studio.data.choices()))
        return gr.Dropdown(choices=studio.runs(), **chosen), *fresh, _now(studio, said)

    boxes = [name, form["init_from"], form["train_data"], now]
    choices.page.load(opened, None, boxes, show_progress="hidden", api_name=False)


def _form(studio, said, language):
    """The box of the run, boxes by the names of `FLAGS`, the box of the recipe, the table of stages."""
    preset = studio.preset(None, BASE_NAME)
    lists = dict(allow_custom_value=True)
    with gr.Row():
        name = gr.Dropdown(studio.runs(), value=None, label=said["new_run"], elem_id="train_run", **lists)
        source = dict(value=BASE_NAME, label=said["init_from"], elem_id="train_init_from", **lists)
        data = dict(value=None, label=said["train_data"], elem_id="train_train_data", **lists)
        form = {
            "init_from": gr.Dropdown(_sources(studio, said), **source),
            "train_data": gr.Dropdown(studio.data.choices(), **data),
            "language": language_box(said, "train_language", language),
        }
    look = dict(headers=[said[key] for key in ("stage", "steps", "batch_size", "rate")], interactive=False)
    stages = gr.Dataframe(preset.stages, label=said["stages"], elem_id="train_stages", **look)
    for place in ("main", "more"):
        with gr.Accordion(said["settings" if place == "main" else "switches"], open=False, elem_id=f"train_{place}"):
            if place == "main":
                recipes = [(said["nothing"], ""), (said["own"], OWN), *recipe_names()]
                recipe = gr.Dropdown(recipes, value=preset.recipe, label=said["recipe"], elem_id="train_recipe")
            with gr.Row():
                wanted = [key for key, flag in FLAGS.items() if flag.field.metadata["page"] == place]
                form |= {key: _box(key, said, preset.values[key]) for key in wanted if key not in form}
    return name, form, recipe, stages


def _box(name, said, value):
    """The box of a setting; without a translated label it shows flag and help."""
    flag = FLAGS[name]
    words = dict(label=said[name]) if name in said else dict(label=flag.names[0].lstrip("-"), info=flag.help)
    words |= dict(elem_id=f"train_{name}", min_width=240)
    if flag.kind is bool:
        return gr.Checkbox(bool(value), **words)
    if flag.choices:
        return gr.Dropdown([""] * (value is None) + flag.choices, value=value or "", **words)
    if flag.kind in (int, float) and flag.field.default is not None:  # an empty box of numbers would send 0
        return gr.Number(value, precision=0 if flag.kind is int else None, **words)
    return gr.Textbox("" if value is None else str(value), **words)


def _sources(studio, said):
    return [(said["nothing"], ""), (said["base"], BASE_NAME), *studio.runs(), ("XTTS v2", XTTS_V2)]


def _fill(studio, name, form, recipe, stages, notice):
    """Fills the form when run, source or recipe change."""
    source, outputs = form["init_from"], [recipe, stages, *form.values()]

    def shown(run, source, recipe=None):
        found = studio.preset(run, source, recipe)
        kept = () if found.recipe == OWN else ("train_data", "language")  # they do not depend on the source
        values = [gr.skip() if key in kept else found.values[key] for key in form]
        return found.recipe, found.stages, *values

    def named(run, source, recipe):
        if run in studio.runs():
            return shown(run, source)
        # The name of a new run changes nothing, but drops the settings of another run.
        return shown(None, source) if recipe == OWN else tuple(gr.skip() for _ in outputs)

    act(name.change, named, [name, source, recipe], outputs, notice, api_name="settings")
    act(source.input, shown, [name, source], outputs, notice, api_name="start_from")
    act(recipe.input, shown, [name, source, recipe], outputs, notice, api_name="recipe")


def _watch(studio, said, name, now, state):
    """Curves, sample and log of the run, read every two seconds; unchanged ones are not sent again."""
    look = dict(x="step", y="loss", color="series", color_title=said["kind"], height=240, visible=False)
    with gr.Row():
        plots = [
            gr.LinePlot(title=said["losses"].format(stage), elem_id=f"train_losses_{stage}", min_width=420, **look)
            for stage in STAGES
        ]
    look = dict(interactive=False, buttons=["download"], visible=False, elem_id="train_sample")
    sample = gr.Audio(label=said["sample"], type="filepath", **look)
    log = log_box(said["log"], "log", 12, visible=False)
    seen = gr.State(None)

    def look_at(run, seen):
        try:
            view = view_run(named_folder(studio.home, run or ""))
        except UserError:
            return _now(studio, said), *[gr.skip()] * (len(plots) + 3), seen
        words = view.failed or " · ".join([said[view.state], *view.facts(said)])
        newest = view.samples[0] if view.samples else None
        fresh = (run, len(view.metrics), newest, view.log[-200:])
        if fresh == seen:
            return _now(studio, said), words, *[gr.skip()] * (len(plots) + 2), seen
        curves, names = view.curves(), {"training": said["train_loss"], "validation": said["validation"]}
        tables = [[(step, loss, names[kind]) for step, loss, kind in curves.get(stage, ())] for stage in STAGES]
        columns = ["step", "loss", "series"]
        shown = [gr.LinePlot(pd.DataFrame(rows or None, columns=columns), visible=bool(rows)) for rows in tables]
        is_new = seen is None or (seen[0], seen[2]) != (run, newest)
        label = f"{said['sample']}: {newest.stem}" if newest else None
        heard = gr.Audio(newest and str(newest), label=label, visible=bool(newest)) if is_new else gr.skip()
        return _now(studio, said), words, *shown, heard, gr.Textbox(view.log, visible=bool(view.log)), fresh

    outputs = [now, state, *plots, sample, log, seen]
    quiet = dict(show_progress="hidden", api_name="state")
    gr.Timer(SECONDS_BETWEEN_LOOKS).tick(look_at, [name, seen], outputs, **quiet)


def _now(studio, said):
    training = studio.training()
    return said["now"].format(", ".join(training)) if training else said["none_now"]
