"""How well a model in training speaks, every so many steps."""

import logging
from collections.abc import Callable

import tensorflow as tf

from myxtts.config.checks import UserError
from myxtts.config.config import XTTSConfig
from myxtts.data.dataset import SpeechDataset
from myxtts.evaluation.figures import MOST_LIMIT, Comparison, Row
from myxtts.evaluation.judging import Judge, Tools
from myxtts.evaluation.likeness import find_encoder
from myxtts.evaluation.metrics import BY_NAME
from myxtts.evaluation.recognizers import open_recognizer
from myxtts.evaluation.sentences import Sentence, spread
from myxtts.evaluation.sources import recordings, sources_of_model
from myxtts.inference.synthesizer import Synthesizer
from myxtts.runs.last_words import reference_of

logger = logging.getLogger(__name__)

TOLD = ("cer", "wer", "similarity", "mcd", "f0_rmse", "length", "limit", "doubtful")
"""Figures that are told, as far as there are any."""
ENDLESS_SCORE = 100.0
"""Added to the score of a model that does not end its sentences: such a one is never the better one."""


class SpeechJudge:
    """Lets the model say validation sentences, each once and always with the same seed, and measures them.

    Args:
        make_synthesizer: Gives one that shares the weights in training; not called before the first evaluation.
        device: To speak on.

    Raises:
        UserError: There is no such recognizer.
    """

    def __init__(
        self, dataset: SpeechDataset, make_synthesizer: Callable[[], Synthesizer], device: str, config: XTTSConfig
    ):
        training = config.training
        asked = training.evaluation_recognizer
        # DNSMOS takes seconds for each clip: that is for `myxtts evaluate`.
        self._judge = Judge(Tools(asked and open_recognizer(asked), find_encoder()))
        clips = spread(dataset.validation, training.evaluation_sentences)
        pairs = [(clip, reference_of(dataset, clip)) for clip in clips]
        self._sentences = [
            Sentence(clip.id, dataset.texts[clip.id], clip.language, clip.speaker, voice, clip.wav_path)
            for clip, voice in pairs
        ]
        self._make_synthesizer, self._device, self._seed = make_synthesizer, device, training.seed
        self._recorded: Row | None = None

    def __call__(self, step: int) -> dict[str, float]:
        """Figures by name, `score` first; what goes wrong is told in the log and gives none.

        The score is the share of wrong characters in percent or, without a recognizer that can be trusted with these
        recordings, mel-cepstral distortion in dB.
        """
        try:
            with tf.device(self._device):
                return self._figures()
        except (UserError, OSError) as error:
            logger.error("The speech of step %d could not be judged: %s Training goes on.", step, error)
            return {}

    def _figures(self):
        if self._recorded is None:
            self._recorded = self._row(recordings(self._sentences))
        spoken = self._row(sources_of_model("model", self._make_synthesizer, self._sentences, [self._seed])[-1])
        compared = Comparison([self._recorded, spoken], self._sentences, self._judge.tools)
        found = {name: compared.figure(spoken, BY_NAME[name]) for name in TOLD if name not in compared.unjudged()}
        values = {name: figure.value for name, figure in found.items() if figure is not None}
        if not {"cer", "mcd"} & values.keys():
            return {}
        score = values.get("cer", values.get("mcd"))
        endless = values.get("limit", 0.0) > 100 * MOST_LIMIT
        return {"score": score + endless * ENDLESS_SCORE, **values}

    def _row(self, source):
        return Row(source.name, source.kind, [self._judge(spoken).forget_sound() for spoken in source.speak()])
