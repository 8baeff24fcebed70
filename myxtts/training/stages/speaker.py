"""The speaker stage trains the encoder that converts recordings to speaker vectors."""

import logging
from collections import Counter, defaultdict
from dataclasses import replace

import keras
import numpy as np
import tensorflow as tf

from myxtts.audio.augment import change_speed, disturb, draw_rows
from myxtts.audio.mel import SPEAKER_MEL, MelSpectrogram, resample
from myxtts.config.rates import MODEL_SAMPLE_RATE, SPEAKER_SAMPLE_RATE
from myxtts.data.batch import SpeakerBatch
from myxtts.data.doctor import id_hash
from myxtts.devices.machine import runs_on_cpu
from myxtts.models.speaker_encoder import AngularMarginClassifier, BatchNormalization
from myxtts.models.xtts import XTTS, named_weights
from myxtts.storage.checkpoint import CheckpointError
from myxtts.storage.files import digest_bytes
from myxtts.storage.run_folder import RETRAIN
from myxtts.training.stages.base import Objective, Preparation, Stage, cross_entropy

logger = logging.getLogger(__name__)

FEWEST_CLIPS = 4
"""Minimum number of training clips per speaker. The encoder would memorize speakers with fewer clips."""
FEWEST_TO_HOLD_OUT, HELD_OUT_SHARE = 4, 0.1
"""Minimum number of trainable speakers at which some are held out for validation, and the fraction held out."""
JUDGED_CLIPS = 60
"""Maximum number of validation clips per held-out speaker."""
SPEEDS = (1.0, 0.9, 1.1)
"""Playback speeds in training. A speaker at another speed counts as another speaker (Yamamoto et al. 2019, "Speaker
augmentation and bandwidth extension for deep speaker embedding")."""
CLASSIFIER = "classifier"
"""Name of the checkpoint file with the classifier's weights."""


