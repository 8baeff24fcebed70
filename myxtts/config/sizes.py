"""The shapes of the model sizes."""

_NANO = dict(layers=4, width=128, num_latents=8, perceiver_depth=1, perceiver_head_width=32, conditioning_blocks=2)
_NANO |= dict(num_codes=512, codebook_width=64, dvae_hidden=128, dvae_residual_blocks=2, decoder_channels=128)
_NANO |= dict(decoder_blocks=4, decoder_width=128)
_SMALL = dict(layers=8, width=512, heads=8, conditioning_blocks=6, conditioning_heads=8, perceiver_heads=8)
_SMALL |= dict(max_audio_tokens=605, max_text_tokens=402, dvae_hidden=512, codebook_width=512, decoder_channels=512)
_SMALL |= dict(speaker_channels=(32, 64, 128, 256), decoder_blocks=8, decoder_width=384)
_NORMAL = _SMALL | dict(layers=16, width=768, heads=12, conditioning_heads=12, decoder_width=512)
_NORMAL |= dict(decoder_type="hifigan")

MODEL_SIZES = {
    "nano": _NANO | dict(speaker_channels=(8, 16, 32, 64)),
    "tiny": {},
    "small": _SMALL,
    "normal": _NORMAL,
    "big": _NORMAL | dict(layers=30, width=1024, heads=16, conditioning_heads=16),
}
"""What each size changes against the defaults of `ModelConfig`; `big` is the released XTTS v2 shape."""
