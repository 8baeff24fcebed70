"""`SpeechDataset`, which reads corpora, checks and splits their clips, tokenizes transcripts and loads batches."""

import itertools
import logging
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import numpy as np

from myxtts.audio.encoding import SoundEncoder
from myxtts.audio.files import load_samples
from myxtts.config.checks import ConfigError, counted, require
from myxtts.config.config import XTTSConfig
from myxtts.config.data import DataConfig
from myxtts.config.rates import CODE_STRIDE_SAMPLES, MEL_HOP_SAMPLES, MODEL_SAMPLE_RATE
from myxtts.config.stages import STAGES
from myxtts.data.batch import BatchOrder, EpochStart, SequentialOrder, WaveBatch
from myxtts.data.corpora import CorpusError, Utterance, load_corpus
from myxtts.data.doctor import ClipLimits, find_leakage, id_hash, inspect_corpus, split_by_hash, summarize, write_report
from myxtts.data.pipeline import BatchLoader, SampleCache, stream_batches
from myxtts.data.shards import PreparedClips
from myxtts.storage.checkpoint import CheckpointStore, StoredTensors
from myxtts.storage.files import CheckpointError, digest_bytes, digest_file, read_csv
from myxtts.storage.run_folder import VOCABULARY, listed_seconds, read_config, vocabulary_path
from myxtts.storage.speakers import read_speakers, write_speaker_clips
from myxtts.text.g2p import g2p_codes
from myxtts.text.languages import get_language
from myxtts.text.speech_rates import SPEECH_RATES, measure_rates, write_rates
from myxtts.text.tokenizer import XTTSTokenizer

logger = logging.getLogger(__name__)

CLIPS = "clips"
"""Name, without suffix, of the file in a checkpoint that lists the stage's training clips (see `OrderedClips`)."""
MAX_SHIFT_SAMPLES = CODE_STRIDE_SAMPLES - 1
"""Maximum random silence before a training clip, in samples. The silence shifts the audio relative to the codes."""
KEPT_SAMPLES = 12 * MODEL_SAMPLE_RATE
"""Maximum length in samples of a speaker's stored recording: 12 s, twice the default maximum conditioning length."""
MOST_CLIPS = 24
MOST_SPEAKERS = 200
"""Maximum number of speakers with a stored recording. Recordings of 200 speakers need about 50 MB."""


