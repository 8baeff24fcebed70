"""Builds a model's ONNX graphs: GPT, sampling, conditioning encoder, speaker encoder and waveform decoder."""

import numpy as np

from myxtts.audio.mel import CONDITIONING_MEL, SPEAKER_MEL, MelSpec
from myxtts.config.model import ModelConfig
from myxtts.interchange.onnx.builder import FLOAT32, Builder, Tensor
from myxtts.models.gpt import GPT, HIDDEN
from myxtts.models.waveform_decoders import LAST_SLOPE, MOST_LOG_MAGNITUDE, SLOPE, IstftGenerator
from myxtts.models.xtts import XTTS


def build_reading(gpt: GPT, config: ModelConfig, weights: str = FLOAT32) -> Builder:
    """Builds the forward pass of the GPT over N latents, L text ids and one code, after P cached positions.

    The first call processes the prompt: latents, `[START]` text `[STOP]`, start code. It needs a cache of one dummy
    position that `mask` hides. Later calls process one code, with N = L = 0. Outputs omit cached keys and values.

    Inputs for B rows: `latents` `(B, N, width)`, `text` `(B, L)` and `code` `(B, 1)`; for each layer, `keys_i`
    `(B, heads, D, P)` and `values_i` `(B, heads, P, D)`. `index` `(B,)` is the number of codes before `code`,
    including the start code. `mask` `(B, P + N + L + 1)` bool is True for visible positions.
    Outputs: `logits` `(B, num_audio_tokens)`; for each layer, `new_keys_i` `(B, heads, D, N + L + 1)` and
    `new_values_i` `(B, heads, N + L + 1, D)`. `hidden` `(B, width)` is the state before the output layer.
    """
    graph, width, heads, depth = Builder("gpt", weights), config.width, config.heads, config.width // config.heads
    latents = graph.input("latents", np.float32, "rows", "num_latents", width)
    text = graph.input("text", np.int32, "rows", "num_text")
    code, index = graph.input("code", np.int32, "rows", 1), graph.input("index", np.int32, "rows")
    mask = graph.input("mask", np.bool_, "rows", "num_keys")
    words = graph.op("Gather", gpt.text_embedding, text)
    words = words + graph.constant(gpt.text_positions).slice(0, 0, text.length(1))
    position = graph.op("Gather", gpt.audio_positions, index).unsqueeze(1)
    x = graph.op("Concat", latents, words, graph.op("Gather", gpt.audio_embedding, code) + position, axis=1)
    num_keys, num_queries = mask.length(1), x.length(1)
    query = (graph.count(num_queries) + (num_keys - num_queries)).unsqueeze(1)
    bias = graph.op("Where", mask.unsqueeze(1, 2) & (graph.count(num_keys) <= query), 0.0, HIDDEN)  # (B, 1, T, P + T)
    new = []
    for i, block in enumerate(gpt.blocks):
        keys = graph.input(f"keys_{i}", np.float32, "rows", heads, depth, "past")
        values = graph.input(f"values_{i}", np.float32, "rows", heads, "past", depth)
        qkv = graph.linear(graph.layer_norm(x, block.attention_norm), block.attention.qkv)
        query, key, value = (part.reshape(0, 0, heads, depth) for part in qkv.split(3))
        query, key, value = query.transpose(0, 2, 1, 3), key.transpose(0, 2, 3, 1), value.transpose(0, 2, 1, 3)
        query = query * depth**-0.5
        new.append((key, value))
        # Cached and new keys are multiplied separately, because joining them would copy the cache for each code.
        shares = graph.op("Softmax", graph.op("Concat", query @ keys, query @ key, axis=-1) + bias, axis=-1)
        num_past = values.length(2)
        mean = shares.slice(3, 0, num_past) @ values + shares.slice(3, num_past, 2**31) @ value
        x = x + graph.linear(mean.transpose(0, 2, 1, 3).reshape(0, 0, width), block.attention.output_projection)
        hidden = graph.op("Gelu", graph.linear(graph.layer_norm(x, block.mlp_norm), block.mlp_in), approximate="tanh")
        x = x + graph.linear(hidden, block.mlp_out)
    last = graph.op("Squeeze", x.slice(1, -1, 2**31), [1])
    hidden = graph.layer_norm(graph.layer_norm(last, gpt.trunk_norm), gpt.final_norm)
    graph.output(graph.linear(hidden, gpt.audio_head), "logits", np.float32, "rows", config.num_audio_tokens)
    graph.output(hidden, "hidden", np.float32, "rows", width)
    for i, (key, value) in enumerate(new):
        graph.output(key, f"new_keys_{i}", np.float32, "rows", heads, depth, "new")
        graph.output(value, f"new_values_{i}", np.float32, "rows", heads, "new", depth)
    return graph


