"""The decoder stage: latents of the GPT and a speaker vector to sound at 24 kHz."""

import tensorflow as tf

from myxtts.audio.augment import draw_rows
from myxtts.audio.mel import SPEAKER_MEL, MelSpectrogram
from myxtts.audio.resample import resample
from myxtts.config.checks import ConfigError
from myxtts.config.config import XTTSConfig
from myxtts.config.rates import DECODER_SAMPLE_RATE, MODEL_SAMPLE_RATE, SPEAKER_SAMPLE_RATE
from myxtts.config.training import TrainingConfig
from myxtts.data.batch import DecoderBatch, WaveBatch
from myxtts.models.discriminators import PERIODS, RESOLUTIONS, Discriminators
from myxtts.models.gpt import teacher_forcing
from myxtts.models.layers.linear import built
from myxtts.models.speaker_encoder import SpeakerEncoder
from myxtts.models.waveform_decoder import WaveformDecoder, make_decoder
from myxtts.models.xtts import XTTS, named_weights
from myxtts.storage.checkpoint import assign_by_name
from myxtts.training.stages.base import Objective, Stage, Update, arrays_of
from myxtts.training.stages.decoder_losses import ADVERSARIAL_LOSSES, LogMelDistance, feature_distance, stft_distance
from myxtts.training.stages.gpt import GPTPreparation

DIVISORS = {"nano": 8, "tiny": 4, "small": 2}
"""By which the discriminators of a model size are narrower than in the papers; of others they are as wide."""
DISCRIMINATORS = "discriminators"
"""File of a checkpoint with their weights, which only training needs."""
SPECTRAL, JUDGING, ADVERSARIAL = "spectral", "judging", "adversarial"
"""Phases: the decoder alone, by spectral losses; the discriminators alone; both."""
SILENCE = 1e-3
"""Root mean square below which a slice counts as silent, 60 dB below full scale, and is drawn again."""
VOICE_SAMPLES = int(1.2 * MODEL_SAMPLE_RATE)
"""What a speaker vector is taken from in training: more makes it little better, and half of the preparation."""
SHORTEST_VOICE_SECONDS = 1.0
"""Of a slice that a speaker vector can be taken from."""
CHANCE = {"hifigan": 0.5, "istft": 2.0}
"""Loss of one discriminator that guesses, by the decoder and its kind of loss."""
WON_SHARE = 0.05
"""Discriminators have won when their loss is below this share of what guessing costs."""
COLLAPSE_FACTOR = 1.5
"""The decoder has collapsed when its log-mel difference is so many times the lowest so far."""


