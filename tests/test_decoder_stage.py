"""The decoder stage: its inputs, its losses, and exact resumption at any step."""

from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from test_trainer import Recorder
from tiny import tiny_run_config, untraced, voiced

from myxtts.audio.mel import resample
from myxtts.config.checks import ConfigError
from myxtts.config.rates import MODEL_SAMPLE_RATE, SPEAKER_SAMPLE_RATE
from myxtts.config.stages import DecoderConfig
from myxtts.data.batch import WaveBatch, target_width
from myxtts.data.dataset import SpeechDataset
from myxtts.inference.code_engine import mark_text
from myxtts.models.xtts import XTTS
from myxtts.runs.setup import check_settings
from myxtts.storage.checkpoint import CheckpointStore
from myxtts.training.stages.decoder import WARMUP, DecoderPreparation, DecoderStage, log_mel_distance, resynthesis
from myxtts.training.trainer import XTTSTrainer

MODEL = dict(decoder_type="istft", decoder_blocks=2, decoder_width=8)
FOUNDATIONS = ("dvae", "gpt", "speaker")
pytestmark = pytest.mark.usefixtures("small_speaker_encoders", "few_discriminators")


def run_config(corpus=None, folder="unused", decoder=None, **training):
    training = {"log_every_steps": 1, "stage": "decoder", **training}
    config = tiny_run_config(corpus, folder, model=MODEL, data={"num_buckets": 1}, training=training)
    settings = {"max_steps": 4, "learning_rate": 3e-3, "frames": 8, "spectral_share": 0.5, **(decoder or {})}
    config.training.decoder = DecoderConfig(**settings, betas=(0.8, 0.99))
    return config


@pytest.fixture(scope="module")
def foundations(small_speaker_encoders):
    keras.utils.set_random_seed(3)
    return {part: XTTS(run_config().model, parts=(part,)) for part in FOUNDATIONS}


@pytest.fixture(scope="module")
def preparation(foundations, decoder):
    return DecoderPreparation(foundations, "/CPU:0", run_config(), decoder)


@pytest.fixture(scope="module")
def decoder():
    keras.utils.set_random_seed(4)
    return XTTS(run_config().model, parts=("decoder",)).decoder


