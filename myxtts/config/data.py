"""The recordings, how they become batches, and which device prepares them."""

from dataclasses import dataclass

from myxtts.config.checks import brief, require
from myxtts.config.model import DEFAULT_TEXT_TOKENS
from myxtts.config.rates import MEL_FRAMES_PER_CODE
from myxtts.config.settings import Settings, setting

PATHS = ("train_data", "val_data", "prepared", "val_prepared")
"""Settings that name what each machine has in a place of its own."""


@dataclass
class DataConfig(Settings):
    """Where the recordings are, how they become batches, and which device prepares them."""

    section = "data"

    train_data: str | None = setting(None, of_run=True)
    """Root folder of the training set, or a list of its clips."""
    sample_languages: tuple[str, ...] = setting(("en",), of_run=True)
    """Languages of the sample corpus, made where there is no `train_data`; `("all",)` takes all that it has."""
    num_speakers: int = setting(0, at_least=0)
    """Speakers of the training set. 0 until it is read."""
    prepared: str | None = setting(None, of_run=True)
    """Folder that `myxtts prepare` wrote: clips of the training set are read from its shards; so are their codes where
    `augment` is off."""
    val_data: str | None = setting(None, of_run=True)
    """Root folder of the validation set, or a list; None takes what the training set itself keeps for validation, or
    else splits it off."""
    val_prepared: str | None = setting(None, of_run=True)
    """The same of the validation set in `val_data`."""
    format: str | None = setting(None, of_run=True)
    """Name of the data sets' format (`docs/data.md`); None tells it from their content."""
    audio_roots: tuple[str, ...] = setting((), of_run=True)
    """Further folders in which lists may name audio, by a path below them or in full."""
    language: str | None = None
    """Language of recordings whose set names none; None reads them as English, and says so."""
    g2p: tuple[str, ...] | None = None
    """Languages whose text is written as it sounds before it is tokenized (`text/g2p.py`), such as `am`; `espeak` for
    those without rules. It travels with the checkpoint. None takes what the run, or the one that it starts from, was
    trained with, else none."""
    vocabulary: str | None = setting(None, of_run=True)
    """Tokenizer file (Hugging Face JSON); None trains one on the corpus's own text."""
    extend_vocabulary: bool = True
    """Grow a given vocabulary by the characters and languages of the corpus that it lacks."""
    vocabulary_size: int = setting(DEFAULT_TEXT_TOKENS, at_least=1)
    """Size of a trained vocabulary, at most."""
    validation_share: float = setting(0.05, above=0, below=1, hint="The default is 0.05.")
    """Share of clips held out by a stable hash of their id when there is no `val_data`."""
    min_seconds: float = 0.1
    """Shorter clips are left out."""
    max_seconds: float = 11.6
    """Longer clips are left out (XTTS: 255 995 samples at 22 050 Hz)."""
    max_text_length: int = setting(200, at_least=1)
    """Clips with more text tokens are left out; the fixed text length under static shapes."""
    max_mel_frames: int | None = None
    """Clips with more mel frames are left out; the fixed length under static shapes. None takes `max_seconds` alone."""
    static_shapes: bool = False
    """Pad every batch to one shape, so that the train step is traced once."""
    num_buckets: int = setting(8, at_least=1, at_most=1000)
    """Length buckets when shapes are not static."""
    num_workers: int = setting(8, at_least=1, at_most=1024, of_run=True)
    """Parallel readers."""
    cache_mb: int = setting(512, at_least=0, of_run=True)
    """Memory for decoded recordings kept between epochs."""
    batch_size: int = setting(16, at_least=1)
    """Clips per batch."""
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
    data_gpu: int | None = setting(None, at_least=0, of_run=True)
    """Physical GPU that loads and prepares data; with `model_gpu` it turns on Multi-GPU Mode."""
    model_gpu: int | None = setting(None, at_least=0, of_run=True)
    """Physical GPU that trains the model."""
    pipeline_buffer_size: int = setting(50, at_least=1, at_most=65536, of_run=True)
    """Prefetch buffer in batches."""
    model_start_delay: float = setting(2.0, at_least=0, of_run=True)
    """Multi-GPU Mode: least head start of the data pipeline, in seconds."""

    def __post_init__(self):
        self.conditioning_seconds = tuple(float(s) for s in self.conditioning_seconds)
        super().__post_init__()
        for name in PATHS:
            value, flag = getattr(self, name), f"--{name.replace('_', '-')}"
            is_named = value is None or value.strip()
            require(is_named, f"data.{name} ({flag})", "a name", brief(value), f"Leave {flag} out for none.")
        lengths, way_out = f"{self.min_seconds} and {self.max_seconds}", "The defaults are 0.1 and 11.6."
        rule = "above 0 and below data.max_seconds"
        require(0 < self.min_seconds < self.max_seconds, "data.min_seconds", rule, lengths, way_out)
        low, high = self.conditioning_seconds
        rule = "two lengths above 0, the shorter first"
        require(0 < low <= high, "data.conditioning_seconds", rule, self.conditioning_seconds, "XTTS uses [3, 6].")
        if self.max_mel_frames is not None:
            fits = self.max_mel_frames > 0 and self.max_mel_frames % MEL_FRAMES_PER_CODE == 0
            below = self.max_mel_frames // MEL_FRAMES_PER_CODE * MEL_FRAMES_PER_CODE
            sizes = dict.fromkeys((max(below, MEL_FRAMES_PER_CODE), max(below, 0) + MEL_FRAMES_PER_CODE))
            way_out = f"Try {' or '.join(map(str, sizes))}."
            rule = f"a multiple of {MEL_FRAMES_PER_CODE}, the DVAE stride"
            require(fits, "data.max_mel_frames", rule, self.max_mel_frames, way_out)

    @property
    def is_multi_gpu(self) -> bool:
        """True when both device roles are given."""
        return self.data_gpu is not None and self.model_gpu is not None

    @property
    def has_half_a_gpu_pair(self) -> bool:
        """True when one device role is given without the other; starting a run with that is an error."""
        return (self.data_gpu is None) != (self.model_gpu is None)
