"""The tab to list, export and import models."""

import gradio as gr

from myxtts.apps.studio.kept import kept_in, to_trash
from myxtts.apps.studio.parts import Choices, act, command_buttons, log_box, state_line
from myxtts.apps.studio.run_view import view_run
from myxtts.apps.studio.studio import Studio
from myxtts.config.checks import UserError


def models_tab(studio: Studio, said: dict[str, str], choices: Choices) -> None:
    """List of all models, export, and import of a release."""
    _list(studio, said, choices.tab)
    with gr.Accordion(said["export"], elem_id="export_box"):
        with gr.Row():
            model = choices.models("run", elem_id="export_run")
            weights = gr.Dropdown(["float32", "int8"], value="float32", label=said["weights"], elem_id="export_weights")
        button, line = command_buttons(said, "export", lambda: studio.tasks.cancel("export"))
        log = log_box(said["log"], "export_log", 4, visible=False)
        look = dict(file_count="multiple", interactive=False, visible=False, elem_id="export_files")
        files = gr.File(label=said["files"], **look)

    def export(model, weights):
        for lines in studio.export(model, weights):
            yield gr.Textbox(lines, visible=True)
        paths = [str(path) for path in sorted(studio.export_folder(model, weights).rglob("*")) if path.is_file()]
        yield gr.skip(), gr.File(paths, visible=True)

    act(button.click, export, [model, weights], [log, files], line, api_name="export")
    with gr.Accordion(said["import"], open=False, elem_id="import_box"):
        gr.Markdown(said["import_help"])
        with gr.Row():
            source = gr.Textbox("", label=said["source"], elem_id="import_source")
            name = gr.Textbox("", label=said["new_run"], elem_id="import_name")
        button, line = command_buttons(said, "import", lambda: studio.tasks.cancel("convert"))
        log = log_box(said["log"], "import_log", 4)
    act(button.click, studio.convert, [source, name], [log], line, api_name="import")


def _list(studio, said, tab):
    """List of runs, data sets and exports; a second button confirms that one goes to the trash."""

    def rows():
        found = kept_in(studio.home)
        named = [(f"{said['kind_' + one.kind]} · {one.folder.name}", place) for place, one in found.items()]
        facts = [_facts(one, said) for one in found.values()]
        table = [[label, one.size, one.changed, words] for (label, _), one, words in zip(named, found.values(), facts)]
        return table, gr.Dropdown(named, value=None), gr.Button(visible=False)

    headers = [said[key] for key in ("what", "size", "date", "state")]
    look = dict(interactive=False, wrap=True, column_widths=["32%", "10%", "16%", "42%"], elem_id="models")
    table = gr.Dataframe(label=said["kept"], headers=headers, **look)
    place = gr.Dropdown([], value=None, label=said["what"], elem_id="kept")
    with gr.Row():
        delete = gr.Button(said["delete"], elem_id="kept_delete")
        sure = gr.Button(said["sure"], variant="stop", visible=False, elem_id="kept_sure")
    line = state_line("kept_notice")

    def ask(place):
        if not place:
            raise UserError(said["choose_kept"])
        one = kept_in(studio.home)[place]
        return said["really"].format(one.folder.name, one.size), gr.Button(visible=True)

    def move(place):
        return said["trashed"].format(to_trash(studio.home, place)), *rows()

    act(delete.click, ask, [place], [line, sure], line, api_name="ask_trash")
    act(sure.click, move, [place], [line, table, place, sure], line, api_name="trash")
    place.input(lambda: gr.Button(visible=False), None, sure, show_progress="hidden", api_name=False)
    tab.select(rows, None, [table, place, sure], show_progress="hidden", api_name="models")


def _facts(one, said):
    if one.kind != "run":
        return ""
    view = view_run(one.folder)
    steps = [f"{part} {', '.join(map(str, steps))}" for part, steps in view.checkpoints.items() if steps]
    return " · ".join([said[view.state], *view.facts(said)[:3], f"{said['checkpoints']}: {' · '.join(steps)}"])
