"""`myxtts plan`: weights compared with built models, activations with traced graphs, and the printed report."""

import functools
import json
import math
from dataclasses import replace

import keras
import pytest
import tensorflow as tf
from keras.src.backend.common.global_state import set_global_attribute
from released_model import MINIMAL, write_release
from tiny import tiny_model_config

import myxtts
from myxtts.cli import train
from myxtts.config.checks import ConfigError
from myxtts.config.config import DataConfig, ModelConfig, XTTSConfig
from myxtts.config.model import MODEL_SIZES
from myxtts.config.stages import LORA_TARGETS, GPTConfig
from myxtts.memory import parts
from myxtts.memory.estimates import (
    CHUNK_KEYS,
    Optimizations,
    Shapes,
    count_adapted,
    count_dvae,
    count_gpt,
    count_lora,
    estimate_dvae,
    estimate_gpt,
    largest_batch,
)
from myxtts.memory.parts import count_decoder, count_discriminators, count_speaker, estimate_decoder
from myxtts.models.attention import CHUNK
from myxtts.models.discriminators import Discriminators
from myxtts.models.speaker_encoder import SpeakerEncoder
from myxtts.models.waveform_decoders import make_decoder
from myxtts.models.xtts import XTTS
from myxtts.training.stages.gpt import GPTObjective, add_lora

SHAPES = Shapes(batch=4, text=40, codes=120, frames=200)
MODEL = ModelConfig("small", num_text_tokens=500)


def numbers(variables):
    return sum(math.prod(variable.shape) for variable in variables)


@pytest.mark.parametrize("size", MODEL_SIZES)
def test_weights_are_counted_exactly_at_every_size(size):
    config = ModelConfig(size, num_text_tokens=600)
    with keras.StatelessScope(initialize_variables=False):  # shapes alone: `big` would take 1.7 GB
        model = XTTS(config, parts=("gpt", "dvae", "speaker"))
    assert count_gpt(config) == numbers(model.part_weights("gpt").values())
    for part, count in (("dvae", count_dvae), ("speaker", count_speaker)):
        weights = model.part_weights(part).values()
        expected = (numbers(v for v in weights if v.trainable == trained) for trained in (True, False))
        assert count(config) == tuple(expected)
    set_global_attribute("uninitialized_variables", [])  # or the next scope, of any test, would initialize them


@pytest.mark.parametrize("targets", [LORA_TARGETS, ("output_projection", "mlp_in")])
def test_weights_of_a_built_model_and_of_its_adapters_are_counted_exactly(targets):
    config = tiny_model_config(layers=3, conditioning_blocks=2)
    model = XTTS(config, parts=("gpt",))
    assert count_gpt(config) == numbers(model.gpt.trainable_variables)
    switches = Optimizations(lora_rank=2, lora_targets=targets)
    layers = add_lora(model.gpt, GPTConfig(lora_rank=2, lora_targets=targets)).values()
    adapted = GPTObjective(model, XTTSConfig()).trainable().values()
    adapters = [v for v in adapted if v.name.startswith("lora")]
    assert count_lora(config, switches) == (numbers(adapters), numbers(adapted) - numbers(adapters))
    assert count_adapted(config, switches) == numbers(layer._kernel for layer in layers)


def test_static_shapes_and_mel_frames_are_in_the_shapes():
    sizes = lambda seconds, **data: Shapes.of_data(DataConfig(**data), 1, seconds)
    free, limited = sizes(5.0), sizes(5.0, max_mel_frames=400)
    assert (limited.codes, limited.text < free.text) == (101, True) and sizes(5.0, max_mel_frames=800) == free
    static = sizes(2.0, max_mel_frames=400, static_shapes=True)
    assert (static.codes, static.text) == (101, DataConfig().max_text_length)
    assert sizes(2.0, static_shapes=True).codes == sizes(2.0).codes
    assert sizes(2.0, conditioning_padding="zeros").frames == sizes(9.0).frames > sizes(2.0).frames


def test_resident_bytes_are_weights_moments_averages_and_accumulators():
    count = 4 * count_gpt(MODEL)
    plain = estimate_gpt(MODEL, SHAPES)
    assert (plain.parameters, plain.slots, plain.averages, plain.accumulators) == (count, 2 * count, 0, 0)
    assert estimate_gpt(MODEL, SHAPES, Optimizations(ema=True)).resident == plain.resident + count
    assert estimate_gpt(MODEL, SHAPES, Optimizations(accumulation=4)).resident == plain.resident + count
    adapters = Optimizations(lora_rank=8)
    lora = estimate_gpt(MODEL, SHAPES, adapters)
    assert lora.slots == 8 * sum(count_lora(MODEL, adapters)) and lora.gradients < plain.gradients / 20


def test_memory_efficient_attention_is_linear_in_the_sequence():
    def activations(codes, attention):
        return estimate_gpt(MODEL, replace(SHAPES, codes=codes), Optimizations(attention=attention)).activations

    for attention, power in (("standard", 2), ("memory-efficient", 1)):
        first, second, third = (activations(codes, attention) for codes in (100, 300, 500))
        # Only the attention mask grows quadratically, with one byte per pair of positions.
        assert (((third - second) - (second - first)) > 10 * 4 * 8 * 200**2) == (power == 2)


