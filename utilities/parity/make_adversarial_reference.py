"""Writes tests/data/adversarial_small.npz: one turn of a discriminator and one of a HiFi-GAN generator, by PyTorch.

Run with the Python of an environment that has PyTorch and NumPy (`pip install torch`); nothing of MyXTTS is imported:

    python utilities/parity/make_adversarial_reference.py --output tests/data/adversarial_small.npz

Layers and losses are written after the papers and the authors' code (jik876/hifi-gan). Weights are drawn by name, in
PyTorch's layout; of each weight's gradient the largest absolute value and up to 16 values are kept.
"""

import argparse

import numpy as np
import torch
import torch.nn.functional as F
from seeded_weights import sampled_positions, seeded_values

UPSAMPLING, KERNELS, DILATIONS, CHANNELS = ((8, 16), (8, 16), (2, 4), (2, 4)), (3, 7), (1, 3), 16
PERIODS, RESOLUTIONS = (2, 3), (512,)
PERIOD_CHANNELS, SPECTRUM_CHANNELS = (4, 4, 8, 16, 16), (4, 4, 4, 4, 4)
CLIPS, FRAMES, WIDTH, SPEAKER = 2, 8, 6, 5
SOURCE_RATES = (24000, 8000)


class Weights(dict):
    """Tensors by name, drawn when they are first asked for."""

    def __init__(self, prefix):
        super().__init__()
        self.prefix = prefix

    def get(self, name, *shape):
        if name not in self:
            fan_in = 25 if name.endswith("bias") else int(np.prod(shape[1:]))
            values = seeded_values(f"{self.prefix}/{name}", shape) / np.float32(np.sqrt(fan_in))
            self[name] = torch.from_numpy(values).requires_grad_()
        return self[name]


def conv(weights, name, x, channels, taps, bias=True, **options):
    kernel = weights.get(f"{name}/kernel", channels, x.shape[1], *taps)
    apply = F.conv1d if len(taps) == 1 else F.conv2d
    return apply(x, kernel, weights.get(f"{name}/bias", channels) if bias else None, **options)


def dense(weights, name, x, units):
    kernel = weights.get(f"{name}/kernel", units, x.shape[1])
    return F.linear(x, kernel, weights.get(f"{name}/bias", units))[..., None]