class DecoderStage(Stage):
    """Learns to rebuild recordings from the latents that the GPT has for their codes; see docs/decoder.md."""

    name = part = "decoder"
    main_loss = "mel"
    default_ema = 0.999
    periods, resolutions = PERIODS, RESOLUTIONS
    takes_init_from = True
    tuned_with_all = False

    def __init__(self, config, foundations):
        super().__init__(config, foundations)
        training = config.training
        seconds = training.decoder.frames * 256 / DECODER_SAMPLE_RATE
        if training.decoder.speaker_weight and seconds < SHORTEST_VOICE_SECONDS:
            rule = f"training.decoder.speaker_weight needs slices of {SHORTEST_VOICE_SECONDS:g} s or more"
            raise ConfigError(f"{rule}. Received: training.decoder.frames {training.decoder.frames}. Try 94 or more.")
        if training.decoder.frames % 2:
            raise ConfigError(f"training.decoder.frames must be even. Received: {training.decoder.frames}.")
        self._lowest_mel = None
        self._is_started = False

    def build(self, model, switches, measured, starting):
        super().build(model, switches, measured, starting)
        training = self.config.training
        self._is_started = training.init_from is not None and training.stage == self.name
        divisor = DIVISORS.get(self.config.model.size, 1)
        kinds = divisor, self.periods, self.resolutions
        discriminators = Discriminators(*kinds, name=DISCRIMINATORS, dtype=switches.precision)
        self.discriminators = built(discriminators, (None, None))
        self.listener = None
        if self.config.training.decoder.speaker_weight:
            widths, width = self.config.model.speaker_channels, self.config.model.speaker_width
            self.listener = built(SpeakerEncoder(widths, embedding_width=width), (None, None, SPEAKER_MEL.num_mels))
            self.listener.trainable = False
            self.listener.set_weights(self.foundations["speaker"].speaker_encoder.get_weights())

    def updates(self, settings):
        judge = Judge(self.discriminators, self.config.model.decoder_type)
        telling = DiscriminatorObjective(self.model.decoder, judge)
        making = DecoderObjective(self.model.decoder, judge, self.config.training, self.listener)
        discriminator = Update("discriminator", telling, settings, (JUDGING, ADVERSARIAL), averaged=False)
        return [discriminator, Update("", making, settings, (SPECTRAL, ADVERSARIAL))]

    def phase(self, step, total):
        training = self.config.training
        warmup, first = training.decoder.spectral_share, SPECTRAL
        if self._is_started:
            warmup, first = training.decoder.discriminator_warmup, JUDGING
        return ADVERSARIAL if step >= warmup * total else first

    def validated(self, objectives):
        return [CopySynthesis(self.model.decoder)]

    def make_preparation(self, device, shares_device):
        return DecoderPreparation(self.foundations, device, self.config)

    def copies(self, batch):
        """Sound."""
        return batch.target, copy_of(self.model.decoder, batch)

    def advise(self, figures):
        """Says so when the discriminators have won, or the decoder's sound has fallen back."""
        chance = CHANCE[self.config.model.decoder_type] * len(self.discriminators.parts)
        loss, mel = figures.get("discriminator/loss"), figures.get("mel")
        if loss and loss < WON_SHARE * chance:
            yield (
                f"The discriminators tell recordings from copies almost without fail (loss {loss:.3f}, guessing costs "
                f"{chance:g}): the decoder learns little from them. Raise training.decoder.feature_weight or "
                "training.decoder.spectral_share, or lower --lr."
            )
        if mel:
            lowest = self._lowest_mel = min(mel, self._lowest_mel or mel)
            if mel > COLLAPSE_FACTOR * lowest:
                yield (
                    f"The decoder has fallen back: its log-mel difference is {mel:.3f} and was {lowest:.3f}. If it "
                    "stays so, lower --lr or training.decoder.adversarial_weight; the best checkpoint is kept."
                )

    def weight_arrays(self):
        """The weights of the decoder, and in a file of their own those of the discriminators."""
        return {**super().weight_arrays(), DISCRIMINATORS: arrays_of(named_weights(self.discriminators))}

    def weight_files(self):
        return ("model", DISCRIMINATORS)

    def assign_weights(self, tensors, where):
        super().assign_weights(tensors, where)
        assign_by_name(named_weights(self.discriminators), tensors[DISCRIMINATORS], where)

    def all_weights(self):
        found = {**super().all_weights(), **named_weights(self.discriminators, f"{DISCRIMINATORS}/")}
        return found | (named_weights(self.listener, "listener/") if self.listener else {})


class Judge:
    """The discriminators with the losses that go with a decoder: least squares (HiFi-GAN) or hinges (Vocos)."""

    def __init__(self, discriminators: Discriminators, decoder_type: str):
        self.discriminators = discriminators
        self.of_real, self.of_made = ADVERSARIAL_LOSSES[decoder_type]
        """Losses of maps of recordings, also the decoder's loss of its copies, and of maps of copies, `(B,)`."""


class DiscriminatorObjective(Objective):
    """Tells recordings from copies."""

    loss_weights = {"real": 1.0, "made": 1.0}

    def __init__(self, decoder: WaveformDecoder, judge: Judge):
        self.decoder, self.judge = decoder, judge

    def trainable(self):
        return named_weights(self.judge.discriminators)

    def counts(self, batch):
        return _clips(batch, self.loss_weights)

    def loss_sums(self, batch, seed=None):
        made, judge = tf.stop_gradient(copy_of(self.decoder, batch)), self.judge
        real, made = (judge.discriminators(wav) for wav in (batch.target, made))
        return {"real": tf.reduce_sum(judge.of_real(real)), "made": tf.reduce_sum(judge.of_made(made))}, {}


