"""The shapes of the model."""

from dataclasses import dataclass

from myxtts.config.checks import require
from myxtts.config.rates import NUM_MELS
from myxtts.config.settings import Settings, setting
from myxtts.config.sizes import MODEL_SIZES

DECODER_TYPES = ("istft", "hifigan")
"""Kinds of waveform decoder."""
DECODER_UPSAMPLING = ((8, 16), (8, 16), (2, 4), (2, 4))
"""Length factor of each stage of the waveform decoder, and taps of its transposed convolution."""
DECODER_KERNELS = (3, 7, 11)
"""Taps of the residual stacks that each stage of the waveform decoder averages."""
DECODER_DILATIONS = (1, 3, 5)
"""Dilations within one of these stacks."""
SPEAKER_BLOCKS = (3, 4, 6, 3)
"""Residual blocks in each group of the speaker encoder."""
DEFAULT_TEXT_TOKENS = 512
"""Rows of the text table of a model made before its tokenizer, which is the most that a vocabulary trained on a corpus
takes by default."""
SPEAKER_NUM_MELS = 64
"""Mel bands that the speaker encoder sees."""


@dataclass(init=False)
class ModelConfig(Settings):
    """Shapes of the XTTS model: those of `size`, with single ones replaced.

    The values below are those of the size `tiny`; `config/sizes.py` has what the others change.
    """

    section = "model"

    size: str = setting("tiny", one_of=MODEL_SIZES, flag="--model-size", page="main")
    """Capacity preset that the shapes come from."""
    num_text_tokens: int = setting(0, at_least=0, at_most=1000000)
    """Rows of the text table: highest token id + 1. 0 until a tokenizer is known."""
    start_text_token: int = 3
    """Id of `[START]`."""
    stop_text_token: int = 0
    """Id of `[STOP]`."""
    max_text_tokens: int = setting(200, at_least=1, at_most=100000)
    """Longest text in tokens, language tag included."""
    max_audio_tokens: int = setting(260, at_least=1, at_most=100000)
    """Longest clip in audio codes, generation included (605 in XTTS v2)."""
    layers: int = setting(6, at_least=1, at_most=1000)
    """Transformer blocks of the GPT."""
    width: int = setting(256, at_least=1, at_most=65536)
    """Channels of the GPT, of its conditioning latents and of the waveform decoder's input."""
    heads: int = setting(4, at_least=1)
    """Attention heads of the GPT."""
    dropout: float = setting(0.1, at_least=0, below=1, hint="XTTS v2 uses 0.1.")
    """Dropout on summed embeddings, attention probabilities and residual branches (XTTS v2: 0.1)."""
    conditioning_blocks: int = setting(4, at_least=0, at_most=1000)
    """Attention blocks of the conditioning encoder."""
    conditioning_heads: int = setting(4, at_least=1)
    """Attention heads of the conditioning encoder."""
    num_latents: int = setting(32, at_least=1, at_most=10000)
    """Conditioning latents that the perceiver resampler gives."""
    perceiver_depth: int = setting(2, at_least=0, at_most=1000)
    """Layers of the perceiver resampler."""
    perceiver_heads: int = setting(4, at_least=1, at_most=10000)
    """Attention heads of the perceiver."""
    perceiver_head_width: int = setting(64, at_least=1, at_most=65536)
    """Width of one perceiver head."""
    num_mels: int = setting(NUM_MELS, at_least=1, at_most=10000)
    """Mel bands."""
    num_codes: int = setting(1024, at_least=2, at_most=1_000_000, hint="XTTS v2 has 1024.")
    """Codebook entries; the GPT's audio vocabulary has two more, start and stop."""
    dvae_hidden: int = setting(256, at_least=1, at_most=65536)
    """Channels of the DVAE's first convolution; the residual blocks have twice as many."""
    dvae_residual_blocks: int = setting(3, at_least=0, at_most=1000)
    """Residual blocks on each side of the DVAE."""
    codebook_width: int = setting(256, at_least=1, at_most=65536)
    """Length of a codebook vector."""
    decoder_type: str = setting("istft", one_of=DECODER_TYPES)
    """Waveform decoder: `istft`, ten times quicker, or `hifigan`, which XTTS v2 has."""
    decoder_blocks: int = setting(6, at_least=1, at_most=1000)
    """Blocks of the decoder `istft`."""
    decoder_width: int = setting(256, at_least=1, at_most=65536)
    """Channels of the decoder `istft`."""
    decoder_channels: int = setting(256, at_least=1, at_most=65536)
    """Channels of the decoder `hifigan` after its first convolution (512 in XTTS v2)."""
    speaker_channels: tuple[int, ...] = setting((16, 32, 64, 128), at_least=1, at_most=65536)
    """Channels of the four speaker-encoder layers (32, 64, 128, 256 in XTTS v2)."""
    speaker_width: int = setting(512, at_least=1, at_most=65536)
    """Length of a speaker vector."""

    def __init__(self, size="tiny", **values):
        require(size in MODEL_SIZES, "model.size (--model-size)", f"one of {', '.join(MODEL_SIZES)}", size)
        # Before there was a choice, a model had this decoder, and its configuration the width of it.
        kind = {"decoder_type": "hifigan"} if "decoder_channels" in values else {}
        self.fill({"size": size, **kind, **values}, MODEL_SIZES[size])
        self.__post_init__()

    def __post_init__(self):
        self.speaker_channels = tuple(self.speaker_channels)
        super().__post_init__()
        for name in ("heads", "conditioning_heads"):
            heads = getattr(self, name)
            rule, way_out = f"a multiple of model.{name}", f"Try {heads * max(1, self.width // heads)}."
            require(self.width % heads == 0, "model.width", rule, f"{self.width} and {heads}", way_out)

    @property
    def start_audio_token(self) -> int:
        """Id that begins the audio stream, right after the codes."""
        return self.num_codes

    @property
    def stop_audio_token(self) -> int:
        """Id that ends the audio stream."""
        return self.num_codes + 1

    @property
    def num_audio_tokens(self) -> int:
        """Rows of the audio table: codes, start, stop."""
        return self.num_codes + 2

    @property
    def max_codes(self) -> int:
        """Codes that one generation can hold: three places go to start, stop and bookkeeping."""
        return self.max_audio_tokens - 3
