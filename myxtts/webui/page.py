"""The page: five tabs over a `Studio`."""

import os
from collections.abc import Callable, Mapping

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # read when gradio is imported

import gradio as gr
import pandas as pd

from myxtts.config.checks import UserError
from myxtts.config.sizes import MODEL_SIZES
from myxtts.config.stages import STAGES
from myxtts.text.languages import LANGUAGES
from myxtts.webui.studio import Studio, training_flags
from myxtts.webui.texts import PREFIX, RIGHT_TO_LEFT, TEXTS

MOST_UPLOAD = "50mb"
CSS = ".rtl {direction: rtl} .rtl textarea, .rtl input {unicode-bidi: plaintext} "
CSS += "#log textarea {direction: ltr; unicode-bidi: normal; font-family: monospace}"
UPLOADS_KEPT_SECONDS = 3600


def build_page(studio: Studio, language: str, switches: Mapping[str, str]) -> gr.Blocks:
    """The page in one language.

    Args:
        switches: Training switches by their flag, each with its line of help.
    """
    said = TEXTS[language]
    direction = ["rtl"] if language in RIGHT_TO_LEFT else []
    kept = (UPLOADS_KEPT_SECONDS, UPLOADS_KEPT_SECONDS)
    with gr.Blocks(title=said["title"], analytics_enabled=False, delete_cache=kept) as page:
        with gr.Column(elem_classes=direction):
            other = "fa" if language == "en" else "en"
            gr.Markdown(f"# {said['title']}\n[{said['other']}]({PREFIX[other]}/)")
            for name, tab in (("data", _data), ("train", _train), ("speak", _speak), ("compare", _compare)):
                with gr.Tab(said[name], elem_id=f"tab_{name}"):
                    tab(studio, said, switches)
            with gr.Tab(said["models"], elem_id="tab_models"):
                _models(studio, said)
    return page


def told(function: Callable) -> Callable:
    """Shows what a user can mend as the page's error."""

    def wrapped(*given):
        try:
            return function(*given)
        except (UserError, OSError) as error:
            raise gr.Error(str(error), print_exception=False) from error

    return wrapped


def _languages(said):
    return gr.Dropdown(
        [(f"{one.name} ({code})", code) for code, one in LANGUAGES.items()], value="en", label=said["language"]
    )


def _runs(studio, said, label="run", **options):
    return gr.Dropdown(studio.runs(), label=said[label], **options)


def _data(studio, said, switches):
    folder, language = gr.Textbox(label=said["folder"], elem_id="data_folder"), _languages(said)
    button = gr.Button(said["check"], elem_id="data_check")
    report = gr.Textbox(label=said["report"], lines=12, elem_id="data_report")
    button.click(told(studio.check_data), [folder, language], report, api_name="check_data")


def _train(studio, said, switches):
    name = gr.Textbox(label=said["new_run"], elem_id="train_run")
    folder, language = gr.Textbox(label=said["folder"], elem_id="train_folder"), _languages(said)
    with gr.Row():
        size = gr.Dropdown(list(MODEL_SIZES), value="tiny", label=said["size"])
        stage = gr.Dropdown(["all", *STAGES], value="all", label=said["stage"])
        batch = gr.Number(16, label=said["batch"], precision=0, minimum=1)
        epochs = gr.Number(500, label=said["epochs"], precision=0, minimum=1)
    with gr.Row():
        steps = gr.Number(0, label=said["steps"], precision=0, minimum=0)
        accumulation = gr.Number(1, label=said["accumulation"], precision=0, minimum=1)
        every = gr.Number(1000, label=said["save_every"], precision=0, minimum=1)
    g2p = gr.Checkbox(label=said["g2p"])
    boxes = [gr.Checkbox(label=flag.lstrip("-"), info=help_text) for flag, help_text in switches.items()]
    given = [folder, language, size, stage, batch, epochs, steps, accumulation, every, g2p, *boxes]

    def flags(*values):
        return training_flags(*values[:10], dict(zip(switches, values[10:])))

    with gr.Row():
        plan = gr.Button(said["plan"], elem_id="train_plan")
        start = gr.Button(said["start"], variant="primary", elem_id="train_start")
        stop = gr.Button(said["stop"], elem_id="train_stop")
    planned = gr.Textbox(label=said["plan"], lines=8, elem_id="train_planned")
    plan.click(told(lambda *values: studio.plan(flags(*values))), given, planned, api_name="plan")

    def begin(run, *values):
        studio.start(run, flags(*values))
        return said["started"]

    def end(run):
        studio.stop(run)
        return said["stopping"]

    state = gr.Textbox(label=said["state"], elem_id="train_state")
    start.click(told(begin), [name, *given], state, api_name="start")
    stop.click(told(end), name, state, api_name="stop")
    losses = gr.LinePlot(x="step", y="loss", color="stage", label=said["losses"], elem_id="train_losses")
    sample = gr.Audio(label=said["sample"], type="filepath", interactive=False, elem_id="train_sample")
    log = gr.Textbox(label=said["log"], lines=12, elem_id="log", autoscroll=True)
    gr.Timer(2.0).tick(told(lambda run: _shown(studio, run)), name, [state, losses, sample, log], api_name="state")


