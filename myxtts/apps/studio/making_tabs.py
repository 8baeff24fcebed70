"""The tabs Data, Train and Models of the web page."""

import shutil
import tempfile

import gradio as gr
import pandas as pd

from myxtts.apps.studio import parts, processes
from myxtts.apps.studio.folders import kept_in, named_folder, removable, runs_in, to_trash
from myxtts.apps.studio.parts import Choices, act
from myxtts.apps.studio.studio import Studio
from myxtts.apps.studio.training_form import FLAGS, OWN, XTTS_V2
from myxtts.config.checks import UserError, printable
from myxtts.config.config import recipe_names
from myxtts.config.stages import STAGES
from myxtts.hearing.recognizers import WHISPER_SIZES
from myxtts.storage.base_model import BASE_NAME


def data_tab(studio: Studio, texts: dict[str, str], choices: Choices) -> None:
    """Fills the tab Data, which makes and checks data sets. Stores its inputs in `choices.data` for the tab Train."""
    with gr.Row():
        with gr.Column():
            with gr.Row():
                name = gr.Textbox("", label=texts["data_name"], elem_id="data_name")
                language = parts.language_box(texts, "data_language", choices.language)
            files = gr.File(label=texts["drop"], file_count="multiple", height=200, elem_id="data_files")
        with gr.Column():
            look = dict(info=texts["transcribe_help"], allow_custom_value=True, elem_id="data_recognizer")
            names = [(one or texts["none"], one) for one in ("", *WHISPER_SIZES, "pocketsphinx")]
            recognizer = gr.Dropdown(names, value="", label=texts["transcribe"], **look)
            make_on = parts.command(studio, texts, "data_keep", "data", "make_data_set")
            with gr.Accordion(texts["record"], open=False, elem_id="data_record"):
                look = dict(type="filepath", buttons=["download"], elem_id="data_recording")
                recording = gr.Audio(sources=["microphone", "upload"], label=texts["record"], **look)
                words = gr.Textbox("", label=texts["record_text"], elem_id="data_words")
                add = gr.Button(texts["add_recording"], elem_id="data_add")
                added = parts.state_line("data_add_notice")
    look = dict(value=None, allow_custom_value=True, elem_id="data_folder")
    folder = choices.listed("train_data", studio.data.choices, **look)
    examine_on = _checked(studio, texts, choices.language, [folder, language])

    def made(cut, name="", *_):
        made = cut or studio.data.folder(name)
        return texts["made"].format(made.name), gr.Dropdown(studio.data.choices(), value=str(made))

    def record(name, recording, words):
        folder = str(studio.data.add_recording(name, recording, words))
        return gr.Dropdown(studio.data.choices(), value=folder), None, "", texts["added"]

    finished = make_on(choices, studio.make_data_set, [name, files, language, recognizer], [folder], made)
    examine_on(finished.success, api_name=False)
    places = [folder, recording, words, added]
    act(texts, add.click, record, [name, recording, words], places, added, api_name="add_recording")
    choices.data = dict(train_data=folder, language=language)


