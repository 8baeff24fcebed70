"""The tab that makes data sets of recordings."""

import gradio as gr

from myxtts.apps.studio.parts import Choices, act, command_buttons, language_box, log_box, report_view, state_line
from myxtts.apps.studio.studio import Studio
from myxtts.config.checks import UserError


def data_tab(studio: Studio, said: dict[str, str], choices: Choices) -> None:
    """Uploads and recordings to a data set, with a check; sets `choices.data_folder` to the box of its folder."""
    with gr.Row():
        with gr.Column():
            with gr.Row():
                name = gr.Textbox("", label=said["data_name"], elem_id="data_name")
                language = language_box(said, "data_language", choices.language)
            look = dict(type="filepath", height=200, elem_id="data_files")
            files = gr.File(label=said["drop"], file_count="multiple", **look)
        with gr.Column():
            look = dict(info=said["recognizer_help"], allow_custom_value=True, elem_id="data_recognizer")
            recognizer = gr.Dropdown(["", "pocketsphinx"], value="", label=said["recognizer"], **look)
            is_long = gr.Checkbox(label=said["long"], info=said["long_help"], elem_id="data_long")
            cancel = lambda name: studio.tasks.cancel(f"data {name}")
            keep, line = command_buttons(said, "data_keep", cancel, "make_data_set", name)
            with gr.Accordion(said["record"], open=False, elem_id="data_record"):
                look = dict(type="filepath", buttons=["download"], elem_id="data_recording")
                recording = gr.Audio(sources=["microphone", "upload"], label=said["record"], **look)
                words = gr.Textbox("", label=said["record_text"], elem_id="data_words")
                add = gr.Button(said["add_recording"], elem_id="data_add")
    look = dict(allow_custom_value=True, elem_id="data_folder")
    folder = gr.Dropdown(studio.data.choices(), value=None, label=said["train_data"], **look)
    report, examine_on = _checked(studio, said, choices.language, [folder, language])

    def make(name, files, is_long, language, recognizer):
        if not files:
            raise UserError(said["no_files"])
        for lines in studio.make_data_set(name, files, is_long, language, (recognizer or "").strip()):
            yield gr.Textbox(lines, visible=True)
        yield gr.skip(), gr.Dropdown(studio.data.choices(), value=str(studio.data.folder(name)))

    def record(name, recording, words):
        folder = str(studio.data.add_recording(name, recording, words))
        return gr.Dropdown(studio.data.choices(), value=folder), None, "", said["added"]

    given = [name, files, is_long, language, recognizer]
    made = act(keep.click, make, given, [report, folder], line, api_name="make_data_set")
    examine_on(made.success, api_name=False)
    act(add.click, record, [name, recording, words], [folder, recording, words, line], line, api_name="add_recording")
    choices.data_folder = folder


def _checked(studio, said, page_language, chosen):
    """The doctor's report on the `chosen` folder and language, clips to play, texts to correct, and the set's page;
    returns the box of the report, and a function that examines on an event."""
    check = gr.Button(said["check"], elem_id="data_check")
    line, report = state_line("data_notice"), log_box(said["report"], "data_report", 6, visible=False)
    with gr.Column(visible=False, elem_id="data_clips_box") as clips_box:
        look = dict(headers=[said["clip"], said["text"]], column_widths=["30%", "70%"], static_columns=[0])
        sound = dict(buttons=["download"], elem_id="data_heard")
        look |= dict(label=said["texts"], max_height=400, wrap=True, interactive=True, elem_id="data_clips")
        clips = gr.Dataframe(type="array", **look)
        heard = gr.Audio(label=said["clip"], interactive=False, autoplay=True, **sound)
        save = gr.Button(said["save_texts"], visible=False, elem_id="data_save")
    with gr.Accordion(said["page"], open=False, visible=False, elem_id="data_page_box") as page_box:
        page = gr.HTML(elem_id="data_page")

    def examine(folder, language):
        yield gr.Textbox(studio.check_data(folder, language), visible=True)
        rows = [[place, clip.text] for place, clip in studio.clips(folder, language).items()]
        is_own = bool(studio.data.lists(folder))
        shown = report_view(folder, page_language) if is_own else ""
        yield gr.skip(), rows, shown, *(kind(visible=bool(of)) for kind, of in zip(kinds, (rows, is_own, shown)))

    def hear(folder, language, event: gr.SelectData):
        return studio.hear(folder, language, event.row_value[0])

    places, kinds = [report, clips, page, clips_box, save, page_box], (gr.Column, gr.Button, gr.Accordion)
    examine_on = lambda event, **options: act(event, examine, chosen, places, line, **options)
    examine_on(check.click, api_name="check_data")
    correct = lambda folder, rows: said["texts_saved"].format(studio.data.correct(folder, rows))
    act(save.click, correct, [chosen[0], clips], [line], line, api_name="save_texts")
    clips.select(hear, chosen, heard, show_progress="hidden", api_name=False)
    return report, examine_on
