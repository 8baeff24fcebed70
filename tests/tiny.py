"""Tiny models and data: small enough to be trained in tests, and large enough not to be trivial."""

import contextlib
import functools
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import keras
import numpy as np
import soundfile

from myxtts.config.config import DataConfig, ModelConfig, StageConfig, TrainingConfig, XTTSConfig
from myxtts.config.rates import MODEL_SAMPLE_RATE
from myxtts.config.stages import STAGES, DecoderConfig, GPTConfig
from myxtts.storage.checkpoint import CheckpointStore
from myxtts.storage.files import write_json

WORDS = ("one", "two", "three", "four", "five", "six")


def tiny_model_config(**overrides):
    """Returns a `ModelConfig` of two layers, 16 wide, with 24 text tokens."""
    settings = dict(size="nano", num_text_tokens=24, start_text_token=3, stop_text_token=0, max_text_tokens=24)
    settings |= dict(max_audio_tokens=48, layers=2, width=16, heads=2, dropout=0.1)
    settings |= dict(conditioning_blocks=1, conditioning_heads=2, num_latents=4)
    settings |= dict(perceiver_depth=1, perceiver_heads=2, perceiver_head_width=8)
    settings |= dict(num_codes=16, dvae_hidden=8, dvae_residual_blocks=1, codebook_width=8)
    settings |= dict(decoder_channels=16, speaker_channels=(8, 8, 8, 8), speaker_width=16)
    return ModelConfig(**settings | overrides)


def advance(gpt, codes, index, key_mask, state):
    """Calls `GPT.advance` with one more position in the cache; returns the longer key mask and the new state."""
    longer = lambda layers: tuple(keras.ops.pad(one, ((0, 0), (0, 0), (0, 1), (0, 0))) for one in layers)
    state = state._replace(keys=longer(state.keys), values=longer(state.values))
    key_mask = keras.ops.pad(key_mask, ((0, 0), (0, 1)), constant_values=True)
    return key_mask, gpt.advance(codes, index, key_mask.shape[1] - 1, key_mask, state)


def tiny_run_config(
    train_data=None,
    checkpoint_dir="unused",
    *,
    model=None,
    data=None,
    training=None,
    dvae=None,
    gpt=None,
    speaker=None,
    decoder=None,
):
    """Returns an `XTTSConfig` for a few steps of a GPT of one block; arguments override settings of their sections."""
    read = dict(train_data=train_data and str(train_data), max_seconds=1.5, max_text_length=20, batch_size=4)
    read |= dict(num_buckets=2, num_workers=2, pipeline_buffer_size=2, validation_share=0.2)
    data = {**read, "conditioning_seconds": (0.3, 0.6), **(data or {})}
    stage = {"max_steps": 4, "learning_rate": 3e-3}
    times = dict(log_every_steps=2, validate_every_steps=4, checkpoint_every_steps=4, sample_every_steps=0)
    training = {"checkpoint_dir": str(checkpoint_dir), **times, "seed": 7, "leave_out": (), **(training or {})}
    slices = {"frames": 8, "spectral_share": 1.0}  # without discriminators, which cost most
    stages = {
        "dvae": StageConfig(**{**stage, "weight_decay": 0.0, **(dvae or {})}),
        "gpt": GPTConfig(**{**stage, **(gpt or {})}),
        "speaker": StageConfig(**{**stage, **(speaker or {})}),
        "decoder": DecoderConfig(**{**stage, "max_steps": 2, **slices, **(decoder or {})}),
    }
    few = dict(layers=1, decoder_type="istft", decoder_blocks=1, decoder_width=8)
    model = tiny_model_config(**few | (model or {}))
    training |= {name: stage for name, stage in stages.items() if name in STAGES}
    return XTTSConfig(model=model, data=DataConfig(**data), training=TrainingConfig(**training))


def with_training(config, **settings):
    """Returns a copy of an `XTTSConfig` with other `training` settings."""
    return replace(config, training=replace(config.training, **settings))


def voiced(seconds, pitch_hz, color, seed=0, sample_rate=MODEL_SAMPLE_RATE):
    """Returns a buzz with a moving formant, `(S,)` float32: it has pitch and a changing timbre like speech."""
    time = np.arange(int(seconds * sample_rate)) / sample_rate
    random = np.random.default_rng(seed)
    formant_hz = 500.0 + 400.0 * color + 300.0 * np.sin(2 * np.pi * time / max(seconds, 1e-3))
    sound = np.zeros_like(time)
    for harmonic in range(1, 16):
        hz = harmonic * pitch_hz
        sound += np.exp(-(((hz - formant_hz) / 400.0) ** 2)) * np.sin(2 * np.pi * hz * time + random.uniform(0, 6.28))
    sound *= 0.3 / np.abs(sound).max()
    return (sound + 0.003 * random.standard_normal(len(time))).astype(np.float32)