def _checked(studio, texts, page_language, chosen):
    """Adds a button that checks a data set, and components that show report, clips, editable texts and `report.html`.
    `chosen` are the inputs for folder and language. Returns a function that connects a Gradio event to the check."""
    check = gr.Button(texts["check"], elem_id="data_check")
    line, report = parts.state_line("data_notice"), parts.log_box(texts["report"], "data_report", 6)
    with gr.Column(visible=False, elem_id="data_clips_box") as clips_box:
        look = dict(headers=[texts[key] for key in ("clip", "text", "doubt")], label=texts["texts"], max_height=400)
        look |= dict(column_widths=["25%", "50%", "25%"], static_columns=[0, 2], wrap=True, interactive=True)
        sound = dict(buttons=["download"], elem_id="data_heard")
        clips, loaded = gr.Dataframe(type="array", elem_id="data_clips", **look), gr.State(("", (), ""))
        heard = gr.Audio(label=texts["clip"], interactive=False, autoplay=True, **sound)
        spoken = parts.language_box(texts, "data_spoken", page_language)
        save, saved = gr.Button(texts["save_texts"], visible=False, elem_id="data_save"), parts.state_line("data_saved")
    with gr.Accordion(texts["page"], open=False, visible=False, elem_id="data_page_box") as page_box:
        page = gr.HTML(elem_id="data_page")

    def examine(folder, language):
        folder = studio.data.place(folder)
        yield gr.Textbox(studio.check_data(folder, language), visible=True)
        clips, doubts = studio.clips(folder, language), studio.data.doubts(folder)
        rows = [[at, clip.text, doubts.get((at, printable(clip.text).lstrip("'")), "")] for at, clip in clips.items()]
        rows.sort(key=lambda row: not row[2])
        is_own, (stated, found) = bool(studio.data.lists(folder)), studio.clip_languages(clips.values())
        words = texts["checked"].format(len(rows), sum(bool(row[2]) for row in rows))
        words += texts["first_rows"] * (len(rows) > 500)
        names, button = {code: name for name, code in spoken.choices}, texts["save_texts" if is_own else "check"]
        if found and stated in names and found != stated:
            words += texts["other_language"].format(names[found], names[stated], button)
        shown = parts.report_view(folder, page_language) if is_own else ""
        visible = [gr.update(visible=bool(of)) for of in (rows, is_own, shown)]
        known = stated if stated in names else None  # a list may have another language
        own = gr.Dropdown(value=known, label=texts["clips_language"], visible=is_own)
        seen = folder, (rows := rows[:500]), stated
        yield gr.skip(), rows, shown, seen, known or gr.skip(), own, words, *visible

    def hear(seen, language, event: gr.SelectData):
        return studio.hear(seen[0], language, event.row_value[0])

    places = [report, clips, page, loaded, chosen[1], spoken, line, clips_box, save, page_box]
    examine_on = lambda event, **options: act(texts, event, examine, chosen, places, line, **options)
    examine_on(check.click, api_name="check_data")
    count_edits = lambda seen, rows, to: studio.data.correct(*seen[:2], rows, {seen[2]: to or seen[2]})
    correct = lambda *given: texts["texts_saved"].format(count_edits(*given))
    correcting = act(texts, save.click, correct, [loaded, clips, spoken], [saved], saved, api_name="save_texts")
    examine_on(correcting.success, api_name=False)
    clips.select(hear, [loaded, chosen[1]], heard, show_progress="hidden", api_name=False)
    return examine_on


def train_tab(studio: Studio, texts: dict[str, str], choices: Choices) -> None:
    """Fills the tab Train: the settings of a run, buttons to plan, start and stop it, and its state."""
    now = gr.Markdown(elem_id="train_now")
    name, form, recipe, stages = _form(studio, texts, choices)
    # The form has its own status line: filling it when the page opens must not clear the message of a button.
    filled = parts.state_line("train_form_notice")
    given = [name, recipe, *form.values()]
    shared = dict(show_progress="hidden", api_name=False)
    choices.data["language"].change(lambda language: language, choices.data["language"], form["language"], **shared)
    listed = lambda *given: (given[0], studio.data_language(*given))
    places = [form["train_data"], form["language"]]
    choices.data["train_data"].change(listed, list(choices.data.values()), places, **shared)
    form["train_data"].input(studio.data_language, places, form["language"], **shared)
    flags = lambda run, recipe, *values: studio.flags(run, recipe, dict(zip(form, values)))
    with gr.Row():
        start = gr.Button(texts["start"], variant="primary", elem_id="train_start")
        stop = gr.Button(texts["stop"], elem_id="train_stop")
    notice, state = parts.state_line("train_notice"), parts.state_line("train_state")
    plan_on = parts.command(studio, texts, "train_plan", "plan", "plan")

    def begin(run, *values):
        processes.require_free(named_folder(studio.home, run))
        yield texts["planning"]
        arguments = flags(run, *values)
        list(studio.plan(arguments, None, processes.Tasks()))  # raises for invalid settings
        studio.tasks.cancel("plan")  # it would slow down the training
        processes.start_training(studio.home / run, arguments)
        yield texts["started"]

    end = lambda run: processes.stop_training(named_folder(studio.home, run)) or texts["stopping"]
    plan_on(choices, lambda run, *values: studio.plan(flags(run, *values), run), given)
    act(texts, start.click, begin, given, [notice], notice, api_name="start")
    act(texts, stop.click, end, [name], [notice], notice, api_name="stop")
    name.input(lambda: "", None, notice, **shared)
    _watch(studio, texts, name, now, state, notice)
    _fill(studio, texts, name, form, recipe, stages, filled)
    # If nothing is training, the typed name stays.
    choices.page.load(lambda: next(iter(studio.training()), gr.skip()), None, name, **shared)