class DecoderObjective(Objective):
    """Spectral distances to the recording, and what discriminators and speaker encoder hear in the copy."""

    def __init__(
        self, decoder: WaveformDecoder, judge: Judge, training: TrainingConfig, listener: SpeakerEncoder | None = None
    ):
        self.decoder, self.judge, self.listener = decoder, judge, listener
        self._mel_distance, self._speaker_mel = LogMelDistance(), MelSpectrogram(SPEAKER_MEL)
        weights = {"mel": training.decoder.mel_weight, "stft": training.decoder.stft_weight}
        weights |= {"adversarial": training.decoder.adversarial_weight, "features": training.decoder.feature_weight}
        weights["speaker"] = training.decoder.speaker_weight
        self.loss_weights = {name: weight for name, weight in weights.items() if weight or name == "mel"}

    def trainable(self):
        return named_weights(self.decoder)

    def counts(self, batch):
        return _clips(batch, self.loss_weights)

    def loss_sums(self, batch, seed=None):
        made, weights = copy_of(self.decoder, batch), self.loss_weights
        sounds = batch.target, made, batch.source_rate
        losses = {"mel": self._mel_distance(*sounds)}
        if "stft" in weights:
            losses["stft"] = stft_distance(*sounds)
        if "speaker" in weights:
            losses["speaker"] = self._voice_distance(batch.target, made)
        if self.phase == ADVERSARIAL:
            of_real, of_made = (self.judge.discriminators(wav) for wav in (batch.target, made))
            losses["adversarial"] = self.judge.of_real(of_made)
            losses["features"] = feature_distance(of_real, of_made)
        zero = tf.zeros(())
        return {name: tf.reduce_sum(losses[name]) if name in losses else zero for name in weights}, {}

    def _voice_distance(self, real, made):
        vectors = []
        for wav in (real, made):
            heard = resample(wav, DECODER_SAMPLE_RATE, SPEAKER_SAMPLE_RATE)
            vectors.append(tf.math.l2_normalize(tf.cast(self.listener(self._speaker_mel(heard)), tf.float32), axis=-1))
        return 1.0 - tf.reduce_sum(vectors[0] * vectors[1], axis=-1)


class CopySynthesis(Objective):
    """What a validation is judged by: how far copies of whole clips are from the recordings, in log-mel."""

    loss_weights = {"mel": 1.0}

    def __init__(self, decoder: WaveformDecoder):
        self.decoder, self._mel_distance = decoder, LogMelDistance()

    def trainable(self):
        return {}

    def _heard(self, batch):
        """`(B, T)` bool: spectral frames, one per decoder frame, of which the clip has sound."""
        end = tf.shape(batch.present)[1] - self.decoder.lookahead_frames
        return batch.present[:, self.decoder.history_frames : end]

    def counts(self, batch):
        return {"mel": tf.reduce_sum(tf.cast(self._heard(batch), tf.float32))}

    def loss_sums(self, batch, seed=None):
        differences = self._mel_distance.differences(batch.target, copy_of(self.decoder, batch), batch.source_rate)
        return {"mel": tf.reduce_sum(tf.where(self._heard(batch), differences, 0.0))}, {}


def copy_of(decoder: WaveformDecoder, batch: DecoderBatch) -> tf.Tensor:
    """The slice of a batch as the decoder makes it, `(B, S)`, with zeros where the clip has no frames."""
    hop, first = decoder.hop_length, decoder.history_frames
    length = (batch.target.shape[1] or tf.shape(batch.target)[1]) // hop
    made = decoder.frames_to_samples(batch.frames, batch.speaker, batch.present)
    made = made[:, first * hop : (first + length) * hop]
    return tf.where(tf.repeat(batch.present[:, first : first + length], hop, axis=1), made, 0.0)


def _clips(batch, names):
    """Every loss is over clips, whose slices have one length."""
    return dict.fromkeys(names, tf.cast(tf.shape(batch.target)[0], tf.float32))