def make_tiny_corpus(folder, sample_rate=MODEL_SAMPLE_RATE):
    """Writes twelve clips of 0.5 to 1.1 s by two speakers into `folder`; returns it."""
    folder = Path(folder)
    (folder / "wavs").mkdir(parents=True)
    lines, speakers = [], ["id,speaker"]
    for index, word in enumerate(WORDS):
        for speaker, pitch_hz in {"low": 110.0, "high": 220.0}.items():
            clip_id = f"{speaker}_{word}"
            samples = voiced(0.5 + 0.1 * index + 0.05 * (speaker == "low"), pitch_hz, index, seed=index)
            soundfile.write(folder / "wavs" / f"{clip_id}.wav", samples, sample_rate, subtype="PCM_16")
            lines.append(f"{clip_id}|{word}|{word}")
            speakers.append(f"{clip_id},{speaker}")
    (folder / "metadata.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "speakers.csv").write_text("\n".join(speakers) + "\n", encoding="utf-8")
    return folder


def recorded(folder, corpus, texts):
    """Makes a corpus in the new `folder`: the clips of the tiny corpus with other texts, in turn; returns it."""
    folder.mkdir()
    (folder / "wavs").symlink_to(corpus / "wavs", target_is_directory=True)
    names = sorted(path.stem for path in (corpus / "wavs").glob("*.wav"))
    lines = [f"{name}|{text}|{text}" for name, text in zip(names, len(names) * texts)]
    (folder / "metadata.csv").write_text("\n".join(lines), encoding="utf-8")
    return folder


def random_model(tokenizer, parts=("dvae", "gpt"), **settings):
    """Returns a random `XTTS` with the parts, for a tokenizer, and its `XTTSConfig`; `settings` are of the model."""
    import keras

    from myxtts.models.xtts import XTTS

    keras.utils.set_random_seed(0)
    config = tiny_run_config(model={"num_text_tokens": tokenizer.num_tokens, **settings})
    return XTTS(config.model, parts=parts), config


def write_run(folder, model, tokenizer, config):
    """Writes the files of a training run: settings, vocabulary, and a finished checkpoint per part."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(folder / "vocab.json")
    write_json(folder / "config.json", config.to_dict())
    for part in model.parts:
        weights = {name: variable.numpy() for name, variable in model.part_weights(part).items()}
        CheckpointStore(folder / part).write(4, {"model": weights}, {"finished": True}, best=True)
    return folder


def full_disk(*_, **__):
    """Fails like an operation on a file of a full disk."""
    raise OSError(28, "No space left on device")


@contextlib.contextmanager
def small_encoders():
    """Gives speaker encoders one block per group in the block, because their sixteen blocks take most of the time."""
    from myxtts.models import speaker_encoder

    small = functools.partial(speaker_encoder.SpeakerEncoder, num_blocks=(1, 1, 1, 1))
    with patch.object(speaker_encoder, "SpeakerEncoder", small):
        with patch("myxtts.memory.parts.SPEAKER_BLOCKS", (1, 1, 1, 1)):
            yield


@contextlib.contextmanager
def untraced():
    """Runs traced functions as plain Python in the block, because tracing takes most of the time of a few steps."""
    import tensorflow as tf

    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(False)


def spread(variables, scale):
    """Adds noise to weights, because initial values, of which many are zero or one, hide errors."""
    random = np.random.default_rng(0)
    for variable in variables:
        variable.assign(variable + scale * random.standard_normal(variable.shape).astype("float32"))


def train_step_of(objective, strategy, settings, *arguments, **options):
    """Returns a `TrainStep` with one update."""
    from myxtts.training.loop.step import TrainStep

    return TrainStep([objective], strategy, settings, *arguments, **options)


def stage_of(name, config):
    """Returns a `Stage` with its own new model, and no models of earlier stages."""
    from myxtts.training.loop.switches import settle_switches
    from myxtts.training.stages.classes import STAGE_CLASSES

    stage = STAGE_CLASSES[name](config, dict.fromkeys(STAGES[name].builds_on))
    stage.build(None, settle_switches(config.training, config.model, "/CPU:0", stage.switches), None)
    return stage