def build_drawing(config: ModelConfig) -> Builder:
    """Builds the graph that samples one code per row, like `models.gpt.sample`. The start code is never sampled.

    Inputs: `logits` and `noise` `(B, V)`; `seen` `(B, V)` bool, the codes sampled so far; `temperature`, `top_p` and
    `repetition_penalty` `(B, 1)` float32; `top_k` `(B, 1)` int32.
    Outputs: `code` `(B,)` int32; `now_seen` `(B, V)` bool.
    """
    graph, num = Builder("draw"), config.num_audio_tokens
    logits, noise = (graph.input(name, np.float32, "rows", num) for name in ("logits", "noise"))
    seen = graph.input("seen", np.bool_, "rows", num)
    names = "temperature", "top_p", "repetition_penalty"
    temperature, top_p, penalty = (graph.input(name, np.float32, "rows", 1) for name in names)
    top_k = graph.input("top_k", np.int32, "rows", 1).cast(np.int64)

    logits = graph.op("Where", (np.arange(num) == config.start_audio_token)[None], HIDDEN, logits)
    logits = graph.op("Where", seen, graph.op("Where", logits < 0.0, logits * penalty, logits / penalty), logits)
    is_greedy = temperature < 1e-6
    # From here to `filtered`, as in `models.gpt.filter_logits`.
    scores = logits / graph.op("Where", is_greedy, 1.0, temperature)
    descending, _ = graph.op("TopK", scores, [num], outputs=2, axis=-1, largest=1, sorted=1)
    is_among_best = graph.constant(np.arange(num)[None]) < graph.op("Where", graph.op("Greater", top_k, 0), top_k, num)
    kth = graph.op("ReduceMin", graph.op("Where", is_among_best, descending, -HIDDEN), [-1], keepdims=1)
    scores = graph.op("Where", scores < kth, HIDDEN, scores)
    descending = graph.op("Where", descending < kth, HIDDEN, descending)
    above = graph.op("CumSum", graph.op("Softmax", descending, axis=-1), 1, exclusive=1)
    is_kept = (above < top_p) | graph.op("GreaterOrEqual", top_p, 1.0)
    least = graph.op("ReduceMin", graph.op("Where", is_kept, descending, -HIDDEN), [-1], keepdims=1)
    filtered = graph.op("Where", scores < least, HIDDEN, scores)
    code = graph.op("ArgMax", graph.op("Where", is_greedy, logits, filtered + noise), axis=-1, keepdims=0)
    drawn = graph.op("Equal", code.unsqueeze(1), np.arange(num)[None])
    graph.output(code.cast(np.int32), "code", np.int32, "rows")
    graph.output(seen | drawn, "now_seen", np.bool_, "rows", num)
    return graph


