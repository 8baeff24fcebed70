// Plays what the messages of a speech hold, each part once; see `message_of` in speech_tabs.py.
(message) => {
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
}
