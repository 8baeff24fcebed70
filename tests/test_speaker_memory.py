"""The memory estimate of the speaker stage against the layers themselves."""

import functools
import math

import keras
import pytest
import tensorflow as tf
from tiny import tiny_model_config

from myxtts.config.model import ModelConfig
from myxtts.config.sizes import MODEL_SIZES
from myxtts.memory import ESTIMATES
from myxtts.memory.estimates import Optimizations, Shapes
from myxtts.memory.speaker import count_speaker, estimate_speaker
from myxtts.models.speaker_encoder import SpeakerEncoder
from myxtts.models.xtts import XTTS


def numbers(variables):
    return sum(math.prod(variable.shape) for variable in variables)


@pytest.mark.parametrize("size", MODEL_SIZES)
def test_weights_are_counted_exactly_at_every_size(size):
    config = ModelConfig(size, num_text_tokens=60)
    with keras.StatelessScope(initialize_variables=False):
        weights = XTTS(config, parts=("speaker",)).part_weights("speaker").values()
    expected = numbers(v for v in weights if v.trainable), numbers(v for v in weights if not v.trainable)
    assert count_speaker(config) == expected


def test_estimate_holds_the_tensors_that_the_backward_pass_reads(monkeypatch):
    blocks = (2, 1, 1, 1)  # instead of sixteen: they are what takes time to trace
    monkeypatch.setattr("myxtts.memory.speaker.SPEAKER_BLOCKS", blocks)
    monkeypatch.setattr("myxtts.models.xtts.SpeakerEncoder", functools.partial(SpeakerEncoder, num_blocks=blocks))
    config, kept = tiny_model_config(speaker_channels=(8, 8, 16, 16)), {}
    encoder = XTTS(config, parts=("speaker",)).speaker_encoder

    @tf.function
    def read(mel):
        variables = [v.value for v in encoder.trainable_variables]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            with keras.StatelessScope():
                loss = tf.reduce_sum(encoder(mel, training=True)[:, 0])
        graph = tf.compat.v1.get_default_graph()
        before = set(graph.get_operations())
        tape.gradient(loss, variables)
        for operation in set(graph.get_operations()) - before:
            for tensor in operation.inputs:
                if tensor.op in before and tensor.dtype == tf.float32 and None not in tensor.shape.as_list():
                    while tensor.op.type in ("ExpandDims", "Identity", "Reshape", "Squeeze"):
                        tensor = tensor.op.inputs[0]
                    if tensor.op.type not in ("ReadVariableOp", "Placeholder", "Const", "Shape"):
                        kept[tensor.name] = math.prod(tensor.shape)

    codes = 44
    frames = estimate_frames(codes)
    read.get_concrete_function(tf.TensorSpec((1, frames, 64)))
    estimate = estimate_speaker(config, Shapes(1, 0, codes, 0))
    assert estimate.activations == pytest.approx(4 * sum(kept.values()), rel=0.02)


def estimate_frames(codes):
    return 1 + round(100 * codes * 1024 / 22050)


def test_the_stage_names_its_estimate_and_no_switch_of_the_gpt_matters():
    assert ESTIMATES["speaker"] is estimate_speaker
    model, shapes = ModelConfig("nano"), Shapes(8, 0, 44, 0)
    plain = estimate_speaker(model, shapes)
    assert estimate_speaker(model, shapes, Optimizations("float32", True, "memory-efficient", lora_rank=4)) == plain
    trained = 4 * count_speaker(model)[0]
    assert estimate_speaker(model, shapes, Optimizations(ema=True)).resident == plain.resident + trained
    assert estimate_speaker(model, shapes, Optimizations(accumulation=2)).resident == plain.resident + trained