class DecoderPreparation(GPTPreparation):
    """Waveforms -> `DecoderBatch`, by the frozen DVAE, GPT and speaker encoder, as when codes are spoken.

    The voice is another recording of the speaker where there is one. The speaker vector is of that or, half of the
    time, of the clip itself, and of a random segment, so that the decoder does not depend on one vector per clip.
    """

    def __init__(self, foundations: dict[str, XTTS], device: str, config: XTTSConfig):
        # Another voice than that of the recording could not be compared with it.
        super().__init__(foundations["dvae"], device, augment=False, seed=config.training.seed)
        self.gpt, self.speaker_encoder = foundations["gpt"].gpt, foundations["speaker"].speaker_encoder
        self.config, self.crop = config, config.training.decoder.frames
        self.grid = make_decoder(config.model)  # of which only the grid of frames is used, which has no weights
        self._speaker_mel = MelSpectrogram(SPEAKER_MEL)

    def make_batch(self, batch: WaveBatch, position: tf.Tensor) -> DecoderBatch:
        frames, num_frames = self._frames(batch, position)
        speaker = self._speaker_vectors(batch, position)
        hop, grid = self.grid.hop_length, self.grid
        training = position >= 0
        length = tf.where(training, self.crop, tf.shape(frames)[1])
        lacking = tf.maximum(0, tf.shape(frames)[1] * hop - tf.shape(batch.target_wav)[1])
        target = tf.pad(batch.target_wav, [[0, 0], [0, lacking + self.crop * hop]])
        start = tf.where(training, self._starts(target, num_frames, position), 0)
        places = start[:, None] + tf.range(-grid.history_frames, length + grid.lookahead_frames)[None]
        present = (places >= 0) & (places < num_frames[:, None])
        frames = tf.gather(frames, tf.clip_by_value(places, 0, tf.shape(frames)[1] - 1), batch_dims=1)
        blocks = tf.reshape(target, (tf.shape(target)[0], -1, hop))
        inner = places[:, grid.history_frames : grid.history_frames + length]
        target = tf.reshape(tf.gather(blocks, inner, batch_dims=1), (tf.shape(frames)[0], length * hop))
        return DecoderBatch(batch.index, frames, present, speaker, target, batch.source_rate)

    def _frames(self, batch, position):
        """Latents of the recorded codes on the decoder's grid, `(B, F, width)`, and how many of each clip count."""
        model, prepared = self.config.model, super().make_batch(batch, position)
        given = prepared.text, prepared.text_lengths, prepared.codes, prepared.code_lengths
        streams = teacher_forcing(model, *given)
        # A clip of n codes has n + 1 latents, the last of which predicts its end; so it is at synthesis.
        codes = streams.audio_targets[:, : tf.shape(prepared.codes)[1] + 1]
        text_mask = streams.key_mask[:, : tf.shape(streams.text_inputs)[1]]
        voice = self.gpt.mel_to_latents(prepared.conditioning_mel)
        latents = self.gpt.codes_to_latents(voice, streams.text_inputs, codes, model.start_audio_token, text_mask)
        frames = tf.cast(self.grid.latents_to_frames(latents), tf.float32)
        return frames, self.grid.num_frames(prepared.code_lengths + 1)

    def _speaker_vectors(self, batch, position):
        own = tf.range(tf.shape(batch.conditioning)[1])[None] % batch.wav_lengths[:, None]
        own = tf.gather(batch.wav, own, batch_dims=1)  # repeated to the length of the other
        shape, at = (tf.shape(own)[0], 2), [self.seed, position]
        takes_own, start = tf.split(draw_rows(tf.random.stateless_uniform, shape, at, share=self.share), 2, axis=1)
        training = position >= 0
        heard = tf.where(training & (takes_own < 0.5), own, batch.conditioning)
        room = tf.maximum(tf.shape(heard)[1] - VOICE_SAMPLES, 0) * tf.cast(training, tf.int32)
        places = tf.cast(start * tf.cast(room + 1, tf.float32), tf.int32) + tf.range(tf.shape(heard)[1] - room)[None]
        heard = resample(tf.gather(heard, places, batch_dims=1), MODEL_SAMPLE_RATE, SPEAKER_SAMPLE_RATE)
        return tf.cast(self.speaker_encoder(self._speaker_mel(heard)), tf.float32)

    def _starts(self, target, num_frames, position):
        """First frame of each slice, `(B,)` int32: drawn at random, once more where that one is silent."""
        hop, room = self.grid.hop_length, tf.maximum(num_frames - self.crop, 0)
        # Other numbers than those of the speaker vectors, which come first.
        part, parts = self.share
        rows = tf.shape(target)[0]
        drawn = tf.random.stateless_uniform((3, rows * parts), [self.seed, position])[1:]
        drawn = drawn[:, part * rows : (part + 1) * rows]
        first, second = tf.unstack(tf.minimum(tf.cast(drawn * tf.cast(room + 1, tf.float32), tf.int32), room))
        energy = tf.cumsum(tf.reduce_sum(tf.reshape(target, (tf.shape(target)[0], -1, hop)) ** 2, axis=-1), axis=1)
        energy = tf.pad(energy, [[0, 0], [1, 0]])
        ends = (tf.gather(energy, first + count, batch_dims=1) for count in (self.crop, 0))
        power = tf.math.subtract(*ends) / (self.crop * hop)
        return tf.where(power > SILENCE**2, first, second)
