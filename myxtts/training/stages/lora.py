"""Low-rank adaptation of the GPT's attention and MLP kernels (Hu et al. 2022), by Keras's own `Dense.enable_lora`."""

import keras
import numpy as np

from myxtts.config.stages import LORA_TARGETS
from myxtts.models.gpt import GPT
from myxtts.models.layers.transformer import SITES_PER_BLOCK

TEXT_ROWS = ("text_embedding", "text_head/kernel", "text_head/bias")


class LoRA:
    """Low-rank adapters on a GPT whose other weights are frozen.

    To be made in the strategy's scope and on the model's device, after the starting weights are in place.

    An adapter's output is scaled by `alpha / rank`; without alpha, by 1. `train_text_rows` also trains the text table
    and head, which a grown vocabulary needs. `targets` are the kernels of each block that get adapters, `dropout` is
    the rate on what enters these.
    """

    def __init__(
        self,
        gpt: GPT,
        rank: int,
        train_text_rows: bool,
        alpha: float | None = None,
        targets: tuple[str, ...] = LORA_TARGETS,
        dropout: float = 0.0,
    ):
        self.layers = {}
        site = SITES_PER_BLOCK * len(gpt.blocks) + 1  # after those of the blocks and the embedding
        for number, block in enumerate(gpt.blocks):
            for place, name in enumerate(LORA_TARGETS):
                of_attention = place < 2
                path = f"block_{number}/attention" if of_attention else f"block_{number}"
                layer = getattr(block.attention if of_attention else block, name)
                if name in targets:
                    layer.enable_lora(rank, lora_alpha=alpha or rank)
                    layer.adapter_dropout.rate = dropout
                    layer.adapter_dropout.site = site + len(LORA_TARGETS) * number + place
                    self.layers[f"gpt/{path}/{name}"] = layer
        self.train_text_rows = train_text_rows

    def is_trained(self, name: str) -> bool:
        """Whether a weight of the GPT, named from below it, is trained."""
        return "lora_kernel" in name or (self.train_text_rows and name in TEXT_ROWS)

    def split(self, named: dict[str, keras.Variable]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Parts the GPT's weights into those of the plain model, kernels merged, and the adapters; both by name."""
        plain, adapters = {}, {}
        for name, variable in named.items():
            layer = self.layers.get(name.rsplit("/", 1)[0])
            adapted = layer is not None and name.endswith("/kernel")
            if adapted or "lora_kernel" in name:
                adapters[name] = variable.numpy()
            if "lora_kernel" not in name:
                # The layer's own `kernel` is the sum of the frozen one and the adapters' product.
                plain[name] = (layer.kernel if adapted else variable).numpy()
        return plain, adapters
