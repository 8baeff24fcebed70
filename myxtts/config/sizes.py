"""What belongs to a model size: its shape and the learning rates that suit it."""

MODEL_SIZES = {
    "nano": dict(layers=4, width=128, heads=4, max_audio_tokens=260, conditioning_blocks=2, num_latents=8,
                 perceiver_depth=1, perceiver_heads=4, perceiver_head_width=32, num_codes=512, dvae_hidden=128,
                 dvae_residual_blocks=2, codebook_width=64, vocoder_channels=128, speaker_channels=(8, 16, 32, 64)),
    "tiny": dict(),
    "small": dict(layers=8, width=512, heads=8, conditioning_blocks=6, conditioning_heads=8, perceiver_heads=8,
                  max_audio_tokens=605, max_text_tokens=402, dvae_hidden=512, codebook_width=512,
                  vocoder_channels=512, speaker_channels=(32, 64, 128, 256)),
    "normal": dict(layers=16, width=768, heads=12, conditioning_blocks=6, conditioning_heads=12, perceiver_heads=8,
                   max_audio_tokens=605, max_text_tokens=402, dvae_hidden=512, codebook_width=512,
                   vocoder_channels=512, speaker_channels=(32, 64, 128, 256)),
    "big": dict(layers=30, width=1024, heads=16, conditioning_blocks=6, conditioning_heads=16, perceiver_heads=8,
                max_audio_tokens=605, max_text_tokens=402, dvae_hidden=512, codebook_width=512,
                vocoder_channels=512, speaker_channels=(32, 64, 128, 256)),
}
"""What each size changes against the defaults; `big` is the released XTTS v2 shape."""

LEARNING_RATES = {
    "dvae": dict(nano=2e-3, tiny=1e-3, small=5e-4, normal=3e-4, big=3e-4),
    "gpt": dict(nano=1.5e-3, tiny=8e-4, small=4e-4, normal=3e-4, big=2e-4),
}
"""Peak learning rates from random weights, by stage and size."""
