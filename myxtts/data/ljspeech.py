"""A folder of recordings as a training set: inspected, split, tokenized, and read as a stream on the data device."""

import dataclasses
import logging
from pathlib import Path

from myxtts.config.checks import ConfigError
from myxtts.config.rates import CODE_STRIDE_SAMPLES, MODEL_SAMPLE_RATE
from myxtts.data.buckets import BatchPlan, SequentialPlan
from myxtts.data.corpora import CorpusError, Rejection, load_corpus
from myxtts.data.doctor import ClipLimits, inspect_corpus, summarise, write_report
from myxtts.data.pipeline import (
    BatchLoader,
    Clip,
    ConditioningRule,
    SampleCache,
    conditioning_seconds,
    own_errors,
    prefetch_to,
    wave_dataset,
)
from myxtts.data.splits import find_leakage, split_by_hash
from myxtts.storage.files import digest_bytes
from myxtts.text.languages import get_language
from myxtts.text.tokenizer import XTTSTokenizer

logger = logging.getLogger(__name__)

MAX_SHIFT_SAMPLES = CODE_STRIDE_SAMPLES - 1
"""Most silence put before a training clip: it moves the grid of codes over the sound."""


class LJSpeechDataset:
    """Training and validation clips of one corpus, or of two.

    Args:
        config: `XTTSConfig`.
        train, validation: `Clip`s.
        tokenizer: `XTTSTokenizer` that made their tokens.
        texts: Transcript of each clip by id, as written.
    """

    def __init__(self, config, train, validation, tokenizer, texts):
        self.config = config
        self.train = train
        self.validation = validation
        self.tokenizer = tokenizer
        self.texts = texts
        self._cache = SampleCache(config.data.cache_mb)

    @classmethod
    def open(cls, config, progress=None):
        """Reads the corpora that `config.data` names; nothing in them is changed.

        What was left out, and why, goes to `clips_train.csv` under the checkpoint folder. The vocabulary is the
        run's own when it has one, else `data.vocabulary`, else one trained on the corpus.

        Args:
            config: `XTTSConfig`; a copy with `model.num_text_tokens`, the token ids and the conditioning length set is
                in the result's `config`.
            progress: Called as `progress(done, total)` while recordings are checked.
        """
        try:
            get_language(config.data.language)
        except ValueError as error:
            raise ConfigError(f"--language: {error}") from error
        own = _inspect(config, config.data.train_data, progress)
        other = _inspect(config, config.data.val_data, progress) if config.data.val_data else None
        tokenizer = _tokenizer(config, own.accepted)
        train = _clips(own, tokenizer, config, "train")
        if other is not None:
            validation = _clips(other, tokenizer, config, "validation")
        else:
            train, validation = split_by_hash(train, config.data.validation_share)
        for leak in find_leakage(train, validation):
            logger.warning(
                "Validation clip %s is also trained on as %s (%s); its loss says little.",
                leak.validation_id,
                leak.train_id,
                leak.reason,
            )
        if not validation:
            logger.warning("One clip alone cannot be split: it is validated on as well.")
            validation = train
        model = dataclasses.replace(
            config.model,
            num_text_tokens=tokenizer.num_tokens,
            start_text_token=tokenizer.start_id,
            stop_text_token=tokenizer.stop_id,
        )
        data = dataclasses.replace(config.data, conditioning_seconds=conditioning_seconds(config.data, train))
        texts = {
            utterance.id: utterance.text
            for inspection in (own, other)
            if inspection
            for utterance in inspection.accepted
        }
        return cls(dataclasses.replace(config, model=model, data=data), train, validation, tokenizer, texts)

    def plan(self, stage):
        """The `BatchPlan` of a stage."""
        data, stage_config = self.config.data, self.config.stage(stage)
        lengths = [clip.num_samples for clip in self.train]
        crop = self._crop_samples(stage)
        return BatchPlan(
            [min(length, crop or length) for length in lengths],
            [len(clip.tokens) for clip in self.train],
            stage_config.batch_size,
            data.num_buckets,
            self.config.training.seed,
            *self._fixed_shape(),
            extra_samples=MAX_SHIFT_SAMPLES if data.augment else 0,
        )

    def train_loader(self, stage):
        """`BatchLoader` of the training clips for a stage."""
        return self._loader(self.train, self.plan(stage), stage, training=True)

    def validation_loader(self, stage):
        """`BatchLoader` of the validation clips for a stage; the same batches every time."""
        plan = SequentialPlan(
            [clip.num_samples for clip in self.validation],
            [len(clip.tokens) for clip in self.validation],
            self.config.stage(stage).batch_size,
        )
        return self._loader(self.validation, plan, stage, training=False)

    def stream(self, stage, device, start=0, stop=None):
        """Training batches `start` to `stop`, read by tf.data; the elements live on `device`.

        Raises:
            AudioError, OSError: While iterating: a recording that was there at the start cannot be read any more.
        """
        data, loader = self.config.data, self.train_loader(stage)
        dataset = wave_dataset(loader, start, stop, data.num_workers)
        return own_errors(prefetch_to(dataset, device, data.pipeline_buffer_size), loader)

    def _loader(self, clips, plan, stage, training):
        data = self.config.data
        low, high = (int(seconds * MODEL_SAMPLE_RATE) for seconds in data.conditioning_seconds)
        rule = ConditioningRule(low, high, data.conditioning_source, data.conditioning_padding)
        return BatchLoader(
            clips,
            plan,
            self._cache,
            self.config.training.seed,
            rule if stage == "gpt" else None,
            self._crop_samples(stage) if training else None,
            MAX_SHIFT_SAMPLES if data.augment else 0,
            training,
        )

    def _crop_samples(self, stage):
        if self.config.stage(stage).crop_seconds is None:
            return None
        strides = self.config.stage(stage).crop_seconds * MODEL_SAMPLE_RATE / CODE_STRIDE_SAMPLES
        return max(1, round(strides)) * CODE_STRIDE_SAMPLES

    def _fixed_shape(self):
        data = self.config.data
        if not data.static_shapes:
            return None, None
        if data.max_mel_frames is not None:
            return data.max_mel_frames * CODE_STRIDE_SAMPLES // 4, data.max_text_length
        samples = -(-self.config.max_samples // CODE_STRIDE_SAMPLES) * CODE_STRIDE_SAMPLES
        samples += CODE_STRIDE_SAMPLES if data.augment else 0
        return samples, data.max_text_length


def _inspect(config, folder, progress):
    corpus = load_corpus(folder, config.data.language)
    home = Path(config.training.checkpoint_dir)
    limits = ClipLimits(min_seconds=config.data.min_seconds, max_seconds=config.max_samples / MODEL_SAMPLE_RATE)
    digest = digest_bytes(str(corpus.root).encode(), 4)
    return inspect_corpus(
        corpus, limits, workers=config.data.num_workers, progress=progress, cache_path=home / f"inspected_{digest}.json"
    )


def _tokenizer(config, utterances):
    own = Path(config.training.checkpoint_dir) / "vocab.json"
    if own.is_file() and not config.training.reset_training:
        return _read_tokenizer(own, "The run's own vocabulary")
    if config.data.vocabulary:
        return _grown(_read_tokenizer(config.data.vocabulary, "--vocabulary"), config, utterances)
    if not utterances:
        return None
    return XTTSTokenizer.train(
        [(utterance.text, utterance.language) for utterance in utterances], vocab_size=config.data.vocabulary_size
    )


def _read_tokenizer(path, what):
    try:
        return XTTSTokenizer.from_file(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{what} must be a tokenizer file: {error}") from error


def _grown(tokenizer, config, utterances):
    """The given vocabulary, grown by what the corpus needs and it lacks; old ids stay."""
    lacking = [
        (utterance.text, utterance.language)
        for utterance in utterances
        if tokenizer.check(utterance.text, utterance.language)
    ]
    if not lacking or not config.data.extend_vocabulary:
        return tokenizer
    grown = tokenizer.extend(lacking)
    if grown.num_tokens > tokenizer.num_tokens:
        logger.info(
            "Vocabulary %s grew from %d to %d tokens: %d transcripts had characters or a language that it lacks",
            config.data.vocabulary,
            tokenizer.num_tokens,
            grown.num_tokens,
            len(lacking),
        )
    return grown


def _clips(inspection, tokenizer, config, name):
    """Clips of the accepted utterances whose text the vocabulary can write; reports what is left out, and why."""
    clips, accepted, refused = [], [], []
    for utterance in inspection.accepted:
        reason = tokenizer.check(utterance.text, utterance.language, config.data.max_text_length)
        if reason:
            refused.append(Rejection(utterance.id, utterance.line, utterance.wav_path.name, "text not usable", reason))
            continue
        accepted.append(utterance)
        tokens = tuple(tokenizer.encode(utterance.text, utterance.language))
        clips.append(
            Clip(
                utterance.id,
                str(utterance.wav_path),
                tokens,
                utterance.speaker,
                utterance.language,
                utterance.num_samples,
            )
        )
    inspection = dataclasses.replace(
        inspection, accepted=tuple(accepted), rejections=(*inspection.rejections, *refused)
    )
    report = Path(config.training.checkpoint_dir) / f"clips_{name}.csv"
    report.parent.mkdir(parents=True, exist_ok=True)
    write_report(inspection, report)
    summary = summarise(inspection)
    for line in summary.splitlines():
        logger.info("%s set: %s", name.capitalize(), line)
    logger.info("%s set: every clip and its reason: %s", name.capitalize(), report)
    if not clips:
        raise CorpusError(
            f"{inspection.root} has no clip that can be used; every clip and its reason stand in {report}.\n{summary}"
        )
    return clips
