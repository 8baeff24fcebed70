"""The reference's side of `against_reference.py`. Runs under a Python that has `coqui-tts`; imports nothing of ours."""

import sys
import tempfile

import torch  # noqa: I001  (`reference_cases` puts `utilities/parity` on the path)
from make_reference import FULL, FULL_DVAE, adamw_groups, make_dvae, make_xtts
from reference_cases import (
    CLIP_SECONDS,
    CONDITIONING_SECONDS,
    GPT_SIZES,
    NUM_TEXT_TOKENS,
    REFERENCE_CHUNK_SECONDS,
    REFERENCE_SECONDS,
    SAMPLE_RATE,
    gpt_inputs,
    noise,
    serve,
    vocoder_inputs,
)
from seeded_weights import seeded_tensor
from TTS.tts.layers.tortoise.arch_utils import TorchMelSpectrogram


class ReferenceWorker:
    """Builds each case of `reference_cases.CASES` of the reference's classes, called as its trainer or `Xtts` does."""

    def gpt(self, size, with_encoder):
        shape = GPT_SIZES[size]
        gpt = make_xtts(
            dict(
                FULL,
                gpt_layers=shape["layers"],
                gpt_n_model_channels=shape["width"],
                gpt_n_heads=shape["heads"],
                decoder_input_dim=shape["width"],
                gpt_number_text_tokens=NUM_TEXT_TOKENS,
            )
        ).gpt
        drawn = gpt_inputs(shape["width"])
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
            to_mel = TorchMelSpectrogram(mel_norm_file=file.name, sampling_rate=SAMPLE_RATE)
            to_conditioning_mel = TorchMelSpectrogram(
                filter_length=2048, hop_length=256, win_length=1024, mel_norm_file=file.name, sampling_rate=SAMPLE_RATE
            )
        wav = torch.from_numpy(noise("wav", CLIP_SECONDS, 8))
        conditioning = torch.from_numpy(noise("conditioning", CONDITIONING_SECONDS, 8))

        @torch.no_grad()
        def prepare():
            return to_conditioning_mel(conditioning), dvae.get_codebook_indices(to_mel(wav))

        # Clips of a whole number of strides give one code more than they have strides; the trainer's GPT cuts it.
        return prepare, lambda: prepare()[1][:, : wav.shape[1] // 1024].numpy()

    def latents(self):
        model = make_xtts(dict(FULL, gpt_layers=1))
        wav = torch.from_numpy(noise("reference", REFERENCE_SECONDS))

        def condition():
            return (
                model.get_gpt_cond_latents(
                    wav, SAMPLE_RATE, length=REFERENCE_SECONDS, chunk_length=REFERENCE_CHUNK_SECONDS
                ),
                model.get_speaker_embedding(wav, SAMPLE_RATE),
            )

        return condition, lambda: torch.cat([part.reshape(-1) for part in condition()]).numpy()

    def vocoder(self):
        decoder = make_xtts(dict(FULL, gpt_layers=1)).hifigan_decoder
        latents, speaker = (torch.from_numpy(array) for array in vocoder_inputs())
        speaker = speaker[..., None]

        @torch.inference_mode()
        def decode():
            return decoder(latents, g=speaker)

        return decode, lambda: decode().numpy()


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[1]))
    torch.set_num_interop_threads(1)
    serve(ReferenceWorker())