class SpeakerStage(Stage):
    """Trains the speaker encoder to classify the speakers of the corpus with an angular margin (Deng et al. 2019).

    Validation reports the equal error rate (EER) on held-out speakers. The encoder stays untrained if fewer than two
    speakers have at least `FEWEST_CLIPS` clips.
    """

    name = part = "speaker"

    def build(self, model, switches, starting):
        super().build(model, switches, starting)
        # At least one speaker: models are also built before any recording is read.
        shape = len(SPEEDS) * max(1, self.config.data.num_speakers), self.config.model.speaker_width
        self.classifier = AngularMarginClassifier(*shape, name=CLASSIFIER)
        self.active = tf.Variable(tf.ones(shape[:1]), trainable=False, name="active")
        """Mask of the classes, `(len(SPEEDS) * speakers,)`: 1 if trained. Each speaker at each speed is a class."""
        if tf.distribute.get_strategy().num_replicas_in_sync > 1:
            for layer in self.model.speaker_encoder._flatten_layers():
                if isinstance(layer, BatchNormalization):
                    layer.over_replicas = lambda value: tf.distribute.get_replica_context().all_reduce("SUM", value)

    def choose_clips(self, dataset, known=()):
        """Drops speakers with too few clips. Moves at most `JUDGED_CLIPS` clips per held-out speaker to validation."""
        able = _trainable_speakers(dataset)
        number = max(1, round(HELD_OUT_SHARE * len(able))) if len(able) >= FEWEST_TO_HOLD_OUT else 0
        # Only speakers without a clip in `known`, by a hash of the name, which depends on neither seed nor order.
        new = set(able) - {clip.speaker for clip in dataset.train if known and id_hash(clip.id) in known}
        held_out = sorted(new, key=lambda name: digest_bytes(name.encode("utf-8", "surrogatepass"), 8))[:number]
        trained = set(able) - set(held_out)
        self.active.assign([float(name in trained) for name in dataset.speakers] * len(SPEEDS))
        clips_of = defaultdict(list)
        for clip in dataset.train:
            clips_of[clip.speaker].append(clip)
        judged = [clip for name in held_out for clip in clips_of[name][:JUDGED_CLIPS]]
        if held_out:
            logger.info("Speakers held out for validation: %s", ", ".join(held_out))
        train = [clip for clip in dataset.train if clip.speaker in trained]
        return replace(dataset, train=train, validation=[*dataset.validation, *judged])

    @staticmethod
    def nothing_to_learn(dataset):
        able, found = len(_trainable_speakers(dataset)), len(dataset.speakers)
        rule = f"The speaker encoder needs two speakers with {FEWEST_CLIPS} clips each. Found: {able} of {found}."
        return None if able >= 2 else f"{rule} It stays untrained: its vectors are nearly the same for all voices."

    def updates(self):
        return [SpeakerObjective(self.model, self.classifier, self.active)]

    def make_preparation(self, device):
        data = self.config.data
        return SpeakerPreparation(device, data.augment, self.config.training.seed, data.num_speakers)

    def outputs_to_score(self, batch):
        return self.model.speaker_encoder(batch.mel).numpy(), batch.speaker.numpy()

    def score(self, outputs):
        """Returns the `eer` over clip pairs with at least one held-out speaker (all pairs if none is held out)."""
        vectors, speakers = (np.concatenate(arrays) for arrays in zip(*outputs))
        active = self.active.numpy() > 0
        same, different = verification_scores(vectors, speakers, (~active[np.maximum(speakers, 0)]) | active.all())
        return {"eer": equal_error_rate(same, different)} if len(same) and len(different) else {}

    def helpers(self):
        return {CLASSIFIER: named_weights(self.classifier)}

    def assign_weights(self, tensors, where):
        rows = (named["directions"].shape[0] for named in (tensors[CLASSIFIER], self.helpers()[CLASSIFIER]))
        before, now = (count // len(SPEEDS) for count in rows)
        if before != now:
            raise CheckpointError(f"{where} was trained on {before} speakers, not {now}. {RETRAIN.format('speaker')}")
        super().assign_weights(tensors, where)


class SpeakerObjective(Objective):
    """Cross-entropy of the speaker classifier over clips of trained speakers.

    Batch normalization uses the statistics of the batch. Each step that is not skipped updates the moving statistics.
    """

    loss_weights = {"speaker": 1.0}

    def __init__(self, model: XTTS, classifier: AngularMarginClassifier, active: tf.Variable):
        self.network, self.classifier, self.active = model.speaker_encoder, classifier, active
        self._moving = {name: v for name, v in named_weights(self.network).items() if not v.trainable}

    def trainable(self):
        return super().trainable() | named_weights(self.classifier, f"{CLASSIFIER}/")

    def _counted(self, batch):
        active = tf.gather(tf.convert_to_tensor(self.active), tf.maximum(batch.speaker, 0))
        return tf.where(batch.speaker >= 0, active, 0.0)

    def counts(self, batch):
        return {"speaker": tf.reduce_sum(self._counted(batch))}

    def loss_sums(self, batch, seed=None):
        if seed is None:
            vectors, statistics = self.network(batch.mel), {}
        else:
            with keras.StatelessScope() as scope:
                vectors = self.network(batch.mel, training=True)
            statistics = {name: scope.get_current_value(v) for name, v in self._moving.items()}
            statistics["batches"] = tf.constant(1.0)
        speaker = tf.maximum(batch.speaker, 0)
        losses = cross_entropy(self.classifier(vectors, speaker, self.active), speaker)
        return {"speaker": tf.reduce_sum(tf.where(self._counted(batch) > 0, losses, 0.0))}, statistics

    def apply_statistics(self, statistics):
        for name, variable in self._moving.items():
            variable.assign(statistics[name] / statistics["batches"])


class SpeakerPreparation(Preparation):
    """Converts waveforms to a `SpeakerBatch`. Training augmentation includes playback at one of `SPEEDS`."""

    def __init__(self, device, augment, seed, num_speakers):
        super().__init__(None, device, augment, seed)
        self.num_speakers = num_speakers
        self._speaker_mel = MelSpectrogram(SPEAKER_MEL)

    def make_batch(self, batch, position):
        wav, lengths, speaker = batch.wav, batch.wav_lengths, batch.speaker
        on = tf.logical_and(self.augment, position >= 0)
        if self.augment:
            shape, among = (tf.shape(speaker)[0],), ([self.seed, position], 0, len(SPEEDS), tf.int32)
            choice = tf.where(on, draw_rows(tf.random.stateless_uniform, shape, *among, share=self.share), 0)
            wav, lengths = change_speed(wav, lengths, tf.gather(tf.constant(SPEEDS), choice))
            speaker = tf.where(speaker < 0, speaker, speaker + self.num_speakers * choice)
        wav = resample(repeated(wav, lengths, tf.shape(wav)[1]), MODEL_SAMPLE_RATE, SPEAKER_SAMPLE_RATE)
        if self.augment:
            wav = tf.cond(on, lambda: disturb(wav, self.seed, position, self.share), lambda: wav)
        return SpeakerBatch(batch.index, self._speaker_mel(wav, by_clip=runs_on_cpu(self.device)), speaker)


def _trainable_speakers(dataset):
    counts = Counter(clip.speaker for clip in dataset.train)
    return [name for name in dataset.speakers if counts[name] >= FEWEST_CLIPS]


def repeated(wav: tf.Tensor, lengths: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Repeats each clip in a loop up to `size` samples: `(B, S)` with lengths `(B,)` in samples -> `(B, size)`."""
    return tf.gather(wav, tf.math.floormod(tf.range(size)[None], lengths[:, None]), batch_dims=1)


def equal_error_rate(same: np.ndarray, different: np.ndarray) -> float:
    """Computes the equal error rate (EER) of speaker verification, from 0 to 1; 0.5 is chance.

    `same` `(P,)` contains similarity scores of clip pairs by the same speaker. `different` `(Q,)` contains scores of
    clip pairs by different speakers. Neither array may be empty.
    """
    thresholds = np.unique(np.concatenate([same, different]))
    rejected = np.append(np.searchsorted(np.sort(same), thresholds) / len(same), 1.0)
    accepted = np.append(1.0 - np.searchsorted(np.sort(different), thresholds) / len(different), 0.0)
    return float(np.interp(0.0, rejected - accepted, rejected))


def verification_scores(vectors: np.ndarray, speakers: np.ndarray, scored: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the cosine similarities of clip pairs by the same speaker, and of clip pairs by different speakers.

    Args:
        vectors: Speaker vectors of unit length, `(N, D)`.
        speakers: Speaker of each clip, `(N,)`; clips with a negative number (unknown speaker) are ignored.
        scored: `(N,)` bool. A pair of clips is included if `scored` is True for at least one of the two clips.
    """
    known, scores = speakers >= 0, vectors @ vectors.T
    pairs = np.triu((scored[:, None] | scored) & known[:, None] & known, k=1)
    is_same = speakers[:, None] == speakers
    return scores[pairs & is_same], scores[pairs & ~is_same]