def _form(studio, texts, choices):
    """Adds the training form. Returns four values: run name input, `{setting: input}`, recipe input, stage table."""
    preset = studio.preset(None, BASE_NAME)
    lists = dict(value=None, allow_custom_value=True)
    models = lambda: [(texts["nothing"], ""), (texts["base"], BASE_NAME), *runs_in(studio.home), ("XTTS v2", XTTS_V2)]
    with gr.Row():
        name = choices.listed("new_run", lambda: runs_in(studio.home), elem_id="train_run", **lists)
        source = lists | dict(value=BASE_NAME, elem_id="train_init_from")
        form = {
            "init_from": choices.listed("init_from", models, **source),
            "train_data": choices.listed("train_data", studio.data.choices, elem_id="train_train_data", **lists),
            "language": parts.language_box(texts, "train_language", choices.language),
        }
    look = dict(headers=[texts[key] for key in ("stage", "steps", "batch_size", "rate")], interactive=False)
    stages = gr.Dataframe(preset.stages, label=texts["stages"], elem_id="train_stages", **look)
    for place in ("main", "more"):
        with gr.Accordion(texts["settings" if place == "main" else "switches"], open=False, elem_id=f"train_{place}"):
            if place == "main":
                recipes = [(texts["nothing"], ""), (texts["own"], OWN), *recipe_names()]
                recipe = gr.Dropdown(recipes, value=preset.recipe, label=texts["recipe"], elem_id="train_recipe")
            with gr.Row():
                wanted = [key for key, flag in FLAGS.items() if flag.field.metadata["page"] == place]
                form |= {key: _box(key, texts, preset.values[key]) for key in wanted if key not in form}
    return name, form, recipe, stages


def _box(name, texts, value):
    """Creates the input of a setting. Its help line shows the flag and the flag's help."""
    flag = FLAGS[name]
    more = texts.get(f"{name}_help", flag.help)
    words = dict(label=texts.get(name, name.replace("_", " ").capitalize()), info=f"`{flag.names[0]}` {more}")
    words |= dict(elem_id=f"train_{name}", elem_classes=["setting"], min_width=240)
    if flag.kind is bool:
        return gr.Checkbox(bool(value), **words)
    if flag.choices:
        return gr.Dropdown([""] * (value is None) + flag.choices, value=value or "", **words)
    if flag.kind in (int, float) and flag.field.default is not None:  # an empty number box would send 0
        return gr.Number(value, precision=0 if flag.kind is int else None, **words)
    return gr.Textbox("" if value is None else str(value), **words)


