"""The model as TensorFlow functions with the inputs and outputs of the ONNX graphs, in one SavedModel."""

from pathlib import Path

import tensorflow as tf

from myxtts.audio.mel import CONDITIONING_MEL, SPEAKER_MEL, MelSpectrogram
from myxtts.models.gpt import GPT
from myxtts.models.layers.attention import merge_heads, split_heads
from myxtts.models.layers.tensor import Tensor
from myxtts.models.sampling import EXCLUDED, SamplingValues, sample
from myxtts.models.xtts import XTTS

SAVED_MODEL = "model"
"""Folder of the SavedModel within an export."""


def save_model(model: XTTS, path: Path) -> None:
    """Writes a SavedModel with the signatures conditioning, speaker, gpt, draw and decoder.

    Their inputs and outputs are those of `onnx_graphs.hearing`, `.gpt` and `.sound`.
    """
    config, module = model.config, tf.Module()
    number, width, scores = tf.float32, config.width, config.num_audio_tokens
    cache = [None, config.heads, width // config.heads, None]
    reading = dict(
        latents=tf.TensorSpec([None, None, width], number),
        text=tf.TensorSpec([None, None], tf.int32),
        code=tf.TensorSpec([None, 1], tf.int32),
        index=tf.TensorSpec([None], tf.int32),
        mask=tf.TensorSpec([None, None], tf.bool),
        **{f"keys_{layer}": tf.TensorSpec(cache, number) for layer in range(config.layers)},
        **{f"values_{layer}": tf.TensorSpec([*cache[:2], None, cache[2]], number) for layer in range(config.layers)},
    )
    column = tf.TensorSpec([None, 1], number)
    drawing = dict(
        logits=tf.TensorSpec([None, scores], number),
        noise=tf.TensorSpec([None, scores], number),
        seen=tf.TensorSpec([None, scores], tf.bool),
        **{name: tf.TensorSpec([None, 1], tf.int32) if name == "top_k" else column for name in SamplingValues._fields},
    )
    window = dict(start=tf.TensorSpec([1], tf.int64), end=tf.TensorSpec([1], tf.int64))
    sound = dict(
        latents=tf.TensorSpec([None, None, width], number),
        speaker=tf.TensorSpec([None, config.speaker_width], number),
        **window,
    )
    wav = dict(wav=tf.TensorSpec([None, None], number))
    functions = {
        "conditioning": (_conditioning(model), wav),
        "speaker": (_speaker(model), wav),
        "gpt": (lambda **arrays: read(model.gpt, **arrays), reading),
        "draw": (_drawing(config), drawing),
        "decoder": (_decoding(model.decoder), sound),
    }
    signatures = {}
    for name, (function, specs) in functions.items():
        named = {one: tf.TensorSpec(spec.shape, spec.dtype, one) for one, spec in specs.items()}
        signatures[name] = tf.function(function).get_concrete_function(**named)
    used = (variable for graph in signatures.values() for variable in graph.variables)
    module.weights = list({id(variable): variable for variable in used}.values())
    try:
        tf.saved_model.save(module, str(path), signatures)
    except tf.errors.OpError as error:  # what TensorFlow makes of a disk that is full or read-only
        reason = error.message.split(";")[-1].partition(" [Op")[0].strip()
        raise OSError(f"The SavedModel cannot be written: {reason}.") from error


def _conditioning(model):
    to_mel = MelSpectrogram(CONDITIONING_MEL)
    return lambda wav: {"latents": model.gpt.mel_to_latents(model.normalize_mel(to_mel(wav)))}


def _speaker(model):
    to_mel = MelSpectrogram(SPEAKER_MEL)
    return lambda wav: {"speaker": model.speaker_encoder(to_mel(wav))}


def _decoding(decoder):
    def decode(latents, speaker, start, end):
        frames = decoder.latents_to_frames(latents)[:, start[0] : end[0]]
        return {"samples": decoder.frames_to_samples(frames, speaker)}

    return decode


def _drawing(config):
    never = tf.range(config.num_audio_tokens) == config.start_audio_token

    def draw(logits, noise, seen, **values):
        code = sample(tf.where(never, EXCLUDED, logits), SamplingValues(**values), seen, noise)
        drawn = tf.cast(tf.one_hot(code, config.num_audio_tokens), tf.bool)
        return {"code": code, "now_seen": seen | drawn}

    return draw


def read(
    gpt: GPT, latents: Tensor, text: Tensor, code: Tensor, index: Tensor, mask: Tensor, **past
) -> dict[str, Tensor]:
    """As `onnx_graphs.gpt.build_reading`."""
    sound = tf.gather(gpt.audio_embedding.value, code) + tf.gather(gpt.audio_positions.value, index)[:, None]
    x = tf.concat([latents, gpt.embed_text(text), sound], axis=1)
    num_keys, num_queries = tf.shape(mask)[1], tf.shape(x)[1]
    query = tf.range(num_queries)[:, None] + num_keys - num_queries
    visible = tf.where(mask[:, None, None] & (tf.range(num_keys)[None] <= query), 0.0, EXCLUDED)
    found = {}
    for number, block in enumerate(gpt.blocks):
        qkv = tf.split(block.attention.qkv(block.attention_norm(x)), 3, axis=-1)
        query, key, value = (split_heads(part, gpt.config.heads) for part in qkv)
        found[f"new_keys_{number}"], found[f"new_values_{number}"] = tf.transpose(key, (0, 1, 3, 2)), value
        keys = tf.concat([past[f"keys_{number}"], found[f"new_keys_{number}"]], axis=-1)
        values = tf.concat([past[f"values_{number}"], value], axis=2)
        shares = tf.nn.softmax(tf.matmul(query * query.shape[-1] ** -0.5, keys) + visible)
        x += block.attention.output_projection(merge_heads(tf.matmul(shares, values)))
        x += block.mlp_out(tf.nn.gelu(block.mlp_in(block.mlp_norm(x)), approximate=True))
    hidden = gpt.final_norm(gpt.trunk_norm(x[:, -1]))
    return {"logits": gpt.audio_head(hidden), "hidden": hidden, **found}
