"""Results of a training run: loss curves, audio samples, speech evaluations, and sentences of the final model."""

import logging
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import chain, cycle
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from matplotlib.figure import Figure

from myxtts.audio.encoding import write_audio
from myxtts.audio.files import load_samples
from myxtts.audio.mel import DVAE_MEL, MelSpectrogram, log_mel_to_wav, resample
from myxtts.config.checks import UserError
from myxtts.config.config import XTTSConfig
from myxtts.config.rates import DECODER_SAMPLE_RATE, MEL_FRAMES_PER_CODE, MODEL_SAMPLE_RATE
from myxtts.config.stages import STAGES
from myxtts.data.corpora import Utterance
from myxtts.data.dataset import SpeechDataset
from myxtts.distributed.workers import Workers, current_workers
from myxtts.hearing.measuring import Measurer, Sentence, Spoken, ends_well, is_usable, pooled, speak_all, spread
from myxtts.hearing.networks import find_encoder
from myxtts.hearing.recognizers import open_recognizer
from myxtts.inference.synthesizer import Synthesizer
from myxtts.storage.files import AnyPath, digest_bytes, write_whole
from myxtts.storage.run_folder import read_metrics
from myxtts.training.loop.batching import with_batch
from myxtts.training.loop.device_pipeline import copy_to
from myxtts.training.stage_trainer import StageTrainer
from myxtts.training.watching.callbacks import Callback, EventFile

logger = logging.getLogger(__name__)

SHOWN_HZ = (250, 500, 1000, 2000, 4000)
"""Frequencies in Hz at the ticks of the vertical axis of a mel spectrogram."""
FRAME_SECONDS = DVAE_MEL.hop_length / DVAE_MEL.sample_rate
Maker = Callable[[], Synthesizer]
FROM_RECOGNIZER = ("cer", "wer")
FIGURES = (*FROM_RECOGNIZER, "similarity", "mcd", "f0_rmse", "length", "limit", "doubtful")
"""Names of the metrics that `SpeechJudge` can return, see `hearing.measuring`."""
UNENDED_SCORE = 100.0
"""Penalty added to the score (lower is better) of a model that rambles on or stops early, see `ends_well`."""


def write_curves(folder: str | Path, history: dict[str, list[dict[str, float]]]) -> None:
    """Plots each stage's losses to `curves.png` in a run's folder: validation losses from `history` (see
    `Run.history`), and training losses from `metrics.jsonl`. Write errors are only logged."""
    path, curves, metrics = Path(folder, "curves.png"), {}, read_metrics(folder)
    for stage, validations in history.items():
        main, training = STAGES[stage].main_loss, {}
        for line in metrics:
            if line["stage"] == stage and line["kind"] == "training":
                while training and next(reversed(training)) >= line["step"]:  # the run returned to an earlier step
                    training.popitem()
                if line.get(main) is not None:
                    training[line["step"]] = line[main]
        shown = {f"training {main}": training, f"validation {main}": {one["step"]: one[main] for one in validations}}
        if shown := {name: losses for name, losses in shown.items() if losses}:
            curves[stage] = shown
    if not curves:
        return
    figure = Figure(figsize=(8, 0.6 + 2.4 * len(curves)), dpi=80, layout="constrained")
    for axes, (stage, losses) in zip(figure.subplots(len(curves), 1, squeeze=False)[:, 0], curves.items()):
        for name, by_step in losses.items():
            axes.plot(*zip(*by_step.items()), label=name, marker="o" if len(by_step) < 40 else None, markersize=4)
        axes.set(xlabel="step", ylabel="loss", title=stage)
        axes.grid(alpha=0.3)
        axes.legend()
    try:
        _write(figure, path)
    except (OSError, UserError) as error:
        logger.error("The loss curves could not be written to %s: %s", path, error)


class Picture(NamedTuple):
    """Path of a PNG file, which notebooks display as an image."""

    path: Path

    def _repr_png_(self) -> bytes:
        return self.path.read_bytes()