@dataclass(eq=False)
class SpeechDataset:
    """Training and validation clips of one or two corpora, in any format that `load_corpus` reads."""

    config: XTTSConfig
    """Configuration completed with the vocabulary size, number of speakers and conditioning lengths of the data set."""
    train: Sequence[Utterance]
    validation: Sequence[Utterance]
    tokenizer: XTTSTokenizer
    speakers: tuple[str, ...]
    """Sorted names of the training speakers. `WaveBatch.speaker` contains indices into this tuple."""
    cache: SampleCache
    """Cache of decoded recordings, and of the codes of prepared clips."""
    starts: dict[str, EpochStart] = field(default_factory=dict)
    """Start of the batch order of each stage, by stage name. A stage that is not included starts at position 0."""

    @classmethod
    def open(cls, config: XTTSConfig, progress: Callable[[int, int], None] | None = None, writes: bool = True) -> Self:
        """Reads, checks and splits the corpora that `config.data` names, and returns the `SpeechDataset`.

        A resumed run keeps its vocabulary. A new run uses `data.vocabulary` or, if this is None, trains a vocabulary on
        the corpus. If `writes`, worker 0 writes two kinds of files to the checkpoint folder: cached check results, and
        `clips_*.csv` with all clips and the reasons for rejections. Calls `progress(done, total)` after each recording.
        Raises a `UserError`, such as `CorpusError`, if the settings or a corpus cannot be used.
        """
        language = config.data.language and get_language(config.data.language).code
        config = replace(config, data=replace(config.data, language=language, g2p=_g2p(config)))
        if writes:
            Path(config.training.checkpoint_dir).mkdir(parents=True, exist_ok=True)
        writes = writes and config.training.worker_index == 0
        folders = [config.data.train_data, *filter(None, [config.data.val_data])]
        corpora = [_inspect(config, folder, progress, writes) for folder in folders]
        tokenizer = _tokenizer(config, corpora[0].utterances)
        sides = [_clips(*pair, tokenizer, config, writes) for pair in zip(corpora, ("train", "validation"))]
        if writes and not config.data.val_data:  # the list of an earlier start
            Path(config.training.checkpoint_dir, "clips_validation.csv").unlink(missing_ok=True)
        cache = SampleCache(config.data.cache_mb, _prepared(config, sides))
        train, validation = _divide(sides, config)
        if leakage := find_leakage(train, validation):
            logger.warning("Leakage: %s; their validation loss is not meaningful.", leakage)
        if not validation:
            logger.warning("Validation uses the training clips, because there are no others. Give --val-data.")
            validation = train
        token_ids = {"start_text_token": tokenizer.start_id, "stop_text_token": tokenizer.stop_id}
        rows = config.model.num_text_tokens if config.training.init_from else 0  # the source may have spare ones
        model = replace(config.model, num_text_tokens=max(rows, tokenizer.num_tokens), **token_ids)
        speakers = tuple(sorted({clip.speaker for clip in train}))
        seconds = conditioning_seconds(config.data, train)
        data = replace(config.data, num_speakers=len(speakers), conditioning_seconds=seconds)
        return cls(replace(config, model=model, data=data), train, validation, tokenizer, speakers, cache)

    def order(self, stage: str) -> BatchOrder:
        """Returns the order of a stage's training batches."""
        data, crop = self.config.data, self._crop_samples(stage)
        lengths = [min(clip.num_samples, crop or clip.num_samples) for clip in self.train]
        tokens = [len(clip.tokens) for clip in self.train]
        settings = self.config.stage(stage).batch_size, data.num_buckets, self.config.training.seed
        more = dict(extra_samples=MAX_SHIFT_SAMPLES * data.augment, start=self.starts.get(stage, EpochStart()))
        if data.static_shapes:
            strides = -(-min(self.config.max_samples, max(lengths)) // CODE_STRIDE_SAMPLES) + data.augment
            frames = None if crop else data.max_mel_frames
            more["fixed_samples"] = strides * CODE_STRIDE_SAMPLES if frames is None else frames * MEL_HOP_SAMPLES
            more["fixed_tokens"] = data.max_text_length
        return BatchOrder(lengths, tokens, *settings, **more)

    def train_loader(self, stage: str) -> BatchLoader:
        """Returns the loader of a stage's training batches."""
        return self._loader(self.train, self.order(stage), stage, training=True)

    def validation_loader(self, stage: str) -> BatchLoader:
        """Returns the loader of a stage's validation batches, which are the same every time."""
        lengths, tokens = zip(*((clip.num_samples, len(clip.tokens)) for clip in self.validation))
        order = SequentialOrder(lengths, tokens, self.config.stage(stage).batch_size)
        return self._loader(self.validation, order, stage, training=False)

    def stream(
        self, stage: str, device: str, start: int = 0, stop: int | None = None, buffer_size: int | None = None
    ) -> Iterator[WaveBatch]:
        """Returns an iterator over a stage's training batches from position `start` up to, but not including, `stop`.

        If `stop` is None, there is no end. Prefetches `buffer_size` batches (default: `data.pipeline_buffer_size`) to
        `device`. Each worker reads only a part of each batch. Raises `AudioError` or `OSError` if reading audio fails.
        """
        num_workers, buffer_size = self.config.data.num_workers, buffer_size or self.config.data.pipeline_buffer_size
        loader, training = self.train_loader(stage), self.config.training
        loader.share = training.worker_index, max(1, len(training.workers))
        return stream_batches(loader, device, start, stop, num_workers, buffer_size)

    def what_speaking_needs(self) -> dict[str, bytes]:
        """Returns `{file name: content}` of the files that inference needs: the vocabulary and the speech rates."""
        spoken = ((clip.language, clip.text, clip.num_samples / MODEL_SAMPLE_RATE) for clip in self.train)
        return {VOCABULARY: self.tokenizer.to_json().encode(), SPEECH_RATES: write_rates(measure_rates(spoken))}

    def _loader(self, clips, order, stage, training):
        data, entry = self.config.data, STAGES[stage]
        keeps_codes = entry.codes and not data.augment
        return BatchLoader(
            clips,
            order,
            self.cache,
            self.config.training.seed,
            conditioning=data if entry.conditioned else None,
            conditioning_grid=MEL_HOP_SAMPLES if keeps_codes else 1,  # frames of the mel spectrogram
            crop_samples=self._crop_samples(stage) if training else None,
            max_shift=MAX_SHIFT_SAMPLES * data.augment,
            training=training,
            targets=entry.targets,
            speakers=self.speakers if entry.speakers else None,
            prepared=keeps_codes and all(clip.wav_path in self.cache.prepared for clip in clips),
        )

    def _crop_samples(self, stage):
        if not (seconds := self.config.stage(stage).crop_seconds):
            return None
        return max(1, round(seconds * MODEL_SAMPLE_RATE / CODE_STRIDE_SAMPLES)) * CODE_STRIDE_SAMPLES


def _inspect(config, folder, progress, writes):
    corpus = load_corpus(folder, config.data.language, config.data.format, config.data.audio_roots)
    name = f"inspected_{digest_bytes(str(Path(folder).resolve()).encode(), 4)}.json"
    options = dict(workers=config.data.num_workers, progress=progress, keeps_cache=writes)
    return inspect_corpus(corpus, clip_limits(config), cache_path=Path(config.training.checkpoint_dir, name), **options)


def clip_limits(config: XTTSConfig) -> ClipLimits:
    """Returns the minimum and maximum clip duration that a configuration allows."""
    return ClipLimits(config.data.min_seconds, config.max_samples / MODEL_SAMPLE_RATE)


def _prepared(config, sides):
    """Returns prepared clips as `{audio path: PreparedClip}`. `sides` are the clips of --train-data and --val-data."""
    data = config.data
    found = PreparedClips.open(data.prepared).by_path(sides[0]) if data.prepared else {}
    if data.val_prepared:
        found = PreparedClips.open(data.val_prepared, "--val-prepared").by_path(sides[1], "--val-data") | found
    if data.prepared and data.augment:
        logger.warning("Codes are computed, because data.augment is on. Turn it off to read codes from --prepared.")
    return found


def trained_on(home: Path, config: XTTSConfig, seconds: Mapping[str, float] | None = None) -> set[int]:
    """Returns the `id_hash` of each clip in the newest checkpoints of the run in `home`, without stages to reset. Adds
    those of the --init-from run if both runs use the same data: one folder, or moved clips (`is_listed`)."""
    source = config.training.init_from
    folders = [home / stage for stage in STAGES if stage not in config.training.resets]
    with suppress(ValueError, OSError):  # a damaged file
        stored = str(read_config(Path(source)).data.train_data) if source else ""
        is_moved = stored and not os.path.exists(stored) and is_listed(seconds or {}, listed_clips(Path(source)))
        if stored and (is_moved or os.path.realpath(stored) == os.path.realpath(str(config.data.train_data))):
            folders += [Path(source, stage) for stage in STAGES]
    files = (CheckpointStore(folder).newest_file(f"{CLIPS}.safetensors") for folder in folders)
    return {one for file in files if file for one in StoredTensors(file)["identity"].ravel().tolist()}


def listed_clips(run: Path, name: str = "train") -> dict[str, dict[str, str]]:
    """Returns the rows of a run's `clips_{name}.csv` by clip id; {} if the file does not exist."""
    # In the list, names that a spreadsheet would evaluate as formulas begin with an apostrophe.
    return {re.sub("^'(?=[=+@-])", "", row.get("id", "")): row for row in read_csv(run / f"clips_{name}.csv")}


def is_listed(seconds: Mapping[str, float], rows: Mapping[str, dict[str, str]], tolerance: float = 0.03) -> bool:
    """Returns whether clips are those in a run's list (`rows`), perhaps moved. `seconds` is `{clip id: duration}`; 0 is
    unknown. Other data sets may use the same ids: half of the shorter list's ids and, with the relative `tolerance`,
    half of their durations must match."""
    shared = seconds.keys() & rows.keys()
    pairs = [(seconds[one], listed_seconds(rows[one])) for one in shared if seconds[one]]
    others = [found for found, listed in pairs if abs(found - listed) > tolerance * listed > 0]
    return len(shared) >= max(1, 0.5 * min(len(seconds), len(rows))) and 2 * len(others) <= len(pairs)


def _divide(sides, config):
    """Returns `(train, validation)`. `sides` contains the clips of --train-data and, if given, the clips of --val-data,
    which become `validation`. Without --val-data, uses the data set's validation split, if any, or `split_by_hash`."""
    trained = trained_on(Path(config.training.checkpoint_dir), config, {one.id: one.seconds for one in sides[0]})
    is_held = lambda clip: clip.validation and id_hash(clip.id) not in trained
    train, held = ([clip for clip in sides[0] if is_held(clip) == side] for side in (False, True))
    if not (train and held):
        return sides if len(sides) == 2 else split_by_hash(*sides, config.data.validation_share, trained)
    unused = ", which --val-data replaces" if len(sides) == 2 else ""
    logger.info("The data set has its own validation split of %s%s.", counted(len(held), "clip"), unused)
    return train, sides[1] if len(sides) == 2 else held


def conditioning_seconds(data: DataConfig, clips: Sequence[Utterance]) -> tuple[float, float]:
    """Returns `data.conditioning_seconds`, but at most the 95th percentile of clip lengths if padding is `repeat`."""
    if data.conditioning_padding != "repeat":
        return data.conditioning_seconds
    longest = np.percentile([clip.num_samples for clip in clips], 95) / MODEL_SAMPLE_RATE
    low, high = data.conditioning_seconds
    high = max(CODE_STRIDE_SAMPLES / MODEL_SAMPLE_RATE, min(high, float(longest)))
    return min(low, high), high


def _own_vocabulary(config):
    """Returns the path of the run's vocabulary, or None if the file is missing or --reset-training resets the GPT."""
    path = vocabulary_path(Path(config.training.checkpoint_dir))
    return path if path.is_file() and "gpt" not in config.training.resets else None


def _g2p(config):
    """Returns the languages to convert to phonemes. A new run uses `data.g2p`; a resumed run keeps its languages."""
    home = Path(config.training.checkpoint_dir)
    try:
        requested = None if config.data.g2p is None else g2p_codes(config.data.g2p)
    except ValueError as error:
        raise ConfigError(f"--g2p: {error}") from error
    own = requested or ()
    with suppress(CheckpointError):  # the run has no configuration yet
        own = read_config(home).data.g2p or () if _own_vocabulary(config) else own
    known, received = (", ".join(codes or ()) or "no language" for codes in (own, requested))
    hint = "Leave it out, or give --reset-training without --stage."
    require(requested in (None, own), "--g2p", f"as in the run in {home}: {known}", received, hint)
    return own


def _tokenizer(config, utterances):
    """Returns an existing run's tokenizer. For a new run, loads `data.vocabulary` and extends it for the corpus. If
    `data.vocabulary` is None, trains a tokenizer on the corpus, or returns None if the corpus is empty."""
    data, own = config.data, _own_vocabulary(config)
    texts = [(utterance.text, utterance.language) for utterance in utterances]
    if not (own or data.vocabulary):
        return XTTSTokenizer.train(texts, vocab_size=data.vocabulary_size, g2p=data.g2p) if texts else None
    try:
        tokenizer = XTTSTokenizer.from_file(own or data.vocabulary).with_g2p(data.g2p)
        given = XTTSTokenizer.from_file(data.vocabulary) if own and os.path.isfile(data.vocabulary or "") else tokenizer
    except (OSError, ValueError) as error:
        raise ConfigError(f"--vocabulary, or the run's own vocabulary, must be a tokenizer file: {error}") from error
    rule = f"the vocabulary that the run in {config.training.checkpoint_dir} began with"
    require(tokenizer.extends(given), "--vocabulary", rule, str(data.vocabulary), "Leave it out to resume.")
    if tokenizer.num_tokens > given.num_tokens:
        logger.info("The run keeps its %d tokens, which extend %s.", tokenizer.num_tokens, data.vocabulary)
    # A GPT that is copied from --init-from does not learn new tokens: clips that need them are rejected.
    tuned = set(config.training.tune) or {config.training.stage}
    is_copied = bool(config.training.init_from) and tuned <= {"dvae", "decoder"}
    lacking = [] if own or is_copied else [pair for pair in texts if tokenizer.check(*pair)]
    if lacking:
        before = tokenizer.num_tokens
        tokenizer = tokenizer.extend(lacking)
        growth = f"{before} to {tokenizer.num_tokens} tokens"
        logger.info("%s was extended from %s, for %s.", data.vocabulary, growth, counted(len(lacking), "transcript"))
    return tokenizer


def _clips(corpus, name, tokenizer, config, writes):
    """Returns accepted clips that can be tokenized. If `writes`, writes a report on all clips to `clips_{name}.csv`."""
    longest = config.data.max_text_length
    corpus = corpus.encoded(lambda text, language: tokenizer.encode_checked(text, language, longest))
    summary, reasons = summarize(corpus), ""
    for line in summary.splitlines():
        logger.info("%s set: %s", name.capitalize(), line)
    if writes:
        report = Path(config.training.checkpoint_dir) / f"clips_{name}.csv"
        write_report(corpus, report)
        logger.info("%s set: report on every clip: %s", name.capitalize(), report)
        reasons = f"; {report} gives the reason for each"
    if not corpus.utterances:
        raise CorpusError(f"{corpus.root} has no usable clips{reasons}.\n{summary}")
    return list(corpus.utterances)


def keep_speakers(folder: Path, clips: Sequence[Utterance]) -> None:
    """Stores a reference recording of each training speaker in `folder`. Replaces a stored recording if its
    source clips have changed. If there are more than `MOST_SPEAKERS` speakers, omits those with the least speech."""
    by_speaker = defaultdict(list)
    for clip in clips:
        by_speaker[clip.speaker].append(clip)
    most_first = sorted(by_speaker, key=lambda name: (-sum(clip.num_samples for clip in by_speaker[name]), name))
    known, missing = read_speakers(folder), {}
    for name in most_first[:MOST_SPEAKERS]:
        nearest = sorted(by_speaker[name], key=lambda clip: (abs(clip.num_samples - 6 * MODEL_SAMPLE_RATE), clip.id))
        before = itertools.accumulate((clip.num_samples for clip in nearest[:MOST_CLIPS]), initial=0)
        chosen = [clip for clip, length in zip(nearest[:MOST_CLIPS], before) if length < KEPT_SAMPLES]
        # If these digests have changed, the stored recording is out of date.
        sources = tuple(f"{clip.id} {digest_file(clip.wav_path)[:12]}" for clip in chosen)
        if name not in known or known[name].sources != sources:
            encoder = SoundEncoder("flac", MODEL_SAMPLE_RATE, is_open=False)
            encoder.add(np.concatenate([load_samples(clip.wav_path) for clip in chosen])[:KEPT_SAMPLES])
            missing[name] = encoder.end(), chosen[0].language, sources
    if missing:
        write_speaker_clips(folder, missing)
    if left_out := most_first[MOST_SPEAKERS:]:
        kept = f"`myxtts say --speaker` takes the {MOST_SPEAKERS} speakers with the most speech"
        logger.info("%s; %d others need --reference-audio.", kept, len(left_out))
