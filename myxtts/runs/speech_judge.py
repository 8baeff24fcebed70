"""How well a model in training speaks, every so many steps."""

import logging
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from myxtts.config.checks import UserError
from myxtts.config.config import XTTSConfig
from myxtts.config.rates import MODEL_SAMPLE_RATE
from myxtts.data.dataset import SpeechDataset
from myxtts.distributed.workers import Workers, current_workers
from myxtts.hearing.figures import Comparison, Row, ends_well
from myxtts.hearing.judging import Judge, Judged, Tools
from myxtts.hearing.metrics import BY_NAME
from myxtts.hearing.recognizers import open_recognizer
from myxtts.hearing.sentences import Sentence, spread
from myxtts.hearing.sources import Spoken, recordings, sources_of_model
from myxtts.hearing.speaker_similarity import find_encoder
from myxtts.inference.synthesizer import Synthesizer
from myxtts.runs.last_words import reference_of

logger = logging.getLogger(__name__)

TOLD = ("cer", "wer", "similarity", "mcd", "f0_rmse", "length", "limit", "doubtful")
"""Figures that are told, as far as there are any."""
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
        self._judge = Judge(Tools(asked and open_recognizer(asked), find_encoder()))
        tools = [asked, self._judge.tools.encoder is not None]
        self._workers.require_equal("recognizer and speaker encoder", tools, "Install the same on each.")
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
                own, wrong = self._own_rows(), None
        except (UserError, OSError) as error:
            own, wrong = None, str(error)
        shares = self._workers.gather([own, wrong])
        if told := next((wrong for _, wrong in shares if wrong is not None), None):
            logger.error("The speech of step %d could not be judged: %s Training goes on.", step, told)
            return {}
        rows = {kind: self._row(kind, [share[kind] for share, _ in shares]) for kind in shares[0][0]}
        self._recorded = self._recorded or rows["recordings"]
        return self._figures(rows["model"])

    def _own_rows(self):
        """Place and figures of each of this worker's sentences, by kind of row: of recordings only the first time."""
        own = self._sentences[self._workers.index :: self._workers.count]
        sources = [] if self._recorded else [recordings(own)]
        sources.append(sources_of_model("model", self._make_synthesizer, own, [self._seed])[-1])
        places, rows = {one.id: place for place, one in enumerate(self._sentences)}, {}
        for source in sources:
            judged = ((places[one.sentence.id], self._judge(one).parts) for one in source.speak())
            rows[source.kind] = [
                (place, {name: tuple(map(float, pair)) for name, pair in parts.items()}) for place, parts in judged
            ]
        return rows

    def _row(self, kind, shares):
        """A row of what each worker has measured, in the order of the sentences."""
        judged, silence = [], np.zeros(0, np.float32)
        for place, parts in sorted((pair for share in shares for pair in share), key=lambda pair: pair[0]):
            judged.append(Judged(Spoken(self._sentences[place], self._seed, silence, MODEL_SAMPLE_RATE), parts))
        return Row(kind, kind, judged)

    def _figures(self, spoken):
        compared = Comparison([self._recorded, spoken], self._sentences, self._judge.tools)
        found = {name: compared.figure(spoken, BY_NAME[name]) for name in TOLD if name not in compared.unjudged()}
        values = {name: figure.value for name, figure in found.items() if figure is not None}
        if not {"cer", "mcd"} & values.keys():
            return {}
        score = values.get("cer", values.get("mcd"))
        fails = not ends_well(values.get("limit"), values.get("length"))
        return {"score": score + fails * UNENDED_SCORE, **values}
