// Speaks with an exported XTTS model in the browser, step by step as speak.py, which has longer comments.
//
// As a worker, it answers {request, text, options} by {samples, sentence, number, count, …} per sentence and then {done};
// {recording: samples at 22,050 Hz, speakerRecording: at 16,000 Hz} adds the voice RECORDING and is answered by {listened};
// samples are a Float32Array, or one for each channel in an array.
import * as ort from "./ort/ort.wasm.min.mjs";

const PAUSE_SECONDS = 0.25, FADE_SECONDS = 0.005, CACHE_ROWS = 64, SILENT_PEAK = 1e-3;
const SENTENCE_END = new RegExp( // as in text/cleaners.py, without abbreviations
  /(?<=[.!?…؟۔।॥](?:[ \u00a0\u202f]»)?["'”’»)\]\u200e\u200f\u202c\u2069]*)(?![ \u00a0\u202f]»(?:\s|$|[.,;:!?…)\]]))\s+/.source + "|" +
  /(?<=(?:[。！？｡።፧፨]|፡፡)["'”’»」』）)\]]*)\s*(?![\s。！？｡።፧፨፡"'”’»」』）)\]])/.source);
const CLAUSE_END = /[,;:،؛、，；：፣፤፥](?=\s|[^\x00-\x7f])(?!\p{Nd})|[—–](?! ?\p{Nd})/gu;
const JOINED = // As in text/cleaners.py: file(s), 5:30, and/or, my_file, :)
  /(?<=[\p{L}\p{N}_])(?:\(([\p{L}\p{N}_]+)\)|[:/|\\](?=[\p{L}\p{N}_]))|(?<=[\p{L}\p{N}])_+(?=[\p{L}\p{N}])|(?<!\S)[:;=]-?[()]+(?!\S)/gu;
const PARAGRAPH = /\n[^\S\n]*\n/, WRAPPED_CHARACTERS = 40;
const MARKED_END = /(?:[.!?…؟۔।॥。！？｡።፧፨]|፡፡)(?:[ \u00a0\u202f]»)?["'”’»)\]」』）\u200e\u200f\u202c\u2069]*$|[,;:،؛、，；：፣፤፥—–][\u200e\u200f\u202c\u2069]*$|(?:[\p{L}\p{N}_\s][-\u2010\u2011]|\u00ad)$/u;
// Characters that eSpeak NG would spell out, such as ﬁ, Ⅷ and ㎏; and the forms that Arabic letters have in a word.
const ESPEAK_SPELLS = /[\u2160-\u217f\u2460-\u24ff\u3371-\u33df\ufb00-\ufb06\uff10-\uff5a\u{1d400}-\u{1d7ff}]+/gu;
const ARABIC_FORMS = /[\ufb50-\ufdff\ufe70-\ufefc]+/g;
// Emoticons are silent, a dash is a pause, and a mark has no space before it: as in text/languages/readings.toml.
const READINGS = [
  [/(?<!\S)(?:[:;=][-^o]?[)(DPp|]+|[xX]D+|<3+(?=\s*(?:$|[.,!?]))|\^_*\^)(?![\p{L}\p{N}_])/gu, ""],
  [/^\s*(?:[-–—•]+\s+|[—―]+)|(?<![—―\s])\s*[—―]+(?=[.,;:!?…])/g, ""], [/([.,;:!?…]["”“»’)]*)(?:\s*[–—]\s*|\s+-\s+)/g, "$1 "],
  [/\s*[—―]+\s*|\s+[-–]+\s+/g, ", "], [/\s+(?=[.,;:!?])/g, ""],
];
// Words in which I is not the Turkish capital of ı, as in readings.toml, and Roman numerals.
const LATIN_I = /^(?:(?:AI|API|CIA|DVI|FBI|FIFA|GIF|HDMI|IAN|IBAN|IBRAHIM|IELTS|IKEA|IBM|IMEI|IMF|INDIA|INDIANA|INTER|IP|IPTV|IQ|IRINA|IRON|ISAAC|ISABEL|ISBN|ISO|IT|ITALIA|IVAN|IVF|IZMIR|MICROSOFT|PIN|PISA|SIM|UI|UNICEF|VIP|[IVX]+)$|INSTAGRAM|INTEL|INTERNET|INTERPOL|IPAD|IPHONE|ISTANBUL)|[QWX]/i;
const WORD = /[\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\u200c\u200d]/u;
const SPOKEN = /[\p{L}\p{M}\p{N} '’\u200c\u200d]/u;
const RECORDING = "your recording";
// As in speak.py: the rule of each number, in words that follow "must be" and as a function.
const RULES = {
  speed: ["0.25 to 4.0", (value) => value >= 0.25 && value <= 4],
  temperature: ["0 or more", (value) => value >= 0 && value <= 1e9],
  top_k: ["a whole number of 0 or more", (value) => Number.isSafeInteger(value) && value >= 0 && value <= 1e9],
  top_p: ["1e-6 to 1", (value) => value >= 1e-6 && value <= 1],
  repetition_penalty: ["1e-6 or more", (value) => value >= 1e-6 && value <= 1e9],
};
const here = (name) => new URL(name, import.meta.url).href;
const tensor = (type, data, dims) => new ort.Tensor(type, data, dims);
const floats = (base64) => new Float32Array(Uint8Array.from(atob(base64), (one) => one.charCodeAt(0)).buffer);

ort.env.wasm.wasmPaths = here("ort/");
ort.env.wasm.numThreads = 1; // a page without cross-origin isolation has no shared memory

async function fetchJson(name) {
  const answer = await fetch(here(name));
  if (!answer.ok) throw new Error(`${name} is missing from the folder.`);
  return answer.json();
}

export class Vocabulary {
  constructor(document) {
    this.special = document.added_tokens.map((token) => token.content);
    this.ids = new Map([...document.added_tokens.map((token) => [token.content, token.id]),
      ...Object.entries(document.model.vocab)]);
    this.ranks = new Map(document.model.merges.map((pair, rank) =>
      [typeof pair === "string" ? pair : pair.join(" "), rank]));
    this.unknown = this.ids.get(document.model.unk_token);
    const longestFirst = [...this.special].sort((a, b) => b.length - a.length);
    this.cut = new RegExp(`(${longestFirst.map((one) => one.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("|")})`);
  }

  // Ids of a text that `Speaker.spoken` returned.
  encode(spoken, language) {
    const parts = spoken.split(this.cut).map((part, i) => (i % 2 ? `(${part.slice(1, -1)})` : part));
    return this.rawIds(`[${language}]${parts.join("")}`.replaceAll(" ", "[SPACE]")).filter((id) => id !== this.unknown);
  }

  rawIds(text) {
    const words = text.split(this.cut).flatMap((part) => (this.special.includes(part) ? [part] : splitWords(part)));
    return words.flatMap((word) => this.merged(word)).map((token) => this.ids.get(token) ?? this.unknown);
  }

  merged(word) {
    if (this.special.includes(word)) return [word];
    const tokens = [...word];
    while (tokens.length > 1) {
      let best = -1, bestRank = Infinity;
      for (let i = 0; i + 1 < tokens.length; i++) {
        const rank = this.ranks.get(`${tokens[i]} ${tokens[i + 1]}`) ?? Infinity;
        if (rank < bestRank) [best, bestRank] = [i, rank];
      }
      if (best < 0) break;
      tokens.splice(best, 2, tokens[best] + tokens[best + 1]);
    }
    return tokens;
  }
}

function splitWords(text) {
  const words = [];
  let before = null;
  for (const character of text) {
    const kind = /\p{White_Space}/u.test(character) ? "space" : WORD.test(character);
    if (kind !== "space") words.push(kind === before ? words.pop() + character : character);
    before = kind;
  }
  return words;
}

export function cutText(text, limit) {
  const found = [];
  text = text.replace(/[^\S\u00a0\u202f]/g, " "); // not the spaces at which a line must not be broken
  for (let part of text.trim().split(SENTENCE_END)) {
    while (part) {
      const clauses = [...part.slice(0, limit + 2).matchAll(CLAUSE_END)].filter(
        (one) => one.index >= Math.floor(limit / 2) && one.index < limit);
      let at = clauses.length ? clauses.at(-1).index + 1 : part.lastIndexOf(" ", limit);
      at = part.length <= limit ? part.length : at > 0 ? at : limit;
      const piece = part.slice(0, at).trim();
      part = part.slice(at).trim();
      if (found.length && found.at(-1).length + 1 + piece.length <= limit) found[found.length - 1] += ` ${piece}`;
      else found.push(piece);
    }
  }
  return found;
}

// Splits a paragraph after its short lines, as `Reader.pieces`: those of a poem or a list.
export function cutLines(paragraph, shortest) {
  const isEnd = (line) => line && line.length < shortest && !MARKED_END.test(line);
  return paragraph.replaceAll("\f", " ").split("\n").map((line) => line + (isEnd(line.trim()) ? "\f" : "\n")).join("").split("\f");
}

class Espeak {
  static async load() {
    const { default: start } = await import("./espeak/espeak-ng.js");
    const module = await start({ locateFile: (name) => here(`espeak/${name}`) });
    return new Espeak(module);
  }

  constructor(module) {
    Object.assign(this, { module, worker: new module.eSpeakNGWorker() });
  }

  textToIpa(text, voice, scripts) {
    // eSpeak NG would say names such as "Ethiopic letter" for letters of other scripts. A Greek letter alone is a symbol.
    const names = [...scripts.map((name) => name[0] + name.slice(1).toLowerCase()), "Latin", "Common", "Inherited"];
    if (!/\p{Script=Greek}{2}/u.test(text)) names.push("Greek");
    const known = new RegExp(`[${names.map((name) => `\\p{Script=${name}}`).join("")}]`, "u");
    if (this.worker.set_voice(voice)) throw new Error(`eSpeak NG does not know the language ${voice}.`);
    const parts = [];
    let before = null;
    for (const character of text) {
      const spoken = SPOKEN.test(character) && known.test(character);
      if (spoken === before) parts.at(-1).text += character;
      else parts.push({ spoken, text: character });
      before = spoken;
    }
    return parts.map((part) => (part.spoken ? this.sounds(part.text) : part.text)).join("");
  }

  sounds(text) {
    if (!text.trim()) return text;
    const [start, end] = [text.trimStart(), text.trimEnd()].map((side) => (side === text ? "" : " "));
    const { ptr } = this.worker.convert_to_phonemes(text, true), bytes = this.module.HEAPU8;
    const sounds = new TextDecoder().decode(bytes.slice(ptr, bytes.indexOf(0, ptr)));
    return start + sounds.trim().replaceAll("_", "").replace(/\([a-z-]+\)/g, "") + end;
  }
}

// Philox4x64-10 as in NumPy (Salmon et al. 2011), so that a seed gives the same codes as in Python.
const MASK = (1n << 64n) - 1n, MULTIPLIERS = [0xd2e7470ee14c6c93n, 0xca5a826395121157n];
const WEYL = [0x9e3779b97f4a7c15n, 0xbb67ae8584caa73bn];

function philox(counter, seed, sentence) {
  let [a, b, c, d] = [counter & MASK, counter >> 64n, 0n, 0n];
  let keys = [BigInt.asUintN(64, seed), BigInt.asUintN(64, sentence)];
  for (let round = 0; round < 10; round++) {
    const [first, second] = [MULTIPLIERS[0] * a, MULTIPLIERS[1] * c];
    [a, b, c, d] = [(second >> 64n) ^ b ^ keys[0], second & MASK, (first >> 64n) ^ d ^ keys[1], first & MASK];
    keys = keys.map((key, i) => (key + WEYL[i]) & MASK);
  }
  return [a, b, c, d];
}

function gumbelNoise(seed, sentence, number, count) {
  const blocks = Math.ceil(count / 8), noise = new Float32Array(blocks * 8);
  for (let block = 0, at = 0; block < blocks; block++) {
    for (const word of philox(BigInt(number * blocks + block + 1), BigInt(seed), BigInt(sentence))) {
      for (const bits of [Number(word & 0xffffffffn), Number(word >> 32n)]) {
        const uniform = Math.fround(Math.fround((bits >>> 9) + 0.5) * 2 ** -23);
        noise[at++] = -Math.log(Math.fround(-Math.log(uniform)));
      }
    }
  }
  return noise.slice(0, count);
}

// Keys (1, heads, depth, size) and values (1, heads, size, depth) of each layer.
class Cache {
  constructor(model) {
    Object.assign(this, { model, heads: model.heads, depth: model.width / model.heads, size: 1, filled: 0 });
    const arrays = () => Array.from({ length: model.layers }, () => new Float32Array(this.heads * this.depth));
    [this.keys, this.values] = [arrays(), arrays()];
  }

  async read(graph, latents, numLatents, text, code, index) {
    const { heads, depth, size, model } = this, count = numLatents + text.length + 1;
    const mask = Uint8Array.from({ length: size + count }, (_, i) => i < this.filled || i >= size);
    const feeds = {
      latents: tensor("float32", latents, [1, numLatents, model.width]),
      text: tensor("int32", Int32Array.from(text), [1, text.length]),
      code: tensor("int32", Int32Array.of(code), [1, 1]), index: tensor("int32", Int32Array.of(index), [1]),
      mask: tensor("bool", mask, [1, size + count]),
    };
    for (let i = 0; i < model.layers; i++) {
      feeds[`keys_${i}`] = tensor("float32", this.keys[i], [1, heads, depth, size]);
      feeds[`values_${i}`] = tensor("float32", this.values[i], [1, heads, size, depth]);
    }
    const found = await graph.run(feeds);
    if (this.filled + count > size) this.grow(Math.ceil((this.filled + count) / CACHE_ROWS) * CACHE_ROWS);
    for (let i = 0; i < model.layers; i++) {
      copyRows(found[`new_keys_${i}`].data, count, this.keys[i], this.size, this.filled);
      copyRows(found[`new_values_${i}`].data, count * depth, this.values[i], this.size * depth, this.filled * depth);
    }
    this.filled += count;
    return [found.logits, found.hidden.data];
  }

  grow(size) {
    const { heads, depth, size: old } = this, larger = () => new Float32Array(heads * depth * size);
    this.keys = this.keys.map((one) => copyRows(one, old, larger(), size));
    this.values = this.values.map((one) => copyRows(one, old * depth, larger(), size * depth));
    this.size = size;
  }
}

// Copies rows of length `width` into rows of length `newWidth`, from column `at` on. Returns the array of the new rows.
function copyRows(rows, width, target, newWidth, at = 0) {
  for (let from = 0, to = at; from < rows.length; from += width, to += newWidth) target.set(rows.subarray(from, from + width), to);
  return target;
}

function squeezed(states, width, speed) {
  if (speed === 1) return states;
  const length = states.length / width, count = Math.floor(length / speed), found = new Float32Array(count * width);
  for (let i = 0; i < count; i++) {
    const place = Math.min(Math.max((i + 0.5) * speed - 0.5, 0), length - 1), left = Math.floor(place);
    const right = Math.min(left + 1, length - 1), blend = place - left;
    for (let j = 0; j < width; j++)
      found[i * width + j] = states[left * width + j] * (1 - blend) + states[right * width + j] * blend;
  }
  return found;
}

// Half of the distance between the lowest and the highest sample: a constant offset is silent.
function amplitude(samples) {
  let low = Infinity, high = -Infinity;
  for (const one of samples) {
    if (one < low) low = one;
    if (one > high) high = one;
  }
  return (high - low) / 2;
}

// One channel of a recording, as in speak.py: the mean of the channels that are not silent, or one if they cancel out.
export function mixed(recording) {
  if (recording instanceof Float32Array) return recording;
  const sounding = recording.filter((one) => amplitude(one) >= SILENT_PEAK), channels = sounding.length ? sounding : recording;
  const mono = new Float32Array(recording[0].length);
  for (const channel of channels) channel.forEach((one, at) => (mono[at] += one / channels.length));
  const loudness = (channel) => Math.sqrt(channel.reduce((sum, one) => sum + one * one, 0) / channel.length);
  const loudest = channels.reduce((best, one) => (loudness(one) > loudness(best) ? one : best));
  return loudness(mono) < 0.1 * loudness(loudest) ? loudest : mono;
}

export class Speaker {
  static async load() {
    const [config, vocabulary, voices] = await Promise.all(["config.json", "vocab.json", "voices.json"].map(fetchJson));
    const speaker = new Speaker();
    Object.assign(speaker, { config, model: config.model, sampleRate: config.sample_rate, graphs: {} });
    speaker.vocabulary = new Vocabulary(vocabulary);
    const arrays = (one) => ({ ...one, latents: floats(one.latents), speaker: floats(one.speaker) });
    speaker.voices = new Map(voices.map((one) => [one.name, arrays(one)]));
    speaker.espeak = Object.keys(config.espeak_voices).length ? await Espeak.load() : null;
    for (const name of ["gpt", "draw", "decoder"]) await speaker.graph(name);
    return speaker;
  }

  // Returns a graph, which is loaded at its first use.
  async graph(name) {
    this.graphs[name] ??= await ort.InferenceSession.create(here(`${name}.onnx`), { executionProviders: ["wasm"] });
    return this.graphs[name];
  }

  // Languages that do not need the transliteration of MyXTTS, which this page lacks.
  get languages() {
    return Object.keys(this.config.languages).filter((one) => !this.config.transliterated.includes(one));
  }

  // The only language of the training voices, else English.
  get usualLanguage() {
    const spoken = new Set([...this.voices.values()].filter((one) => one.trained && one.language).map((one) => one.language));
    const own = spoken.size === 1 ? [...spoken] : [];
    return [...own, "en", this.languages[0]].find((one) => this.languages.includes(one));
  }

  // The default voice, as in speak.py, which prefers voices of the training data to bundled ones.
  usualVoice(language) {
    const rank = ({ trained, language: own }) => 8 * (!language || own === language) + 4 * (!own || this.languages.includes(own))
      + 2 * trained + (own === this.usualLanguage);
    return [...this.voices.values()].reduce((best, one) => (best && rank(best) >= rank(one) ? best : one), undefined);
  }

  // Yields {samples, sentence, number, count, stopped} for each sentence.
  async *speak(text, { voice, language, seed = 0, speed = 1, ...sampling } = {}) {
    const named = voice ? this.voices.get(voice) : this.usualVoice(language);
    if (!named) throw new Error(voice ? `There is no voice ${voice}.` : "Choose a voice.");
    for (const [name, value] of Object.entries({ speed, ...sampling })) {
      if (!RULES[name]) throw new Error(`There is no option ${name}. Options: ${Object.keys(RULES).join(", ")}.`);
      const [rule, holds] = RULES[name];
      if (!holds(value)) throw new Error(`${name} must be ${rule}. Received: ${value}.`);
    }
    if (!Number.isSafeInteger(seed) || seed < 0) throw new Error("The seed must be a whole number of 0 or more.");
    language = language || named.language || this.usualLanguage;
    const sentences = this.sentences(text, language);
    if (!sentences.length) throw new Error("The text must have letters that the model knows.");
    for (const [number, sentence] of sentences.entries()) {
      const ids = this.encode(sentence, language);
      const { codes, states, stopped } = await this.codes(ids, named.latents, seed, number, sampling);
      const samples = codes.length + 1 >= Math.max(2, speed) ? this.faded(await this.sound(states, named.speaker, speed)) : new Float32Array(0);
      yield { samples, codes, sentence, number, count: sentences.length, stopped };
    }
  }

  sentences(text, language) {
    if (!this.languages.includes(language)) throw new Error(`This page speaks ${this.languages.join(", ")}, not ${language}.`);
    if (/\p{L}/u.test(text) && !this.isKnown(text, language))
      throw new Error(`Most letters of the text are unknown to the model in ${language}. Choose another language.`);
    const longestWord = text.split(/\s+/).reduce((most, word) => Math.max(most, word.length), 1);
    const longest = Math.max(this.config.longest_texts[language], longestWord);
    const shortest = Math.min(WRAPPED_CHARACTERS, Math.floor(this.config.languages[language] / 4));
    const lines = text.split(PARAGRAPH).flatMap((paragraph) => cutLines(paragraph, shortest));
    const cut = () => lines.flatMap((line) => cutText(line, limit));
    let limit = Math.min(this.config.languages[language], longest), found = cut();
    while (limit > 1 && found.some((piece) => this.encode(piece, language).length > this.model.max_text_tokens)) {
      limit = Math.floor((limit * 3) / 4);
      found = cut();
    }
    return found.filter((piece) => this.isKnown(piece, language));
  }

  encode(text, language) {
    return this.vocabulary.encode(this.spoken(text, language), language);
  }

  // Whether the model knows at least half of the letters of a text.
  isKnown(text, language) {
    const letters = this.spoken(text, language).match(/\p{L}/gu) ?? [];
    const known = letters.filter((one) => this.vocabulary.ids.has(one)).length;
    return known > 0 && 2 * known >= letters.length;
  }

  // The text to tokenize. Characters that the vocabulary lacks are replaced as by MyXTTS: ’ becomes ', and ï becomes i.
  spoken(text, language) {
    const read = this.written(text, language).split(/\s+/).filter(Boolean).join(" ");
    const { variants, scripts } = this.config, { ids } = this.vocabulary;
    const lacks = (one) => [...one].some((character) => character !== " " && !ids.has(character));
    if (!lacks(read)) return read;
    const other = (one) => {
      const variant = variants[one] ?? one;
      if (!lacks(variant)) return variant;
      if (":;()".includes(variant)) return "\n"; // a pause
      const plain = [...one.normalize("NFKD")].map((part) => variants[part] ?? part).join("");
      return plain.replace(/[\p{M}\p{P}\p{So}\p{Sk}\p{C}]/gu, "");
    };
    const comma = [...(scripts[language].includes("ARABIC") ? "،," : ",")].find((one) => !lacks(one)) ?? "";
    const pause = (_, before, after) => `${before || after || comma} `;
    const joined = (all, inner) => [...all].every((one) => !"():/|_\\".includes(one) || ids.has(one)) ? all : inner ?? " ";
    const whole = read.replace(JOINED, joined);
    const replaced = [...whole.normalize("NFC")].map((one) => (lacks(one) ? other(one) : one)).join("").trim();
    return replaced.replace(/ ?([,.!?،؟]?) ?\n[\n ]*([,.!?،؟]?)/g, pause).split(/\s+/).join(" ").trim();
  }

  // The text as eSpeak NG's phonemes or, for models that read letters, in lower case.
  written(text, language) {
    const voice = this.config.espeak_voices[language], [from, to, silent = ""] = this.config.normalize[language] ?? ["", ""];
    if (voice) text = text.normalize("NFC").replace(ESPEAK_SPELLS, (part) => part.normalize("NFKC"));
    if (voice === "tr") text = text.replace(/[\p{L}\p{N}_]*I[\p{L}\p{N}_]*/gu, (one) => LATIN_I.test(one) ? one : one.replaceAll("I", "ı"));
    const readings = voice && /LATIN|CYRILLIC/.test(this.config.scripts[language][0]) ? READINGS : [];
    for (const [mark, spoken] of readings) text = text.replace(mark, spoken);
    const characters = [...text.replaceAll('"', "").replace(ARABIC_FORMS, (part) => part.normalize("NFKC"))].filter((one) => !silent.includes(one));
    text = characters.map((one) => to[from.indexOf(one)] ?? one).join("").toLowerCase();
    return voice ? this.espeak.textToIpa(text, voice, this.config.scripts[language]) : text;
  }

  async codes(ids, latents, seed, sentence, sampling) {
    const { model } = this, cache = new Cache(model), gpt = await this.graph("gpt"), draw = await this.graph("draw");
    const values = {};
    for (const [name, value] of Object.entries({ ...this.config.sampling, ...sampling }))
      values[name] = name === "top_k" ? tensor("int32", Int32Array.of(value), [1, 1]) : tensor("float32", Float32Array.of(value), [1, 1]);
    const text = [model.start_text_token, ...ids, model.stop_text_token];
    let [logits, hidden] = await cache.read(gpt, latents, model.num_latents, text, model.start_audio_token, 0);
    const codes = [], states = [hidden], count = logits.dims[1];
    let seen = tensor("bool", new Uint8Array(count), [1, count]), stopped = false;
    while (codes.length < model.max_codes) {
      const noise = tensor("float32", gumbelNoise(seed, sentence, codes.length, count), [1, count]);
      const drawn = await draw.run({ logits, noise, seen, ...values });
      const code = Number(drawn.code.data[0]);
      seen = drawn.now_seen;
      stopped = code === model.stop_audio_token;
      if (stopped) break;
      codes.push(code);
      [logits, hidden] = await cache.read(gpt, new Float32Array(0), 0, [], code, codes.length);
      states.push(hidden);
    }
    const whole = new Float32Array(states.length ? states.reduce((sum, one) => sum + one.length, 0) : 0);
    states.reduce((at, one) => (whole.set(one, at), at + one.length), 0);
    return { codes, states: whole, stopped };
  }

  async sound(states, speaker, speed) {
    const { width } = this.model, latents = squeezed(states, width, speed);
    const found = await (await this.graph("decoder")).run({
      latents: tensor("float32", latents, [1, latents.length / width, width]),
      speaker: tensor("float32", speaker, [1, speaker.length]),
      start: tensor("int64", BigInt64Array.of(0n), [1]), end: tensor("int64", BigInt64Array.of(2n ** 31n - 1n), [1]),
    });
    return Float32Array.from(found.samples.data);
  }

  // Adds the voice of a recording, given at both sample rates.
  async listen(...recordings) {
    let [samples, speakerSamples] = recordings.map(mixed);
    const { piece_samples: length, least_samples: least, most_samples: most, repeats, sample_rate: rate } = this.config.listening;
    if (samples.length < least) throw new Error(`The recording must be at least ${(least / rate).toFixed(2)} s long.`);
    samples = samples.subarray(0, most).subarray(0, this.config.listening.conditioning_samples);
    if (!(amplitude(samples) >= SILENT_PEAK)) throw new Error(`The recording is silent: the used part stays below ${SILENT_PEAK} of full scale.`);
    const whole = samples.length / length, near = Math.round(whole) - (whole % 2 === 0.5); // 2.5 is 2, as in Python
    const total = repeats ? Math.max(1, near) * length : samples.length, pieces = [];
    for (let start = 0; start < total; start += length) {
      const piece = Float32Array.from({ length: Math.min(length, total - start) }, (_, i) => samples[(start + i) % samples.length]);
      if (piece.length >= least || !pieces.length) pieces.push(piece);
    }
    const mean = new Float32Array(this.model.num_latents * this.model.width), conditioning = await this.graph("conditioning");
    for (const piece of pieces) {
      const { latents } = await conditioning.run({ wav: tensor("float32", piece, [1, piece.length]) });
      latents.data.forEach((value, i) => (mean[i] += value / pieces.length));
    }
    const wav = speakerSamples.subarray(0, Math.floor((most * this.config.listening.speaker_sample_rate) / rate));
    const { speaker } = await (await this.graph("speaker")).run({ wav: tensor("float32", wav, [1, wav.length]) });
    const own = { name: RECORDING, language: "", trained: true };
    this.voices.set(RECORDING, { ...own, latents: mean, speaker: Float32Array.from(speaker.data) });
  }

  faded(samples) {
    const length = Math.min(Math.floor(FADE_SECONDS * this.sampleRate), samples.length);
    for (let i = 0; i < length; i++) {
      samples[i] *= (i + 1) / (length + 1);
      samples[samples.length - 1 - i] *= (i + 1) / (length + 1);
    }
    return samples;
  }

  get pause() {
    return Math.floor(PAUSE_SECONDS * this.sampleRate);
  }
}

if (typeof WorkerGlobalScope !== "undefined" && self instanceof WorkerGlobalScope) {
  const loading = Speaker.load();
  loading.then(
    (speaker) => postMessage({
      ready: true, sampleRate: speaker.sampleRate, pause: speaker.pause, languages: speaker.languages,
      unspoken: speaker.config.transliterated, phonetic: Object.keys(speaker.config.espeak_voices),
      rates: [speaker.config.listening.sample_rate, speaker.config.listening.speaker_sample_rate],
      voices: [...speaker.voices.values()].map(({ name, language }) => ({ name, language })),
      usual: speaker.usualVoice()?.name, usualLanguage: speaker.usualLanguage,
    }),
    (error) => postMessage({ error: String(error.message ?? error) }),
  );
  let latest = 0;
  self.onmessage = async ({ data }) => {
    try {
      const speaker = await loading;
      if (data.recording) {
        await speaker.listen(data.recording, data.speakerRecording);
        postMessage({ listened: RECORDING });
      } else if (data.text !== undefined) {
        const mine = ++latest;
        for await (const part of speaker.speak(data.text, data.options)) {
          if (mine !== latest) return;
          postMessage({ ...part, request: data.request });
        }
        postMessage({ done: true, request: data.request });
      }
    } catch (error) {
      postMessage({ error: String(error.message ?? error), request: data.request });
    }
  };
}
