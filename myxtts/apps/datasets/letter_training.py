"""An aligner of one's own: a network that learns from a data set, clips with their texts, which letter is spoken when.

When each letter is spoken is not known. Letters are first spread evenly over the speech of their clip; the network
learns that; the most probable path of the text through what it says gives better times, and so on (segmental k-means:
Rabiner, Wilpon and Juang 1986; with a network for the probabilities: Bourlard and Morgan 1994). The blank is what is
between words, so that every letter lasts as long as it is spoken, and minutes of speech are enough to begin with.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import keras
import numpy as np

from myxtts.apps.datasets.aligners import LEAST_LOG_PROBABILITY
from myxtts.apps.datasets.ctc import Trellis, best_path
from myxtts.apps.datasets.ctc_network import SAMPLE_RATE, VOCABULARY, log_softmax, normalized_samples
from myxtts.audio.files import AudioError, read_audio
from myxtts.audio.mel import MelSpec, MelSpectrogram
from myxtts.config.checks import UserError
from myxtts.data.corpora import Utterance, load_corpus
from myxtts.hearing.sentences import spread
from myxtts.hearing.text_errors import edits, normalized
from myxtts.interchange.onnx.builder import import_package
from myxtts.interchange.onnx.letters import build_letters
from myxtts.models.letter_network import FRAMES_PER_SCORE, LetterNetwork
from myxtts.storage.files import write_json, write_whole_folder

MEL = MelSpec(SAMPLE_RATE, n_fft=512, win_length=400, hop_length=160, num_mels=80)
NETWORK_FILE = "letters.onnx"
BLANK = "<pad>"
MOST_LETTERS = 200
FEWEST_CLIPS = 20
MOST_CLIPS = 600
"""That are learned from: about an hour."""
HELD_SHARE, MOST_HELD = 0.1, 30
"""Clips that are only judged by."""
MOST_SECONDS = 20.0
MOST_OF_HELD = 0.7
_TOGETHER = 16
_PAD_SECONDS, _PAD_LEVEL = 0.25, 0.01
_SPEECH_SHARE = 0.35  # of the way from quiet to loud frames
_PRIOR_WEIGHT = 0.6  # frequent letters would win wherever the network is in doubt


@dataclass(frozen=True)
class Schedule:
    """How long and on what is learned."""

    rounds: int = 16
    steps: int = 60
    """Of a round, after which letters get new times."""
    rows: int = 16
    row_frames: int = 256
    width: int = 128
    learning_rate: float = 1e-3


@dataclass(frozen=True)
class Outcome:
    """What an aligner can do, on clips that it did not learn from."""

    minutes: float
    letters: int
    held: int
    letter_errors: float
    """Edits over letters of what it reads by itself; it need not read well to find a text that is given."""
    heard: int
    """Clips whose own texts it would believe."""
    misheard: int
    """Clips in which it would believe another one's text."""

    @property
    def finds_sentences(self) -> bool:
        """Whether it believes most texts that are there."""
        return self.heard >= MOST_OF_HELD * self.held

    @property
    def misses_others(self) -> bool:
        """Whether it believes hardly any text that is not there."""
        return self.misheard <= (1 - MOST_OF_HELD) * self.held


@dataclass(eq=False)
class _Clip:
    mel: np.ndarray  # (2 T, bands)
    words: list[list[int]]
    labels: np.ndarray  # (T,)

    @property
    def letters(self) -> list[int]:
        return [letter for word in self.words for letter in word]

    @property
    def trellis(self) -> Trellis:
        return Trellis.of_words(self.words, 0)


