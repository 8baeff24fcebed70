"""The tab in which recordings become a data set."""

import gradio as gr
import pandas as pd

from myxtts.apps.studio.parts import cancel_button, language_box, log_box, shows_errors
from myxtts.apps.studio.studio import Studio
from myxtts.config.checks import UserError

CLIPS = 3
"""That are heard at once."""


def data_tab(studio: Studio, said: dict[str, str]) -> gr.Textbox:
    """Dropped and recorded sound, the doctor's report, cuts, and clips to hear; returns the box with the folder."""
    name = gr.Textbox("", label=said["data_name"], elem_id="data_name")
    language = language_box(said, "data_language")
    with gr.Row():
        with gr.Column():
            look = dict(type="filepath", height=220, elem_id="data_files")
            files = gr.File(label=said["drop"], file_count="multiple", **look)
            is_long = gr.Checkbox(label=said["long"], info=said["long_help"], elem_id="data_long")
            keep = gr.Button(said["make_data_set"], variant="primary", elem_id="data_keep")
            cancel_button(said, "data_cancel", lambda name: studio.tasks.cancel(f"data {name}"), name)
        with gr.Column():
            look = dict(type="filepath", buttons=["download"], elem_id="data_recording")
            recording = gr.Audio(sources=["microphone", "upload"], label=said["record"], **look)
            words = gr.Textbox("", label=said["record_text"], elem_id="data_words")
            add = gr.Button(said["add_recording"], elem_id="data_add")
    folder = gr.Textbox("", label=said["train_data"], elem_id="data_folder")
    check = gr.Button(said["check"], elem_id="data_check")
    report = log_box(said["report"], "data_report", 10)
    with gr.Row():
        clips = [
            gr.Audio(label=said["clip"], interactive=False, buttons=["download"], elem_id=f"data_clip_{n}")
            for n in range(CLIPS)
        ]
    again = gr.Button(said["other_clips"], elem_id="data_again")
    cuts = gr.Dataframe(label=said["cuts"], interactive=False, wrap=True, visible=False, elem_id="data_cuts")

    def make(name, files, is_long, language):
        if not files:
            raise UserError(said["no_files"])
        for lines in studio.make_data_set(name, files, is_long, language):
            yield lines, gr.skip(), gr.skip()
        headers, rows = studio.data.cuts(studio.data.folder(name))
        table = pd.DataFrame(rows, columns=headers) if rows else None
        yield lines, str(studio.data.folder(name)), gr.Dataframe(value=table, visible=bool(rows))

    def record(name, recording, words):
        return str(studio.data.add_recording(name, recording, words)), None, "", said["added"]

    def listen(folder, language):
        found = studio.random_clips(folder, language, CLIPS)
        shown = [gr.Audio(value=sound, label=text) for text, sound in found]
        return shown + [gr.Audio(value=None, label=said["clip"])] * (CLIPS - len(shown))

    inputs = [folder, language]
    made = keep.click(
        shows_errors(make), [name, files, is_long, language], [report, folder, cuts], api_name="make_data_set"
    )
    add.click(
        shows_errors(record), [name, recording, words], [folder, recording, words, report], api_name="add_recording"
    )
    checked = check.click(shows_errors(studio.check_data), inputs, report, api_name="check_data")
    made = made.success(shows_errors(studio.check_data), inputs, report, api_name=False)
    for event in (checked.success, made.success, again.click):
        event(shows_errors(listen), inputs, clips, api_name="clips" if event == checked.success else False)
    return folder
