"""Every operation type and dtype in graphs traced as on a GPU has a GPU kernel.

The CPU build of TensorFlow lists the kernels of the GPU build. Graphs are traced and inspected, but not run.
"""

import functools

import pytest
import tensorflow as tf
from tensorflow.core.framework import types_pb2
from tensorflow.python.framework.kernels import get_registered_kernels_for_op
from tiny import tiny_run_config

from myxtts.config.stages import STAGES
from myxtts.data.batch import DecoderBatch
from myxtts.devices import machine
from myxtts.inference.synthesizer import Synthesizer
from myxtts.models.speaker_encoder import SpeakerEncoder
from myxtts.models.xtts import PARTS, XTTS
from myxtts.training.loop.device_pipeline import equal_parts
from myxtts.training.loop.step import TrainStep
from myxtts.training.loop.switches import nodes, settle_switches
from myxtts.training.stages.classes import STAGE_CLASSES


def kernels_lacking(graphs):
    """Returns `(kind, types)` of operations without a kernel for GPUs or for any device."""
    seen = {}
    for node in (node for graph in graphs for node in nodes(graph)):
        types = tuple(sorted((name, value.type) for name, value in node.attr.items() if value.type))
        seen.setdefault((node.op, types), node)
    return {
        (kind, tuple((name, types_pb2.DataType.Name(number)) for name, number in types))
        for kind, types in seen
        if not any(_takes(kernel, dict(types)) for kernel in get_registered_kernels_for_op(kind).kernel)
    }


def _takes(kernel, types):
    if kernel.device_type not in ("GPU", "DEFAULT"):
        return False
    allowed = {one.name: set(one.allowed_values.list.type) for one in kernel.constraint}
    return all(types[name] in values for name, values in allowed.items() if name in types)


@pytest.fixture(scope="module", autouse=True)
def a_gpu():
    """Lets the default device count as a GPU, so that no graph is traced as for a CPU.

    The speaker encoder has two of its sixteen blocks, which have all kinds of operations: one keeps the shape, the
    other has a stride and more channels.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "default_device", lambda: "/GPU:0")
        patch.setattr(
            "myxtts.models.speaker_encoder.SpeakerEncoder", functools.partial(SpeakerEncoder, num_blocks=(1, 1))
        )
        yield


@pytest.fixture(scope="module")
def foundations():
    return dict.fromkeys(STAGES, XTTS(smallest_config().model, parts=PARTS))


def smallest_config(precision="float32", decoder="istft", num_text_tokens=24):
    model = dict(
        layers=1, num_latents=2, decoder_type=decoder, num_text_tokens=num_text_tokens, speaker_channels=(8, 16, 16, 16)
    )
    return tiny_run_config(model=model, decoder={"spectral_share": 0.5}, training={"precision": precision})


def step_of(name, foundations, precision):
    """A stage and its train step."""
    config = smallest_config(precision)
    stage = STAGE_CLASSES[name](config, {one: foundations[one] for one in STAGES[name].builds_on})
    stage.build(None, settle_switches(config.training, config.model, "/GPU:0", stage.switches), None)
    settings, strategy = config.stage(name), tf.distribute.get_strategy()
    return stage, TrainStep(stage.updates(), strategy, settings, precision=precision)


def last_turns(step):
    """Yields `(rule, phase)` of every update in its last phase, in which the decoder has all of its losses."""
    return [(rule, (rule.phases or ("",))[-1]) for rule in step.rules]


SEED = tf.TensorSpec((2,), tf.int32)


def of_one_length(batch, crop, grid):
    """Returns a batch of the decoder stage with slices of equal length, which the discriminators require."""
    frames = grid.history_frames + crop + grid.lookahead_frames
    lengths = {"target": crop * grid.hop_length, "frames": frames, "present": frames}
    specs = {name: getattr(batch, name) for name in lengths}
    known = {name: tf.TensorSpec([None, lengths[name], *one.shape[2:]], one.dtype) for name, one in specs.items()}
    return batch._replace(**known)


@pytest.mark.parametrize("name", list(STAGES))
def test_preparation_and_step_have_kernels(name, foundations, few_discriminators):
    stage, step = step_of(name, foundations, "float32")
    maker = stage.make_preparation("/GPU:0")
    preparation = maker._prepare.get_concrete_function()
    batch = tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), preparation.structured_outputs)
    if name == "decoder":
        batch = of_one_length(batch, maker.crop, maker.grid)
    whole = step._whole.get_concrete_function(batch, SEED, last_turns(step)[-1][1])
    assert not kernels_lacking([preparation.graph, whole.graph])
    for precision in ("mixed_bfloat16", "mixed_float16"):
        # The update is in float32 as before; gradients are scaled for float16 alone.
        _, mixed = step_of(name, foundations, precision)
        assert not kernels_lacking([gradients_of(rule, batch, phase) for rule, phase in last_turns(mixed)]), precision


def gradients_of(rule, batch, phase):
    """Returns the graph of an update's losses and gradients."""

    @tf.function(input_signature=[batch, SEED], autograph=False)
    def gradients(batch, seed):
        return rule.gradients(batch, rule.objective.counts(batch), seed, phase)

    return gradients.get_concrete_function().graph


def test_operation_without_a_kernel_is_found():
    upper = tf.function(tf.strings.upper).get_concrete_function(tf.TensorSpec((1,), tf.string))
    assert kernels_lacking([upper.graph]) == {("StringUpper", ())}


def test_batches_are_divided_and_inspected_by_kernels():
    batch = DecoderBatch(*(tf.TensorSpec((4, 8), dtype) for dtype in ("int32", "float32", "bool") * 2))
    divide = tf.function(lambda batch: equal_parts(batch, 2), input_signature=[batch])
    first = tf.function(lambda field: tf.reshape(field, (-1,))[0], input_signature=[batch[1]])
    assert not kernels_lacking([divide.get_concrete_function().graph, first.get_concrete_function().graph])


@pytest.mark.parametrize("decoder", ["istft", "hifigan"])
def test_speaking_has_kernels(decoder, tokenizer):
    config = smallest_config(decoder=decoder, num_text_tokens=tokenizer.num_tokens)
    synthesizer = Synthesizer(XTTS(config.model, parts=PARTS), tokenizer, config)
    engine, voices = synthesizer.engine, (synthesizer.voice._to_latents, synthesizer.voice._to_speaker)
    traces = [synthesizer.to_waveform.to_samples.get_concrete_function]
    if decoder == "istft":  # the others are the same
        steps = engine.steps
        traces += [one.get_concrete_function for one in (*voices, synthesizer._to_mel, steps._read)]
        moved = lambda state: steps.join(state, steps.move(state, [0], slice(0, 3), (1, 1)))
        traces += [steps._draws[False], tf.function(moved, input_signature=steps._signature[:1]).get_concrete_function]
    assert not kernels_lacking([trace().graph for trace in traces])
