"""The page: five tabs over a `Studio`."""

import os

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # read when gradio is imported

import gradio as gr

from myxtts.apps.studio.compare_tab import compare_tab
from myxtts.apps.studio.data_tab import data_tab
from myxtts.apps.studio.models_tab import models_tab
from myxtts.apps.studio.parts import Choices
from myxtts.apps.studio.speak_tab import speak_tab
from myxtts.apps.studio.studio import Studio
from myxtts.apps.studio.texts import PREFIX, RIGHT_TO_LEFT, TEXTS
from myxtts.apps.studio.train_tab import train_tab

MOST_UPLOAD = "500mb"
CSS = ".rtl {direction: rtl} .rtl textarea, .rtl input {unicode-bidi: plaintext} "
CSS += "[data-testid=status-tracker]:has(.error) {display: none} "  # the word "Error" in each box; a sentence is shown
CSS += ".log textarea {direction: ltr; unicode-bidi: normal; font: 12px monospace; white-space: pre; overflow-x: auto}"
UPLOADS_KEPT_SECONDS = 3600
AT_ONCE = 8
"""Pages, and things in each, that are answered at once."""


def build_page(studio: Studio, language: str) -> gr.Blocks:
    """The page in one language."""
    said = TEXTS[language]
    direction = ["rtl"] if language in RIGHT_TO_LEFT else []
    kept = (UPLOADS_KEPT_SECONDS, UPLOADS_KEPT_SECONDS)
    with gr.Blocks(title=said["title"], analytics_enabled=False, delete_cache=kept) as page:
        with gr.Column(elem_classes=direction):
            other = "fa" if language == "en" else "en"
            gr.Markdown(f"# {said['title']}\n[{said['other']}]({PREFIX[other]}/)")
            choices = Choices(studio, said, page)
            with gr.Tab(said["data"], elem_id="tab_data"):
                folder = data_tab(studio, said)
            with gr.Tab(said["train"], elem_id="tab_train"):
                train_tab(studio, said, choices, folder)
            with gr.Tab(said["speak"], elem_id="tab_speak") as tab:
                speak_tab(studio, said, choices)
                choices.refresh_on(tab)
            with gr.Tab(said["compare"], elem_id="tab_compare") as tab:
                compare_tab(studio, said, choices)
                choices.refresh_on(tab)
            with gr.Tab(said["models"], elem_id="tab_models") as tab:
                models_tab(studio, said, choices, tab)
                choices.refresh_on(tab)
    return page.queue(default_concurrency_limit=AT_ONCE)