def draw_sounds(path: AnyPath, title: str, mels: Mapping[str, np.ndarray], attention: np.ndarray | None = None) -> None:
    """Writes a PNG image of mel spectrograms, one below the other, with common time and color scales.

    `mels` maps the title of each image to a log-mel `(T, num_mels)` in the format `DVAE_MEL`. `attention`,
    `(C, L)`, contains attention weights from C codes to L text tokens. If given, it is plotted below the mels.
    """
    rows = len(mels) + (attention is not None)
    figure = Figure(figsize=(8, 0.8 + 1.9 * rows), dpi=80, layout="constrained")
    all_axes = figure.subplots(rows, 1, sharex=True, squeeze=False)[:, 0]
    values = np.concatenate(list(mels.values()))
    look = dict(origin="lower", aspect="auto", interpolation="nearest")
    for axes, (name, mel) in zip(all_axes, mels.items()):
        extent = (0, len(mel) * FRAME_SECONDS, 0, mel.shape[1])
        image = axes.imshow(mel.T, extent=extent, vmin=values.min(), vmax=values.max(), **look)
        axes.set_yticks([DVAE_MEL.band_at(hz) for hz in SHOWN_HZ], [str(hz) for hz in SHOWN_HZ])
        axes.set(ylabel="Hz", xlim=(0, None))
        axes.set_title(name, fontsize="medium", loc="left", parse_math=False)
    figure.colorbar(image, ax=list(all_axes[: len(mels)]), label="log power")
    if attention is not None:
        axes, (codes, tokens) = all_axes[-1], attention.shape
        extent = (0, codes * MEL_FRAMES_PER_CODE * FRAME_SECONDS, 0, tokens)
        image = axes.imshow(attention.T, extent=extent, vmin=0, **look)
        axes.set(ylabel="text token")
        figure.colorbar(image, ax=axes, label="attention")
    all_axes[-1].set(xlabel="seconds", xlim=(0, max(map(len, mels.values())) * FRAME_SECONDS))
    figure.suptitle(title[:100], parse_math=False)
    _write(figure, path)


def _write(figure, path):
    with write_whole(path) as temporary, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # scripts that the font lacks
        figure.savefig(temporary, format="png")


class Sample(NamedTuple):
    """Generated audio `samples`, `(S,)` float32, and the mels and attention weights that `draw_sounds` plots."""

    samples: np.ndarray
    sample_rate: int
    mels: dict[str, np.ndarray]
    attention: np.ndarray | None = None


class SampleWriter(Callback):
    """Base class of callbacks that write generated samples as WAV files, pictures and TensorBoard summaries.

    `kind` is a prefix of file names, `title` the name of the samples in TensorBoard and log messages. Subclasses define
    `make()`, which returns a `Sample` for each clip in `clips`.
    """

    def __init__(self, dataset: SpeechDataset, folder: Path, log_folder: Path, kind: str, title: str):
        self._dataset, self._folder, self._kind, self._title = dataset, folder, kind, title
        self._events, self._shown = EventFile(log_folder), set()
        self.clips: list[Utterance] = spread(dataset.validation, dataset.config.training.num_samples)

    def write(self, step: int) -> None:
        """Generates samples and writes them, with the recordings of the same clips. Errors are only logged."""
        try:
            for clip, sample in zip(self.clips, self.make()):
                self._folder.mkdir(exist_ok=True)  # without parents: the run's folder may have been moved
                name, is_first = clip.id.replace("/", "_"), clip.id not in self._shown
                if len(encoded := name.encode("utf-8", "surrogatepass")) > 200:  # file systems allow 255
                    name = f"{name[:40]}_{digest_bytes(encoded, 4)}"
                stem, path = self._folder / f"{self._kind}_{step:06d}_{name}", self._folder / f"recording_{name}.wav"
                if is_first or not path.is_file():
                    recording = load_samples(clip.wav_path, DECODER_SAMPLE_RATE)
                    write_audio(path, recording, DECODER_SAMPLE_RATE)  # again after a resume: the clip may have changed
                write_audio(f"{stem}.wav", sample.samples, sample.sample_rate)
                draw_sounds(f"{stem}.png", clip.text, sample.mels, sample.attention)
                # TensorBoard needs different tags for audio and images.
                tag, image = f"{self._title}/{clip.id}", f"{self._title}, mel/{clip.id}"

                def show():
                    tf.summary.audio(tag, sample.samples[None, :, None], sample.sample_rate)
                    tf.summary.image(image, tf.io.decode_png(tf.io.read_file(f"{stem}.png"))[None])
                    if is_first:
                        tf.summary.audio(f"recording/{clip.id}", recording[None, :, None], DECODER_SAMPLE_RATE)

                self._events.write(step, show)
                self._shown.add(clip.id)
        except (OSError, UserError) as error:  # UserError: audio that is not finite, cannot be read or is too short
            message = "The %s of step %d could not be written to %s: %s. Training continues."
            logger.error(message, self._title, step, self._folder, error)


class SampleSpeaker(SampleWriter):
    """Synthesizes texts of validation clips as samples. `reference_of` selects the recording that provides the voice.

    `make_synthesizer()` is called for each set of samples, and returns a synthesizer with the current weights.
    """

    def __init__(self, dataset: SpeechDataset, make_synthesizer: Maker, device: str, folder: Path, log_folder: Path):
        super().__init__(dataset, folder, log_folder, "step", "sample sentences")
        self._device, self._make_synthesizer, self._seed = device, make_synthesizer, dataset.config.training.seed

    def on_sample(self, step: int):
        self.write(step)

    def make(self):
        speaking, samples = self._make_synthesizer(), []
        texts = [clip.text for clip in self.clips]
        with tf.device(self._device):
            voices = [speaking.voice(reference_of(self._dataset, clip)) for clip in self.clips]
            speeches = speaking.batch(texts, voices, [clip.language for clip in self.clips], seed=self._seed)
            for clip, voice, speech in zip(self.clips, voices, speeches):
                mels = {"recording": mel_of(load_samples(clip.wav_path)), "spoken": speech.mel}
                attention = speaking.attention(speech, voice, clip.language)
                samples.append(Sample(speech.samples, speech.sample_rate, mels, attention))
        return samples