def build_conditioning(model: XTTS) -> Builder:
    """Builds the conditioning encoder, from `wav` `(B, S)` at 22 050 Hz to `latents` `(B, num_latents, width)`."""
    graph, gpt, config = Builder("conditioning"), model.gpt, model.config
    wav = graph.input("wav", np.float32, "pieces", "samples")
    x = graph.linear(log_mel(graph, CONDITIONING_MEL, wav) / model.mel_stats, gpt.conditioning_encoder.input_projection)
    for block in gpt.conditioning_encoder.blocks:
        groups, depth = block.norm.groups, config.width // block.heads
        by_group = _instance_norm(graph, x.transpose(0, 2, 1).reshape(0, groups, -1), groups, block.norm.epsilon)
        x = by_group.reshape(0, config.width, -1).transpose(0, 2, 1) * block.norm.gamma + block.norm.beta
        # Each head has its query, key and value next to each other.
        qkv = graph.linear(x, block.qkv).reshape(0, 0, block.heads, 3 * depth).transpose(0, 2, 1, 3)
        x = x + graph.linear(_attend(graph, *qkv.split(3), depth), block.output_projection)
    # The perceiver resampler turns frames `(B, T, width)` into a fixed number of latents.
    perceiver = gpt.perceiver
    start, heads, depth = np.asarray(perceiver.latents), perceiver.heads, perceiver.head_width
    by_head = lambda x: x.reshape(0, 0, heads, depth).transpose(0, 2, 1, 3)
    latents = graph.op("Expand", start[None], graph.op("Concat", x.length(0), start.shape, axis=0))
    for layer in perceiver.layers:
        key, value = graph.linear(graph.op("Concat", latents, x, axis=1), layer.key_value).split(2)
        attended = _attend(graph, by_head(graph.linear(latents, layer.query)), by_head(key), by_head(value), depth)
        latents = latents + graph.linear(attended, layer.output_projection)
        update, gate = graph.linear(latents, layer.mlp_in).split(2)
        latents = latents + graph.linear(update * graph.op("Gelu", gate), layer.mlp_out)
    latents = _unit(graph, latents) * (config.width**0.5 * np.asarray(perceiver.gamma))
    graph.output(latents, "latents", np.float32, "pieces", config.num_latents, config.width)
    return graph


def build_speaker(model: XTTS) -> Builder:
    """Builds the speaker encoder, from `wav` `(B, S)` at 16 000 Hz to the vector `speaker` `(B, speaker_width)`."""
    graph, encoder = Builder("speaker"), model.speaker_encoder
    mel = log_mel(graph, SPEAKER_MEL, graph.input("wav", np.float32, "recordings", "samples"))
    x = _instance_norm(graph, mel.transpose(0, 2, 1), SPEAKER_MEL.num_mels, 1e-5)
    # Channels come first, then time and bands.
    x = x.transpose(0, 2, 1).unsqueeze(1)
    x = _batch_norm(graph, graph.op("Relu", graph.conv(x, encoder.stem)), encoder.stem_norm)
    for block in encoder.blocks:
        shortcut = x
        if block.shortcut_conv is not None:
            shortcut = _batch_norm(graph, graph.conv(x, block.shortcut_conv), block.shortcut_norm)
        x = _batch_norm(graph, graph.op("Relu", graph.conv(x, block.conv1)), block.norm1)
        x = _batch_norm(graph, graph.conv(x, block.conv2), block.norm2)
        squeezed = graph.linear(graph.op("ReduceMean", x, [2, 3], keepdims=0), block.gate.squeeze, "Relu")
        x = graph.op("Relu", x * graph.linear(squeezed, block.gate.excite, "Sigmoid").unsqueeze(2, 3) + shortcut)
    # Attentive statistics pooling: weighted mean and standard deviation of `(B, T, C)` over time.
    x, pooling = x.transpose(0, 2, 1, 3).reshape(0, 0, -1), encoder.pooling
    hidden = _batch_norm(graph, graph.linear(x, pooling.hidden, "Relu").transpose(0, 2, 1), pooling.norm)
    weight = graph.op("Softmax", graph.linear(hidden.transpose(0, 2, 1), pooling.score), axis=1)
    sum_over_time = lambda x: graph.op("ReduceSum", x, [1], keepdims=0)
    mean = sum_over_time(weight * x)
    variance = sum_over_time(weight * (x * x)) - mean * mean
    pooled = graph.op("Concat", mean, graph.op("Sqrt", graph.op("Max", variance, 1e-5)), axis=-1)
    vector = _unit(graph, graph.linear(pooled, encoder.project))
    graph.output(vector, "speaker", np.float32, "recordings", encoder.embedding_width)
    return graph


