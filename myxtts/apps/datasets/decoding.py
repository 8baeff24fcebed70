"""Long recordings as mono blocks in bounded memory: by libsndfile, else by ffmpeg where it is installed."""

import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import soundfile

from myxtts.audio.files import MAX_CHANNELS, MAX_PEAK, MAX_SAMPLE_RATE, MIN_SAMPLE_RATE, AudioError, check_container
from myxtts.config.checks import printable

BLOCK_SECONDS = 30

_UNSTATED_FRAMES = 2**63 - 1  # libsndfile's SF_COUNT_MAX
_AU_HEADER = struct.Struct(">4sIIIII")
"""Mark, offset of the samples, their bytes, encoding, sample rate, channels."""


class LongAudio:
    """The sound of an audio or video file, to be read block by block as often as needed.

    Attributes:
        path: The file.
        sample_rate: In Hz, as the file has it.
        channels: As many as the file has.

    Raises:
        AudioError: The file is missing, empty, damaged, or needs ffmpeg, which is not there.
    """

    def __init__(self, path: Path):
        self.path = Path(path)
        self._by_ffmpeg = False
        try:
            check_container(self.path)
            self._probe_soundfile()
        except AudioError as error:
            if error.reason not in ("unsupported", "not audio", "broken header"):
                raise
            self._probe_ffmpeg(error)

    def blocks(self, channel: int | None = None) -> Iterator[np.ndarray]:
        """Yields `(S,)` float32 blocks of `BLOCK_SECONDS`: the mean of all channels, or one of them."""
        for block in self.channel_blocks():
            yield block.mean(axis=1) if channel is None else np.ascontiguousarray(block[:, channel])

    def spans(self, spans: Sequence[tuple[int, int]], channel: int | None = None) -> Iterator[np.ndarray]:
        """Yields the samples `[start, end)` of each span, in the order of their starts, in one pass.

        What reaches beyond the end of the recording is shorter.

        Raises:
            AudioError: The recording ends before a span begins, or is damaged.
        """
        held, start, blocks = np.zeros(0, np.float32), 0, self.blocks(channel)
        for first, last in spans:
            while start + len(held) < last and (block := next(blocks, None)) is not None:
                skipped = min(max(0, first - start), len(held))
                held, start = np.concatenate([held[skipped:], block]), start + skipped
            if first - start >= len(held):
                raise AudioError(self.path, "damaged", "it changed while it was read.")
            yield held[first - start : last - start]

    def channel_blocks(self) -> Iterator[np.ndarray]:
        """Yields `(S, C)` float32 blocks; all but the last are `BLOCK_SECONDS` long.

        Raises:
            AudioError: The file is damaged or not finite.
        """
        for block in self._read_by_ffmpeg() if self._by_ffmpeg else self._read_by_soundfile():
            peak = max(-block.min(), block.max()) if len(block) else 0.0
            if not np.isfinite(peak):
                raise AudioError(self.path, "not finite", "it holds samples that are NaN or infinite.")
            if peak > MAX_PEAK:
                raise AudioError(self.path, "absurd level", f"its samples reach {peak:.3g} times full scale.")
            yield block

    def _probe_soundfile(self):
        try:
            with soundfile.SoundFile(self.path) as file:
                self.sample_rate, self.channels, frames = file.samplerate, file.channels, file.frames
        except soundfile.LibsndfileError as error:
            raise AudioError(self.path, "not audio", f"it cannot be decoded: {error.error_string}") from error
        if frames == _UNSTATED_FRAMES:
            raise AudioError(self.path, "broken header", "its header does not state its length.")
        if not frames:
            raise AudioError(self.path, "no audio", "it has a header and no samples.")
        self._check_claims()

    def _probe_ffmpeg(self, refusal):
        if shutil.which("ffmpeg") is None:
            way_out = "Install ffmpeg, which reads it, or convert it to WAV, FLAC, Ogg or MP3."
            detail = refusal.detail.partition(";")[0].rstrip(".")
            raise AudioError(self.path, refusal.reason, f"{detail}. {way_out}") from None
        self._by_ffmpeg = True
        next(self._read_by_ffmpeg(), None)

    def _check_claims(self):
        if not MIN_SAMPLE_RATE <= self.sample_rate <= MAX_SAMPLE_RATE:
            raise AudioError(self.path, "sample rate", f"its header states a sample rate of {self.sample_rate} Hz.")
        if not 1 <= self.channels <= MAX_CHANNELS:
            raise AudioError(self.path, "unsupported", f"it has {self.channels} channels; at most {MAX_CHANNELS} do.")

    def _read_by_soundfile(self):
        count = 0
        with soundfile.SoundFile(self.path) as file:
            try:
                size = BLOCK_SECONDS * self.sample_rate
                while len(block := file.read(size, dtype="float32", always_2d=True)):
                    count += len(block)
                    yield block
            except soundfile.LibsndfileError as error:
                detail = f"it is damaged: decoding stopped with '{error.error_string}'."
                raise AudioError(self.path, "damaged", detail) from error
            # An MP3 without a Xing header states an estimate, up to a few per cent off.
            if count < 0.95 * file.frames:
                detail = f"it promises {file.frames} samples per channel and holds {count}."
                raise AudioError(self.path, "truncated", detail)

    def _read_by_ffmpeg(self):
        # `file:` and the list of protocols keep a file's name, or a playlist's content, from opening connections.
        command = "ffmpeg -nostdin -v error -protocol_whitelist file,pipe -i".split()
        command += [f"file:{self.path}", *"-map 0:a:0 -f au -c:a pcm_f32be -".split()]
        with tempfile.TemporaryFile() as errors:
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors) as process:
                try:
                    header = process.stdout.read(_AU_HEADER.size)
                    if has_sound := len(header) == _AU_HEADER.size:
                        _, offset, _, _, self.sample_rate, self.channels = _AU_HEADER.unpack(header)
                        self._check_claims()
                        process.stdout.read(offset - _AU_HEADER.size)
                        frame = 4 * self.channels
                        while content := process.stdout.read(frame * BLOCK_SECONDS * self.sample_rate):
                            content = content[: len(content) // frame * frame]
                            yield np.frombuffer(content, ">f4").reshape(-1, self.channels).astype(np.float32)
                    failed = process.wait() != 0
                finally:
                    process.kill()
            if failed or not has_sound:
                errors.seek(0)
                said = errors.read().decode("utf-8", "replace").strip().splitlines() or ["it has no sound"]
                detail = f"ffmpeg cannot decode it: {printable(said[-1])[:200]}."
                raise AudioError(self.path, "damaged" if has_sound else "not audio", detail)