def train_aligner(
    data: str | Path,
    output: Path,
    language: str = "en",
    seed: int = 0,
    schedule: Schedule = Schedule(),
    tell: Callable[[str], None] = lambda line: None,
) -> Outcome:
    """Learns from a data set and writes `letters.onnx` and `vocab.json` into a folder, for `--aligner`.

    Args:
        data: As `--train-data` takes it, of one language.
        output: Appears whole, or not at all.

    Raises:
        UserError: There are too few clips or too many letters, or onnx is not installed.
    """
    import_package("onnx")
    found = spread(load_corpus(data, language).utterances, MOST_CLIPS)
    random = np.random.default_rng(seed)
    texts = {one.id: normalized(one.text, one.language) for one in found}
    letters = sorted(set("".join(texts.values())) - {" "})
    if len(letters) > MOST_LETTERS:
        rule = f"An aligner learns alphabets of at most {MOST_LETTERS} letters"
        raise UserError(f"{rule}. The texts of {data} have {len(letters)}. Take a network for --aligner that exists.")
    vocabulary = {BLANK: 0, **{letter: place for place, letter in enumerate(letters, 1)}}
    clips = [clip for one in found if (clip := _read(one, texts[one.id], vocabulary, random)) is not None]
    if len(clips) < FEWEST_CLIPS:
        rule = f"An aligner needs at least {FEWEST_CLIPS} clips of up to {MOST_SECONDS:g} s with texts"
        raise UserError(f"{rule}, better half an hour. {data} has {len(clips)} that can be read.")
    order = random.permutation(len(clips))
    num_held = min(MOST_HELD, max(2, round(HELD_SHARE * len(clips))))
    held, own = ([clips[k] for k in part] for part in (order[:num_held], order[num_held:]))
    minutes = sum(len(one.mel) for one in own) * MEL.hop_length / SAMPLE_RATE / 60
    tell(f"{len(own)} clips of {minutes:.1f} min, {len(letters)} letters; {num_held} clips are kept to judge by.")
    keras.utils.set_random_seed(seed)
    network = LetterNetwork(MEL.num_mels, len(vocabulary), schedule.width, seed)
    bias = _learn(network, own, schedule, random, tell)
    outcome = _judge(network, bias, held, minutes)
    with write_whole_folder(output) as new:
        build_letters(network, MEL, bias).save(new / NETWORK_FILE)
        write_json(new / VOCABULARY, vocabulary)
    return outcome