def log_mel(graph: Builder, spec: MelSpec, wav: Tensor) -> Tensor:
    """Adds nodes that convert audio `(B, S)` to the log-mel `(B, F, num_mels)` of `audio.mel.MelSpectrogram`."""
    if spec.preemphasis:
        wav = wav - graph.op("Concat", wav.slice(1, 1, 2), wav.slice(1, 0, -1), axis=1) * spec.preemphasis
    half, unused = spec.win_length // 2, spec.n_fft - spec.win_length
    wav = graph.op("Pad", wav, [0, half, 0, spec.win_length - half], mode="reflect")
    # The window covers the left part of the transform, which extends beyond the last frame.
    wav = graph.op("Pad", wav, [0, 0, 0, unused])
    window = np.pad(spec.window_values(), (0, unused))
    spectrum = graph.op("STFT", wav.unsqueeze(2), spec.hop_length, window, spec.n_fft)
    power = graph.op("ReduceSumSquare", spectrum, [3], keepdims=0)
    filters = spec.filterbank()
    used = int(np.flatnonzero(filters.any(axis=1))[-1]) + 1
    mel = power.slice(2, 0, used) @ filters[:used]
    if spec.log_floor:
        mel = graph.op("Max", mel, spec.log_floor)
    return graph.op("Log", mel + spec.log_offset if spec.log_offset else mel)


def _instance_norm(graph, x, channels, epsilon):
    return graph.op("InstanceNormalization", x, np.ones(channels), np.zeros(channels), epsilon=epsilon)


def _unit(graph, x):
    """Returns `x` with unit L2 norm along the last axis."""
    return x / graph.op("Max", graph.op("ReduceL2", x, [-1], keepdims=1), 1e-12)


def _attend(graph, query, key, value, depth):
    """Applies unmasked attention to query, key and value `(B, heads, T, depth)`; returns `(B, T, heads * depth)`."""
    shares = graph.op("Softmax", (query * depth**-0.5) @ key.transpose(0, 1, 3, 2), axis=-1)
    return (shares @ value).transpose(0, 2, 1, 3).reshape(0, 0, -1)


def _batch_norm(graph, x, layer):
    """Applies the batch normalization `layer`, in inference mode, to `x`, whose second axis is the channels."""
    statistics = layer.moving_mean, layer.moving_variance
    return graph.op("BatchNormalization", x, layer.gamma, layer.beta, *statistics, epsilon=layer.epsilon)


def build_decoder(model: XTTS) -> Builder:
    """Builds the waveform decoder for one window of a sentence.

    Inputs: all `latents` so far, `(B, n, width)`, and `speaker` `(B, speaker_width)`. `start` and `end`, both `(1,)`
    int64, delimit the window in frames. If `end` is beyond the last frame, the window ends with the last frame.
    Output: `samples` `(B, F hop_length)` for the F frames of the window.
    """
    graph, decoder, config = Builder("decoder"), model.decoder, model.config
    latents = graph.input("latents", np.float32, "rows", "num_latents", config.width)
    speaker = graph.input("speaker", np.float32, "rows", config.speaker_width)
    start, end = (graph.input(name, np.int64, 1) for name in ("start", "end"))
    x = latents
    for factor in decoder.factors:  # as in `WaveformDecoder.latents_to_frames`
        size = graph.op("Floor", x.length(1).cast(np.float64) * graph.constant(factor, np.float64)).cast(np.int64)
        place = graph.op("Max", (graph.count(size).cast(np.float32) + 0.5) * (1 / factor) - 0.5, 0.0)
        last = x.length(1) - [1]
        left = graph.op("Min", place.cast(np.int64), last)
        blend = (place - left.cast(np.float32)).unsqueeze(1)
        x_left, x_right = (graph.op("Gather", x, at, axis=1) for at in (left, graph.op("Min", left + [1], last)))
        x = x_left * (graph.constant(1.0) - blend) + x_right * blend
    to_samples = _istft if isinstance(decoder, IstftGenerator) else _hifigan
    samples = to_samples(graph, decoder, x.slice(1, start, end), speaker)
    graph.output(samples, "samples", np.float32, "rows", "num_samples")
    return graph


