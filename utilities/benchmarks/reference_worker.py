"""Runs the cases of `reference_cases.py` in `coqui-tts`, for `against_reference.py`; does not import MyXTTS."""

import functools
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "parity"))

import torch  # noqa: E402, I001  the folder of `make_reference` must be on the path first
from make_reference import FULL, FULL_DVAE, adamw_groups, make_dvae, make_xtts
import reference_cases as cases
from seeded_weights import STOP_BIAS, seeded_tensor
from TTS.tts.layers.tortoise.arch_utils import TorchMelSpectrogram

STREAM_CODES = 20
"""Number of codes after which `Xtts.inference_stream` yields its first audio, by default."""


def xtts_of(shape):
    """Creates an XTTS model; `shape` has the number of layers, the width and the number of heads of its GPT."""
    layers, width, heads = shape.values()
    gpt = dict(gpt_layers=layers, gpt_n_model_channels=width, gpt_n_heads=heads)
    return make_xtts(dict(FULL, **gpt, decoder_input_dim=width, gpt_number_text_tokens=cases.NUM_TEXT_TOKENS))


class ReferenceWorker:
    """Builds each case of `reference_cases.CASES` with classes of coqui-tts, called as in its trainer and in `Xtts`."""

    def gpt(self, size, with_encoder):
        shape = cases.GPT_SIZES[size]
        gpt = xtts_of(shape).gpt
        drawn = cases.gpt_inputs(shape["width"])
        text, codes = torch.from_numpy(drawn["text"]), torch.from_numpy(drawn["codes"])
        batch = dict(
            text_inputs=text,
            text_lengths=torch.full((len(text),), text.shape[1]),
            audio_codes=codes,
            wav_lengths=torch.full((len(text),), codes.shape[1] * 1024),
            cond_mels=torch.from_numpy(drawn["mel"])[:, None],
            cond_latents=None if with_encoder else torch.from_numpy(drawn["latents"]),
        )
        optimizer = torch.optim.AdamW(adamw_groups(gpt), lr=5e-6, betas=(0.9, 0.96), eps=1e-8)

        def losses():
            with torch.no_grad():
                return torch.stack(gpt(**batch)[:2]).numpy()

        def step():
            gpt.train()
            text_loss, mel_loss, _ = gpt(**batch)
            (0.01 * text_loss + mel_loss).backward()
            optimizer.step()
            optimizer.zero_grad()

        return step, losses

    def features(self):
        dvae = make_dvae(FULL_DVAE)
        with tempfile.NamedTemporaryFile(suffix=".pth") as file:
            torch.save(torch.from_numpy(seeded_tensor("mel_stats", (80,))), file.name)
            both = dict(mel_norm_file=file.name, sampling_rate=cases.SAMPLE_RATE)
            to_mel = TorchMelSpectrogram(**both)
            to_conditioning_mel = TorchMelSpectrogram(filter_length=2048, hop_length=256, win_length=1024, **both)
        wav = torch.from_numpy(cases.noise("wav", cases.CLIP_SECONDS, 8))
        conditioning = torch.from_numpy(cases.noise("conditioning", cases.CONDITIONING_SECONDS, 8))

        @torch.no_grad()
        def prepare():
            return to_conditioning_mel(conditioning), dvae.get_codebook_indices(to_mel(wav))

        # A clip of n strides gives n + 1 codes; the reference's GPT drops the last one in training.
        return prepare, lambda: prepare()[1][:, : wav.shape[1] // 1024].numpy()

    def latents(self):
        model = make_xtts(dict(FULL, gpt_layers=1))
        wav = torch.from_numpy(cases.noise("reference", cases.REFERENCE_SECONDS))

        def condition():
            lengths = dict(length=cases.REFERENCE_SECONDS, chunk_length=cases.REFERENCE_CHUNK_SECONDS)
            latents = model.get_gpt_cond_latents(wav, cases.SAMPLE_RATE, **lengths)
            return latents, model.get_speaker_embedding(wav, cases.SAMPLE_RATE)

        return condition, lambda: torch.cat([part.reshape(-1) for part in condition()]).numpy()

    def vocoder(self):
        decoder = make_xtts(dict(FULL, gpt_layers=1)).hifigan_decoder
        latents, speaker = (torch.from_numpy(array) for array in cases.vocoder_inputs())
        speaker = speaker[..., None]

        @torch.inference_mode()
        def decode():
            return decoder(latents, g=speaker)

        return decode, lambda: decode().numpy()

    def codes(self, size, rows, engine):
        model, inputs, latents = speaking(size)

        @torch.inference_mode()
        def draw():
            for row in range(rows):
                assert generate(model.gpt, inputs, inputs["text"][row : row + 1]).shape == (1, cases.SPOKEN_CODES)

        return draw, latents

    def chain(self, size, engine, decoder):
        model, inputs, latents = speaking(size)

        @torch.inference_mode()
        def speak():
            text = inputs["text"][:1]
            states = second_pass(model.gpt, inputs, generate(model.gpt, inputs, text))
            return model.hifigan_decoder(states, g=inputs["speaker"]).numpy()

        return speak, latents

    def first(self, size, engine, decoder):
        model, inputs, latents = speaking(size)

        @torch.inference_mode()
        def begin():
            fake = model.gpt.compute_embeddings(inputs["latents"], inputs["text"][:1])
            options = dict(output_hidden_states=True, return_dict_in_generate=True, output_attentions=False)
            options |= dict(do_sample=True, num_beams=1, **cases.SPOKEN_SAMPLING)
            drawn = model.gpt.get_generator(fake_inputs=fake, **options)
            states = torch.cat([next(drawn)[1] for _ in range(STREAM_CODES)])[None]
            return model.hifigan_decoder(states, g=inputs["speaker"]).numpy()

        return begin, latents


@functools.lru_cache(1)
def speaking(size):
    """Returns a model that always generates `SPOKEN_CODES` codes, its inputs, and a function that returns latents."""
    model = xtts_of(cases.SPOKEN_SIZES[size])
    arrays = cases.spoken_inputs(cases.SPOKEN_SIZES[size]["width"])
    inputs = {name: torch.from_numpy(array) for name, array in arrays.items()}
    inputs["speaker"] = inputs["speaker"][..., None]
    with torch.no_grad():
        model.gpt.mel_head.bias[-1] += STOP_BIAS
    model.gpt.init_gpt_for_inference(kv_cache=True)
    model.gpt.max_gen_mel_tokens = cases.SPOKEN_CODES
    with torch.inference_mode():
        states = second_pass(model.gpt, inputs, inputs["codes"]).numpy()
    return model, inputs, lambda: states


def generate(gpt, inputs, text):
    """Samples codes for `(B, T)` text tokens in the same way as `Xtts.inference`."""
    latents = inputs["latents"].expand(len(text), -1, -1)
    options = dict(do_sample=True, num_beams=1, num_return_sequences=1, length_penalty=1.0, output_attentions=False)
    return gpt.generate(cond_latents=latents, text_inputs=text, **cases.SPOKEN_SAMPLING, **options)


def second_pass(gpt, inputs, codes):
    """Computes the GPT latents of codes, from which `Xtts.inference` generates audio."""
    text, length = inputs["text"][:1], torch.tensor([codes.shape[-1] * gpt.code_stride_len])
    options = dict(cond_latents=inputs["latents"], return_attentions=False, return_latent=True)
    return gpt(text, torch.tensor([text.shape[-1]]), codes, length, **options)


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[1]))
    torch.set_num_interop_threads(1)
    cases.serve(ReferenceWorker())
