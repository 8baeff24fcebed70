"""The shapes of the model."""

from dataclasses import dataclass

from myxtts.config.checks import ConfigError, require, require_at_least
from myxtts.config.sizes import MODEL_SIZES


@dataclass
class ModelConfig:
    """Shapes of the XTTS model. The defaults are the size `tiny`; `ModelConfig.of_size` gives the others."""

    size: str = "tiny"
    """Name of the capacity preset these numbers came from."""
    num_text_tokens: int = 0
    """Rows of the text table: highest token id + 1. 0 until a tokenizer is known."""
    start_text_token: int = 3
    """Id of `[START]`."""
    stop_text_token: int = 0
    """Id of `[STOP]`."""
    max_text_tokens: int = 200
    """Longest text in tokens, language tag included."""
    max_audio_tokens: int = 260
    """Longest clip in audio codes, generation included (605 in XTTS v2)."""
    layers: int = 6
    """Transformer blocks of the GPT."""
    width: int = 256
    """Channels of the GPT, of its conditioning latents and of the vocoder's input."""
    heads: int = 4
    """Attention heads of the GPT."""
    dropout: float = 0.1
    """Dropout on summed embeddings, attention probabilities and residual branches (XTTS v2: 0.1)."""
    conditioning_blocks: int = 4
    """Attention blocks of the conditioning encoder."""
    conditioning_heads: int = 4
    """Attention heads of the conditioning encoder."""
    num_latents: int = 32
    """Conditioning latents that the perceiver resampler gives."""
    perceiver_depth: int = 2
    """Layers of the perceiver resampler."""
    perceiver_heads: int = 4
    """Attention heads of the perceiver."""
    perceiver_head_width: int = 64
    """Width of one perceiver head."""
    num_mels: int = 80
    """Mel bands."""
    num_codes: int = 1024
    """Codebook entries; the GPT's audio vocabulary has two more, start and stop."""
    dvae_hidden: int = 256
    """Channels of the DVAE's first convolution; the residual blocks have twice as many."""
    dvae_residual_blocks: int = 3
    """Residual blocks on each side of the DVAE."""
    codebook_width: int = 256
    """Length of a codebook vector."""
    vocoder_channels: int = 256
    """Channels of HiFi-GAN after its first convolution (512 in XTTS v2)."""
    speaker_channels: tuple[int, ...] = (16, 32, 64, 128)
    """Channels of the four speaker-encoder layers (32, 64, 128, 256 in XTTS v2)."""
    speaker_width: int = 512
    """Length of a speaker vector."""

    def __post_init__(self):
        self.speaker_channels = tuple(self.speaker_channels)
        require_at_least(1, self, "model", "max_text_tokens", "max_audio_tokens", "layers", "width", "heads",
                          "conditioning_heads", "num_latents", "perceiver_heads", "perceiver_head_width", "num_mels",
                          "dvae_hidden", "codebook_width", "vocoder_channels", "speaker_width")
        require_at_least(0, self, "model", "num_text_tokens", "conditioning_blocks", "perceiver_depth",
                          "dvae_residual_blocks")
        require(self.width % self.heads == 0, "model.width", "a multiple of model.heads",
                 f"{self.width} and {self.heads}", f"Try {self.heads * max(1, self.width // self.heads)}.")
        require(self.width % self.conditioning_heads == 0, "model.width", "a multiple of model.conditioning_heads",
                 f"{self.width} and {self.conditioning_heads}", "Change one of the two.")
        require(0.0 <= self.dropout < 1.0, "model.dropout", "at least 0 and below 1", self.dropout,
                 "XTTS v2 uses 0.1.")
        require(self.num_codes >= 2, "model.num_codes", "at least 2", self.num_codes, "XTTS v2 has 1024.")

    @classmethod
    def of_size(cls, size, **overrides):
        """The preset called `size`, with single fields replaced by `overrides`."""
        if size not in MODEL_SIZES:
            raise ConfigError(f"--model-size must be one of {', '.join(MODEL_SIZES)}. Received: {size}.")
        return cls(size=size, **{**MODEL_SIZES[size], **overrides})

    @property
    def start_audio_token(self):
        """Id that begins the audio stream, right after the codes."""
        return self.num_codes

    @property
    def stop_audio_token(self):
        """Id that ends the audio stream."""
        return self.num_codes + 1

    @property
    def num_audio_tokens(self):
        """Rows of the audio table: codes, start, stop."""
        return self.num_codes + 2

    @property
    def max_codes(self):
        """Codes that one generation can hold: three places go to start, stop and bookkeeping."""
        return self.max_audio_tokens - 3
