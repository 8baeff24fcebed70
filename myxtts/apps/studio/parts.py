"""Components and event handling that several tabs of the page have in common."""

import html
import inspect
import re
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import gradio as gr
from tqdm import tqdm

from myxtts.apps.studio.folders import runs_in
from myxtts.apps.studio.studio import Studio
from myxtts.apps.studio.texts import PREFIX, PageError
from myxtts.config.checks import UserError
from myxtts.storage.base_model import BASE_NAME
from myxtts.text.languages import LANGUAGES

SCRIPTS = {path.stem: path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("*.js")}
"""JavaScript of the page, by the name of its file."""
PATHS = re.compile(r"[^\s'\"(`]*/(?:[0-9a-f]{64}|_data|_exports)/(?:[^/\n]+\.recordings/(?:upload[_\d]*/)?)?")
"""Pattern of the path before the name of an upload, data set or export. Messages on the page omit this path."""


def state_line(elem_id: str) -> gr.Markdown:
    """Creates a line of text below a button, for progress and errors."""
    return gr.Markdown("", elem_id=elem_id, elem_classes=["state"])


def act(texts: dict, event: Callable, run: Callable, inputs: Sequence, outputs: Sequence, line: gr.Markdown, **options):
    """Connects an event, such as `button.click`, with the function or generator `run`; returns the Gradio dependency.

    Results are shown in `outputs`, which may contain `line`. An error is shown in `line` until the next call. If the
    message exists only in English, a note says so in the page's language. After an error, `success` events do not run.
    """

    def generated(*given):
        given = [one.strip("\u2068\u2069") if isinstance(one, str) else one for one in given]  # copied from the page
        yield {line: "" if given else gr.skip()}  # the page may open late, and must not clear the message of a click
        try:
            results = run(*given)
            for result in results if inspect.isgenerator(results) else [results]:
                yield {line: gr.skip()} | dict(zip(outputs, result if isinstance(result, tuple) else (result,)))
        except Exception as error:
            expected = isinstance(error, UserError | OSError)
            sentence = str(error) if expected and str(error) else f"{type(error).__name__}: {error}"
            if isinstance(error, OSError) and error.strerror:
                sentence = ": ".join(map(str, filter(None, (error.strerror, error.filename2 or error.filename))))
            english = texts["in_english"].format(PATHS.sub("", sentence))
            shown = error.in_language(texts) if isinstance(error, PageError) else english
            yield {line: f'<span class="wrong">{html.escape(shown)}</span>'}
            is_covered = getattr(error, "key", "") == "task_runs"  # `line` shows the progress of the running command
            raise gr.Error(html.escape(shown), visible=is_covered, print_exception=not expected) from error

    places = list(outputs) if line in outputs else [*outputs, line]
    return event(generated, list(inputs), places, **{"show_progress": "hidden", **options})


def log_box(label: str, elem_id: str, lines: int = 8) -> gr.Textbox:
    """Creates a text box, hidden at first, for the output of a command."""
    look = dict(elem_id=elem_id, elem_classes=["log"], interactive=False, visible=False)
    return gr.Textbox("", label=label, lines=lines, max_lines=24, **look)


def language_box(texts: dict[str, str], elem_id: str, value: str, codes: Collection[str] = LANGUAGES) -> gr.Dropdown:
    """Creates a drop-down of the languages `codes`. The code "" is shown as the option of automatic detection."""
    named = {code: f"{texts.get(f'language_{code}', one.name)} ({code})" for code, one in LANGUAGES.items()}
    names = [(named.get(code, texts["automatic"]), code) for code in codes]
    return gr.Dropdown(names, value=value, label=texts["language"], elem_id=elem_id)


def hint(texts: dict[str, str], doubt: str, unread: str, voice: str = "") -> str:
    """Returns a note: the name of the `voice` used, a warning that the text seems to be in the language `doubt`, and
    the characters `unread`, which are not spoken. Parts that are "" are omitted."""
    seems = doubt and texts["seems"].format(texts.get(f"language_{doubt}", LANGUAGES[doubt].name))
    return html.escape(texts["dot"].join(filter(None, [voice, seems, unread and texts["unread"].format(unread)])))


