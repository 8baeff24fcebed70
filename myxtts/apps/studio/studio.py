"""Actions behind the buttons of the web page, independent of Gradio."""

import functools
import os
import shutil
import threading
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import mode
from typing import Any

import numpy as np

from myxtts.apps.studio import processes, training_form
from myxtts.apps.studio.folders import EVALUATION, EXPORTS, DataSets, named_folder, runs_in
from myxtts.apps.studio.texts import EXAMPLES, PageError
from myxtts.audio.files import load_samples, to_int16
from myxtts.config.checks import UserError
from myxtts.config.rates import MODEL_SAMPLE_RATE
from myxtts.config.stages import STAGES
from myxtts.data.corpora import Utterance, load_corpus
from myxtts.data.doctor import check_data, summarize
from myxtts.devices.tensorflow_start import import_sparingly
from myxtts.hearing.recognizers import WHISPER_SIZES
from myxtts.inference.text_front import open_text_front
from myxtts.storage.base_model import BASE_NAME, base_folder, model_name
from myxtts.storage.speakers import language_of, read_speakers
from myxtts.text.language_guess import OF_A_SENTENCE, guess_language, identify_language, language_to_read
from myxtts.text.languages import LANGUAGES
from myxtts.text.tokenizer import with_names


class Studio:
    """Actions of the web page on runs, data sets and models. `home` contains the folders of all runs."""

    def __init__(self, home: Path):
        self.home, self.data, self.tasks = home, DataSets(home), processes.Tasks()
        self._loading = threading.Lock()
        self._load = functools.lru_cache(2)(_load)

    def training(self) -> list[str]:
        """Returns the names of the runs that are training now, whether or not the page started them."""
        started = [model_name(Path(path.name)) for path in processes.trainings if path.parent == self.home.resolve()]
        names = dict.fromkeys([*runs_in(self.home), *started])  # a run that has just started has no settings file
        return [name for name in names if processes.process_of(self.home / name)]

    def folder(self, name: str) -> Path:
        """Returns the folder of the model called `name`, which is the bundled model (`base`) or a run."""
        return base_folder() if name == BASE_NAME else named_folder(self.home, name)

    def source(self, named: str | None) -> str:
        """Returns the value of `--init-from` for a model: the folder of `named` if it is a run, otherwise `named`."""
        named = (named or "").strip()
        return str((self.home / named).resolve()) if named in runs_in(self.home) else named

    def check_data(self, folder: str, language: str) -> str:
        """Returns the report of `myxtts doctor data` on a folder. Raises `UserError` if the folder has no data set."""
        if not (folder := self.data.place(folder)):
            raise PageError("no_folder")
        found, leakage = check_data(folder, language=language)
        if not found.utterances:  # it may be any file of the machine, so the report must not quote it
            found = replace(found, rejections=[replace(one, id="", detail="") for one in found.rejections])
        return summarize(found) + (f"\nleakage: {leakage}" if leakage else "")

    def clips(self, folder: str, language: str) -> dict[str, Utterance]:
        """Returns `{relative path: clip}` of a data set, sorted by path. Raises `UserError` if there is no clip."""
        utterances = load_corpus(folder := self.data.place(folder), language).utterances
        clips = sorted(utterances, key=lambda clip: Path(clip.wav_path))
        return {os.path.relpath(clip.wav_path, os.path.realpath(folder)): clip for clip in clips}

    def data_language(self, folder: str | None, before: str) -> str:
        """Returns the most common language of the clips in `folder`. Clips without a label count as `before`. If
        `before` is the most common, detects the language from the texts. Returns `before` for an unsupported language
        or unreadable clips."""
        with suppress(UserError, OSError):
            stated, found = self.clip_languages(self.clips(folder, before).values() if folder else ())
            found = found if stated == before else stated
            return found if found in LANGUAGES else before
        return before

    def clip_languages(self, clips: Collection[Utterance]) -> tuple[str | None, str | None]:
        """Returns the most common language label, and the language detected from the texts of clips with this label."""
        stated = mode(clip.language for clip in clips) if clips else None
        return stated, identify_language(clip.text for clip in clips if clip.language == stated)

    def hear(self, folder: str, language: str, place: str) -> tuple[int, np.ndarray]:
        """Loads the clip at the relative path `place`; returns the sample rate in Hz and 16-bit samples `(S,)`."""
        return MODEL_SAMPLE_RATE, to_int16(load_samples(self.clips(folder, language)[place].wav_path))

    def make_data_set(self, name: str, files: list[str] | None, language: str, recognizer="") -> Iterator[str]:
        """Makes a data set from uploaded files. If the files include subtitles, or a recognizer is given, runs `myxtts
        make-dataset` and yields its output. If the command fails before a clip is made, removes the uploads."""
        recognizer = (recognizer or "").strip()
        known = recognizer.removeprefix("whisper-") in ("", "pocketsphinx", *WHISPER_SIZES) or "{wav}" in recognizer
        if not (known or recognizer.startswith("hf://") or Path(recognizer).is_dir()):
            raise PageError("no_recognizer", ", ".join(WHISPER_SIZES), recognizer)
        self.tasks.require_free("data")
        if upload := self.data.keep(name, files, bool(recognizer)):
            flags = [f"--recognizer={recognizer}"] * bool(recognizer)
            flags += [f"--output={self.data.folder(name)}", f"--language={language}"]
            try:
                yield from self.tasks.follow("data", "make-dataset", str(upload), *flags)
            except UserError as error:
                if not self.data.lists(folder := self.data.folder(name)):
                    shutil.rmtree(upload)
                    if not (folder.exists() or any(upload.parent.iterdir())):
                        upload.parent.rmdir()
                if getattr(error, "key", "") == "was_cancelled":
                    raise PageError("set_cancelled") from None
                raise

    def preset(self, name: str | None, source: str | None, recipe: str | None = None) -> training_form.Preset:
        """Returns the content of the training form for an existing run, or for a new run that starts from `source`."""
        return training_form.preset_for(self.source(source), self._folder_or_home(name), recipe)

    def stages(self, name: str | None, recipe: str, values: dict[str, Any]) -> list[list]:
        """Returns a table row for each stage that would be trained with the values of the form."""
        return training_form.stages_of(training_form.config_in(recipe, self._folder_or_home(name)), values)

    def flags(self, name: str | None, recipe: str, values: dict[str, Any]) -> list[str]:
        """Converts the values of the form to flags of `myxtts train`."""
        sets = {key: self.data.place(values[key]) for key in ("train_data", "val_data")}
        values = values | sets | dict(init_from=self.source(values["init_from"]))
        return training_form.training_flags(recipe, self._folder_or_home(name), values)

    def _folder_or_home(self, name):
        return named_folder(self.home, name) if name else self.home

    def plan(self, flags: list[str], run: str | None, tasks: processes.Tasks | None = None) -> Iterator[str]:
        """Runs `myxtts plan` in `tasks` (default: `self.tasks`); yields the output so far. If the machine has no GPU,
        omits batch sizes for GPUs. If `run` is given, estimates its training time. Raises `UserError` on failure."""
        if f"--init-from={training_form.XTTS_V2}" in flags:  # the plan does not download the model to read its size
            flags = [*flags, f"--model-size={training_form.RELEASED_SIZE}"]
        of_run = ["--time", f"--checkpoint-dir={self.home / run}"] if run else []
        has_gpu = shutil.which("nvidia-smi") is not None
        for printed in (tasks or self.tasks).follow("plan", "plan", *of_run, *flags):
            yield "\n\n".join(one for one in printed.split("\n\n") if has_gpu or not one.startswith("LARGEST BATCH"))

    def speakers(self, language: str, *names: str, before: str | None = None) -> list[str]:
        """Returns the voices that all models `names` share: first the voices in `language`, then the others. In each
        group, the previously selected voice `before` is first (if it is shared), followed by training speakers."""
        voices, *others = (read_speakers(self.folder(name)) for name in names)
        kin = lambda it: (it or "").partition("_")[2]  # voices such as `en_f2` and `de_f2` are one voice
        fits = lambda it: (voices[it].language == language, it == before, bool(voices[it].clip), kin(it) == kin(before))
        return sorted((one for one in voices if all(one in other for other in others)), key=fits, reverse=True)

    def languages(self, before: str, *names: str) -> tuple[str, list[str]]:
        """Returns the language to select, and the languages that all models `names` share. If the language of the first
        trained speaker of `names[0]` is shared, selects it. Otherwise, keeps the previous selection `before` if that
        is shared. If neither is shared, selects ""."""
        known = [one.language for one in read_speakers(self.folder(names[0])).values() if one.clip]
        shared = {*LANGUAGES}
        for name in names:
            with suppress(UserError):  # a run without a vocabulary
                shared &= {*open_text_front(self.folder(name))[0].tokenizer.languages}
        return next((one for one in (*known[:1], before) if one in shared), ""), sorted(shared)

    def reading(self, text: str, language: str, speaker: str | None, *names: str) -> tuple[str, str | None, str, str]:
        """Returns four values: the language to read `text` in; the voice; a different language that the text seems to
        be in, or ""; and characters that a model in `names` cannot speak. If `language` is "", detects the language
        and chooses a voice in it. Raises `UserError` if `text` is blank or in an unsupported language or script."""
        if not text.strip():
            raise PageError("no_text")
        _, among = self.languages("", *names)
        found, _ = language_to_read(text, language, language_of(self.folder(names[0])), "", among)
        if found not in among or guess_language([text], language or found, among)[1]:
            raise PageError("other_letters" if language else "no_language")
        voices = [speaker] if language else self.speakers(found, *names, before=speaker)
        guessed = identify_language([text], least=OF_A_SENTENCE) or found
        readers = [open_text_front(self.folder(name))[0].tokenizer.reader for name in names]
        unknown = [one.unknown(one.spoken(text, found), found) for one in readers]
        return found, next(iter(voices), None), guessed * (guessed != found), with_names(max(unknown, key=len))

    def example(self, text: str, language: str, speaker: str | None, name: str, usual: str) -> str:
        """Returns the translation of a sample sentence to `language`; returns any other `text` unchanged. If `language`
        is "", uses the language of `speaker`, a voice of the model `name`, or `usual` if this language is unknown."""
        voice = read_speakers(self.folder(name)).get(speaker)
        found = EXAMPLES.get(language or voice and voice.language, EXAMPLES[usual])
        return found if text in EXAMPLES.values() else text

    def speak(self, run: str, text: str, *options, which: str = "best", progress=None) -> tuple[int, np.ndarray]:
        """Synthesizes a text, retrying sentences of low confidence; returns sample rate in Hz and int16 samples `(S,)`.

        `options` are, in this order: language ("" to detect it), path of a recording of the voice or None, name of a
        voice to use without a recording, seed, temperature (0 for the run's setting), speed. Raises `UserError` if the
        model cannot speak the text. Calls `progress(finished, total)` with numbers of text pieces."""
        synthesizer, *manner = self._opened(run, *options, which=which)
        speech = synthesizer.speak(text, *manner, retries=1, progress=progress)
        return speech.sample_rate, to_int16(speech.samples)

    def stream(self, run: str, text: str, *options) -> Iterator[tuple[int, np.ndarray]]:
        """Yields audio like that of `speak`, but in parts, as soon as each is generated, and without retries."""
        synthesizer, *manner = self._opened(run, *options)
        for samples in synthesizer.stream(text, *manner, check=False):
            yield synthesizer.sample_rate, to_int16(samples)

    def _opened(self, run, language, recording, speaker, seed, temperature=0.0, speed=1.0, which="best"):
        """Returns the `Synthesizer` of a run, and the arguments of `Synthesizer.speak` that follow the text."""
        if not (recording or speaker):
            raise PageError("no_voice")
        folder = self.folder(run)
        if not recording and speaker not in read_speakers(folder):  # even if a file has this name
            raise PageError("other_voice", run, speaker)
        # Time of the last change in ns, so that a model is loaded again if it has a newer checkpoint.
        paths = (folder / "config.json", *folder.glob("*/best.json"), *(folder / part for part in STAGES))
        changed = max((path.stat().st_mtime_ns for path in paths if path.exists()), default=0)
        with self._loading:
            synthesizer = self._load(folder, which, changed)
        voice, sampling = synthesizer.as_voice(recording or speaker), synthesizer.config.sampling
        sampling = replace(sampling, temperature=temperature or sampling.temperature)
        return synthesizer, voice, language or None, sampling, int(seed or 0), speed

    def export(self, name: str, weights: str) -> Iterator[str]:
        """Exports a model for ONNX Runtime, unless its `export_folder` exists; yields the output of the command."""
        folder = self.export_folder(name, weights)
        flags = [f"--checkpoint={self.source(name)}", "--format=onnx", f"--weights={weights}", f"--output={folder}"]
        if not folder.exists():
            yield from self.tasks.follow("export", "export", *flags)

    def export_folder(self, name: str, weights: str) -> Path:
        """Returns the folder to which a model is exported with the given type of weights, `float32` or `int8`."""
        return self.home / EXPORTS / f"{name.replace('./', '_')}-onnx-{weights}"

    def convert(self, source: str, name: str) -> Iterator[str]:
        """Converts a released `model.pth` of XTTS to a run; yields the output of the command."""
        target = named_folder(self.home, name)
        if not source.strip():
            raise PageError("no_source")
        yield from self.tasks.follow("convert", "convert", f"--from-coqui={source.strip()}", f"--output={target}")

    def evaluate(self, first: str, which: str, second: str, of_second: str, sentences: int) -> Iterator[str]:
        """Evaluates models `first` (checkpoint `which`) and `second` (checkpoint `of_second`); yields the output."""
        folders = dict.fromkeys((f"{self.source(first)}@{which}", f"{self.source(second)}@{of_second}"))
        flags = [f"--sentences={int(sentences or 0)}", "--seeds=1", f"--output={self.home / EVALUATION}"]
        yield from self.tasks.follow("evaluate", "evaluate", *flags, "--", *folders)


def _load(folder, which, changed):
    import_sparingly()  # imported here, because TensorFlow takes seconds to import and only speaking needs it
    from myxtts.interchange.onnx.engines import load_synthesizer

    return load_synthesizer(folder, which)