def _istft(graph, decoder, frames, speaker):
    """Adds the nodes of `IstftGenerator.frames_to_samples`: frames `(B, F, width)` to samples `(B, S)`."""
    condition = graph.linear(speaker * np.shape(decoder.condition.kernel)[0] ** 0.5, decoder.condition)
    x = graph.conv(frames.transpose(0, 2, 1), decoder.conv_pre).transpose(0, 2, 1) + condition.unsqueeze(1)
    x = graph.layer_norm(x, decoder.norm_pre)
    condition = condition * graph.op("Sigmoid", condition)
    for block in decoder.blocks:
        kernel, after = np.asarray(block.kernel), block.lookahead
        shape = dict(pads=[len(kernel) - 1 - after, after], group=kernel.shape[1])
        hidden = graph.op("Conv", x.transpose(0, 2, 1), kernel.transpose(1, 2, 0), block.bias, **shape)
        hidden = graph.layer_norm(hidden.transpose(0, 2, 1), block.norm, kernel.shape[1])
        scale, shift = graph.linear(condition, block.modulation).unsqueeze(1).split(2)
        hidden = graph.linear(hidden * (scale + 1.0) + shift, block.widen)
        x = x + graph.linear(graph.op("Gelu", hidden, approximate="tanh"), block.narrow) * block.factor
    log_magnitude, phase = graph.linear(graph.layer_norm(x, decoder.norm_post), decoder.head).split(2)
    magnitude = graph.op("Exp", graph.op("Min", log_magnitude, MOST_LOG_MAGNITUDE))
    spectrum = graph.op("Concat", *(magnitude * graph.op(wave, phase) for wave in ("Cos", "Sin")), axis=-1)
    # Inverse Fourier transform, window and overlap-add are one transposed convolution of `(B, 2 bins, F)`.
    hop, size = decoder.hop_length, 4 * decoder.hop_length
    shape = dict(strides=[hop], pads=[3 * hop // 2] * 2)
    waves = (_waves(graph, size) * decoder.window).unsqueeze(1)
    x = graph.op("ConvTranspose", spectrum.transpose(0, 2, 1), waves, **shape)
    ones = graph.op("Expand", 1.0, graph.op("Concat", [1, 1], spectrum.length(1), axis=0))
    envelope = graph.op("ConvTranspose", ones, decoder.window[None, None] ** 2, **shape)
    return graph.op("Squeeze", graph.op("Clip", x / graph.op("Max", envelope, 1e-3), -1.0, 1.0), [1])


def _waves(graph, size):
    """Returns the matrix of the inverse real FFT, `(size + 2, size)`: rows for real parts, then for imaginary parts.

    ONNX Runtime computes the matrix when it loads the graph, because storing it would more than double a small file.
    """
    bins = np.arange(size // 2 + 1)
    turns = graph.constant(bins[:, None]) * graph.count([size])
    angle = graph.op("Mod", turns, size).cast(np.float32) * (2 * np.pi / size)
    inner = (bins > 0) & (bins < size // 2)
    real = graph.op("Cos", angle) * ((1 + inner) / size)[:, None]
    return graph.op("Concat", real, graph.op("Sin", angle) * (-2.0 * inner / size)[:, None], axis=0)


def _hifigan(graph, decoder, frames, speaker):
    """Adds the nodes of `HifiganGenerator.frames_to_samples`: frames `(B, F, width)` to samples `(B, S)`."""
    leaky = lambda x, slope=SLOPE: graph.op("LeakyRelu", x, alpha=slope)
    conditioned = lambda x, layer: x + graph.linear(speaker, layer).unsqueeze(2)
    x = conditioned(graph.conv(frames.transpose(0, 2, 1), decoder.conv_pre), decoder.condition_pre)
    for upsample, condition, stage in zip(decoder.upsamples, decoder.conditions, decoder.stacks, strict=True):
        kernel, (stride,) = np.asarray(upsample.kernel).transpose(), upsample.strides
        shape = dict(strides=[stride], pads=[(kernel.shape[-1] - stride) // 2] * 2)
        x = conditioned(graph.op("ConvTranspose", leaky(x), kernel, upsample.bias, **shape), condition)
        outputs = []
        for stack in stage:
            hidden = x
            for dilated, plain in zip(stack.dilated, stack.plain, strict=True):
                hidden = hidden + graph.conv(leaky(graph.conv(leaky(hidden), dilated)), plain)
            outputs.append(hidden)
        x = graph.op("Mean", *outputs)
    return graph.op("Squeeze", graph.op("Tanh", graph.conv(leaky(x, LAST_SLOPE), decoder.conv_post)), [1])
