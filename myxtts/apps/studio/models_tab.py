"""The tab with the models there are, and the ways in and out."""

import gradio as gr

from myxtts.apps.studio.parts import Choices, cancel_button, check_words, log_box, shows_errors
from myxtts.apps.studio.studio import Studio

FORMATS, WEIGHTS = ("onnx",), ("float32", "int8")


def models_tab(studio: Studio, said: dict[str, str], choices: Choices, tab: gr.Tab) -> None:
    """Runs and their checkpoints, export, and import of a release."""

    def rows():
        views = [studio.view(name) for name in studio.runs()]
        told_of = [" · ".join([said[view.state], *view.facts]) for view in views]
        return [[view.folder.name, words, _steps(view.checkpoints)] for view, words in zip(views, told_of)]

    headers = [said["run"], said["state"], said["checkpoints"]]
    widths = ["28%", "44%", "28%"]
    table = gr.Dataframe(rows, headers=headers, interactive=False, wrap=True, column_widths=widths, elem_id="models")
    gr.Button(said["refresh"]).click(rows, None, table, api_name="models")
    tab.select(rows, None, table, show_progress="hidden", api_name=False)
    _export(studio, said, choices)
    with gr.Accordion(said["import"], open=False, elem_id="import_box"):
        gr.Markdown(said["import_help"])
        source = gr.Textbox("", label=said["source"], elem_id="import_source")
        name = gr.Textbox("", label=said["new_run"], elem_id="import_name")
        button = gr.Button(said["import"], elem_id="import")
        cancel_button(said, "import_cancel", lambda: studio.tasks.cancel("convert"))
        log = log_box(said["log"], "import_log", 4)

        def convert(source, name):
            yield from studio.convert(source, name)

        button.click(shows_errors(convert), [source, name], log, api_name="import")


def _export(studio, said, choices):
    with gr.Row():
        run = choices.runs("run", elem_id="export_run")
        file_format = gr.Dropdown(list(FORMATS), value="onnx", label=said["format"], elem_id="export_format")
        weights = gr.Dropdown(list(WEIGHTS), value="float32", label=said["weights"], elem_id="export_weights")
    button = gr.Button(said["export"], elem_id="export")
    cancel_button(said, "export_cancel", lambda: studio.tasks.cancel("export"))
    log = log_box(said["log"], "export_log", 4)
    files = gr.File(label=said["files"], file_count="multiple", interactive=False, elem_id="export_files")

    def export(run, file_format, weights):
        check_words(said, run, "-", "-", None)
        for lines in studio.export(run, file_format, weights):
            yield lines, gr.skip()
        folder = studio.export_folder(run, file_format, weights)
        yield lines, [str(path) for path in sorted(folder.rglob("*")) if path.is_file()]

    button.click(shows_errors(export), [run, file_format, weights], [log, files], api_name="export")


def _steps(checkpoints):
    return " · ".join(f"{part} {', '.join(map(str, steps))}" for part, steps in checkpoints.items() if steps)