def _fill(studio, texts, name, form, recipe, stages, notice):
    """Connects events that update the form when the run name, the model to start from or the recipe is changed."""
    source, outputs = form["init_from"], [recipe, stages, *form.values()]

    def shown(run, source, recipe=None):
        found = studio.preset(run, source, recipe)
        kept = () if found.recipe == OWN else ("train_data", "language")  # they do not depend on the source
        return found.recipe, found.stages, *(gr.skip() if key in kept else found.values[key] for key in form)

    def named(run, source, recipe):
        if run in runs_in(studio.home):
            return shown(run, source)
        # The name of a new run only resets the form if it has the settings of another run.
        return shown(None, source) if recipe == OWN else tuple(gr.skip() for _ in outputs)

    act(texts, name.change, named, [name, source, recipe], outputs, notice, api_name="settings")
    act(texts, source.input, shown, [name, source], outputs, notice, api_name="start_from")
    act(texts, recipe.input, shown, [name, source, recipe], outputs, notice, api_name="recipe")
    counted = lambda run, recipe, *values: studio.stages(run, recipe, dict(zip(form, values)))
    for key in ("stage", "epochs", "max_steps", "batch_size", "lr", "tune"):
        # `input` events carry the value before the last key.
        act(texts, form[key].change, counted, [name, recipe, *form.values()], [stages], notice, api_name=False)


def _watch(studio, texts, name, now, state, notice):
    """Adds a run's loss plots, newest sample and log. Updates these and `now`, `state`, `notice` every 2 seconds."""
    look = dict(x="step", y="loss", color="series", color_title=texts["kind"], height=240, min_width=420, visible=False)
    look |= dict(x_axis_format="d", x_title=texts["steps"])
    title = texts["losses"].format
    with gr.Row():
        plots = [gr.LinePlot(title=title(stage), elem_id=f"train_losses_{stage}", **look) for stage in STAGES]
    look = dict(interactive=False, buttons=["download"], visible=False, elem_id="train_sample")
    sample = gr.Audio(label=texts["sample"], type="filepath", **look)
    log = parts.log_box(texts["log"], "log", 12)
    log.change(None, None, None, js=parts.SCRIPTS["to_end"])
    seen = gr.State(None)

    def look_at(run, seen):
        training = studio.training()
        running = texts["now"].format(", ".join(training)) if training else texts["none_now"]
        try:
            view = processes.RunView(named_folder(studio.home, run or ""))
        except UserError:
            return running, *[gr.skip()] * (len(plots) + 4), seen
        words = texts["dot"].join([texts[view.state], *view.facts(texts)])
        words = texts["in_english"].format(parts.PATHS.sub("", view.failed)) if view.failed else words
        fresh = (run, len(view.metrics), view.sample, view.log[-200:], view.running)
        if fresh == seen:
            return running, words, *[gr.skip()] * (len(plots) + 3), seen
        said = "" if seen and seen[0] == run and seen[-1] and not view.running else gr.skip()  # "Stopping" is over
        curves, names = view.curves(), {"training": texts["train_loss"], "validation": texts["validation"]}
        lines = [[(step, loss, names[kind]) for step, loss, kind in curves.get(stage, ())] for stage in STAGES]
        for rows in filter(None, lines):  # Gradio draws only the curves that a chart has at first
            rows += [(rows[0][0], None, one) for one in names.values() if one not in {row[2] for row in rows}]
        plot = lambda rows: gr.LinePlot(pd.DataFrame(rows, columns=["step", "loss", "series"]), visible=bool(rows))
        is_new = seen is None or (seen[0], seen[2]) != (run, view.sample)
        label = f"{texts['sample']}: {texts['value'].format(view.sample.stem)}" if view.sample else None
        heard = gr.Audio(view.sample, label=label, visible=bool(view.sample)) if is_new else gr.skip()
        return running, words, said, *map(plot, lines), heard, gr.Textbox(view.log, visible=bool(view.log)), fresh

    outputs = [now, state, notice, *plots, sample, log, seen]
    gr.Timer(2.0).tick(look_at, [name, seen], outputs, show_progress="hidden", api_name="state")


