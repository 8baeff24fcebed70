"""Writes outputs of coqui-tts, the reference implementation, with seeded weights; tests compare MyXTTS with them.

Does not import MyXTTS. Needs an environment with the reference (`pip install torch coqui-tts six`, with torchaudio and
torchcodec):

    python utilities/parity/make_reference.py --output tests/data/parity_small.npz

Arrays in `small/` are outputs of a GPT of 2 layers and width 64 and of a DVAE of 64 codes. Arrays in `full/` are from a
model of XTTS v2's size; large ones have only every n-th value. `versions` has package versions. Needs 5 GB of memory.
"""

import argparse
import importlib.metadata

import numpy as np
import torch
from seeded_weights import STOP_BIAS, sampled, seeded_integers, seeded_tensor, seeded_values
from transformers import (
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from TTS.tts.configs.xtts_config import XttsConfig
from TTS.tts.layers.xtts.dvae import DiscreteVAE
from TTS.tts.models.xtts import Xtts, XttsArgs

FULL = dict(
    gpt_number_text_tokens=6681,
    gpt_start_text_token=261,
    gpt_stop_text_token=0,
    gpt_num_audio_tokens=1026,
    gpt_start_audio_token=1024,
    gpt_stop_audio_token=1025,
    gpt_use_perceiver_resampler=True,
)
SMALL = FULL | dict(
    gpt_layers=2,
    gpt_n_model_channels=64,
    gpt_n_heads=2,
    gpt_max_audio_tokens=120,
    gpt_max_text_tokens=30,
    gpt_number_text_tokens=60,
    gpt_start_text_token=3,
    gpt_num_audio_tokens=66,
    gpt_start_audio_token=64,
    gpt_stop_audio_token=65,
    decoder_input_dim=64,
)
SMALL_DVAE = dict(num_tokens=64, codebook_dim=32, hidden_dim=32)
FULL_DVAE = dict(num_tokens=1024, codebook_dim=512, hidden_dim=512)


def seed_weights(module):
    """Sets every tensor of a module to seeded values; returns the module in evaluation mode."""
    with torch.no_grad():
        for name, tensor in module.state_dict().items():
            values = seeded_tensor(name, tensor.shape)
            if values is not None:
                tensor.copy_(torch.from_numpy(values))
    # `Xtts.eval` would add tensors for generation.
    return torch.nn.Module.train(module, False)


def make_xtts(arguments):
    config = XttsConfig()
    config.model_args = XttsArgs(**arguments)
    return seed_weights(Xtts(config))


def make_dvae(arguments):
    layers = dict(positional_dims=1, num_resnet_blocks=3, kernel_size=3, num_layers=2, use_transposed_convs=False)
    return seed_weights(DiscreteVAE(channels=80, normalization=None, **layers, **arguments))


def drawn(name, *shape, scale=1.0):
    return torch.from_numpy(seeded_values(name, shape) * np.float32(scale))


def drawn_ids(name, *shape, high):
    return torch.from_numpy(seeded_integers(name, shape, high))


def sampled_gradients(named_parameters):
    """Returns a row per parameter, sorted by name: the largest absolute gradient, then 16 samples (zero-padded)."""
    rows = []
    for _, parameter in sorted(named_parameters):
        gradient = parameter.grad.numpy()
        rows.append([np.abs(gradient).max(), *sampled(gradient)])
    return np.array(rows, np.float32)


def gpt_batch(prefix, text_lengths, wav_lengths, num_text, num_codes, frames):
    text = drawn_ids(f"{prefix}/text", len(text_lengths), max(text_lengths), high=num_text - 4) + 4
    codes = drawn_ids(f"{prefix}/codes", len(text_lengths), -(-max(wav_lengths) // 1024), high=num_codes)
    for row, length in enumerate(text_lengths):
        text[row, length:] = 0
    return dict(
        text_inputs=text,
        text_lengths=torch.tensor(text_lengths),
        audio_codes=codes,
        wav_lengths=torch.tensor(wav_lengths),
        cond_mels=drawn(f"{prefix}/conditioning_mel", len(text_lengths), 1, 80, frames),
    )


def losses_and_logits(gpt, batch):
    """Returns `(text loss, mel loss)`, and the logits `(B, T, V)` of the text head and of the mel head."""
    captured, keep = [], lambda _module, _inputs, output: captured.append(output)
    handles = [head.register_forward_hook(keep) for head in (gpt.text_head, gpt.mel_head)]
    losses = gpt(**{name: value.clone() for name, value in batch.items()})[:2]
    for handle in handles:
        handle.remove()
    return losses, *captured


def small_gpt(out):
    gpt = make_xtts(SMALL).gpt
    batch = gpt_batch("small", (9, 6), (14 * 1024 - 300, 9 * 1024), 60, 64, 50)
    (text_loss, mel_loss), out["text_logits"], out["mel_logits"] = losses_and_logits(gpt, batch)
    out["latents"] = gpt.get_style_emb(batch["cond_mels"]).transpose(1, 2)
    out["losses"] = torch.stack([text_loss, mel_loss])
    (0.01 * text_loss + mel_loss).backward()
    parameters = list(gpt.named_parameters())
    out["gradients"] = sampled_gradients(parameters)
    torch.optim.AdamW(adamw_groups(gpt), lr=1e-3, betas=(0.9, 0.96), eps=1e-8).step()
    out["adamw"] = np.stack([sampled(parameter.detach().numpy()) for _, parameter in sorted(parameters)])

    gpt = make_xtts(SMALL).gpt
    with torch.inference_mode():
        latents = gpt.get_style_emb(batch["cond_mels"][:1]).transpose(1, 2)
        text, codes = batch["text_inputs"][:1], batch["audio_codes"][:1]
        given = text, torch.tensor([9]), codes, torch.tensor([14 * 1024])
        out["second_pass"] = gpt(*given, cond_latents=latents, return_latent=True)
        gpt.mel_head.bias[-1] += STOP_BIAS
        gpt.init_gpt_for_inference(kv_cache=True)
        options = dict(do_sample=False, num_beams=1, repetition_penalty=5.0)
        codes, generated = gpt.generate(latents, text, **options, return_dict_in_generate=True, output_scores=True)
    best = torch.stack(generated.scores).topk(2).values
    print(f"greedy: {codes.shape[1]} codes, smallest lead {(best[..., 0] - best[..., 1]).min():.2e}")
    out["greedy_codes"] = codes.numpy().astype(np.int16)


def adamw_groups(gpt):
    """Returns AdamW's parameter groups as in the reference's recipe: biases, norms and embeddings do not decay."""
    spared = (torch.nn.LayerNorm, torch.nn.GroupNorm, torch.nn.Embedding)
    modules = [module for module in gpt.modules() if isinstance(module, spared)]
    plain = {id(parameter) for module in modules for parameter in module.parameters()}
    plain |= {id(parameter) for name, parameter in gpt.named_parameters() if name.endswith("bias")}
    return [
        {"params": [p for p in gpt.parameters() if id(p) not in plain], "weight_decay": 1e-2},
        {"params": [p for p in gpt.parameters() if id(p) in plain], "weight_decay": 0.0},
    ]


def sampling(out):
    """Applies the reference's logits processors to three rows of random logits; stores the result in `out`."""
    logits = drawn("small/sampling_logits", 3, 1026, scale=4.0)
    seen = drawn_ids("small/sampling_seen", 3, 12, high=1026)
    warpers = TemperatureLogitsWarper(0.75), TopKLogitsWarper(50), TopPLogitsWarper(0.85)
    chain = LogitsProcessorList([RepetitionPenaltyLogitsProcessor(5.0), *warpers])
    out["sampling"] = chain(seen, logits.clone())


def dvae_values(out, arguments, prefix, rows, frames):
    dvae = make_dvae(arguments)
    mel = drawn(f"{prefix}/mel", rows, 80, frames)
    with torch.inference_mode():
        vectors = dvae.encoder(mel).permute(0, 2, 1)
        book = dvae.codebook.embed
        nearest = (2 * vectors @ book - book.pow(2).sum(0)).topk(2).values
        codes = dvae.get_codebook_indices(mel)
        out["dvae_codes"], out["dvae_margin"] = codes.numpy().astype(np.int16), nearest[..., 0] - nearest[..., 1]
        out["dvae_decoded"] = dvae.decode(codes)[0]
    print(f"{prefix} DVAE: {codes.unique().numel()} codes of {codes.numel()}, margin {out['dvae_margin'].min():.2e}")
    return dvae, mel


def small_dvae(out):
    dvae, mel = dvae_values(out, SMALL_DVAE, "small", 2, 32)
    dvae.train()
    reconstruction, commitment, _ = dvae(mel)
    (reconstruction.mean() + commitment).backward()
    out["dvae_losses"] = torch.stack([reconstruction.mean(), commitment])
    out["dvae_gradients"] = sampled_gradients(dvae.named_parameters())
    book = dvae.codebook.embed, dvae.codebook.embed_avg, dvae.codebook.cluster_size
    out["dvae_codebook"] = np.stack([sampled(tensor.numpy()) for tensor in book])


def decoder_values(out, model, prefix, width):
    with torch.inference_mode():
        speaker = model.hifigan_decoder.speaker_encoder(drawn(f"{prefix}/wav_16k", 1, 16000, scale=0.1), l2_norm=True)
        out["speaker"] = speaker
        out["waveform"] = model.hifigan_decoder(drawn(f"{prefix}/latents", 1, 6, width), g=speaker[..., None])[0, 0]
    print(f"{prefix} waveform: deviation {out['waveform'].std():.3f}, largest {out['waveform'].abs().max():.3f}")


def full_values(out):
    model = make_xtts(FULL)
    parts = model, model.gpt, model.hifigan_decoder.waveform_decoder, model.hifigan_decoder.speaker_encoder
    out["values"] = np.array([sum(t.numel() for t in part.state_dict().values()) for part in parts])
    print("full values:", out["values"])
    batch = gpt_batch("full", (12,), (16 * 1024,), 6681, 1024, 100)
    with torch.inference_mode():
        losses, text_logits, mel_logits = losses_and_logits(model.gpt, batch)
        latents = model.gpt.get_style_emb(batch["cond_mels"]).transpose(1, 2)
        given = [batch[name] for name in ("text_inputs", "text_lengths", "audio_codes", "wav_lengths")]
        second_pass = model.gpt(*given, cond_latents=latents, return_latent=True)
    out["losses"] = torch.stack(losses)
    out["text_logits"], out["mel_logits"] = text_logits[..., ::167], mel_logits[..., ::41]
    out["latents"], out["second_pass"] = latents[..., ::32], second_pass[..., ::32]
    decoder_values(out, model, "full", 1024)
    del model
    dvae, _ = dvae_values(out, FULL_DVAE, "full", 1, 48)
    out["dvae_decoded"] = out["dvae_decoded"][..., ::4]
    out["dvae_values"] = np.array(sum(t.numel() for t in dvae.state_dict().values()))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", required=True, help="npz file to write")
    output = parser.parse_args().output
    torch.manual_seed(0)
    small, full = {}, {}
    small_gpt(small)
    sampling(small)
    small_dvae(small)
    decoder_values(small, make_xtts(SMALL), "small", 64)
    full_values(full)
    packages = ("coqui-tts", "transformers", "torch")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    arrays = {
        f"{prefix}/{name}": np.asarray(value.detach() if isinstance(value, torch.Tensor) else value)
        for prefix, values in (("small", small), ("full", full))
        for name, value in values.items()
    }
    np.savez_compressed(output, versions=np.array(versions), **arrays)
    print(f"Wrote {output} with {versions}")


if __name__ == "__main__":
    main()
