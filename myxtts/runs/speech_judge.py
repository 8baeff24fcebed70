"""Evaluation of speech during training: validation sentences are spoken and measured every so many steps."""

import logging
from itertools import chain

import tensorflow as tf

from myxtts.audio.files import load_samples
from myxtts.config.checks import UserError
from myxtts.config.rates import MODEL_SAMPLE_RATE
from myxtts.data.dataset import SpeechDataset
from myxtts.distributed.workers import Workers, current_workers
from myxtts.hearing.measuring import Measurer, Sentence, Spoken, Tools, ends_well, is_usable, pooled, speak_all, spread
from myxtts.hearing.networks import find_encoder
from myxtts.hearing.recognizers import open_recognizer
from myxtts.runs.samples import Maker, reference_of

logger = logging.getLogger(__name__)

FROM_RECOGNIZER = ("cer", "wer")
PERCENT = (*FROM_RECOGNIZER, "limit", "doubtful")
FIGURES = (*FROM_RECOGNIZER, "similarity", "mcd", "f0_rmse", "length", "limit", "doubtful")
"""Figures that are logged if they are known."""
UNENDED_SCORE = 100.0
"""Added to the score of a model whose sentences do not end or are cut off, so that it is never the best."""


class SpeechJudge:
    """Speaks validation sentences, always with the same seed, and measures them.

    Workers divide the sentences among them, and all get the figures of all sentences. `make_synthesizer` returns a
    synthesizer with the weights in training; it is first called for the first evaluation.

    Raises:
        UserError: There is no such recognizer, or the workers have different tools.
    """

    def __init__(self, dataset: SpeechDataset, make_synthesizer: Maker, device: str, workers: Workers | None = None):
        training = dataset.config.training
        asked, self._workers = training.evaluation_recognizer, workers or current_workers()
        # Without DNSMOS, which takes seconds per clip.
        self._measure = Measurer(Tools(asked and open_recognizer(asked), find_encoder()))
        tools = [asked, self._measure.tools.encoder is not None]
        self._workers.require_equal("recognizer and speaker encoder", tools, "Install the same on each.")
        self._sentences = []
        for clip in spread(dataset.validation, training.evaluation_sentences):
            text, voice = dataset.texts[clip.id], reference_of(dataset, clip)
            self._sentences.append(Sentence(clip.id, text, clip.language, clip.speaker, voice, clip.wav_path))
        self._make_synthesizer, self._device, self._seed = make_synthesizer, device, training.seed
        self._trusts_recognizer: bool | None = None
        """Whether it recognizes the recordings well; None until they are measured."""

    def __call__(self, step: int) -> dict[str, float]:
        """Returns figures by name, with `score` first; logs errors and returns no figures.

        The score is the CER in percent or, without a recognizer that recognizes the recordings well, mel-cepstral
        distortion in dB.
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
        # Sorted by sentence, so that sums do not depend on the number of workers.
        both = zip(*(own for own, _ in shares))
        spoken, recorded = ([parts for _, parts in sorted(chain.from_iterable(of_all))] for of_all in both)
        if self._trusts_recognizer is None:
            self._trusts_recognizer = is_usable(pooled(recorded, "cer"))
        found = {name: pooled(spoken, name) for name in FIGURES}
        if not self._trusts_recognizer:
            found |= dict.fromkeys(FROM_RECOGNIZER)
        values = {name: value * (100 if name in PERCENT else 1) for name, value in found.items() if value is not None}
        score = values.get("cer", values.get("mcd"))
        if score is None:
            return {}
        return {"score": score + (not ends_well(found["limit"], found["length"])) * UNENDED_SCORE, **values}

    def _measure_own(self):
        """Id and figures of each sentence of this worker, as spoken and, the first time, as recorded."""
        own = self._sentences[self._workers.index :: self._workers.count]
        spoken, recorded = speak_all(self._make_synthesizer(), own, [self._seed]), ()
        if self._trusts_recognizer is None:
            recorded = (Spoken(one, 0, load_samples(one.recording), MODEL_SAMPLE_RATE) for one in own)
        parts = lambda one: {name: [*map(float, pair)] for name, pair in self._measure(one).parts.items()}
        return [[[one.sentence.id, parts(one)] for one in some] for some in (spoken, recorded)]