def test_chunks_of_attention_count_where_nothing_else_is_left():
    optimizations = Optimizations("mixed_bfloat16", True, "memory-efficient")
    nano = ModelConfig("nano", num_text_tokens=500)
    steps = [estimate_gpt(nano, replace(SHAPES, frames=frames), optimizations).step for frames in (2048, 4096)]
    assert CHUNK_KEYS == CHUNK and steps[1] - steps[0] > 16 * (SHAPES.batch * nano.conditioning_heads * 2048 * CHUNK)


@pytest.mark.parametrize("optimizations", [Optimizations(), Optimizations("mixed_bfloat16", True, "memory-efficient")])
def test_largest_batch_fits_and_one_clip_more_does_not(optimizations):
    for memory in (8 * 2**30, 24 * 2**30):
        most = largest_batch(MODEL, SHAPES, optimizations, memory)
        assert estimate_gpt(MODEL, replace(SHAPES, batch=most), optimizations).peak <= memory
        assert estimate_gpt(MODEL, replace(SHAPES, batch=most + 1), optimizations).peak > memory
    assert largest_batch(MODEL, SHAPES, optimizations, 2**20) == 0


def kept_numbers(variables, loss_of, shape, reads=lambda operation: True):
    """Counts the floats of a traced forward pass that TensorFlow's gradient functions read."""
    kept = {}

    @tf.function
    def trace(mel):
        values = [v.value for v in variables]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(values)
            loss = loss_of(mel)
        graph = tf.compat.v1.get_default_graph()
        before = set(graph.get_operations())
        tape.gradient(loss, values)
        for operation in filter(reads, set(graph.get_operations()) - before):
            for tensor in operation.inputs:
                if tensor.op in before and tensor.dtype == tf.float32 and None not in tensor.shape.as_list():
                    while tensor.op.type in ("ExpandDims", "Identity", "Reshape", "Squeeze"):
                        tensor = tensor.op.inputs[0]
                    if tensor.op.type not in ("ReadVariableOp", "Placeholder", "Const", "Shape"):
                        kept[tensor.name] = math.prod(tensor.shape)

    trace.get_concrete_function(tf.TensorSpec(shape))
    return sum(kept.values())


def test_dvae_holds_the_tensors_that_its_backward_pass_reads():
    for config in (tiny_model_config(), tiny_model_config(dvae_residual_blocks=2, codebook_width=4)):
        dvae, codes = XTTS(config, parts=("dvae",)).dvae, 12

        def loss_of(mel, dvae=dvae):
            forward = dvae(mel)
            return tf.reduce_sum(tf.square(forward["reconstruction"])) + tf.reduce_sum(forward["vectors"])

        of_layers = lambda operation: operation.type in ("ReluGrad", "Conv2DBackpropFilter")
        kept = kept_numbers(dvae.trainable_variables, loss_of, (1, 4 * codes, config.num_mels), of_layers)
        loss = codes * (4 * config.codebook_width + 2 * 4 * config.num_mels)
        found = kept - codes * config.codebook_width - (2 * config.num_mels + 2 * config.dvae_hidden) + loss
        assert estimate_dvae(config, Shapes(1, 0, codes, 0)).activations == 4 * found


def test_speaker_encoder_holds_the_tensors_that_its_backward_pass_reads(monkeypatch):
    blocks = (2, 1, 1, 1)  # instead of sixteen, which take long to trace
    monkeypatch.setattr("myxtts.memory.parts.SPEAKER_BLOCKS", blocks)
    monkeypatch.setattr(
        "myxtts.models.speaker_encoder.SpeakerEncoder", functools.partial(SpeakerEncoder, num_blocks=blocks)
    )
    config, codes = tiny_model_config(speaker_channels=(8, 8, 16, 16)), 44
    encoder = XTTS(config, parts=("speaker",)).speaker_encoder

    def loss_of(mel):
        with keras.StatelessScope():
            return tf.reduce_sum(encoder(mel, training=True)[:, 0])

    kept = kept_numbers(encoder.trainable_variables, loss_of, (1, 1 + round(100 * codes * 1024 / 22050), 64))
    assert parts.estimate_speaker(config, Shapes(1, 0, codes, 0)).activations == pytest.approx(4 * kept, rel=0.02)


@pytest.mark.parametrize("estimate, count", [(estimate_dvae, count_dvae), (parts.estimate_speaker, count_speaker)])
def test_stage_beside_the_gpt_counts_its_weights_exactly_and_no_switch_of_the_gpt(estimate, count):
    trained, others = (4 * number for number in count(MODEL))
    plain = estimate(MODEL, SHAPES)
    assert (plain.parameters, plain.slots, plain.gradients) == (trained + others, 2 * trained, 2 * trained)
    assert estimate(MODEL, SHAPES, Optimizations(ema=True)).resident == plain.resident + trained
    assert estimate(MODEL, SHAPES, Optimizations(accumulation=2)).resident == plain.resident + trained
    assert estimate(MODEL, SHAPES, Optimizations("float32", True, "memory-efficient", lora_rank=4)) == plain
    most = largest_batch(MODEL, SHAPES, Optimizations(), 2**33, estimate=estimate)
    peaks = [estimate(MODEL, replace(SHAPES, batch=most + more)).peak for more in (0, 1)]
    assert peaks[0] <= 2**33 < peaks[1]