class Copier(SampleWriter):
    """Writes resynthesized validation clips after each validation, in stages that reconstruct audio."""

    def __init__(self, dataset: SpeechDataset, trainer: StageTrainer, folder: Path, log_folder: Path):
        self._trainer, self._stage, name = trainer, trainer.stage, trainer.stage.name
        super().__init__(dataset, folder, log_folder, name, f"{name} resyntheses")
        self._loader = replace(dataset, config=with_batch(dataset.config, name, 1, 1)).validation_loader(name)
        order, numbers = self._loader.order, range(len(dataset.validation))
        places = {dataset.validation[order.batch(number).indices[0]].id: number for number in numbers}
        self._positions = [places[clip.id] for clip in self.clips]

    def on_validation(self, step: int, losses: dict, is_best: bool):
        self.write(step)

    def make(self):
        device = self._trainer.model_device
        for clip, position in zip(self.clips, self._positions):
            batch = self._trainer.preparation(tf.nest.map_structure(tf.constant, self._loader(position)))
            with tf.device(device):
                if (copies := self._stage.resynthesize(copy_to(batch, device))) is None:
                    return
                if (copy := np.array(copies[0], np.float32)).ndim == 2:
                    mel, rate, wav = copy, MODEL_SAMPLE_RATE, log_mel_to_wav(copy)
                else:
                    mel = mel_of(resample(copy[None], DECODER_SAMPLE_RATE, MODEL_SAMPLE_RATE)[0])
                    rate, wav = DECODER_SAMPLE_RATE, copy
                mels = {"recording": mel_of(load_samples(clip.wav_path)), "resynthesis": mel}
            yield Sample(wav, rate, mels)


def mel_of(samples: np.ndarray) -> np.ndarray:
    """Returns the `DVAE_MEL` log-mel `(T, num_mels)` of audio `(S,)` at 22 050 Hz."""
    return np.array(MelSpectrogram(DVAE_MEL)(samples[None])[0])


class LastWords(NamedTuple):
    """Sentence synthesized at the end of a run: text, speaker, audio file, and problems found by the self-check."""

    text: str
    speaker: str
    path: Path
    doubts: tuple[str, ...]


def speak_last_words(config: XTTSConfig, dataset: SpeechDataset, device: str) -> list[LastWords]:
    """Synthesizes `training.closing_texts` (default: texts of validation clips) with a run's best checkpoints.

    The voices are those of speakers in the validation set. The files are `samples/final_1.wav` and so on. Errors, such
    as a full disk, are logged; the function then returns the sentences synthesized so far.
    """
    settings, folder = config.training, Path(config.training.checkpoint_dir)
    voices_of = {clip.speaker: clip for clip in reversed(dataset.validation)}
    if texts := settings.closing_texts:
        clips = [clip for clip, _ in zip(cycle(voices_of[speaker] for speaker in sorted(voices_of)), texts)]
    else:
        others = (clip for clip in dataset.validation if clip != voices_of[clip.speaker])
        clips = [*voices_of.values(), *others][: settings.num_samples]
        texts = [clip.text for clip in clips]
    spoken = []
    try:
        with tf.device(device):
            synthesizer = Synthesizer.load(folder)
            voices = [synthesizer.voice(reference_of(dataset, clip)) for clip in clips]
            speeches = synthesizer.batch(list(texts), voices, [clip.language for clip in clips], seed=settings.seed)
        (folder / "samples").mkdir(exist_ok=True)
        for number, (text, clip, speech) in enumerate(zip(texts, clips, speeches), 1):
            path = folder / "samples" / f"final_{number}.wav"
            speech.save(path)
            doubts = dict.fromkeys(doubt for doubts in speech.doubts.values() for doubt in doubts)
            spoken.append(LastWords(text, clip.speaker, path, tuple(doubts)))
    except (UserError, OSError, tf.errors.OpError) as error:
        logger.error("The model could not speak at the end of the run: %s", error)
    return spoken


def reference_of(dataset: SpeechDataset, clip: Utterance) -> str:
    """Returns the path of the longest training clip with `clip`'s speaker and language; without one, `clip`'s path."""
    same = [one for one in dataset.train if (one.speaker, one.language) == (clip.speaker, clip.language)]
    return max(same or [clip], key=lambda other: other.num_samples).wav_path


