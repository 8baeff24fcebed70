"""Runs the cases of `reference_cases.py` in MyXTTS, for `against_reference.py`."""

import functools
import os
import sys
from pathlib import Path
from typing import NamedTuple

import reference_cases as cases
from seeded_weights import STOP_BIAS

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

# MyXTTS must be imported before TensorFlow.
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from myxtts.config.config import ModelConfig, SamplingConfig, XTTSConfig, config_from_dict, read_yaml  # noqa: E402
from myxtts.data.batch import GPTBatch, WaveBatch  # noqa: E402
from myxtts.inference.advancing import TensorflowSteps
from myxtts.inference.code_engine import CodeEngine, mark_text  # noqa: E402
from myxtts.inference.decoding import LatentDecoder  # noqa: E402
from myxtts.inference.synthesizer import Synthesizer  # noqa: E402
from myxtts.inference.voices import Voice  # noqa: E402
from myxtts.interchange.onnx.engines import OnnxSteps  # noqa: E402
from myxtts.models.xtts import XTTS  # noqa: E402
from myxtts.training.loop.step import TrainStep  # noqa: E402
from myxtts.training.stages.gpt import GPTObjective, GPTPreparation  # noqa: E402
from utilities.parity.seeded_model import seeded_model  # noqa: E402

RECIPE = config_from_dict(read_yaml(Path(__file__).resolve().parents[2] / "configs" / "finetune_xtts_v2.yaml"))
RELEASED = ModelConfig("big", num_text_tokens=cases.NUM_TEXT_TOKENS, start_text_token=261, layers=1)
"""Shape of XTTS v2 with only one GPT layer, to save memory in the cases that do not run the GPT's layers."""


class GivenLatents(GPTObjective):
    """GPT objective for batches that have latents in place of conditioning mels; trains no conditioning encoder."""

    def __init__(self, model, config):
        super().__init__(model, config)
        model.gpt.mel_to_latents = lambda latents: latents

    def trainable(self):
        encoders = ("conditioning_encoder/", "perceiver/")
        return {name: one for name, one in super().trainable().items() if not name.startswith(encoders)}


class OurWorker:
    """Builds each case of `reference_cases.CASES` with the classes of MyXTTS, used as in training and synthesis."""

    def gpt(self, size, with_encoder):
        shape = cases.GPT_SIZES[size]
        model_config = config_of(shape)
        config = XTTSConfig(model=model_config, data=RECIPE.data, training=RECIPE.training)
        drawn = cases.gpt_inputs(shape["width"])
        rows, num_text = drawn["text"].shape
        conditioning = drawn["mel"].transpose(0, 2, 1) if with_encoder else drawn["latents"]
        batch = GPTBatch(
            tf.range(rows),
            tf.constant(drawn["text"], tf.int32),
            tf.fill((rows,), num_text),
            tf.constant(conditioning),
            tf.constant(drawn["codes"], tf.int32),
            tf.fill((rows,), drawn["codes"].shape[1]),
            tf.zeros((rows, 2), tf.int32),
        )
        strategy = tf.distribute.OneDeviceStrategy("/device:CPU:0")
        with strategy.scope():
            model = seeded_model(model_config, ("gpt",))
            model.gpt.set_memory_use()
            objective = (GPTObjective if with_encoder else GivenLatents)(model, config)
            settings = config.stage("gpt")
            step = TrainStep([objective], strategy, settings)

        def losses():
            sums, _ = objective.loss_sums(batch)
            counts = objective.counts(batch)
            return np.array([sums[name] / counts[name] for name in ("text", "codes")])

        return lambda: step([batch], 5e-6, (0, 0))["loss"].numpy(), losses

    def features(self):
        model = seeded_model(RELEASED, ("dvae",))
        prepare = GPTPreparation(model, "/device:CPU:0", augment=False, seed=0)
        wav = cases.noise("wav", cases.CLIP_SECONDS, 8)
        conditioning = cases.noise("conditioning", cases.CONDITIONING_SECONDS, 8)
        ones = np.ones((8, 1), np.int32)
        waves = ones[:, 0], wav, ones[:, 0] * wav.shape[1], ones, ones[:, 0], conditioning
        absent = np.zeros((8, 2), np.int32), np.zeros((8, 0), np.float32), *np.zeros((3, 8), np.int32)
        batch = WaveBatch(*map(tf.constant, (*waves, *absent)))

        def run():
            prepared = prepare(batch)
            return prepared.conditioning_mel.numpy(), prepared.codes.numpy()

        return run, lambda: run()[1]

    def latents(self):
        lengths = dict(reference_seconds=cases.REFERENCE_SECONDS, reference_chunk_seconds=cases.REFERENCE_CHUNK_SECONDS)
        sampling = SamplingConfig(**lengths)
        config = XTTSConfig(model=RELEASED, data=RECIPE.data, sampling=sampling)
        synthesizer = Synthesizer(seeded_model(RELEASED, ("dvae", "gpt", "speaker", "decoder")), None, config)
        wav = cases.noise("reference", cases.REFERENCE_SECONDS)[0]

        def output():
            voice = synthesizer.voice(wav)
            return np.append(voice.latents, voice.speaker)

        return output, output

    def vocoder(self):
        model = seeded_model(RELEASED, ("decoder",))
        latents, speaker = (tf.constant(array) for array in cases.vocoder_inputs())
        decode = tf.function(model.decoder)

        def run():
            return decode(latents, speaker).numpy()

        return run, run

    def codes(self, size, rows, engine):
        engine, speaking = engine_of(size, engine), speaking_model(size)

        def draw():
            streams = [open_stream(engine, speaking.inputs, number) for number in range(rows)]
            engine.finish(streams)
            assert all(len(stream.codes) == cases.SPOKEN_CODES for stream in streams)

        return draw, lambda: speaking.states

    def chain(self, size, engine, decoder):
        engine, speaking, sound_of = engine_of(size, engine), speaking_model(size), decoder_of(size, decoder)

        def speak():
            stream = open_stream(engine, speaking.inputs)
            engine.finish([stream])
            return sound_of.begin(speaking.voice)(stream.codes, stream.latents(), True)

        return speak, lambda: speaking.states

    def first(self, size, engine, decoder):
        engine, speaking, sound_of = engine_of(size, engine), speaking_model(size), decoder_of(size, decoder)
        return lambda: first_sound(engine, sound_of, speaking.inputs, speaking.voice), lambda: speaking.states