def models_tab(studio: Studio, texts: dict[str, str], choices: Choices) -> None:
    """Fills the tab Models: a list of runs, data sets and exports, and forms to export and import a model."""
    _list(studio, texts, choices)
    with gr.Accordion(texts["export"], elem_id="export_box"):
        with gr.Row():
            model = choices.models("run", elem_id="export_run")
            weights = gr.Dropdown(["float32", "int8"], label=texts["weights"], elem_id="export_weights")
        export_on = parts.command(studio, texts, "export", "export")
        download = gr.File(label=texts["download"], interactive=False, visible=False, elem_id="export_files")

    def exported(folder, *chosen):
        note, folder = "" if folder else texts["exported"], folder or studio.export_folder(*chosen)
        name = f"{tempfile.mkdtemp(dir=download.GRADIO_CACHE)}/{folder.name}"  # deleted like an uploaded file
        return note, gr.update(value=shutil.make_archive(name, "zip", folder.parent, folder.name), visible=True)

    choices.refill(export_on(choices, studio.export, [model, weights], [download], exported).success)
    with gr.Accordion(texts["import"], open=False, elem_id="import_box"):
        gr.Markdown(texts["import_help"])
        with gr.Row():
            source = gr.Textbox("", label=texts["source"], elem_id="import_source")
            name = gr.Textbox("", label=texts["new_run"], elem_id="import_name")
        import_on = parts.command(studio, texts, "import", "convert")
        choices.refill(import_on(choices, studio.convert, [source, name]).success)


def _list(studio, texts, choices):
    """Adds the list (runs, data sets, exports), a button to move an item to the trash, and a button to confirm this."""

    def rows():
        found, shown = kept_in(studio.home), texts["value"].format
        row = lambda one: [texts["megabytes"].format(one.megabytes), shown(one.changed), _facts(one, texts)]
        named = [(f"{texts['kind_' + one.kind]} · {shown(one.folder.name)}", place) for place, one in found.items()]
        table = [[label, *row(one)] for (label, _), one in zip(named, found.values())]
        return table, gr.Dropdown(named, value=None), gr.Button(visible=False)

    headers = [texts[key] for key in ("what", "size", "date", "state")]
    look = dict(interactive=False, wrap=True, column_widths=[190, 110, 150, 730], elem_id="models")
    table = gr.Dataframe(label=texts["kept"], headers=headers, **look)
    place = gr.Dropdown([], value=None, label=texts["what"], elem_id="kept")
    with gr.Row():
        delete = gr.Button(texts["delete"], elem_id="kept_delete")
        sure = gr.Button(texts["sure"], variant="stop", visible=False, elem_id="kept_sure")
    line = parts.state_line("kept_notice")

    def ask(place):
        one = removable(studio.home, place, studio.tasks)
        return texts["really"].format(one.folder.name, one.megabytes), gr.Button(visible=True)

    def move(place):
        return texts["trashed"].format(to_trash(studio.home, place, studio.tasks).name), *rows()

    act(texts, delete.click, ask, [place], [line, sure], line, api_name="ask_trash")
    choices.refill(act(texts, sure.click, move, [place], [line, table, place, sure], line, api_name="trash").success)
    place.input(lambda: gr.Button(visible=False), None, sure, show_progress="hidden", api_name=False)
    choices.fresh([table, place, sure], rows, "models")


def _facts(one, texts):
    if one.kind != "run":
        return ""
    try:
        view = processes.RunView(one.folder)
    except (UserError, OSError) as error:  # such as damaged settings, which must not hide the other items
        return str(error)
    shown, dot = texts["value"].format, texts["dot"]
    steps = [f"{shown(part)} {texts['comma'].join(map(shown, of))}" for part, of in view.checkpoints.items() if of]
    return dot.join([texts[view.state], *view.facts(texts)[:3], f"{texts['checkpoints']}: {dot.join(steps)}"])