def _shown(studio, name):
    if not name:
        return gr.skip(), gr.skip(), gr.skip(), gr.skip()
    view = studio.view(name)
    table = pd.DataFrame(view.losses or None, columns=["step", "loss", "stage"])
    sample = str(view.samples[0]) if view.samples else None
    return view.failed or view.summary, table, sample, view.log


def _voice(studio, said, run):
    recording = gr.Audio(sources=["upload", "microphone"], type="filepath", label=said["voice_file"])
    speaker = gr.Dropdown([], label=said["speaker"])
    run.change(told(lambda name: gr.Dropdown(studio.speakers(name) if name else [])), run, speaker, api_name="speakers")
    return recording, speaker


def _sayer(studio, said):
    def say(run, text, language, recording, speaker, *values):
        if not text.strip():
            raise UserError(said["no_text"])
        if not (recording or speaker):
            raise UserError(said["no_voice"])
        return studio.speak(run, text, language, recording, speaker, *values)

    return say


def _speak(studio, said, switches):
    run = _runs(studio, said, elem_id="speak_run")
    text, language = gr.Textbox(label=said["text"], lines=3, elem_id="speak_text"), _languages(said)
    recording, speaker = _voice(studio, said, run)
    with gr.Row():
        seed = gr.Number(0, label=said["seed"], precision=0, minimum=0)
        temperature = gr.Slider(0, 2, 0, label=said["temperature"])
        speed = gr.Slider(0.25, 4, 1, label=said["speed"])
    button = gr.Button(said["say"], variant="primary", elem_id="speak_say")
    sound = gr.Audio(label=said["sound"], interactive=False, elem_id="speak_sound")
    given = [run, text, language, recording, speaker, seed, temperature, speed]
    button.click(told(_sayer(studio, said)), given, sound, api_name="speak")


def _compare(studio, said, switches):
    with gr.Row():
        runs = [_runs(studio, said, label) for label in ("run", "second")]
    text, language = gr.Textbox(label=said["text"], lines=2), _languages(said)
    recording, speaker = _voice(studio, said, runs[0])
    seed = gr.Number(0, label=said["seed"], precision=0, minimum=0)
    button = gr.Button(said["compare"], elem_id="compare")
    with gr.Row():
        sounds = [gr.Audio(label=said[label], interactive=False) for label in ("run", "second")]
    say = _sayer(studio, said)
    both = lambda first, second, *given: (say(first, *given), say(second, *given))
    button.click(told(both), [*runs, text, language, recording, speaker, seed], sounds, api_name="compare")


def _models(studio, said):
    def rows():
        views = [studio.view(name) for name in studio.runs()]
        return [[view.folder.name, view.summary, str(view.checkpoints)] for view in views]

    table = gr.Dataframe(rows, headers=[said["run"], said["state"], said["models"]], interactive=False)
    gr.Button(said["refresh"]).click(rows, None, table, api_name="models")
