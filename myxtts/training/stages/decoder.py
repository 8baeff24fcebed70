"""The decoder stage trains the waveform decoder, which converts GPT latents and a speaker vector to 24 kHz audio."""

import numpy as np
import tensorflow as tf

from myxtts.audio.augment import draw_rows
from myxtts.audio.mel import SPEAKER_MEL, MelSpec, MelSpectrogram, resample
from myxtts.config.config import XTTSConfig
from myxtts.config.rates import DECODER_SAMPLE_RATE, MODEL_SAMPLE_RATE, SPEAKER_SAMPLE_RATE
from myxtts.data.batch import DecoderBatch, WaveBatch
from myxtts.memory.parts import DIVISORS
from myxtts.models.discriminators import PERIODS, RESOLUTIONS, Discriminators, short_time_spectrum
from myxtts.models.gpt import teacher_forcing
from myxtts.models.speaker_encoder import make_speaker_encoder
from myxtts.models.waveform_decoders import WaveformDecoder
from myxtts.models.xtts import XTTS, named_weights
from myxtts.training.stages.base import Objective, Stage
from myxtts.training.stages.gpt import GPTPreparation
from myxtts.training.stages.speaker import repeated

SPECTRAL, WARMUP, ADVERSARIAL = "spectral", "discriminator warm-up", "adversarial"
"""Phases: training of the decoder with spectral losses, of the discriminators, and of both against each other."""
Maps = list[list[tf.Tensor]]
"""Lists of feature maps, `(B, ...)`, one list per discriminator. The last map in each list is the score."""
FLOOR = 1e-5
"""Lower limit of magnitudes before the logarithm, as in HiFi-GAN's code."""
QUIET = 1e-3
"""Lower limit (-60 dBFS) of magnitudes above a recording's bandwidth, so that losses ignore noise below this level."""
MEL_LENGTH = 1024
_MEL = MelSpec(DECODER_SAMPLE_RATE, MEL_LENGTH, MEL_LENGTH, MEL_LENGTH // 4, num_mels=80, f_max=DECODER_SAMPLE_RATE / 2)
_FILTERS = _MEL.filterbank()
_HZ = np.fft.rfftfreq(MEL_LENGTH, 1 / DECODER_SAMPLE_RATE)
_TOP_HZ = np.array([_HZ[band > 0].max() for band in _FILTERS.T], "float32")


class DecoderStage(Stage):
    """Trains the waveform decoder to reconstruct recordings from GPT latents (docs/decoder.md)."""

    name = part = "decoder"
    periods, resolutions = PERIODS, RESOLUTIONS

    def __init__(self, config, foundations):
        super().__init__(config, foundations)
        config.training.decoder.check_frames()
        self._lowest_mel = None

    def build(self, model, switches, starting):
        super().build(model, switches, starting)
        shape = DIVISORS.get(self.config.model.size, 1), self.periods, self.resolutions
        self.discriminators = Discriminators(*shape, dtype=switches.precision)
        self.speaker_encoder = None
        if self.config.training.decoder.speaker_weight:
            self.speaker_encoder = make_speaker_encoder(self.config.model)
            self.measure(None)

    def measure(self, dataset):
        """Copies the weights of the trained speaker encoder to the encoder that computes the speaker loss."""
        if self.speaker_encoder:
            self.speaker_encoder.set_weights(self.foundations["speaker"].speaker_encoder.get_weights())

    def updates(self):
        return [DiscriminatorObjective(self), DecoderObjective(self)]

    def phase(self, step, total):
        training = self.config.training
        warmup, first = training.decoder.spectral_share, SPECTRAL
        if warmup == 1:
            return SPECTRAL
        if training.init_from and training.stage == self.name and self.name in (training.tune or (self.name,)):
            warmup, first = training.decoder.discriminator_warmup, WARMUP
        return ADVERSARIAL if step >= warmup * total else first

    def validated(self, objectives):
        return [ResynthesisDistance(self.model.decoder)]

    def make_preparation(self, device):
        return DecoderPreparation(self.foundations, device, self.config, self.model.decoder)

    def resynthesize(self, batch):
        return resynthesis(self.model.decoder, batch)

    def advise(self, figures):
        # The loss of discriminators that cannot tell recordings from generated audio.
        chance = {"hifigan": 0.5, "istft": 2.0}[self.config.model.decoder_type] * len(self.discriminators.parts)
        loss, mel = figures.get("discriminator/loss"), figures.get("mel")
        if loss is not None and loss < 0.05 * chance:
            yield (
                f"The discriminators' loss is {loss:.3f} (guessing: {chance:g}): the decoder learns little from them. "
                "Raise training.decoder.feature_weight or training.decoder.spectral_share, or lower --lr."
            )
        if mel:
            lowest = self._lowest_mel = min(mel, self._lowest_mel or mel)
            if mel > 1.5 * lowest:
                yield (
                    f"The decoder's log-mel distance rose from {lowest:.3f} to {mel:.3f}. If it stays high, lower --lr "
                    "or training.decoder.adversarial_weight; the best checkpoint is kept."
                )

    def helpers(self):
        return {"discriminators": named_weights(self.discriminators)}

    def all_weights(self):
        encoder = named_weights(self.speaker_encoder, "speaker_encoder/") if self.speaker_encoder else {}
        return super().all_weights() | encoder


class DiscriminatorObjective(Objective):
    """Adversarial loss of the discriminators on recordings and on generated audio."""

    name, phases, averaged = "discriminator", (WARMUP, ADVERSARIAL), False
    loss_weights = {"real": 1.0, "made": 1.0}

    def __init__(self, stage: DecoderStage):
        self.decoder, self.network = stage.model.decoder, stage.discriminators
        self.decoder_type = stage.config.model.decoder_type

    def loss_sums(self, batch, seed=None):
        waves = {"real": batch.target, "made": tf.stop_gradient(resynthesis(self.decoder, batch))}
        losses = {name: score_loss(self.decoder_type, self.network(wav), name == "real") for name, wav in waves.items()}
        return {name: tf.reduce_sum(loss) for name, loss in losses.items()}, {}


class DecoderObjective(Objective):
    """Losses of the decoder: spectral, adversarial, feature matching and speaker similarity."""

    phases = (SPECTRAL, ADVERSARIAL)

    def __init__(self, stage: DecoderStage):
        self.network, self.discriminators = stage.model.decoder, stage.discriminators
        self.speaker_encoder, self._speaker_mel = stage.speaker_encoder, MelSpectrogram(SPEAKER_MEL)
        self.decoder_type, own = stage.config.model.decoder_type, stage.config.training.decoder
        weights = {"mel": own.mel_weight, "stft": own.stft_weight, "adversarial": own.adversarial_weight}
        weights |= {"features": own.feature_weight, "speaker": own.speaker_weight}
        self.loss_weights = {name: weight for name, weight in weights.items() if weight or name == "mel"}

    def loss_sums(self, batch, seed=None):
        made, weights = resynthesis(self.network, batch), self.loss_weights
        sounds = batch.target, made, batch.source_rate
        losses = {"mel": tf.reduce_mean(log_mel_distance(*sounds), axis=-1)}
        if "stft" in weights:
            losses["stft"] = stft_distance(*sounds)
        if "speaker" in weights:
            losses["speaker"] = self._speaker_distance(batch.target, made)
        if self.phase == ADVERSARIAL:
            of_real, of_made = (self.discriminators(wav) for wav in (batch.target, made))
            losses["adversarial"] = score_loss(self.decoder_type, of_made, real=True)
            losses["features"] = feature_distance(of_real, of_made)
        return {name: tf.reduce_sum(losses.get(name, 0.0)) for name in weights}, {}

    def _speaker_distance(self, real, made):
        mels = (self._speaker_mel(resample(wav, DECODER_SAMPLE_RATE, SPEAKER_SAMPLE_RATE)) for wav in (real, made))
        vectors = [tf.math.l2_normalize(tf.cast(self.speaker_encoder(mel), tf.float32), axis=-1) for mel in mels]
        return 1.0 - tf.reduce_sum(tf.multiply(*vectors), axis=-1)


class ResynthesisDistance(Objective):
    """Validation loss: log-mel distance per frame between whole recordings and their resyntheses."""

    loss_weights = {"mel": 1.0}

    def __init__(self, decoder: WaveformDecoder):
        self.decoder = decoder

    def _present(self, batch):
        """Returns a mask of the frames inside each clip, `(B, T)` bool."""
        end = tf.shape(batch.present)[1] - self.decoder.lookahead_frames
        return batch.present[:, self.decoder.history_frames : end]

    def counts(self, batch):
        return {"mel": tf.reduce_sum(tf.cast(self._present(batch), tf.float32))}

    def loss_sums(self, batch, seed=None):
        distances = log_mel_distance(batch.target, resynthesis(self.decoder, batch), batch.source_rate)
        return {"mel": tf.reduce_sum(tf.where(self._present(batch), distances, 0.0))}, {}


def resynthesis(decoder: WaveformDecoder, batch: DecoderBatch) -> tf.Tensor:
    """Generates audio, `(B, S)`, from the latents of a batch's slices. Samples outside of the clips are zero."""
    hop, first = decoder.hop_length, decoder.history_frames
    length = (batch.target.shape[1] or tf.shape(batch.target)[1]) // hop
    made = decoder.frames_to_samples(batch.frames, batch.speaker, batch.present)
    made = made[:, first * hop : (first + length) * hop]
    return tf.where(tf.repeat(batch.present[:, first : first + length], hop, axis=1), made, 0.0)


class DecoderPreparation(GPTPreparation):
    """Converts waveforms to a `DecoderBatch`. The decoder's inputs come from the frozen DVAE, GPT and speaker encoder.

    The GPT is conditioned on another recording of the speaker, if there is one. In training, a batch has a slice of
    each clip, and the speaker vector comes from a random segment of either the clip or the conditioning recording, with
    equal probability. `grid` is the decoder to train; it determines the frame rate and the context around each slice.
    """

    def __init__(self, foundations: dict[str, XTTS], device: str, config: XTTSConfig, grid: WaveformDecoder):
        # Not augmented: the output is compared with the recording itself.
        super().__init__(foundations["dvae"], device, augment=False, seed=config.training.seed)
        self.gpt, self.speaker_encoder = foundations["gpt"].gpt, foundations["speaker"].speaker_encoder
        self.crop, self.grid, self.padding = config.training.decoder.frames, grid, config.data.conditioning_padding
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
        """Returns GPT latents interpolated to decoder frames, `(B, F, width)`, and each clip's number of frames."""
        prepared, config = super().make_batch(batch, position), self.gpt.config
        streams = teacher_forcing(config, prepared.text, prepared.text_lengths, prepared.codes, prepared.code_lengths)
        # As in synthesis, n codes have n + 1 latents: the last one predicts the end.
        codes = streams.audio_targets[:, : tf.shape(prepared.codes)[1] + 1]
        text_mask = streams.key_mask[:, : tf.shape(streams.text_inputs)[1]]
        voice = self.gpt.mel_to_latents(prepared.conditioning_mel)
        latents = self.gpt.codes_to_latents(voice, streams.text_inputs, codes, text_mask)
        frames = tf.cast(self.grid.latents_to_frames(latents), tf.float32)
        return frames, self.grid.num_frames(prepared.code_lengths + 1)

    def _speaker_vectors(self, batch, position):
        voice, size = batch.conditioning, tf.shape(batch.conditioning)[1]
        own = repeated(batch.wav, batch.wav_lengths, size)
        if self.padding == "zeros":  # else a segment could be all padding
            voice = repeated(voice, tf.reduce_max(tf.where(voice != 0, tf.range(size) + 1, 1), axis=1), size)
        shape, at = (tf.shape(own)[0], 2), [self.seed, position]
        takes_own, start = tf.split(draw_rows(tf.random.stateless_uniform, shape, at, share=self.share), 2, axis=1)
        training = position >= 0
        wav = tf.where(training & (takes_own < 0.5), own, voice)
        # Training uses segments of 1.2 s; longer ones hardly help.
        room = tf.maximum(tf.shape(wav)[1] - int(1.2 * MODEL_SAMPLE_RATE), 0) * tf.cast(training, tf.int32)
        places = tf.cast(start * tf.cast(room + 1, tf.float32), tf.int32) + tf.range(tf.shape(wav)[1] - room)[None]
        wav = resample(tf.gather(wav, places, batch_dims=1), MODEL_SAMPLE_RATE, SPEAKER_SAMPLE_RATE)
        return tf.cast(self.speaker_encoder(self._speaker_mel(wav)), tf.float32)

    def _starts(self, target, num_frames, position):
        """Returns the first frame of a random slice of each clip, `(B,)` int32. A silent slice is sampled once more."""
        hop, room = self.grid.hop_length, tf.maximum(num_frames - self.crop, 0)
        (part, parts), rows = self.share, tf.shape(target)[0]
        # The first two rows are left out, because `_speaker_vectors` uses their numbers.
        drawn = tf.random.stateless_uniform((4, rows * parts), [self.seed, position])[2:]
        drawn = drawn[:, part * rows : (part + 1) * rows]
        first, second = tf.unstack(tf.minimum(tf.cast(drawn * tf.cast(room + 1, tf.float32), tf.int32), room))
        energy = tf.cumsum(tf.reduce_sum(tf.reshape(target, (tf.shape(target)[0], -1, hop)) ** 2, axis=-1), axis=1)
        energy = tf.pad(energy, [[0, 0], [1, 0]])
        ends = (tf.gather(energy, first + count, batch_dims=1) for count in (self.crop, 0))
        return tf.where(tf.math.subtract(*ends) / (self.crop * hop) > 0.001**2, first, second)  # -60 dBFS


def log_mel_distance(real: tf.Tensor, made: tf.Tensor, source_rate: tf.Tensor) -> tf.Tensor:
    """Computes the mean absolute difference of log-mels in each frame (HiFi-GAN, equation 3).

    The log-mels are magnitudes of a 1024-point STFT with hop 256, in 80 bands from 0 to 12 kHz (Slaney's area norm),
    compressed as `ln(max(x, FLOOR))`, or `ln(max(x, QUIET))` above the bandwidth of the recording.

    `real` and `made` `(B, S)` are recorded and generated audio at 24 000 Hz; `source_rate` `(B,)` has the sample rates
    of the recordings in Hz. Returns `(B, S // 256)`; the mean over the frames is a clip's loss.
    """
    floors = _floors(source_rate, _TOP_HZ)
    mels = (tf.math.log(tf.maximum(_magnitude(wav, MEL_LENGTH) @ _FILTERS, floors)) for wav in (real, made))
    return tf.reduce_mean(tf.abs(tf.subtract(*mels)), axis=-1)


def stft_distance(real: tf.Tensor, made: tf.Tensor, source_rate: tf.Tensor) -> tf.Tensor:
    """Returns the sum of spectral convergence and log-magnitude difference, `(B,)`, averaged over three resolutions.

    For the arguments, see `log_mel_distance`. See Yamamoto, Song and Kim, "Parallel WaveGAN" (2020), eq. 5 to 7.
    """
    distances = []
    for n_fft in (512, 1024, 2048):
        of_real, of_made = (_magnitude(wav, n_fft) for wav in (real, made))
        # White noise has a magnitude of its level times the root of the window's energy; mel filters have unit area.
        top_hz = np.fft.rfftfreq(n_fft, 1 / DECODER_SAMPLE_RATE).astype("float32")
        floors = _floors(source_rate, top_hz) * float(np.sqrt(n_fft))
        # The addend keeps the gradient of equal signals finite.
        difference = tf.sqrt(tf.reduce_sum(tf.square(of_real - of_made), axis=[1, 2]) + 1e-12)
        difference /= tf.sqrt(tf.reduce_sum(tf.square(of_real), axis=[1, 2]))
        logarithms = (tf.math.log(tf.maximum(one, floors)) for one in (of_real, of_made))
        distances.append(difference + tf.reduce_mean(tf.abs(tf.subtract(*logarithms)), axis=[1, 2]))
    return tf.add_n(distances) / len(distances)


def _floors(source_rate, top_hz):
    """Returns magnitude floors `(B, 1, bands)`: `QUIET` for bands with `top_hz` above the bandwidth, else `FLOOR`."""
    limit = 0.46 * tf.cast(source_rate, tf.float32)[:, None]  # the bandwidth that resampling leaves
    return tf.where(top_hz[None] <= limit, FLOOR, QUIET)[:, None]


def _magnitude(wav, n_fft):
    real, imaginary = short_time_spectrum(wav, n_fft)
    return tf.sqrt(tf.square(real) + tf.square(imaginary) + 1e-9)


def _mean(x):
    """Returns the mean of each example: `(B, ...)` -> `(B,)` float32."""
    x = tf.cast(x, tf.float32)
    return tf.reduce_mean(x, axis=list(range(1, x.shape.rank)))


def score_loss(decoder_type: str, maps: Maps, real: bool) -> tf.Tensor:
    """Computes the adversarial loss `(B,)`: the mean loss of each discriminator's scores, summed over discriminators.

    Use `real=True` (high scores give a low loss) to train discriminators on recordings, and the decoder on generated
    audio. Use `real=False` (low scores give a low loss) to train discriminators on generated audio. `hifigan` uses
    least squares (Mao et al. 2017, eq. 2; HiFi-GAN, eq. 1), `istft` the hinge loss (Lim, Ye 2017; Vocos, section 3.3).
    """
    scores = [tf.cast(one[-1], tf.float32) for one in maps]
    if decoder_type == "hifigan":
        losses = [tf.square(score - 1.0 if real else score) for score in scores]
    else:
        losses = [tf.nn.relu(1.0 - score if real else 1.0 + score) for score in scores]
    return tf.add_n([_mean(loss) for loss in losses])


def feature_distance(real: Maps, made: Maps) -> tf.Tensor:
    """Computes the feature-matching loss `(B,)`: mean absolute differences, summed over maps (HiFi-GAN, equation 4)."""
    pairs = [pair for one, other in zip(real, made) for pair in zip(one, other)]
    return tf.add_n([_mean(tf.abs(tf.cast(a, tf.float32) - tf.cast(b, tf.float32))) for a, b in pairs])
