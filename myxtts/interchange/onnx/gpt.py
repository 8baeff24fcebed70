"""The GPT as two ONNX graphs: one reads a prompt or a code, the other samples the next code."""

import numpy as np

from myxtts.config.model import ModelConfig
from myxtts.interchange.onnx.builder import FLOAT32, Builder
from myxtts.models.gpt import GPT, HIDDEN


def build_reading(gpt: GPT, config: ModelConfig, weights: str = FLOAT32) -> Builder:
    """GPT forward pass over N latents, L text ids and one code, after P cached positions.

    A prompt is N latents, `[START]` text `[STOP]`, the start code and a cache of one masked row; a step has N = L = 0.
    The caller keeps the cache and receives only its new rows, so that it is never copied.

    Inputs, for B rows: `latents` `(B, N, width)`; `text` `(B, L)`; `code` `(B, 1)`; `index` `(B,)`, the number of
    codes before this one, the start code included; `mask` `(B, P + N + L + 1)` bool, the visible positions; `keys_i`
    `(B, heads, D, P)` and `values_i` `(B, heads, P, D)` of each layer.
    Outputs: `logits` `(B, num_audio_tokens)`; `hidden` `(B, width)`, the state before the output layer; `new_keys_i`
    `(B, heads, D, N + L + 1)` and `new_values_i` `(B, heads, N + L + 1, D)`.
    """
    graph, width, heads, depth = Builder("gpt", weights), config.width, config.heads, config.width // config.heads
    latents = graph.input("latents", np.float32, "rows", "num_latents", width)
    text = graph.input("text", np.int32, "rows", "num_text")
    code, index = graph.input("code", np.int32, "rows", 1), graph.input("index", np.int32, "rows")
    mask = graph.input("mask", np.bool_, "rows", "num_keys")
    x = _embed(graph, gpt, latents, text, code, index)
    bias, new = _attention_bias(graph, x, mask), []
    for i, block in enumerate(gpt.blocks):
        keys = graph.input(f"keys_{i}", np.float32, "rows", heads, depth, "past")
        values = graph.input(f"values_{i}", np.float32, "rows", heads, "past", depth)
        attended, *rows = _attend(graph, block, x, keys, values, bias, config)
        new.append(rows)
        x = x + attended
        hidden = graph.op("Gelu", graph.linear(graph.layer_norm(x, block.mlp_norm), block.mlp_in), approximate="tanh")
        x = x + graph.linear(hidden, block.mlp_out)
    last = graph.op("Squeeze", x.slice(1, -1, 2**31), [1])
    hidden = graph.layer_norm(graph.layer_norm(last, gpt.trunk_norm), gpt.final_norm)
    graph.output(graph.linear(hidden, gpt.audio_head), "logits", np.float32, "rows", config.num_audio_tokens)
    graph.output(hidden, "hidden", np.float32, "rows", width)
    for i, (keys, values) in enumerate(new):
        graph.output(keys, f"new_keys_{i}", np.float32, "rows", heads, depth, "new")
        graph.output(values, f"new_values_{i}", np.float32, "rows", heads, "new", depth)
    return graph


def _embed(graph, gpt, latents, text, code, index):
    """Embeddings of the whole input, `(B, N + L + 1, width)`."""
    positions = graph.constant(gpt.text_positions).slice(0, 0, text.length(1))
    words = graph.op("Gather", gpt.text_embedding, text) + positions
    position = graph.op("Gather", gpt.audio_positions, index).unsqueeze(1)
    return graph.concat(latents, words, graph.op("Gather", gpt.audio_embedding, code) + position, axis=1)


def _attention_bias(graph, x, mask):
    """Term of the attention scores that hides masked and later positions, `(B, 1, T, P + T)`."""
    num_keys, num_queries = mask.length(1), x.length(1)
    query = (graph.count(num_queries) + (num_keys - num_queries)).unsqueeze(1)
    visible = mask.unsqueeze(1, 2) & (graph.count(num_keys) <= query)
    return graph.op("Where", visible, 0.0, HIDDEN)