def generator(weights, frames, speaker):
    x = conv(weights, "conv_pre", frames, CHANNELS, (7,), padding=3)
    x = x + dense(weights, "condition_pre", speaker, CHANNELS)
    for i, (factor, taps) in enumerate(UPSAMPLING):
        width = x.shape[1] // 2
        kernel = weights.get(f"upsample_{i}/kernel", 2 * width, width, taps)
        options = dict(stride=factor, padding=(taps - factor) // 2)
        x = F.conv_transpose1d(F.leaky_relu(x, 0.1), kernel, weights.get(f"upsample_{i}/bias", width), **options)
        x = x + dense(weights, f"condition_{i}", speaker, width)
        branches = []
        for j, size in enumerate(KERNELS):
            branch = x
            for k, dilation in enumerate(DILATIONS):
                names = (f"stack_{i}_{j}/{kind}_{k}" for kind in ("dilated", "plain"))
                hidden = branch
                for name, reach in zip(names, (dilation, 1)):
                    options = dict(dilation=reach, padding=reach * (size - 1) // 2)
                    hidden = conv(weights, name, F.leaky_relu(hidden, 0.1), width, (size,), **options)
                branch = branch + hidden
            branches.append(branch)
        x = sum(branches) / len(branches)
    return torch.tanh(conv(weights, "conv_post", F.leaky_relu(x, 0.01), 1, (7,), bias=False, padding=3))[:, 0]


def spectrum(wav, n_fft):
    hop = n_fft // 4
    wav = F.pad(wav[:, None], ((n_fft - hop) // 2,) * 2, mode="reflect")[:, 0]
    return torch.stft(wav, n_fft, hop, window=torch.hann_window(n_fft), center=False, return_complex=True)


def by_period(weights, wav, period):
    name, wav = f"period_{period}", wav[:, None]
    wav = F.pad(wav, (0, -wav.shape[2] % period), mode="reflect")
    x, maps = wav.view(len(wav), 1, -1, period), []
    for index, channels in enumerate(PERIOD_CHANNELS):
        stride = 1 if index == len(PERIOD_CHANNELS) - 1 else 3
        # One kernel column: the same for every phase of the period.
        kernel = weights.get(f"{name}/conv_{index}/kernel", channels, x.shape[1], 5)[..., None]
        bias = weights.get(f"{name}/conv_{index}/bias", channels)
        x = F.leaky_relu(F.conv2d(x, kernel, bias, (stride, 1), (2, 0)), 0.1)
        maps.append(x)
    kernel, bias = (
        weights.get(f"{name}/score/kernel", 1, x.shape[1], 3)[..., None],
        weights.get(f"{name}/score/bias", 1),
    )
    return [*maps, F.conv2d(x, kernel, bias, padding=(1, 0))]


def by_spectrum(weights, wav, n_fft):
    name, value = f"spectrum_{n_fft}", spectrum(wav, n_fft).transpose(1, 2)
    x, maps = torch.stack([value.real, value.imag], dim=1), []
    for index, channels in enumerate(SPECTRUM_CHANNELS):
        last = index == len(SPECTRUM_CHANNELS) - 1
        taps, stride = (3, 3) if last else (3, 9), (1, 2) if 0 < index and not last else (1, 1)
        padding = (1, taps[1] // 2)
        x = F.leaky_relu(conv(weights, f"{name}/conv_{index}", x, channels, taps, stride=stride, padding=padding), 0.1)
        maps.append(x)
    return [*maps, conv(weights, f"{name}/score", x, 1, (3, 3), padding=1)]


def discriminate(weights, wav):
    by_periods = [by_period(weights, wav, period) for period in PERIODS]
    return by_periods + [by_spectrum(weights, wav, n_fft) for n_fft in RESOLUTIONS]


def mel_filters(n_fft=1024, bands=80, rate=24000):
    """HTK scale, unit area, `(bands, bins)`."""
    top = 2595 * np.log10(1 + rate / 2 / 700)
    edges = 700 * (10 ** (np.linspace(0, top, bands + 2) / 2595) - 1)
    bins = np.linspace(0, rate / 2, n_fft // 2 + 1)
    rising = (bins[None] - edges[:-2, None]) / np.diff(edges)[:-1, None]
    falling = (edges[2:, None] - bins[None]) / np.diff(edges)[1:, None]
    return np.maximum(0, np.minimum(rising, falling)) * (2 / (edges[2:] - edges[:-2]))[:, None], bins


def floor_of(top_hz):
    """1e-5 up to 0.46 of each recording's own rate, 1e-3 above."""
    limits = 0.46 * np.array(SOURCE_RATES)[:, None]
    return torch.from_numpy(np.where(top_hz[None] <= limits, 1e-5, 1e-3).astype("float32"))[..., None]


def mel_loss(real, made):
    filters, bins = mel_filters()
    floors = floor_of(np.array([bins[band > 1e-12].max() for band in filters]))
    filters = torch.from_numpy(filters.astype("float32"))
    logarithms = []
    for wav in (real, made):
        magnitude = torch.sqrt(spectrum(wav, 1024).abs() ** 2 + 1e-9)
        logarithms.append(torch.log(torch.maximum(filters @ magnitude, floors)))
    return F.l1_loss(*logarithms)


def stft_loss(real, made):
    total = 0.0
    for n_fft in (512, 1024, 2048):
        floors = floor_of(np.linspace(0, 12000, n_fft // 2 + 1)) * n_fft**0.5
        a, b = (torch.sqrt(spectrum(wav, n_fft).abs() ** 2 + 1e-9) for wav in (real, made))
        convergence = torch.stack([torch.norm(x - y) / torch.norm(x) for x, y in zip(a, b)]).mean()
        total = total + convergence
        total = total + F.l1_loss(torch.log(torch.maximum(a, floors)), torch.log(torch.maximum(b, floors)))
    return total / 3


def gradients(weights):
    """One row per weight in the order of names: largest absolute value, up to 16 values, zeros."""
    rows = np.zeros((len(weights), 17), np.float32)
    for row, name in zip(rows, sorted(weights)):
        gradient = weights[name].grad.numpy().reshape(-1)
        positions = sampled_positions(gradient.size)
        row[0], row[1 : 1 + len(positions)] = np.abs(gradient).max(), gradient[positions]
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", required=True)
    path = parser.parse_args().output
    frames = torch.from_numpy(seeded_values("frames", (CLIPS, FRAMES, WIDTH))).transpose(1, 2)
    speaker = torch.from_numpy(seeded_values("speaker", (CLIPS, SPEAKER)))
    real = torch.from_numpy(0.1 * seeded_values("real", (CLIPS, FRAMES * 256)))
    of_generator, of_discriminator = Weights("generator"), Weights("discriminator")
    made = generator(of_generator, frames, speaker)
    found = {"made": made.detach().numpy()[:, ::16]}

    ours, theirs = discriminate(of_discriminator, real), discriminate(of_discriminator, made.detach())
    terms = dict(
        real=sum(torch.mean((1 - maps[-1]) ** 2) for maps in ours),
        made=sum(torch.mean(maps[-1] ** 2) for maps in theirs),
    )
    sum(terms.values()).backward()
    found |= {f"discriminator/{name}": value.item() for name, value in terms.items()}
    found["discriminator/gradients"] = gradients(of_discriminator)

    theirs = discriminate(of_discriminator, made)
    pairs = [pair for one, other in zip(ours, theirs) for pair in zip(one, other)]
    terms = dict(
        adversarial=sum(torch.mean((1 - maps[-1]) ** 2) for maps in theirs),
        features=sum(torch.mean(torch.abs(one.detach() - other)) for one, other in pairs),
        mel=mel_loss(real, made),
        stft=stft_loss(real, made),
    )
    (terms["adversarial"] + 2 * terms["features"] + 45 * terms["mel"] + terms["stft"]).backward()
    found |= {f"generator/{name}": value.item() for name, value in terms.items()}
    found["generator/gradients"] = gradients(of_generator)
    hinges = [
        sum(torch.mean(F.relu(1 + sign * maps[-1])) for maps in group) for sign, group in ((-1, ours), (1, theirs))
    ]
    found["hinge"] = [value.item() for value in hinges]
    np.savez_compressed(path, versions=f"torch {torch.__version__}, numpy {np.__version__}", **found)
    print({name: value for name, value in found.items() if np.ndim(value) == 0})


if __name__ == "__main__":
    main()