@pytest.fixture(scope="module")
def waves():
    """Three clips of 12, 7 and 12 strides of 1024, the last with 0.25 s of sound only."""
    lengths = np.array([12 * 1024, 7 * 1024 - 30, 12 * 1024], "int32")
    wav, target = np.zeros((3, 12 * 1024), "float32"), np.zeros((3, target_width(12 * 1024)), "float32")
    for row, length in enumerate(lengths):
        sounding = int(0.25 * 22050) if row == 2 else length
        wav[row, :sounding] = voiced(1.0, 120 + 40 * row, row)[:sounding]
        sounding = sounding * 24000 // 22050
        target[row, :sounding] = voiced(1.0, 120 + 40 * row, row, sample_rate=24000)[:sounding]
    text = np.full((3, 4), 5, "int32")
    counts = np.array([4, 2, 3], "int32")
    fields = dict(index=np.arange(3, dtype="int32"), wav=wav, wav_lengths=lengths, text=text, text_lengths=counts)
    fields |= dict(conditioning=wav[[1, 0, 1], :6000], conditioning_span=np.zeros((3, 2), "int32"))
    fields |= dict(target_wav=target, target_lengths=lengths * 24000 // 22050)
    fields |= dict(source_rate=np.array([24000, 16000, 24000], "int32"), speaker=np.zeros(3, "int32"))
    return WaveBatch(**{name: tf.constant(value) for name, value in fields.items()})


def test_a_clip_of_n_codes_has_the_frames_of_n_plus_1_latents_as_in_synthesis(preparation, foundations, waves):
    whole, grid, config = preparation(waves), preparation.grid, run_config().model
    before = grid.history_frames
    gpt, codes = foundations["gpt"].gpt, foundations["dvae"].dvae
    for row, num_codes in enumerate((12, 7, 12)):
        assert int(tf.reduce_sum(tf.cast(whole.present[row], tf.int32))) == grid.num_frames(num_codes + 1)
        # One row at a time, without padding, from codes that end in the stop code.
        wav, ids = waves.wav[row : row + 1], waves.text[row, : int(waves.text_lengths[row])].numpy().tolist()
        recorded = codes.encode(foundations["dvae"].normalize_mel(preparation.mel(wav)))[:, :num_codes].numpy()
        recorded = np.append(recorded, [[config.stop_audio_token]], axis=1)
        voice = preparation._conditioning_mel(waves.conditioning[row : row + 1])
        voice = gpt.mel_to_latents(foundations["dvae"].normalize_mel(voice))
        frames = grid.latents_to_frames(gpt.codes_to_latents(voice, np.array([mark_text(ids, config)]), recorded))[0]
        # The last codes of a clip depend on the padding after it.
        np.testing.assert_allclose(whole.frames[row, before : before + len(frames)][:-9], frames[:-9], atol=1e-4)
    np.testing.assert_allclose(whole.target[:, : waves.target_wav.shape[1]], waves.target_wav, atol=0)


def test_a_slice_with_its_context_is_a_part_of_the_whole(preparation, decoder, waves):
    whole = preparation(waves)
    copies, hop = resynthesis(decoder, whole), decoder.hop_length
    starts, compared = set(), 0
    for position in range(4):
        cut = preparation(waves, position)
        assert cut.target.shape == (3, 8 * hop)
        assert cut.frames.shape[1] == decoder.history_frames + 8 + decoder.lookahead_frames
        slices = resynthesis(decoder, cut)
        for row in range(2):
            offsets = range(0, whole.target.shape[1] - 8 * hop + 1, hop)
            sound, part = whole.target[row].numpy(), cut.target[row].numpy()
            matches = [first for first in offsets if (sound[first : first + 8 * hop] == part).all()]
            assert len(matches) == 1
            starts.add((row, matches[0]))
            if tf.reduce_all(cut.speaker[row] == whole.speaker[row]):
                np.testing.assert_allclose(slices[row], copies[row, matches[0] :][: 8 * hop], atol=1e-5)
                compared += 1
    assert len(starts) > 4 and compared >= 2


def test_silent_slices_are_sampled_again_and_depend_on_position_only(preparation, waves):
    silent = 0
    for position in range(20):
        silent += float(tf.reduce_max(tf.abs(preparation(waves, position).target[2]))) < 1e-3
    # 24 of 48 starts are silent, a quarter after the second draw.
    assert silent < 10
    for one, other in zip(preparation(waves, 7), preparation(waves, 7)):
        np.testing.assert_array_equal(one, other)


def test_speaker_vector_is_of_either_clip_in_training_and_never_of_padding(preparation, waves, foundations, decoder):
    validation = preparation(waves).speaker.numpy()
    other = [(preparation(waves, position).speaker.numpy() == validation).all(axis=1) for position in range(16)]
    assert 0.2 < np.mean(other) < 0.8
    np.testing.assert_array_equal(preparation(waves).speaker, validation)
    long = waves._replace(conditioning=tf.tile(waves.wav[::-1, : 12 * 1024], [1, 3]))
    vectors = [preparation(long, position).speaker[0].numpy() for position in (0, 0, 1, 2, 3, 4)]
    np.testing.assert_array_equal(vectors[0], vectors[1])
    assert len({tuple(vector) for vector in vectors}) == 5
    heard = resample(long.conditioning, MODEL_SAMPLE_RATE, SPEAKER_SAMPLE_RATE)
    whole = preparation.speaker_encoder(preparation._speaker_mel(heard))
    np.testing.assert_allclose(preparation(long).speaker, whole, atol=1e-5)
    (config := run_config()).data.conditioning_padding = "zeros"
    padded = waves._replace(conditioning=tf.pad(waves.conditioning, [[0, 0], [0, 6000]]))
    looped = waves._replace(conditioning=tf.tile(waves.conditioning, [1, 2]))
    vectors = DecoderPreparation(foundations, "/CPU:0", config, decoder)(padded).speaker
    np.testing.assert_allclose(vectors, preparation(looped).speaker, atol=1e-5)


def test_validation_is_the_mel_distance_of_whole_resyntheses(preparation, decoder, waves):
    stage = DecoderStage(run_config(), dict.fromkeys(FOUNDATIONS))
    stage.model = type("Model", (), {"decoder": decoder})()
    (objective,) = stage.validated([])
    batch = preparation(waves)
    sums, counts = objective.loss_sums(batch)[0], objective.counts(batch)
    expected, total = 0.0, 0
    copies = resynthesis(decoder, batch)
    for row, num_codes in enumerate((12, 7, 12)):
        num_frames = preparation.grid.num_frames(num_codes + 1)
        distance = log_mel_distance(
            batch.target[row : row + 1], copies[row : row + 1], batch.source_rate[row : row + 1]
        )
        expected, total = expected + float(tf.reduce_sum(distance[0, :num_frames])), total + num_frames
    assert float(sums["mel"] / counts["mel"]) == pytest.approx(expected / total, rel=1e-4)


class Listener(Recorder):
    """A `Recorder` that also stores the weights of the discriminators."""

    def on_log(self, step, losses, timing):
        super().on_log(step, losses, timing)
        arrays = self.trainer.stage.weight_arrays()["discriminators"]
        self.discriminators[step] = np.concatenate([array.ravel() for array in arrays.values()])


def train(dataset, foundations, config, stop_after=None):
    with untraced():
        trainer = XTTSTrainer(config, stage="decoder", foundations=foundations)
        assert trainer.train_step.phase == trainer.stage.phase(999, 1000), "for measurements without training"
        recorder = Listener(trainer, stop_after)
        recorder.discriminators = {}
        trainer.train(dataset, [recorder])
    return trainer, recorder


@pytest.fixture(scope="module")
def corpus_foundations(tiny_corpus, small_speaker_encoders, tmp_path_factory):
    """The corpus with its configuration, and models of earlier stages that fit its vocabulary."""
    dataset = SpeechDataset.open(run_config(tiny_corpus, tmp_path_factory.mktemp("corpus")))
    keras.utils.set_random_seed(3)
    return dataset, {part: XTTS(dataset.config.model, parts=(part,)) for part in FOUNDATIONS}


def configured(dataset, folder, **settings):
    config = run_config(dataset.config.data.train_data, folder, **settings)
    config.model, config.data = dataset.config.model, dataset.config.data
    return replace(dataset, config=config), config


def weights_of(folder) -> dict[str, Iterable]:
    store = CheckpointStore(folder / "decoder")
    step = store.steps()[-1]
    return {name: store.digest(step, name) for name in ("model", "discriminators", "optimizer", "trained")}


def test_phases_alternate_and_a_run_is_resumed_bit_for_bit(corpus_foundations, tmp_path):
    corpus, foundations = corpus_foundations
    dataset, config = configured(corpus, tmp_path / "whole")
    trainer, reported = train(dataset, foundations, config)
    assert [trainer.stage.phase(step, 4) for step in range(4)] == ["spectral"] * 2 + ["adversarial"] * 2
    acting = [[one.name for one in trainer.train_step.acting(phase)] for phase in ("spectral", WARMUP)]
    assert acting == [[""], ["discriminator"]], "the discriminators are trained alone, or with the decoder"
    assert (reported.discriminators[1] == reported.discriminators[2]).all()
    assert (reported.discriminators[3] != reported.discriminators[2]).any()
    assert reported.losses[2]["adversarial"] == 0.0 < reported.losses[3]["adversarial"]
    assert not any("discriminator" in name for name in reported.losses[2]) and reported.losses[3]["discriminator/real"]
    # The decoder's averages are used for validation and speech; discriminators have none.
    assert trainer.train_step.averages and not any("period" in name for name in trainer.train_step.averages)
    assert trainer.state.history[-1]["mel"] == trainer.state.best[0]
    trainer.watch._recent = [{"loss": 1.0, "finite": 1.0}, {"loss": 3.0, "discriminator/loss": 2.0, "finite": 1.0}]
    trainer.watch.log(0.1)
    assert reported.losses[4]["loss"] == 3.0, "means leave out steps of an earlier phase"
    for stop in (3, None):
        dataset, config = configured(corpus, tmp_path / "stopped")
        trainer, again = train(dataset, foundations, config, stop)
    assert [*again.losses] == [4]
    assert weights_of(tmp_path / "stopped") == weights_of(tmp_path / "whole")


def test_mixed_precision_and_accumulation_train_both_sides(corpus_foundations, tmp_path):
    corpus, foundations = corpus_foundations
    dataset, config = configured(corpus, tmp_path, precision="mixed_float16", gradient_accumulation=2)
    config.training.decoder.max_steps, config.training.decoder.spectral_share = 2, 0.0
    trainer, reported = train(dataset, foundations, config)
    # The loss scale may start too high.
    assert trainer.train_step.bad_steps <= 2 and np.isfinite(reported.losses[2]["loss"])
    assert (reported.discriminators[1] != reported.discriminators[2]).any()


def test_fine_tuning_trains_the_discriminators_alone_first():
    config = run_config(init_from="another", decoder={"discriminator_warmup": 0.5})
    stage = DecoderStage(config, dict.fromkeys(FOUNDATIONS))
    assert [stage.phase(step, 10) for step in (0, 4, 5)] == [WARMUP, WARMUP, "adversarial"]
    config.training.tune, config.training.decoder.spectral_share = ("gpt",), 0.5  # the decoder has random weights
    assert [stage.phase(step, 10) for step in (0, 4, 5)] == ["spectral", "spectral", "adversarial"]
    config.training.decoder.spectral_share = 1.0
    assert [stage.phase(step, 10) for step in (0, 5, 10)] == ["spectral"] * 3


def test_speaker_loss_has_the_encoder_that_was_trained_after_the_stage_was_built(foundations):
    config = run_config(decoder={"speaker_weight": 9.0, "frames": 94})
    encoder = XTTS(config.model, parts=("speaker",)).speaker_encoder
    stage = DecoderStage(config, foundations | {"speaker": SimpleNamespace(speaker_encoder=encoder)})
    stage.build(None, SimpleNamespace(precision="float32"), None)
    encoder.weights[0].assign(encoder.weights[0] + 1.0)
    stage.measure(None)
    np.testing.assert_array_equal(stage.speaker_encoder.weights[0], encoder.weights[0])


def test_settings_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match="decoder.frames.* 94 .*speaker_weight.*: 8"):
        run_config(decoder={"speaker_weight": 9.0}).training.decoder.check_frames()
    with pytest.raises(ConfigError, match="decoder.frames.*even.*: 9"):
        check_settings(run_config(decoder={"frames": 9}))


def test_warnings_say_what_to_change():
    stage = DecoderStage(run_config(), dict.fromkeys(FOUNDATIONS))
    stage.discriminators = type("Two", (), {"parts": [None, None]})()
    assert not [*stage.advise({"mel": 1.0, "discriminator/loss": 3.9}), *stage.advise({"mel": 1.0})]
    (won,) = stage.advise({"mel": 0.9, "discriminator/loss": 0.0})
    assert "0.000" in won and "4)" in won and "decoder.feature_weight" in won
    (fallen,) = stage.advise({"mel": 1.5, "discriminator/loss": 3.9})
    assert "from 0.900 to 1.500" in fallen and "--lr" in fallen
