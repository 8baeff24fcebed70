// Plays each part of the audio in the messages once, and defines `hush`, which stops playback; see `message_of` in speech_tabs.py.
(message) => {
  window.hush = () => {
    const player = window.myxtts_player;
    if (!player || player.isHushed) return;
    player.isHushed = true;  // parts that are still on their way must not play
    player.context.close();
  };
  if (!message) return;
  const update = JSON.parse(message);
  let player = window.myxtts_player;
  if (!player || player.speech !== update.speech) {
    window.hush();
    const context = new AudioContext({sampleRate: update.rate});
    player = window.myxtts_player = {speech: update.speech, next: 0, at: 0, seconds: 0, context: context};
  }
  if (player.isHushed) return;
  update.parts.forEach((part, index) => {
    if (update.first + index < player.next) return;
    player.next = update.first + index + 1;
    const pcm = new Int16Array(Uint8Array.from(atob(part), (one) => one.charCodeAt(0)).buffer);
    const buffer = player.context.createBuffer(1, pcm.length, update.rate);
    buffer.getChannelData(0).set(Float32Array.from(pcm, (sample) => sample / 32768));
    const source = player.context.createBufferSource();
    source.buffer = buffer;
    source.connect(player.context.destination);
    player.at = Math.max(player.at, player.context.currentTime + 0.05);
    source.start(player.at);
    player.at += buffer.duration;
    player.seconds += buffer.duration;
  });
}
