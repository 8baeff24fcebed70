"""Sound that is heard in the page while it is made: PCM in messages, played by the browser alone."""

import base64
import json
from collections import deque

import numpy as np

REPEATED_PARTS = 8
"""A page may miss a message that another one follows at once, so each holds the last parts anew."""

PLAY = """(message) => {
  if (!message) return;
  const told = JSON.parse(message);
  let player = window.myxtts_player;
  if (!player || player.speech !== told.speech) {
    if (player) player.context.close();
    const context = new AudioContext({sampleRate: told.rate});
    player = window.myxtts_player = {speech: told.speech, next: 0, at: 0, seconds: 0, context: context};
  }
  told.parts.forEach((part, index) => {
    if (told.first + index < player.next) return;
    player.next = told.first + index + 1;
    const pcm = new Int16Array(Uint8Array.from(atob(part), (one) => one.charCodeAt(0)).buffer);
    const buffer = player.context.createBuffer(1, pcm.length, told.rate);
    buffer.getChannelData(0).set(Float32Array.from(pcm, (sample) => sample / 32768));
    const source = player.context.createBufferSource();
    source.buffer = buffer;
    source.connect(player.context.destination);
    player.at = Math.max(player.at, player.context.currentTime + 0.05);
    source.start(player.at);
    player.at += buffer.duration;
    player.seconds += buffer.duration;
  });
}"""
"""A function of the page that plays what the messages hold, each part once."""
HUSH = "() => { if (window.myxtts_player) { window.myxtts_player.context.close(); window.myxtts_player = null; } }"
"""One that ends it."""


class Messages:
    """The messages of one speech.

    Args:
        speech: That it is told from others by.
        sample_rate: In Hz.
    """

    def __init__(self, speech: str, sample_rate: int):
        self.speech, self.sample_rate, self._next = speech, sample_rate, 0
        self._parts: deque[str] = deque(maxlen=REPEATED_PARTS)

    def add(self, samples: np.ndarray) -> str:
        """The message for the samples that follow, `(S,)` int16."""
        self._parts.append(base64.b64encode(samples.astype("<i2").tobytes()).decode())
        self._next += 1
        first = self._next - len(self._parts)
        return json.dumps(dict(speech=self.speech, rate=self.sample_rate, first=first, parts=list(self._parts)))
