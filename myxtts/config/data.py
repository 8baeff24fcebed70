"""`DataConfig`: data sets, batches, and the devices of the data pipeline."""

from dataclasses import dataclass

from myxtts.config.model import DEFAULT_TEXT_TOKENS
from myxtts.config.rates import MEL_FRAMES_PER_CODE
from myxtts.config.settings import Default, Settings, setting

PATHS = ("train_data", "val_data", "prepared", "val_prepared")
"""Names of the settings with local paths, which may differ between workers and are left out of published models."""


@dataclass
class DataConfig(Settings):
    """Data sets, batches, and the devices of the data pipeline."""

    section = group = "data"

    train_data: str | None = setting(None, of_run=True, flag="--train-data", page="main", metavar="DIR")
    """Training set: a folder, or a list of clips (default: a generated sample corpus)."""
    sample_languages: tuple[str, ...] = setting(
        ("en",), of_run=True, flag="--sample-languages", page="more", metavar="LANG,…", alone=("all",)
    )
    """Languages of the sample corpus, such as `en,fa`, or `all`."""
    num_speakers: int = setting(0, at_least=0)
    """Number of speakers; set when the training set is read."""
    prepared: str | None = setting(None, of_run=True, flag="--prepared", metavar="DIR")
    """Training set preprocessed by `myxtts prepare`. With `data.augment`, only its audio is used, not its codes."""
    val_data: str | None = setting(None, of_run=True, flag="--val-data", page="more", metavar="DIR")
    """Validation set: a folder or a list (default: the data set's own split, else a fraction of the training set)."""
    val_prepared: str | None = setting(None, of_run=True, flag="--val-prepared", metavar="DIR")
    """Validation set preprocessed by `myxtts prepare`."""
    format: str | None = setting(None, of_run=True, flag="--format", metavar="NAME")
    """Data set format, see docs/data.md (default: detected)."""
    audio_roots: tuple[str, ...] = setting((), of_run=True, flag="--audio-root", metavar="DIR")
    """Additional folder that may contain the audio files of a list; can be repeated."""
    language: str | None = setting(None, flag="--language", page="main")
    """Language of clips without a language label (default: identified from the texts, else en)."""
    g2p: tuple[str, ...] | None = setting(None, flag="--g2p,--phonemizer", page="main", metavar="LANG")
    """Convert text to phonemes: `am` for Amharic, `espeak` for all languages without built-in rules; can be
    repeated (default: as in the resumed run or --init-from, else off)."""
    vocabulary: str | None = setting(None, of_run=True, flag="--vocabulary", metavar="FILE")
    """Tokenizer file in Hugging Face JSON (default: trained on the data set)."""
    vocabulary_size: int = setting(DEFAULT_TEXT_TOKENS, at_least=1)
    """Maximum size of a trained vocabulary."""
    validation_share: float = setting(0.05, above=0, below=1, hint="The default is 0.05.")
    """Fraction of the clips to hold out if there is no validation set, chosen by a stable hash of the clip's id."""
    min_seconds: float = setting(0.1, flag="--min-seconds")
    """Minimum clip length in seconds; shorter clips are left out."""
    max_seconds: float = setting(11.6, flag="--max-seconds")
    """Maximum clip length in seconds; longer clips are left out (XTTS: 255 995 samples at 22 050 Hz)."""
    max_text_length: int = setting(200, at_least=1, flag="--max-text-length")
    """Maximum text length in tokens; clips with longer texts are skipped. Static shapes pad texts to the maximum."""
    max_mel_frames: int | None = setting(None, flag="--max-mel-frames")
    """Maximum clip length in mel frames; longer clips are skipped. Static shapes pad every clip to this length
    (default: only --max-seconds limits clips, and static shapes pad them to the longest training clip)."""
    static_shapes: bool = setting(
        False, flag="--enable-static-shapes,--pad-to-fixed-length", off="--disable-static-shapes", rival="shapes"
    )
    """Pad all batches to one shape, so that the train step is traced once."""
    num_buckets: int = setting(8, at_least=1, at_most=1000)
    """Number of length buckets if shapes are not static."""
    num_workers: int = setting(Default(8), at_least=1, at_most=1024, of_run=True, flag="--num-workers")
    """Number of parallel readers (default: 8; in training, tf.data adjusts it to the reading time, from 1 to 16)."""
    cache_mb: int = setting(512, at_least=0, of_run=True)
    """Size of the cache of decoded recordings in MB."""
    batch_size: int = setting(
        16, at_least=1, at_most=65536, flag="--batch-size", page="main", metavar="N|auto", group="training"
    )
    """Clips per batch. `auto` finds the largest batch that fits in memory, and changes gradient accumulation so that an
    optimizer step still has as many clips as configured."""
    conditioning_seconds: tuple[float, float] = setting((3.0, 6.0), above=0, at_most=600)
    """Minimum and maximum length of the conditioning clip in seconds; lowered for data sets of shorter clips."""
    conditioning_source: str = setting(
        "speaker", one_of=("speaker", "clip"), hint="`speaker` suits training from scratch."
    )
    """Source of the conditioning clip. `speaker`: another clip of the same speaker, as at synthesis. `clip`: a slice of
    the clip itself, whose codes are masked in the loss, as in XTTS's own recipe."""
    conditioning_padding: str = setting("repeat", one_of=("repeat", "zeros"), hint="XTTS v2 was trained with `zeros`.")
    """Padding of short conditioning clips: `repeat` the audio, or `zeros` as in XTTS's own recipe."""
    augment: bool = True
    """Augment training clips on the data device, with random speed, gain, equalization and time shift."""
    data_gpu: int | None = setting(None, at_least=0, of_run=True, flag="--data-gpu", page="more", group="devices")
    """Index of the physical GPU for data preparation. Together with --model-gpu, turns on Multi-GPU Mode."""
    model_gpu: int | None = setting(None, at_least=0, of_run=True, flag="--model-gpu", page="more", group="devices")
    """Index of the physical GPU for the model. Together with --data-gpu, turns on Multi-GPU Mode."""
    pipeline_buffer_size: int = setting(Default(50), at_least=1, at_most=65536, of_run=True, flag="--buffer-size")
    """Prefetch buffer size in batches (default: 50; with memory isolation, 2 to 8, depending on the batch size)."""
    model_start_delay: float = setting(2.0, at_least=0, of_run=True, flag="--model-start-delay", group="devices")
    """Multi-GPU Mode: minimum head start of the data pipeline in seconds."""

    def __post_init__(self):
        super().__post_init__()
        for name in PATHS:
            self.check_name(name)
        self.check("val_prepared", bool(self.val_data) or not self.val_prepared, "left out without --val-data")
        ordered, hint = 0 < self.min_seconds < self.max_seconds, "The defaults are 0.1 and 11.6."
        self.check("min_seconds", ordered, f"above 0 and below data.max_seconds ({self.max_seconds})", hint)
        low, high = self.conditioning_seconds
        self.check("conditioning_seconds", low <= high, "two lengths, the shorter first", "XTTS uses [3, 6].")
        if (frames := self.max_mel_frames) is not None:
            below = max(0, frames // MEL_FRAMES_PER_CODE * MEL_FRAMES_PER_CODE)
            hint = f"Try {f'{below} or ' if below else ''}{below + MEL_FRAMES_PER_CODE}."
            rule = f"a multiple of {MEL_FRAMES_PER_CODE}, the DVAE stride"
            self.check("max_mel_frames", frames > 0 and frames % MEL_FRAMES_PER_CODE == 0, rule, hint)
