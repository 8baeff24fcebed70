"""The GPT as two ONNX graphs: one that reads, a prompt or a code, and one that draws the next code."""

import numpy as np

from myxtts.config.model import ModelConfig
from myxtts.interchange.onnx.builder import FLOAT32, Builder
from myxtts.models.gpt import GPT
from myxtts.models.sampling import EXCLUDED


def build_reading(gpt: GPT, config: ModelConfig, weights: str = FLOAT32) -> Builder:
    """A graph that reads N latents, L text ids and one code after the P rows of cache that it is given.

    A prompt is N latents, `[START]` text `[STOP]`, the start code and a cache of one hidden row; a step has N = L = 0.
    The cache stays with the caller: what comes out is its new rows alone, so that nothing is copied.

    Inputs, for B rows: `latents` `(B, N, width)`, `text` `(B, L)`, `code` `(B, 1)`, `index` `(B,)`, codes before this
    one, the start code included; `mask` `(B, P + N + L + 1)` bool, what may be seen; `keys_i` `(B, heads, D, P)` and
    `values_i` `(B, heads, P, D)` of each layer.
    Outputs: `logits` `(B, num_audio_tokens)`, the state that they come from, `hidden` `(B, width)`; `new_keys_i`
    `(B, heads, D, N + L + 1)` and `new_values_i` `(B, heads, N + L + 1, D)`.
    """
    graph = Builder("gpt", weights)
    width, heads = config.width, config.heads
    latents = graph.input("latents", np.float32, "rows", "num_latents", width)
    text = graph.input("text", np.int32, "rows", "num_text")
    code, index = graph.input("code", np.int32, "rows", 1), graph.input("index", np.int32, "rows")
    mask = graph.input("mask", np.bool_, "rows", "num_keys")
    past = [
        (
            graph.input(f"keys_{i}", np.float32, "rows", heads, width // heads, "past"),
            graph.input(f"values_{i}", np.float32, "rows", heads, "past", width // heads),
        )
        for i in range(config.layers)
    ]
    x = _embedded(graph, gpt, latents, text, code, index)
    visible = _visible(graph, x, mask)
    new = []
    for block, (keys, values) in zip(gpt.blocks, past):
        x, key, value = _block(graph, block, x, keys, values, visible, config)
        new.append((key, value))
    last = graph.op("Squeeze", graph.slice(x, 1, -1, 2**31), graph.ints(1))
    hidden = graph.layer_norm(graph.layer_norm(last, gpt.trunk_norm), gpt.final_norm)
    graph.output(graph.linear(hidden, gpt.audio_head), "logits", np.float32, "rows", config.num_audio_tokens)
    graph.output(hidden, "hidden", np.float32, "rows", width)
    for i, (key, value) in enumerate(new):
        graph.output(key, f"new_keys_{i}", np.float32, "rows", heads, width // heads, "new")
        graph.output(value, f"new_values_{i}", np.float32, "rows", heads, "new", width // heads)
    return graph


def _embedded(graph, gpt, latents, text, code, index):
    """The vectors of everything that is read, `(B, N + L + 1, width)`."""
    words = graph.op("Gather", graph.constant(gpt.text_embedding), text)
    places = graph.slice(graph.constant(gpt.text_positions), 0, 0, graph.length(text, 1))
    sound = graph.op("Gather", graph.constant(gpt.audio_embedding), code)
    moment = graph.op("Unsqueeze", graph.op("Gather", graph.constant(gpt.audio_positions), index), graph.ints(1))
    return graph.concat(latents, graph.op("Add", words, places), graph.op("Add", sound, moment), axis=1)


def _visible(graph, x, mask):
    """What is added to scores `(B, heads, T, P + T)`: zero, or a number that hides a key."""
    num_keys, num_queries = graph.length(mask, 1), graph.length(x, 1)
    first = graph.op("Sub", num_keys, num_queries)
    query = graph.op("Unsqueeze", graph.op("Add", graph.count(num_queries), first), graph.ints(1))
    earlier = graph.op("LessOrEqual", graph.count(num_keys), query)
    mask = graph.op("And", graph.op("Unsqueeze", mask, graph.ints(1, 2)), earlier)
    return graph.op("Where", mask, graph.constant(0.0), graph.constant(EXCLUDED))


def _block(graph, block, x, keys, values, visible, config):
    attended, key, value = _attention(graph, block, x, keys, values, visible, config)
    x = graph.op("Add", x, attended)
    hidden = graph.linear(graph.layer_norm(x, block.mlp_norm), block.mlp_in)
    return graph.op("Add", x, graph.linear(graph.op("Gelu", hidden, approximate="tanh"), block.mlp_out)), key, value


def _attention(graph, block, x, keys, values, visible, config):
    heads, depth = config.heads, config.width // config.heads
    qkv = graph.linear(graph.layer_norm(x, block.attention_norm), block.attention.qkv)
    parts = (
        graph.reshape(part, 0, 0, heads, depth) for part in graph.op("Split", qkv, outputs=3, axis=-1, num_outputs=3)
    )
    query, key, value = (graph.transpose(part, *order) for part, order in zip(parts, _ORDERS))
    query = graph.op("Mul", query, graph.constant(depth**-0.5))
    # Keys of the cache and new ones have products of their own: joining them would copy the cache at each code.
    scores = graph.concat(graph.op("MatMul", query, keys), graph.op("MatMul", query, key), axis=-1)
    shares = graph.op("Softmax", graph.op("Add", scores, visible), axis=-1)
    num_past = graph.length(values, 2)
    of_past, of_new = graph.slice(shares, 3, 0, num_past), graph.slice(shares, 3, num_past, 2**31)
    mean = graph.op("Add", graph.op("MatMul", of_past, values), graph.op("MatMul", of_new, value))
    merged = graph.reshape(graph.transpose(mean, 0, 2, 1, 3), 0, 0, config.width)
    return graph.linear(merged, block.attention.output_projection), key, value


_ORDERS = ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3))
"""Axes of queries, keys and values: keys lie so that a product with them needs no transposition."""


def build_drawing(config: ModelConfig) -> Builder:
    """A graph that draws one code for each of B rows, as `models.sampling.sample` does it, never the start code.

    Inputs: `logits`, `noise` `(B, V)`, `seen` `(B, V)` bool, codes drawn so far; `temperature`, `top_p`,
    `repetition_penalty` `(B, 1)` float32, `top_k` `(B, 1)` int32.
    Outputs: `code` `(B,)` int32, `now_seen` `(B, V)` bool.
    """
    graph, num = Builder("draw"), config.num_audio_tokens
    logits, noise = (graph.input(name, np.float32, "rows", num) for name in ("logits", "noise"))
    seen = graph.input("seen", np.bool_, "rows", num)
    names = "temperature", "top_p", "repetition_penalty"
    temperature, top_p, penalty = (graph.input(name, np.float32, "rows", 1) for name in names)
    top_k = graph.input("top_k", np.int32, "rows", 1)
    excluded, zero, one = (graph.constant(value) for value in (EXCLUDED, 0.0, 1.0))

    never = graph.constant((np.arange(num) == config.start_audio_token)[None], np.bool_)
    logits = graph.op("Where", never, excluded, logits)
    below = graph.op("Less", logits, zero)
    penalized = graph.op("Where", below, graph.op("Mul", logits, penalty), graph.op("Div", logits, penalty))
    logits = graph.op("Where", seen, penalized, logits)
    is_greedy = graph.op("Equal", temperature, zero)
    scores = graph.op("Div", logits, graph.op("Where", is_greedy, one, temperature))
    scores = _filtered(graph, scores, top_k, top_p, num)
    scores = graph.op("Where", is_greedy, logits, graph.op("Add", scores, noise))
    code = graph.op("ArgMax", scores, axis=-1, keepdims=0)
    drawn = graph.op(
        "Equal", graph.op("Unsqueeze", code, graph.ints(1)), graph.constant(np.arange(num)[None], np.int64)
    )
    graph.output(graph.op("Cast", code, to=6), "code", np.int32, "rows")
    graph.output(graph.op("Or", seen, drawn), "now_seen", np.bool_, "rows", num)
    return graph


def _filtered(graph, scores, top_k, top_p, num):
    """`models.sampling.filter_logits` after the temperature."""
    excluded, best = graph.constant(EXCLUDED), graph.constant(-EXCLUDED)
    descending, _ = graph.op("TopK", scores, graph.ints(num), outputs=2, axis=-1, largest=1, sorted=1)
    place, top_k = graph.constant(np.arange(num)[None], np.int64), graph.op("Cast", top_k, to=7)
    kept = graph.op("Where", graph.op("Greater", top_k, graph.number(0)), top_k, graph.number(num))
    among = graph.op("Where", graph.op("Less", place, kept), descending, best)
    kth = graph.op("ReduceMin", among, graph.ints(-1), keepdims=1)
    scores = graph.op("Where", graph.op("Less", scores, kth), excluded, scores)
    descending = graph.op("Where", graph.op("Less", descending, kth), excluded, descending)
    above = graph.op("CumSum", graph.op("Softmax", descending, axis=-1), graph.number(1), exclusive=1)
    inside = graph.op("Or", graph.op("Less", above, top_p), graph.op("GreaterOrEqual", top_p, graph.constant(1.0)))
    least = graph.op("ReduceMin", graph.op("Where", inside, descending, best), graph.ints(-1), keepdims=1)
    return graph.op("Where", graph.op("Less", scores, least), excluded, scores)
