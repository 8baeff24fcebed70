"""How well a model in training speaks, every so many steps."""

import logging
from collections.abc import Callable

import tensorflow as tf

from myxtts.audio.files import load_samples
from myxtts.config.checks import UserError
from myxtts.config.config import XTTSConfig
from myxtts.config.rates import MODEL_SAMPLE_RATE
from myxtts.data.dataset import SpeechDataset
from myxtts.distributed.workers import Workers, current_workers
from myxtts.hearing.measuring import Measurer, Tools, ends_well, is_usable, pooled
from myxtts.hearing.recognizers import open_recognizer
from myxtts.hearing.speaker_similarity import find_encoder
from myxtts.hearing.spoken import Sentence, Spoken, speak_all, spread
from myxtts.inference.synthesizer import Synthesizer
from myxtts.runs.last_words import reference_of

logger = logging.getLogger(__name__)

FIGURES = ("cer", "wer", "similarity", "mcd", "f0_rmse", "length", "limit", "doubtful")
"""Figures that are logged, as far as there are any."""
PERCENT = ("cer", "wer", "limit", "doubtful")
FROM_RECOGNIZER = ("cer", "wer")
UNENDED_SCORE = 100.0
"""Added to the score of a model that does not end its sentences or breaks them off: it is never the better one."""


class SpeechJudge:
    """Lets the model say validation sentences, each once and always with the same seed, and measures them.

    Workers share the sentences out, and all of them get the figures of all sentences.

    Args:
        make_synthesizer: Gives one that shares the weights in training; not called before the first evaluation.
        device: To speak on.
        workers: None takes those that this process has joined.

    Raises:
        UserError: There is no such recognizer, or workers have other tools.
    """

    def __init__(
        self,
        dataset: SpeechDataset,
        make_synthesizer: Callable[[], Synthesizer],
        device: str,
        config: XTTSConfig,
        workers: Workers | None = None,
    ):
        training = config.training
        asked, self._workers = training.evaluation_recognizer, workers or current_workers()
        # DNSMOS takes seconds for each clip: that is for `myxtts evaluate`.
        self._measure = Measurer(Tools(asked and open_recognizer(asked), find_encoder()))
        tools = [asked, self._measure.tools.encoder is not None]
        self._workers.require_equal("recognizer and speaker encoder", tools, "Install the same on each.")
        self._sentences = [
            Sentence(
                clip.id, dataset.texts[clip.id], clip.language, clip.speaker, reference_of(dataset, clip), clip.wav_path
            )
            for clip in spread(dataset.validation, training.evaluation_sentences)
        ]
        self._make_synthesizer, self._device, self._seed = make_synthesizer, device, training.seed
        self._cer_on_recordings: float | None = None
        self._knows_recordings = False

    def __call__(self, step: int) -> dict[str, float]:
        """Figures by name, `score` first; what goes wrong is told in the log and gives none.

        The score is the share of wrong characters in percent or, without a recognizer that can be trusted with these
        recordings, mel-cepstral distortion in dB.
        """
        try:
            with tf.device(self._device):
                own, wrong = self._measure_own(), None
        except (UserError, OSError) as error:
            own, wrong = None, str(error)
        shares = self._workers.gather([own, wrong])
        if told := next((wrong for _, wrong in shares if wrong is not None), None):
            logger.error("The speech of step %d could not be judged: %s Training goes on.", step, told)
            return {}
        if not self._knows_recordings:
            self._cer_on_recordings, self._knows_recordings = pooled(_in_order(shares, "recorded"), "cer"), True
        return self._figures(_in_order(shares, "spoken"))

    def _measure_own(self):
        """Place and parts of each of this worker's sentences as spoken, and the first time as recorded, too."""
        places = {one.id: place for place, one in enumerate(self._sentences)}
        own = self._sentences[self._workers.index :: self._workers.count]
        said = {"spoken": speak_all(self._make_synthesizer(), own, [self._seed]), "recorded": []}
        if not self._knows_recordings:
            said["recorded"] = (Spoken(one, 0, load_samples(one.recording), MODEL_SAMPLE_RATE) for one in own)
        return {kind: [(places[one.sentence.id], self._parts(one)) for one in some] for kind, some in said.items()}

    def _parts(self, spoken):
        return {name: (float(part), float(whole)) for name, (part, whole) in self._measure(spoken).parts.items()}

    def _figures(self, spoken):
        found = {name: pooled(spoken, name) for name in FIGURES}
        if not is_usable(self._cer_on_recordings):
            found |= dict.fromkeys(FROM_RECOGNIZER)
        fails = not ends_well(found["limit"], found["length"])
        values = {name: value * (100 if name in PERCENT else 1) for name, value in found.items() if value is not None}
        if not {"cer", "mcd"} & values.keys():
            return {}
        score = values.get("cer", values.get("mcd"))
        return {"score": score + fails * UNENDED_SCORE, **values}


def _in_order(shares, kind):
    """Parts of all workers in the order of the sentences, so that sums do not depend on the number of workers."""
    measured = {place: parts for share, _ in shares for place, parts in share[kind]}
    return [measured[place] for place in sorted(measured)]
