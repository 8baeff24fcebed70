"""What several tabs of the page have in common."""

import functools
import html
import inspect
from collections.abc import Callable

import gradio as gr

from myxtts.apps.studio.studio import Studio
from myxtts.config.checks import UserError
from myxtts.text.languages import LANGUAGES


def shows_errors(function: Callable) -> Callable:
    """Shows errors in the page until they are read, of functions and of generators: what a user can mend in the
    command's own sentence."""

    @functools.wraps(function)
    def wrapped(*given):
        try:
            return function(*given)
        except Exception as error:
            raise _shown(error) from error

    @functools.wraps(function)
    def generated(*given):
        try:
            yield from function(*given)
        except Exception as error:
            raise _shown(error) from error

    return generated if inspect.isgeneratorfunction(function) else wrapped


def _shown(error):
    expected = isinstance(error, UserError | OSError)
    sentence = str(error) if expected and str(error) else f"{type(error).__name__}: {error}"
    if isinstance(error, OSError) and error.strerror:
        sentence = f"{error.strerror}: {error.filename2 or error.filename}"
    return gr.Error(html.escape(sentence), duration=None, print_exception=not expected)


def log_box(label: str, elem_id: str, lines: int = 8) -> gr.Textbox:
    """What a command prints."""
    return gr.Textbox(
        "", label=label, lines=lines, max_lines=24, elem_id=elem_id, elem_classes=["log"], interactive=False
    )


def language_box(said: dict[str, str], elem_id: str | None = None) -> gr.Dropdown:
    """Choice of a language."""
    names = [(f"{one.name} ({code})", code) for code, one in LANGUAGES.items()]
    return gr.Dropdown(names, value="en", label=said["language"], elem_id=elem_id)


def cancel_button(said: dict[str, str], elem_id: str, cancel: Callable[..., None], *given: gr.components.Component):
    """A button that ends a command; `cancel` is given what is in the components."""
    button = gr.Button(said["cancel"], elem_id=elem_id)
    button.click(shows_errors(cancel), list(given), None, api_name=elem_id, queue=False)
    return button


class Choices:
    """Boxes with the runs there are, which a page learns of when it is opened and when a tab is."""

    def __init__(self, studio: Studio, said: dict[str, str], page: gr.Blocks):
        self.studio, self.said, self.page = studio, said, page
        self._last: list[gr.Dropdown] = []

    def runs(self, label: str, **options) -> gr.Dropdown:
        """A choice of a run."""
        box = gr.Dropdown(self.studio.runs(), value=None, label=self.said[label], **options)
        self.page.load(self._fresh, None, box, show_progress="hidden", api_name=False)
        self._last.append(box)
        return box

    def refresh_on(self, tab: gr.Tab) -> None:
        """Looks again when the tab that the last boxes are in is opened."""
        boxes, self._last = self._last, []
        for box in boxes:
            tab.select(self._fresh, None, box, show_progress="hidden", api_name=False)

    def voice(self, run: gr.Dropdown, name: str) -> tuple[gr.Audio, gr.Dropdown]:
        """A recording, and the speakers that a run was trained on."""
        look = dict(type="filepath", buttons=["download"], elem_id=f"{name}_recording")
        recording = gr.Audio(sources=["upload", "microphone"], label=self.said["voice_file"], **look)
        speaker = gr.Dropdown([], value=None, label=self.said["speaker"], elem_id=f"{name}_speaker")

        def speakers(run):
            return gr.Dropdown(self.studio.speakers(run) if run else [], value=None)

        run.change(shows_errors(speakers), run, speaker, api_name=f"{name}_speakers")
        return recording, speaker

    def _fresh(self):
        return gr.Dropdown(choices=self.studio.runs())


def check_words(said: dict[str, str], run: str | None, text: str, recording: str | None, speaker: str | None) -> None:
    """Raises `UserError` where something that is needed to speak is missing."""
    if not run:
        raise UserError(said["no_run"])
    if not text.strip():
        raise UserError(said["no_text"])
    if not (recording or speaker):
        raise UserError(said["no_voice"])
