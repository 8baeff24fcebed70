"""The tab in which recordings become a data set."""

import gradio as gr

from myxtts.apps.studio.parts import Choices, act, command_buttons, language_box, log_box, report_view
from myxtts.apps.studio.studio import Studio
from myxtts.config.checks import UserError

CLIPS = 3
"""That are heard at once."""
RECOGNIZERS = ("", "pocketsphinx")


def data_tab(studio: Studio, said: dict[str, str], choices: Choices) -> None:
    """Dropped and recorded sound, the doctor's report, clips to hear, texts to correct; `choices` gets the box with the
    folder."""
    with gr.Row():
        with gr.Column():
            with gr.Row():
                name = gr.Textbox("", label=said["data_name"], elem_id="data_name")
                language = language_box(said, "data_language", choices.language)
            look = dict(type="filepath", height=200, elem_id="data_files")
            files = gr.File(label=said["drop"], file_count="multiple", **look)
        with gr.Column():
            look = dict(info=said["recognizer_help"], allow_custom_value=True, elem_id="data_recognizer")
            recognizer = gr.Dropdown(list(RECOGNIZERS), value="", label=said["recognizer"], **look)
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
    check = gr.Button(said["check"], elem_id="data_check")
    report = log_box(said["report"], "data_report", 6, visible=False)
    with gr.Row(visible=False) as heard:
        clips = [
            gr.Audio(label=said["clip"], interactive=False, buttons=["download"], elem_id=f"data_clip_{n}")
            for n in range(CLIPS)
        ]
    again = gr.Button(said["other_clips"], visible=False, elem_id="data_again")
    fill_made = _made_set(studio, said, choices, folder, line)

    def make(name, files, is_long, language, recognizer):
        if not files:
            raise UserError(said["no_files"])
        for lines in studio.make_data_set(name, files, is_long, language, (recognizer or "").strip()):
            yield gr.Textbox(lines, visible=True)
        yield gr.skip(), gr.Dropdown(studio.data.choices(), value=str(studio.data.folder(name)))

    def record(name, recording, words):
        folder = studio.data.add_recording(name, recording, words)
        return gr.Dropdown(studio.data.choices(), value=str(folder)), None, "", said["added"]

    def listen(folder, language):
        found = studio.random_clips(folder, language, CLIPS)
        shown = [gr.Audio(value=sound, label=text) for text, sound in found]
        shown += [gr.Audio(value=None, label=said["clip"])] * (CLIPS - len(shown))
        return *shown, gr.Row(visible=True), gr.Button(visible=True)

    def examine(folder, language):
        return gr.Textbox(studio.check_data(folder, language), visible=True)

    given, inputs, places = [name, files, is_long, language, recognizer], [folder, language], [*clips, heard, again]
    made = act(keep.click, make, given, [report, folder], line, api_name="make_data_set")
    act(add.click, record, [name, recording, words], [folder, recording, words, line], line, api_name="add_recording")
    checked = act(check.click, examine, inputs, [report], line, api_name="check_data")
    made = act(made.success, examine, inputs, [report], line, api_name=False)
    for event in (checked.success, made.success, again.click):
        act(event, listen, inputs, places, line, api_name="clips" if event == checked.success else False)
        fill_made(event)
    choices.data_folder = folder


def _made_set(studio, said, choices, folder, line):
    """Texts to correct and report of a set that was cut from long recordings; returns what fills them on an
    event."""
    with gr.Accordion(said["texts"], open=True, visible=False, elem_id="data_texts_box") as box:
        look = dict(headers=[said["clip"], said["text"]], column_widths=["30%", "70%"], static_columns=[0])
        texts = gr.Dataframe(type="array", wrap=True, interactive=True, elem_id="data_texts", **look)
        with gr.Row():
            clip = gr.Audio(label=said["clip"], interactive=False, scale=2, elem_id="data_text_clip")
            save = gr.Button(said["save_texts"], variant="primary", elem_id="data_save")
    with gr.Accordion(said["page"], open=False, visible=False, elem_id="data_page_box") as page_box:
        page = gr.HTML(elem_id="data_page")

    def fill(folder):
        data, name = studio.data, studio.data.name_of(folder)
        rows = data.texts(name) if name else []
        shown = report_view(data.folder(name) / "report.html", choices.language) if name else ""
        return gr.Accordion(visible=bool(rows)), rows, shown, gr.Accordion(visible=bool(shown))

    def correct(folder, rows):
        return said["texts_saved"].format(studio.data.correct(studio.data.name_of(folder), rows))

    def hear(folder, event: gr.SelectData):
        return str(studio.data.clip(studio.data.name_of(folder), event.row_value[0]))

    texts.select(hear, folder, clip, show_progress="hidden", api_name=False)
    act(save.click, correct, [folder, texts], [line], line, api_name="save_texts")
    return lambda event: act(event, fill, [folder], [box, texts, page, page_box], line, api_name=False)
