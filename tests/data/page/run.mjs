// Runs methods of the exported page in Node.js, without a browser and without graphs. Prints the results as JSON.
import { readFileSync } from "node:fs";
import { Speaker, Vocabulary, cutText, mixed } from "./speaker.mjs";

const input = JSON.parse(readFileSync(new URL("input.json", import.meta.url)));
const speaker = new Speaker(), lengths = [];

// Sentences of each text, with their token ids.
function read({ config, vocabulary, texts }) {
  const espeak = { textToIpa: (text) => text };
  Object.assign(speaker, { config, model: config.model, vocabulary: new Vocabulary(vocabulary), espeak });
  return texts.map(([language, text]) => speaker.sentences(text, language).map((one) => [one, speaker.encode(one, language)]));
}

// How a recording is mixed, and the lengths of the pieces that are encoded.
async function listen({ recording, text }) {
  const rates = { sample_rate: 22050, speaker_sample_rate: 22050 };
  const listening = { ...rates, most_samples: 1e6, least_samples: 1, piece_samples: 400, repeats: true };
  const run = ({ wav }) => (lengths.push(wav.data.length), { latents: { data: [] }, speaker: { data: [] } });
  const config = { listening, languages: {}, transliterated: [] }, channels = recording.map((one) => Float32Array.from(one));
  Object.assign(speaker, { config, model: { num_latents: 1, width: 1 }, voices: new Map(), graph: async () => ({ run }) });
  const error = await speaker.listen(channels, channels).catch(({ message }) => message);
  const misspelt = await speaker.speak("One.", { temprature: 0.3 }).next().catch(({ message }) => message);
  return { config, cut: cutText(text, 3), error: error ?? "", misspelt, lengths, mixed: [...mixed(channels)] };
}

console.log(JSON.stringify(input.texts ? read(input) : await listen(input)));
