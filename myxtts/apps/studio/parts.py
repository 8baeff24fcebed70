"""Components that several tabs of the page share."""

import html
import inspect
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gradio as gr

from myxtts.apps.studio.studio import Studio
from myxtts.apps.studio.texts import PREFIX
from myxtts.config.checks import UserError
from myxtts.storage.base_model import BASE_NAME
from myxtts.text.languages import LANGUAGES


def state_line(elem_id: str) -> gr.Markdown:
    """A line below a button with progress or an error."""
    return gr.Markdown("", elem_id=elem_id, elem_classes=["state"])


def act(
    event: Callable[..., Any], function: Callable, inputs: Sequence, outputs: Sequence, line: gr.Markdown, **options
) -> Any:
    """Calls a function or generator on an event of a component; returns Gradio's dependency.

    Errors appear in `line`, which may be among the outputs, until the next call: a `UserError` with its own message.
    Events chained with `success` do not follow an error.
    """

    def generated(*given):
        yield {line: ""}
        try:
            results = function(*given)
            for result in results if inspect.isgenerator(results) else [results]:
                values = result if isinstance(result, tuple) else (result,)
                yield {line: gr.skip()} | dict(zip(outputs, values))
        except Exception as error:
            expected = isinstance(error, UserError | OSError)
            sentence = str(error) if expected and str(error) else f"{type(error).__name__}: {error}"
            if isinstance(error, OSError) and error.strerror:
                sentence = f"{error.strerror}: {error.filename2 or error.filename}"
            yield {line: f'<span class="wrong">{html.escape(sentence)}</span>'}
            raise gr.Error(html.escape(sentence), visible=False, print_exception=not expected) from error

    places = list(outputs) if line in outputs else [*outputs, line]
    return event(generated, list(inputs), places, **{"show_progress": "hidden", **options})


def log_box(label: str, elem_id: str, lines: int = 8, visible: bool = True) -> gr.Textbox:
    """A box for the output of a command."""
    look = dict(elem_id=elem_id, elem_classes=["log"], interactive=False, visible=visible)
    return gr.Textbox("", label=label, lines=lines, max_lines=24, **look)


def language_box(said: dict[str, str], elem_id: str | None = None, value: str = "en") -> gr.Dropdown:
    """A drop-down of languages."""
    names = [(f"{one.name} ({code})", code) for code, one in LANGUAGES.items()]
    return gr.Dropdown(names, value=value, label=said["language"], elem_id=elem_id)


def command_buttons(
    said: dict[str, str], name: str, cancel: Callable[..., None], label: str = "", *given: gr.components.Component
) -> tuple[gr.Button, gr.Markdown]:
    """Buttons to run and to cancel a command, and their line; `cancel` is called with the values of `given`."""
    with gr.Row():
        button = gr.Button(said[label or name], variant="primary", elem_id=name)
        ends = gr.Button(said["cancel"], elem_id=f"{name}_cancel")
    line = state_line(f"{name}_notice")
    act(ends.click, cancel, given, [], line, api_name=f"{name}_cancel")
    return button, line


def report_view(folder: str | Path, language: str) -> str:
    """The `report.html` of a folder as a sandboxed frame, with audio from that folder."""
    if not (page := Path(folder, "report.html")).is_file():
        return ""
    files = f'src="{PREFIX[language]}/gradio_api/file={html.escape(str(page.parent.resolve()))}/'
    content = re.sub(r'src="(?=[^/":]+/)', lambda _: files, page.read_text(encoding="utf-8"))
    return f'<iframe class="report" sandbox="allow-same-origin" srcdoc="{html.escape(content)}"></iframe>'


class Choices:
    """Drop-downs of the present models, updated when the page or a tab is opened."""

    def __init__(self, studio: Studio, said: dict[str, str], page: gr.Blocks, language: str):
        self.studio, self.said, self.page, self.language = studio, said, page, language
        self.tab: gr.Tab | None = None
        """The tab under construction."""

    def models(self, label: str, **options) -> gr.Dropdown:
        """A drop-down of models; the default is the bundled one."""
        box = gr.Dropdown(self._names(), value=BASE_NAME, label=self.said[label], **options)
        for event in (self.page.load, self.tab.select):
            event(self._fresh, None, box, show_progress="hidden", api_name=False)
        return box

    def voice(self, model: gr.Dropdown, name: str) -> tuple[gr.Dropdown, gr.Dropdown, gr.Audio]:
        """Inputs for language, a voice of the model (those of the language first), and a recording instead."""
        with gr.Row():
            language = language_box(self.said, f"{name}_language", self.language)
            first = self.studio.speakers(BASE_NAME, self.language)
            speaker = gr.Dropdown(first, value=first[0], label=self.said["voice"], elem_id=f"{name}_speaker")
        with gr.Accordion(self.said["voice_file"], open=False, elem_id=f"{name}_own_voice"):
            look = dict(type="filepath", buttons=["download"], elem_id=f"{name}_recording")
            recording = gr.Audio(sources=["upload", "microphone"], label=self.said["voice_file_help"], **look)

        def speakers(model, language):
            names = self.studio.speakers(model, language)
            return gr.Dropdown(names, value=names[0] if names else None)

        for box in (model, language):
            look = dict(show_progress="hidden", api_name=f"{name}_speakers" if box is model else False)
            box.change(speakers, [model, language], speaker, **look)
        return language, speaker, recording

    def _names(self):
        return [(self.said["base"], BASE_NAME), *self.studio.runs()]

    def _fresh(self):
        return gr.Dropdown(choices=self._names())


def check_words(said: dict[str, str], text: str, recording: str | None, speaker: str | None) -> None:
    """Raises `UserError` if text or voice are missing."""
    if not text.strip():
        raise UserError(said["no_text"])
    if not (recording or speaker):
        raise UserError(said["no_voice"])
