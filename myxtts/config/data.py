"""The recordings, how they become batches, and which device prepares them."""

from dataclasses import dataclass

from myxtts.config.checks import brief, require
from myxtts.config.model import DEFAULT_TEXT_TOKENS
from myxtts.config.rates import MEL_FRAMES_PER_CODE
from myxtts.config.settings import Settings, setting

DATA_GPU_MEMORY_MB = 8192
MODEL_GPU_MEMORY_MB = 16384
"""Memory limits of the two GPUs under memory isolation."""
PATHS = ("train_data", "val_data", "prepared", "val_prepared")
"""Settings that name what each machine has in a place of its own."""


@dataclass
class DataConfig(Settings):
    """Where the recordings are, how they become batches, and which device prepares them."""

    section = group = "data"

    train_data: str | None = setting(None, of_run=True, flag="--train-data", page="main", metavar="DIR")
    """Root folder of the training set, or a list of its clips; by default a sample corpus is made."""
    sample_languages: tuple[str, ...] = setting(
        ("en",), of_run=True, flag="--sample-languages", page="more", metavar="LANG,…", alone=("all",)
    )
    """Languages of the sample corpus, such as `en,fa`, without `train_data`; `all` for all that it has."""
    num_speakers: int = setting(0, at_least=0)
    """Speakers of the training set. 0 until it is read."""
    prepared: str | None = setting(None, of_run=True, flag="--prepared", metavar="DIR")
    """What `myxtts prepare` made of the training set: clips, and codes where `augment` is off, are read from there."""
    val_data: str | None = setting(None, of_run=True, flag="--val-data", page="more", metavar="DIR")
    """Root folder of the validation set, or a list; by default the training set's own, or a part split off it."""
    val_prepared: str | None = setting(None, of_run=True, flag="--val-prepared", metavar="DIR")
    """What `myxtts prepare` made of the validation set."""
    format: str | None = setting(None, of_run=True, flag="--format", metavar="NAME")
    """Format of the data, see docs/data.md; by default recognized by its content."""
    audio_roots: tuple[str, ...] = setting((), of_run=True, flag="--audio-root", metavar="DIR")
    """Further folder in which lists may name audio, by a path below it or in full; can be repeated."""
    language: str | None = setting(None, flag="--language", page="main")
    """Language of recordings whose set names none (default: en)."""
    g2p: tuple[str, ...] | None = setting(None, flag="--g2p,--phonemizer", page="main", metavar="LANG")
    """Write text as it sounds before it is tokenized: `am` for Amharic, `espeak` for languages without rules of their
    own; can be repeated. By default as in the run, or the one that it starts from, else off."""
    vocabulary: str | None = setting(None, of_run=True, flag="--vocabulary", metavar="FILE")
    """Tokenizer file (Hugging Face JSON); by default one is trained on the corpus."""
    vocabulary_size: int = setting(DEFAULT_TEXT_TOKENS, at_least=1)
    """Size of a trained vocabulary, at most."""
    validation_share: float = setting(0.05, above=0, below=1, hint="The default is 0.05.")
    """Share of clips held out by a stable hash of their id when there is no `val_data`."""
    min_seconds: float = setting(0.1, flag="--min-seconds")
    """Shorter clips are left out."""
    max_seconds: float = setting(11.6, flag="--max-seconds")
    """Longer clips are left out (XTTS: 255 995 samples at 22 050 Hz)."""
    max_text_length: int = setting(200, at_least=1, flag="--max-text-length")
    """Clips with more text tokens are left out; the fixed text length under static shapes."""
    max_mel_frames: int | None = setting(None, flag="--max-mel-frames")
    """Clips with more mel frames are left out; the fixed length under static shapes. By default the length of the
    longest clip that the model takes."""
    static_shapes: bool = setting(
        False, flag="--enable-static-shapes,--pad-to-fixed-length", off="--disable-static-shapes"
    )
    """Pad every batch to one shape, so that the train step is traced once."""
    num_buckets: int = setting(8, at_least=1, at_most=1000)
    """Length buckets when shapes are not static."""
    num_workers: int = setting(8, at_least=1, at_most=1024, of_run=True, flag="--num-workers")
    """Parallel readers."""
    cache_mb: int = setting(512, at_least=0, of_run=True)
    """Memory for decoded recordings kept between epochs."""
    batch_size: int = setting(16, at_least=1, flag="--batch-size", page="main", metavar="N|auto", group="training")
    """Clips per batch; on the command line `auto` finds by trial how many fit at once, and accumulates them to the
    batch of the configuration."""
    conditioning_seconds: tuple[float, float] = setting((3.0, 6.0), above=0, at_most=600)
    """Shortest and longest conditioning clip; shortened for corpora of shorter clips."""
    conditioning_source: str = setting(
        "speaker", one_of=("speaker", "clip"), hint="`speaker` suits training from scratch."
    )
    """`speaker`: another clip of the same speaker, as at synthesis. `clip`: a slice of the clip itself, whose codes are
    then left out of the loss (the reference recipe)."""
    conditioning_padding: str = setting(
        "repeat", one_of=("repeat", "zeros"), hint="`zeros` is what the released XTTS was trained with."
    )
    """How a short conditioning clip fills its length: `repeat` the sound, or `zeros` (the reference recipe)."""
    augment: bool = True
    """Random speed, level, equalization and time shift of training clips, on the data device."""
    data_gpu: int | None = setting(None, at_least=0, of_run=True, flag="--data-gpu", page="more", group="devices")
    """Physical GPU that prepares data; with `model_gpu` it turns on Multi-GPU Mode."""
    model_gpu: int | None = setting(None, at_least=0, of_run=True, flag="--model-gpu", page="more", group="devices")
    """Physical GPU that trains; with `data_gpu` it turns on Multi-GPU Mode."""
    pipeline_buffer_size: int = setting(50, at_least=1, at_most=65536, of_run=True, flag="--buffer-size")
    """Prefetch buffer in batches."""
    model_start_delay: float = setting(2.0, at_least=0, of_run=True, flag="--model-start-delay", group="devices")
    """Multi-GPU Mode: least head start of the data pipeline in seconds."""

    def __post_init__(self):
        self.conditioning_seconds = tuple(float(s) for s in self.conditioning_seconds)
        super().__post_init__()
        for name in PATHS:
            value, flag = getattr(self, name), f"--{name.replace('_', '-')}"
            is_named = value is None or value.strip()
            require(is_named, f"data.{name} ({flag})", "a name", brief(value), f"Leave {flag} out for none.")
        lengths, hint = f"{self.min_seconds} and {self.max_seconds}", "The defaults are 0.1 and 11.6."
        rule = "above 0 and below data.max_seconds"
        require(0 < self.min_seconds < self.max_seconds, "data.min_seconds (--min-seconds)", rule, lengths, hint)
        low, high = self.conditioning_seconds
        rule = "two lengths above 0, the shorter first"
        require(0 < low <= high, "data.conditioning_seconds", rule, self.conditioning_seconds, "XTTS uses [3, 6].")
        if (frames := self.max_mel_frames) is not None:
            fits = frames > 0 and frames % MEL_FRAMES_PER_CODE == 0
            below = max(0, frames // MEL_FRAMES_PER_CODE * MEL_FRAMES_PER_CODE)
            sizes = [size for size in (below, below + MEL_FRAMES_PER_CODE) if size]
            rule, hint = f"a multiple of {MEL_FRAMES_PER_CODE}, the DVAE stride", f"Try {' or '.join(map(str, sizes))}."
            require(fits, "data.max_mel_frames (--max-mel-frames)", rule, frames, hint)