def held_out_voice(dataset: SpeechDataset, language: str | None = None) -> list[Utterance]:
    """Returns clips of one speaker to use as a voice, usually a single validation clip.

    Chooses the longest validation clip, preferably in `language` and within the limits `data.conditioning_seconds`. If
    this clip is shorter than the lower limit, other clips of its speaker are appended.
    """
    low, high = dataset.config.data.conditioning_seconds
    seconds = lambda clip: clip.num_samples / MODEL_SAMPLE_RATE
    held = [clip for clip in dataset.validation if clip.language == language] or dataset.validation
    chosen = [max([clip for clip in held if low <= seconds(clip) <= high] or held, key=seconds)]
    for side in (dataset.validation, dataset.train):
        for other in sorted(side, key=seconds, reverse=True):
            if sum(map(seconds, chosen)) < low and other.speaker == chosen[0].speaker and other not in chosen:
                chosen.append(other)
    return chosen


class SpeechJudge:
    """Evaluates the speech of the model in training: synthesizes validation sentences and computes metrics.

    Each worker synthesizes a part of the sentences. All workers then compute the metrics over all sentences.
    `make_synthesizer()` is called at each evaluation, and returns a synthesizer with the current weights.

    Raises `UserError` if the recognizer cannot be loaded, or if workers have different recognizers or speaker encoders.
    """

    def __init__(self, dataset: SpeechDataset, make_synthesizer: Maker, device: str, workers: Workers | None = None):
        training = dataset.config.training
        recognizer, self._workers = training.evaluation_recognizer, workers or current_workers()
        # No DNSMOS, which takes seconds per clip.
        self._measure = Measurer(recognizer and open_recognizer(recognizer), find_encoder())
        tools = [recognizer, self._measure.encoder is not None]
        self._workers.require_equal("recognizer and speaker encoder", tools, "Install the same on each.")
        self._sentences = []
        for clip in spread(dataset.validation, training.evaluation_sentences):
            voice = reference_of(dataset, clip)
            self._sentences.append(Sentence(clip.id, clip.text, clip.language, clip.speaker, voice, clip.wav_path))
        self._make_synthesizer, self._device, self._seed = make_synthesizer, device, training.seed
        self._trusts_recognizer: bool | None = None
        """Whether the CER on the recordings is low enough to trust the recognizer; None before the first evaluation."""

    def __call__(self, step: int) -> dict[str, float]:
        """Returns metrics by name, with `score` (lower is better) first. Logs errors, and returns {} after an error.

        The score is the CER in percent or, without a reliable recognizer, the mel-cepstral distortion in dB. Returns {}
        if both are missing. If the model rambles on or stops early (`ends_well`), adds `UNENDED_SCORE` to the score.
        """
        try:
            with tf.device(self._device):
                own, error = self._measure_own(), None
        except (UserError, OSError) as caught:
            own, error = None, str(caught)
        shares = self._workers.gather([own, error])
        if first := next((error for _, error in shares if error is not None), None):
            logger.error("The speech of step %d could not be evaluated: %s Training continues.", step, first)
            return {}
        # Sorted, so that rounding errors of sums do not depend on the number of workers.
        both = zip(*(own for own, _ in shares))
        spoken, recorded = ([parts for _, parts in sorted(chain.from_iterable(of_all))] for of_all in both)
        if self._trusts_recognizer is None:
            self._trusts_recognizer = is_usable(cer := pooled(recorded, "cer"))
            if not self._trusts_recognizer:
                logger.warning("Speech is scored without the recognizer: its CER on recordings is %.0f %%", 100 * cer)
        found = {name: pooled(spoken, name) for name in FIGURES}
        if not self._trusts_recognizer:
            found |= dict.fromkeys(FROM_RECOGNIZER)
        percent = (*FROM_RECOGNIZER, "limit", "doubtful")
        values = {name: value * (100 if name in percent else 1) for name, value in found.items() if value is not None}
        if (score := values.get("cer", values.get("mcd"))) is None:
            return {}
        return {"score": score + (not ends_well(found["limit"], found["length"])) * UNENDED_SCORE, **values}

    def _measure_own(self):
        """Measures this worker's sentences. Returns two lists of `[id, metrics]`: for synthesis and for recordings."""
        own = self._sentences[self._workers.index :: self._workers.count]
        spoken, recorded = speak_all(self._make_synthesizer(), own, [self._seed]), ()
        if self._trusts_recognizer is None:
            recorded = (Spoken(one, 0, load_samples(one.recording), MODEL_SAMPLE_RATE) for one in own)
        parts = lambda one: {name: [*map(float, pair)] for name, pair in self._measure(one).parts.items()}
        return [[[one.sentence.id, parts(one)] for one in some] for some in (spoken, recorded)]