class Speaking(NamedTuple):
    """A model that speaks, and its inputs. The model never predicts the stop code, whose bias is lowered."""

    model: XTTS
    inputs: dict
    voice: Voice
    states: np.ndarray
    """GPT latents of the codes in `inputs`, for comparison with the reference; computed before the bias is lowered."""


@functools.lru_cache(1)
def speaking_model(size):
    config = config_of(cases.SPOKEN_SIZES[size])
    model = seeded_model(config, ("gpt", "decoder"))
    inputs = cases.spoken_inputs(config.width)
    text = np.array([mark_text(inputs["text"][0].tolist(), config)], np.int32)
    codes = np.append(inputs["codes"], [[config.stop_audio_token]], axis=1).astype(np.int32)
    states = model.gpt.codes_to_latents(inputs["latents"], text, codes)
    bias = model.gpt.audio_head.bias
    bias.assign(bias + STOP_BIAS * np.eye(config.num_audio_tokens)[config.stop_audio_token])
    voice = Voice(inputs["latents"], inputs["speaker"])
    return Speaking(model, inputs, voice, np.asarray(states)[:, : cases.SPOKEN_CODES])


def config_of(shape, **options):
    """Returns a model's configuration; `shape` has the fields `layers`, `width` and `heads`."""
    released = dict(num_text_tokens=cases.NUM_TEXT_TOKENS, start_text_token=261, conditioning_heads=shape["heads"])
    return ModelConfig("big", **released, **shape, **options)


@functools.lru_cache(4)
def engine_of(size, engine):
    model = speaking_model(size).model
    if weights := {"onnx": "int8", "onnx32": "float32"}.get(engine):
        steps = OnnxSteps(model.gpt, model.config, weights, threads=int(sys.argv[1]))
    else:
        steps = TensorflowSteps(model.gpt, model.config, engine == "xla")
    return CodeEngine(steps, model.config)


@functools.lru_cache(3)
def decoder_of(size, decoder):
    if decoder == "hifigan":
        return LatentDecoder(speaking_model(size).model)
    # The reference has no iSTFT decoder, so its weights are random.
    return LatentDecoder(XTTS(config_of(cases.SPOKEN_SIZES[size], decoder_type=decoder), parts=("decoder",)))


def open_stream(engine, inputs, number=0, hurry=False):
    """Queues the sentence `number` of `inputs` in a `CodeEngine`; returns its `CodeStream`."""
    ids, sampling = inputs["text"][number].tolist(), SamplingConfig(**cases.SPOKEN_SAMPLING)
    return engine.open(ids, inputs["latents"], sampling, 0, number, cases.SPOKEN_CODES, hurry)


def first_sound(engine, decoder, inputs, voice):
    """Streams a sentence until the first samples, cancels the stream, and returns these samples."""
    stream, sound, samples = open_stream(engine, inputs, hurry=True), decoder.begin(voice), np.zeros(0)
    while not len(samples):
        known = len(stream.codes)
        engine.wait(lambda: len(stream.codes) > known or not stream.active)
        samples = sound(stream.codes, stream.latents(), stream.finished)
    stream.cancelled = True
    engine.wait(lambda: stream not in engine._rows)  # the next measurement has the engine to itself
    return samples


if __name__ == "__main__":
    tf.config.threading.set_intra_op_parallelism_threads(int(sys.argv[1]))
    tf.config.threading.set_inter_op_parallelism_threads(int(sys.argv[1]))  # as TensorFlow does by itself
    cases.serve(OurWorker())
