"""`ModelConfig`, the shapes of the model, and the model sizes from `nano` to `big`."""

from dataclasses import dataclass

from myxtts.config.checks import read_toml
from myxtts.config.rates import NUM_MELS
from myxtts.config.settings import Settings, setting

MODEL_SIZES = read_toml(__file__, "model_sizes.toml")
"""Fields of each model size that differ from the defaults of `ModelConfig`; `big` has the shapes of XTTS v2."""
DECODER_TYPES = ("istft", "hifigan")
DECODER_UPSAMPLING = ((8, 16), (8, 16), (2, 4), (2, 4))
"""Stride and kernel size of each transposed convolution of the HiFi-GAN decoder."""
DECODER_KERNELS = (3, 7, 11)
"""Kernel sizes of the parallel residual stacks in each stage of the HiFi-GAN decoder."""
DECODER_DILATIONS = (1, 3, 5)
"""Dilations of the convolutions in a residual stack of the HiFi-GAN decoder."""
SPEAKER_BLOCKS = (3, 4, 6, 3)
"""Number of residual blocks in each layer of the speaker encoder."""
DEFAULT_TEXT_TOKENS = 512
"""Default size of a trained vocabulary; also the number of text embeddings in a model without a tokenizer."""
SPEAKER_NUM_MELS = 64
"""Number of mel bands in the speaker encoder's input."""


def norm_groups(width: int) -> int:
    """Returns the group count of the conditioning encoder's group norms; it must divide the channel count `width`."""
    return 8 if width <= 16 else 16 if width <= 64 else 32


@dataclass(init=False)
class ModelConfig(Settings):
    """Shapes of the XTTS model. `size` selects a model size, which sets all fields that are not given.

    The defaults below apply to `tiny`. `MODEL_SIZES` lists the fields in which other sizes differ.
    """

    section = "model"

    size: str = setting("tiny", one_of=MODEL_SIZES, flag="--model-size", page="main")
    """Model size. `big` has the shapes of XTTS v2."""
    num_text_tokens: int = setting(0, at_least=0, at_most=1000000)
    """Number of text embeddings (highest text token id + 1). `SpeechDataset` sets this number from the tokenizer."""
    start_text_token: int = 3
    """Token id of `[START]`, which begins the text."""
    stop_text_token: int = 0
    """Token id of `[STOP]`, which ends the text."""
    max_text_tokens: int = setting(200, at_least=1, at_most=100000)
    """Maximum text length in tokens, including the language tag."""
    max_audio_tokens: int = setting(260, at_least=1, at_most=100000)
    """Maximum number of codes of a clip or generated audio, plus 3, because XTTS reserves 3 positions (v2: 605)."""
    layers: int = setting(6, at_least=1, at_most=1000)
    """Number of transformer blocks in the GPT."""
    width: int = setting(256, at_least=1, at_most=65536)
    """Width of the GPT's hidden states and conditioning latents; also the input width of the waveform decoder."""
    heads: int = setting(4, at_least=1)
    """Number of attention heads in the GPT."""
    dropout: float = setting(0.1, at_least=0, below=1, hint="XTTS v2 uses 0.1.")
    """Dropout rate of embeddings, attention probabilities and residual branches (XTTS v2: 0.1)."""
    conditioning_blocks: int = setting(4, at_least=0, at_most=1000)
    """Number of attention blocks in the conditioning encoder."""
    conditioning_heads: int = setting(4, at_least=1)
    """Number of attention heads in the conditioning encoder."""
    num_latents: int = setting(32, at_least=1, at_most=10000)
    """Number of conditioning latents, the output of the perceiver resampler."""
    perceiver_depth: int = setting(2, at_least=0, at_most=1000)
    """Number of layers in the perceiver resampler."""
    perceiver_heads: int = setting(4, at_least=1, at_most=10000)
    """Number of attention heads in the perceiver resampler."""
    perceiver_head_width: int = setting(64, at_least=1, at_most=65536)
    """Width of a perceiver attention head."""
    num_mels: int = setting(NUM_MELS, at_least=1, at_most=10000)
    """Number of mel bands in the input of the DVAE and the conditioning encoder."""
    num_codes: int = setting(1024, at_least=2, at_most=1_000_000, hint="XTTS v2 has 1024.")
    """Codebook size. The GPT's audio vocabulary has two more entries, start and stop."""
    dvae_hidden: int = setting(256, at_least=1, at_most=65536)
    """Channels of the DVAE's first convolution; its residual blocks have twice as many."""
    dvae_residual_blocks: int = setting(3, at_least=0, at_most=1000)
    """Number of residual blocks in the DVAE's encoder and in its decoder."""
    codebook_width: int = setting(256, at_least=1, at_most=65536)
    """Size of a codebook vector."""
    decoder_type: str = setting("istft", one_of=DECODER_TYPES)
    """Waveform decoder: `hifigan` as in XTTS v2, or `istft`, which is ten times as fast."""
    decoder_blocks: int = setting(6, at_least=1, at_most=1000)
    """Number of blocks in the `istft` decoder."""
    decoder_width: int = setting(256, at_least=1, at_most=65536)
    """Channels of the `istft` decoder."""
    decoder_channels: int = setting(256, at_least=1, at_most=65536)
    """Channels of the `hifigan` decoder after its first convolution (XTTS v2: 512)."""
    speaker_channels: tuple[int, ...] = setting((16, 32, 64, 128), at_least=8, at_most=65536)
    """Channels of the speaker encoder's four layers (XTTS v2: 32, 64, 128, 256)."""
    speaker_width: int = setting(512, at_least=1, at_most=65536)
    """Size of a speaker vector."""

    def __init__(self, size="tiny", **values):
        # Older configurations have `decoder_channels` without `decoder_type`: all decoders were HiFi-GAN.
        kind = {"decoder_type": "hifigan"} if "decoder_channels" in values else {}
        self.fill({"size": size, **kind, **values}, MODEL_SIZES.get(size, {}))
        self.__post_init__()

    def __post_init__(self):
        super().__post_init__()
        for name in ("heads", "conditioning_heads"):
            heads = getattr(self, name)
            hint = f"Try {heads * max(1, self.width // heads)}."
            self.check("width", self.width % heads == 0, f"a multiple of model.{name} ({heads})", hint)
        groups, divisor = norm_groups(self.width), 2 ** len(DECODER_UPSAMPLING)
        self.check("width", not self.conditioning_blocks or self.width % groups == 0, f"a multiple of {groups}")
        fits = self.decoder_type == "istft" or self.decoder_channels % divisor == 0
        self.check("decoder_channels", fits, f"a multiple of {divisor}")
        count = len(SPEAKER_BLOCKS)
        self.check("speaker_channels", len(self.speaker_channels) == count, f"{count} numbers")

    @property
    def start_audio_token(self) -> int:
        """Audio token id that starts a sequence. It follows the ids of the codes, 0 to `num_codes - 1`."""
        return self.num_codes

    @property
    def stop_audio_token(self) -> int:
        """Audio token id that ends a sequence."""
        return self.num_codes + 1

    @property
    def num_audio_tokens(self) -> int:
        """Number of audio embeddings: one for each code, one for the start token, and one for the stop token."""
        return self.num_codes + 2

    @property
    def max_codes(self) -> int:
        """Maximum number of codes in a sequence: `max_audio_tokens` without the 3 reserved positions."""
        return self.max_audio_tokens - 3
