"""Floating-point operations that a training step needs, whatever way it is computed."""


def step_flops(config, batch, num_text, num_codes, frames):
    """Floating-point operations of matrix products in forward and backward of one GPT step, attention included."""
    width, latents = config.width, config.num_latents
    tokens = latents + num_text + 2 + num_codes + 5
    trunk = config.layers * (12 * width * width * tokens + 2 * tokens * tokens * width)
    heads = width * ((num_text + 2) * config.num_text_tokens + (num_codes + 5) * config.num_audio_tokens)
    conditioning = 80 * width * frames + config.conditioning_blocks * (
        4 * width * width * frames + 2 * frames * frames * width
    )
    inner, hidden = config.perceiver_heads * config.perceiver_head_width, width * 8 // 3
    perceiver = config.perceiver_depth * (
        width * inner * (2 * latents + 2 * (latents + frames))
        + 2 * latents * (latents + frames) * inner
        + 3 * latents * width * hidden
    )
    return 3 * 2 * batch * (trunk + heads + conditioning + perceiver)