def command(studio: Studio, texts: dict[str, str], name: str, task: str, label: str = "") -> Callable:
    """Adds buttons to run and cancel a command, a line for its state (elapsed time, last printed line), and its log.

    Returns the function `connect(choices, start, inputs, outputs, end)`, which connects the run button. A click calls
    `start(*inputs)`, which runs a command under the name `task` (see `Tasks`) and yields its output so far. When the
    command ends, `end(folder, *inputs)` returns the final state line and the values of `outputs`; `folder` is the
    output folder or None. A page that is opened later shows the last command, and calls `end(folder)` when it ends; a
    tab that is opened later only shows it. The run button has the id `name` and the text `texts[label or name]`.
    """
    with gr.Row():
        button = gr.Button(texts[label or name], variant="primary", elem_id=name)
        ends = gr.Button(texts["cancel"], elem_id=f"{name}_cancel")
    line, log = state_line(f"{name}_notice"), log_box(texts["log"], f"{name}_log", 4)

    def connect(choices, start, inputs, outputs=(), end=lambda *_: ("",)):
        def run(*given, concludes=True):
            folder, output = None, ""
            for output in start(*given) if given else studio.tasks.follow(task):
                folder = studio.tasks.folders().get(task, folder)
                state, began = studio.tasks.states[task]
                passed = texts[state].format(tqdm.format_interval(time.monotonic() - began))
                said = filter(None, (folder and folder.name, passed, output.rpartition("\n")[2]))
                yield gr.Textbox(output, visible=True), html.escape(texts["dot"].join(map(texts["value"].format, said)))
            if given or output:
                last = "" if concludes else html.escape(texts["value"].format(output.rpartition("\n")[2]))
                results = end(folder, *given) if concludes and (folder or given) else (last,)
                yield gr.Textbox(output, visible=bool(output)), *results

        # These two do not conclude the command: the page that started it does, and would do so twice.
        cancel = lambda: run(concludes=False) if studio.tasks.cancel(task) else (gr.skip(), texts["no_task"])
        look = lambda: run(concludes=False) if studio.tasks.arguments(task) else ()  # commands of other pages
        act(texts, ends.click, cancel, [], [log, line], line, api_name=f"{name}_cancel")
        act(texts, choices.page.load, run, [], [log, line, *outputs], line, api_name=False)
        act(texts, choices.tab.select, look, [], [log, line], line, api_name=False)
        return act(texts, button.click, run, inputs, [log, line, *outputs], line, api_name=label or name)

    return connect


def report_view(folder: str | Path, language: str) -> str:
    """Returns HTML that shows the `report.html` of a folder in a sandboxed frame, or "" if there is no such file."""
    if not (page := Path(folder, "report.html")).is_file():
        return ""
    files = f'src="{PREFIX[language]}/gradio_api/file={quote(str(page.parent.resolve()))}/'
    content = re.sub(r'src="(?=[^/":]+/)', lambda _: files, page.read_text(encoding="utf-8"))
    return f'<iframe class="report" sandbox="allow-same-origin" srcdoc="{html.escape(content)}"></iframe>'


class Choices:
    """Creates inputs for models and voices. Inputs that list folders are updated when the page or a tab is opened."""

    def __init__(self, studio: Studio, texts: dict[str, str], page: gr.Blocks, language: str):
        self.studio, self.texts, self.page, self.language = studio, texts, page, language
        self.tab: gr.Tab | None = None  # the tab that is being built, to which new inputs are added
        self._fills: list[tuple[Callable, Any]] = []

    def models(self, label: str, **options) -> gr.Dropdown:
        """Creates a drop-down with the bundled model (selected at first) and all runs as choices."""
        names = lambda: [(self.texts["base"], BASE_NAME), *runs_in(self.studio.home)]
        return self.listed(label, names, value=BASE_NAME, **options)

    def listed(self, label: str, names: Callable[[], list], **options) -> gr.Dropdown:
        """Creates a drop-down with the label `texts[label]` and the choices `names()`, which are kept up to date."""
        box = gr.Dropdown(names(), label=self.texts[label], **options)
        self.fresh(box, lambda: gr.Dropdown(choices=names()), is_typed=options.get("allow_custom_value", False))
        return box

    def fresh(self, lists: Any, fill: Callable, name: str | bool = False, is_typed: bool = False) -> None:
        """Fills the inputs in `lists` with the result of `fill()` when the page opens, and after each `refill`. If
        `is_typed` is False, also when the tab opens. `name` is the `api_name` in Gradio."""
        self._fills.append((fill, lists))
        opened = [self.page.load, self.tab.select][: 1 if is_typed else 2]  # text typed just after would be lost
        gr.on(opened, fill, None, lists, show_progress="hidden", api_name=name)

    def refill(self, event: Callable) -> None:
        """Makes `event`, which adds or removes a folder, update all inputs that were passed to `fresh` so far."""
        for fill, lists in self._fills:
            event(fill, None, lists, show_progress="hidden", api_name=False)

    def voice(self, name: str, text: gr.Textbox, *models: gr.Dropdown) -> tuple[gr.Dropdown, gr.Dropdown, gr.Audio]:
        """Creates inputs for a language, a stored voice, and a recording that replaces this voice. Offers languages and
        voices that all `models` have. When the language or voice changes, translates a sample sentence in `text`."""

        def voices(before, language, *names):
            found = self.studio.speakers(language or self.language, *names, before=before)
            value = before if before in found and not language else next(iter(found), None)
            return gr.Dropdown(found, value=value, label=self.texts["voice"], elem_id=f"{name}_speaker")

        def chosen(before, *names):
            language, codes = self.studio.languages(before, *names)
            return language_box(self.texts, f"{name}_language", language, ["", *codes]), voices(None, language, *names)

        with gr.Row():
            language, speaker = chosen("", BASE_NAME)
        with gr.Accordion(self.texts["voice_file"], open=False, elem_id=f"{name}_own_voice"):
            look = dict(type="filepath", buttons=["download"], elem_id=f"{name}_recording")
            recording = gr.Audio(sources=["upload", "microphone"], label=self.texts["voice_file_help"], **look)

        given, both, look = [language, *models], [language, speaker], dict(show_progress="hidden")
        gr.on([one.change for one in models], chosen, given, both, api_name=f"{name}_speakers", **look)
        language.change(voices, [speaker, *given], speaker, api_name=False, **look)
        example = lambda *given: self.studio.example(*given, self.language)
        given = [text, language, speaker, models[0]]
        gr.on([language.change, speaker.change], example, given, text, api_name=False, **look)
        return language, speaker, recording