def printed(capsys, *argv):
    code = train.plan([str(argument) for argument in argv])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_command_shows_every_optimization_and_the_largest_batch(capsys, tmp_path):
    flags = "--model-size normal --batch-size 16 --precision mixed_bfloat16 --ema 0.999 --grad-accum 2 --json"
    code, text, _ = printed(capsys, *flags.split(), tmp_path / "plan.json")
    assert code == 0
    found = json.loads((tmp_path / "plan.json").read_text())["variants"]
    model = ModelConfig("normal", num_text_tokens=512)
    assert len(found) == 8 and all(name in text for name in (*found, "8 GB", "80 GB"))
    assert "add the frozen DVAE (" in text and " MB) and the data work." in text
    assert "--" not in text and max(map(len, text.splitlines())) <= 80
    asked = found["as asked"]
    assert asked["averages"] == asked["accumulators"] == asked["parameters"] == 4 * count_gpt(model)
    assert asked["peak"] == asked["resident"] + asked["step"]
    assert found["accumulation of 4 parts"]["batch"] == 4
    batches = list(found["none"]["largest_batch"].values())
    assert batches == sorted(batches) and batches[-1] > batches[1]


def test_command_shows_the_switches_of_the_dvae_and_its_crops(capsys, tmp_path):
    path = tmp_path / "plan.json"
    code, text, _ = printed(capsys, *"--model-size tiny --stage dvae --clip-seconds 1 --json".split(), path)
    report = json.loads(path.read_text())
    assert code == 0 and "DVAE stage, size tiny; longest clip 22 codes" in text and "frozen" not in text
    shown = ["as asked", "none", "mixed precision", "accumulation of 4 parts", "weight averaging (EMA)"]
    assert list(report["variants"]) == shown
    (tmp_path / "crop.yaml").write_text("training: {dvae: {crop_seconds: 0.5}}")
    printed(capsys, "--config", str(tmp_path / "crop.yaml"), "--stage", "dvae", "--json", str(path))
    assert json.loads(path.read_text())["longest_clip"] == {"codes": 11}


@pytest.mark.parametrize(
    "flags, clips", [("", 12), ("--data-gpu 0 --model-gpus 1,2", 6), ("--virtual-devices 3 --workers a:1,b:1", 3)]
)
def test_batch_of_the_plan_is_the_share_of_each_device_that_trains(capsys, tmp_path, flags, clips):
    argv = ["--model-size", "nano", "--batch-size", "12", "--json", str(tmp_path / "plan.json"), *flags.split()]
    code, text, _ = printed(capsys, *argv)
    assert code == 0 and (f"Each of {12 // clips} devices has" in text) == (clips < 12)
    assert json.loads((tmp_path / "plan.json").read_text())["variants"]["as asked"]["batch"] == clips


def test_auto_is_planned_as_the_larger_choice_and_reported(capsys):
    _, text, _ = printed(capsys, "--model-size", "nano", "--optimizations", "balanced")
    assert "Note: precision auto is planned as float32" in text and "Note: xla auto is planned as off" in text
    assert myxtts.plan(stage="decoder", model_size="nano")["variants"]["as asked"]["averages"], "as in training"


def test_plan_from_a_release_lowers_default_limits_and_its_rows_keep_what_was_asked_for(tmp_path, caplog, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    release, recipe = str(write_release(tmp_path / "XTTS-v2")), "finetune_xtts_v2.yaml"
    report = myxtts.plan(recipe, init_from=release, gradient_checkpointing=True)
    assert report["longest_clip"]["codes"] <= MINIMAL.max_codes and "max_text_length" in caplog.text
    lora, asked, none = (report["variants"][name] for name in ("LoRA of rank 16", "as asked", "none"))
    assert lora["peak"] < asked["peak"] and asked["activations"] < none["activations"]
    with pytest.raises(ConfigError, match="max_text_length"):
        myxtts.plan(recipe, init_from=release, max_text_length=13)


@pytest.mark.parametrize("size, kind", [("nano", "istft"), ("tiny", "istft"), ("nano", "hifigan")])
def test_weights_of_the_decoder_stage_are_counted_exactly(size, kind):
    model = ModelConfig(size, decoder_type=kind)
    decoder = make_decoder(model)
    discriminators = Discriminators(parts.DIVISORS.get(size, 1))
    assert (count_decoder(model), count_discriminators(model)) == (
        decoder.count_params(),
        discriminators.count_params(),
    )
    estimate = estimate_decoder(model, replace(SHAPES, slice_frames=16), Optimizations(ema=True))
    assert estimate.averages == 4 * decoder.count_params()
    assert estimate_decoder(model, SHAPES).activations == pytest.approx(2 * estimate.activations, rel=0.4)