def _read(utterance: Utterance, text, vocabulary, random):
    """A clip with letters spread over its speech; None where it cannot be used."""
    words = [[vocabulary[letter] for letter in word] for word in text.split()]
    count = sum(map(len, words))
    try:
        samples = read_audio(utterance.wav_path, SAMPLE_RATE, max_seconds=MOST_SECONDS).samples
    except AudioError:
        return None
    samples = np.pad(normalized_samples(samples), round(_PAD_SECONDS * SAMPLE_RATE))
    samples += _PAD_LEVEL * random.standard_normal(len(samples)).astype(np.float32)
    mel = np.array(MelSpectrogram(MEL)(samples[None]))[0]
    mel = mel[: len(mel) // FRAMES_PER_SCORE * FRAMES_PER_SCORE]
    levels = mel.mean(axis=1)[::FRAMES_PER_SCORE]
    quiet, loud = np.percentile(levels, [5, 95])
    speech = np.flatnonzero(levels > quiet + _SPEECH_SHARE * (loud - quiet))
    if not count or len(speech) < 2 or speech[-1] - speech[0] < count:
        return None
    labels = np.zeros(len(levels), np.int32)
    places = np.arange(speech[0], speech[-1] + 1)
    labels[places] = np.concatenate(words)[(places - places[0]) * count // len(places)]
    return _Clip(mel, words, labels)


def _learn(network, clips, schedule, random, tell):
    """Trains, and returns what is to be added to the network's scores, `(V,)`."""
    total = schedule.rounds * schedule.steps
    rate = keras.optimizers.schedules.CosineDecay(schedule.learning_rate, total)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.Adam(rate, clipnorm=1.0)
    optimizer.build(network.trainable_variables)  # or the step would be traced twice
    network.compile(optimizer, loss, jit_compile=False)
    mel = np.concatenate([clip.mel for clip in clips])
    quietest = mel.min()
    mel = np.pad(mel, ((0, max(0, schedule.row_frames - len(mel))), (0, 0)), constant_values=quietest)
    num_letters = network.head.units
    for number in range(1, schedule.rounds + 1):
        labels = np.concatenate([clip.labels for clip in clips])
        labels = np.pad(labels, (0, len(mel) // FRAMES_PER_SCORE - len(labels)))
        lost = [float(network.train_on_batch(*_rows(mel, labels, schedule, random))) for _ in range(schedule.steps)]
        counts = np.bincount(labels, minlength=num_letters) + 1.0
        priors, moved = np.log(counts / counts.sum()), []
        for clip, scores in zip(clips, _scores(network, clips)):
            path = _path(scores - priors, clip.trellis)
            if len(path):
                moved.append(np.mean(clip.trellis.symbols[path] != clip.labels))
                clip.labels = clip.trellis.symbols[path].astype(np.int32)
        tell(f"round {number} of {schedule.rounds}: loss {lost[-1]:.2f}, {np.mean(moved or [0.0]):.0%} of times moved")
    return (-_PRIOR_WEIGHT * priors).astype(np.float32)


def _rows(mel, labels, schedule, random):
    """A batch from anywhere in the clips, as if recorded otherwise: louder, through another microphone, with holes."""
    frames, bands = schedule.row_frames // FRAMES_PER_SCORE, mel.shape[1]
    starts = random.integers(0, len(labels) - frames + 1, schedule.rows)
    x = np.stack([mel[start * FRAMES_PER_SCORE :][: schedule.row_frames] for start in starts])
    x = x + random.normal(0, 1, (schedule.rows, 1, 1)) + random.normal(0, 0.4, (schedule.rows, 1, bands))
    for row in x:
        middle = row.mean()
        for _ in range(2):
            low, start = random.integers(0, bands), random.integers(0, len(row))
            row[:, low : low + random.integers(0, 12)] = middle
            row[start : start + random.integers(0, 10)] = middle
    return x.astype(np.float32), np.stack([labels[start : start + frames] for start in starts])


def _scores(network, clips: Sequence[_Clip], bias=0.0):
    """Log-probabilities `(T, V)` of each clip."""
    for start in range(0, len(clips), _TOGETHER):
        some = clips[start : start + _TOGETHER]
        longest = max(len(clip.mel) for clip in some)
        pads = [((0, longest - len(clip.mel)), (0, 0)) for clip in some]
        mel = np.stack([np.pad(clip.mel, pad, constant_values=clip.mel.min()) for clip, pad in zip(some, pads)])
        for clip, scores in zip(some, np.asarray(network(mel, training=False))):
            yield log_softmax(scores[: len(clip.labels)] + bias)


def _path(log_probabilities, trellis):
    return best_path(log_probabilities, trellis, np.zeros(len(log_probabilities), int), len(trellis.symbols))


def _judge(network, bias, held: Sequence[_Clip], minutes):
    wrong = letters = heard = misheard = 0
    for clip, other, scores in zip(held, [*held[1:], *held[:1]], _scores(network, held, bias)):
        best = scores.argmax(axis=1)
        read = [one for one, before in zip(best, [-1, *best]) if one and one != before]
        wrong, letters = wrong + edits(clip.letters, read), letters + len(clip.letters)
        heard += _is_heard(scores, clip.letters)
        misheard += _is_heard(scores, other.letters)
    return Outcome(minutes, len(bias) - 1, len(held), wrong / letters, heard, misheard)


def _is_heard(log_probabilities, letters):
    """Whether `CtcAligner` would believe that these letters, and only these, are spoken."""
    trellis = Trellis.of([letters], 0)
    path = _path(log_probabilities, trellis)
    if not len(path):
        return False
    own = log_probabilities[np.arange(len(path)), trellis.symbols[path]]
    sure = [own[path == state].max() for state in range(1, len(trellis.symbols), 2)]
    return bool(np.mean(sure) >= LEAST_LOG_PROBABILITY)