def _attend(graph, block, x, keys, values, bias, config):
    """Self-attention over the cache and `x`; returns its output, new keys and new values."""
    heads, depth = config.heads, config.width // config.heads
    qkv = graph.linear(graph.layer_norm(x, block.attention_norm), block.attention.qkv)
    query, key, value = (part.reshape(0, 0, heads, depth) for part in qkv.split(3))
    query, key, value = query.transpose(0, 2, 1, 3), key.transpose(0, 2, 3, 1), value.transpose(0, 2, 1, 3)
    query = query * depth**-0.5
    # Cached and new keys are multiplied separately, since joining them would copy the cache for each code.
    shares = graph.op("Softmax", graph.concat(query @ keys, query @ key, axis=-1) + bias, axis=-1)
    num_past = values.length(2)
    mean = shares.slice(3, 0, num_past) @ values + shares.slice(3, num_past, 2**31) @ value
    merged = mean.transpose(0, 2, 1, 3).reshape(0, 0, config.width)
    return graph.linear(merged, block.attention.output_projection), key, value


def build_drawing(config: ModelConfig) -> Builder:
    """Sampling of one code for each of B rows, as in `models.sampling.sample`; the start code is excluded.

    Inputs: `logits` and `noise` `(B, V)`; `seen` `(B, V)` bool, the codes sampled so far; `temperature`, `top_p` and
    `repetition_penalty` `(B, 1)` float32; `top_k` `(B, 1)` int32.
    Outputs: `code` `(B,)` int32; `now_seen` `(B, V)` bool.
    """
    graph, num = Builder("draw"), config.num_audio_tokens
    logits, noise = (graph.input(name, np.float32, "rows", num) for name in ("logits", "noise"))
    seen = graph.input("seen", np.bool_, "rows", num)
    names = "temperature", "top_p", "repetition_penalty"
    temperature, top_p, penalty = (graph.input(name, np.float32, "rows", 1) for name in names)
    top_k = graph.input("top_k", np.int32, "rows", 1)

    logits = graph.op("Where", (np.arange(num) == config.start_audio_token)[None], HIDDEN, logits)
    penalized = graph.op("Where", logits < 0.0, logits * penalty, logits / penalty)
    logits = graph.op("Where", seen, penalized, logits)
    is_greedy = graph.op("Equal", temperature, 0.0)
    scores = logits / graph.op("Where", is_greedy, 1.0, temperature)
    scores = _filter(graph, scores, top_k, top_p, num) + noise
    code = graph.op("ArgMax", graph.op("Where", is_greedy, logits, scores), axis=-1, keepdims=0)
    drawn = graph.op("Equal", code.unsqueeze(1), np.arange(num)[None])
    graph.output(code.cast(np.int32), "code", np.int32, "rows")
    graph.output(seen | drawn, "now_seen", np.bool_, "rows", num)
    return graph


def _filter(graph, scores, top_k, top_p, num):
    """Computes `models.sampling.filter_logits` after the temperature."""
    descending, _ = graph.op("TopK", scores, [num], outputs=2, axis=-1, largest=1, sorted=1)
    top_k = top_k.cast(np.int64)
    kept = graph.op("Where", graph.op("Greater", top_k, 0), top_k, num)
    among = graph.op("Where", graph.constant(np.arange(num)[None]) < kept, descending, -HIDDEN)
    kth = graph.op("ReduceMin", among, [-1], keepdims=1)
    scores = graph.op("Where", scores < kth, HIDDEN, scores)
    descending = graph.op("Where", descending < kth, HIDDEN, descending)
    above = graph.op("CumSum", graph.op("Softmax", descending, axis=-1), 1, exclusive=1)
    inside = (above < top_p) | graph.op("GreaterOrEqual", top_p, 1.0)
    least = graph.op("ReduceMin", graph.op("Where", inside, descending, -HIDDEN), [-1], keepdims=1)
    return graph.op("Where", scores < least, HIDDEN, scores)
