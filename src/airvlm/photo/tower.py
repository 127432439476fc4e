"""The vision tower of the model photo: EfficientNet-lite's convolutions and an adapter to visual tokens.

Two feature maps become tokens: the last one (stride 32) and one before it (stride 16). A token covers 32 x 32 pixels
(2 x 2 cells of the finer map are folded into one), or 16 x 16 in towers for small images (each cell of the coarser map
is repeated for the four that it covers). Normalizations are folded into the convolutions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPooling

from airvlm.photo import MODEL_TYPE

__all__ = ["EfficientNetLiteConfig", "EfficientNetLiteTower", "register"]

# repeats, kernel, stride, expansion, channels of each stage of lite0, the smallest of the family
LITE0 = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
LOWER_STAGES = 5  # up to stride 16
CPU_BATCH = 2  # images per forward pass: their widest maps fit into a core's cache, three times as fast as 24


class EfficientNetLiteConfig(PreTrainedConfig):
    """Configuration of `EfficientNetLiteTower`."""

    model_type = MODEL_TYPE

    def __init__(
        self,
        image_size: int = 224,
        patch_size: int = 32,
        stem_channels: int = 32,
        stages: tuple[tuple[int, int, int, int, int], ...] = LITE0,
        adapter_size: int = 512,
        hidden_size: int = 256,
        **options: Any,
    ) -> None:
        self.image_size = image_size
        if patch_size not in (16, 32):
            raise ValueError(f"patch_size is {patch_size}; a token covers 16 or 32 pixels")
        self.patch_size = patch_size
        self.stem_channels = stem_channels
        self.stages = [list(stage) for stage in stages]
        self.adapter_size = adapter_size
        self.hidden_size = hidden_size
        super().__init__(**options)


class SameConv(nn.Conv2d):
    """A convolution with TensorFlow's padding: the odd pixel is at the right and at the bottom."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        even = kernel // 2 if stride == 1 else 0
        super().__init__(inputs, outputs, kernel, stride, padding=even, groups=groups)

    def forward(self, x: Tensor) -> Tensor:
        if self.stride[0] > 1:
            total = [self._padding(side) for side in x.shape[-2:]]
            (top, left) = (t // 2 for t in total)
            x = F.pad(x, (left, total[1] - left, top, total[0] - top))
        return super().forward(x)

    def _padding(self, side: int) -> int:
        kernel, stride = self.kernel_size[0], self.stride[0]
        return max(0, (-(-side // stride) - 1) * stride + kernel - side)


def _relu6(x: Tensor) -> Tensor:
    """relu6 of a convolution's output, in its place: new memory for the widest maps takes longer than the function."""
    return F.relu6(x, inplace=True)


class Block(nn.Module):
    """An inverted bottleneck: expand, one filter per channel, project; added to its input if the shapes agree."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inputs * expansion
        self.expand = SameConv(inputs, wide, 1) if expansion > 1 else None
        self.depthwise = SameConv(wide, wide, kernel, stride, groups=wide)
        self.project = SameConv(wide, outputs, 1)
        self.skips = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y = x if self.expand is None else _relu6(self.expand(x))
        y = self.project(_relu6(self.depthwise(y)))
        return x + y if self.skips else y


class EfficientNetLiteTower(PreTrainedModel):
    """Images (B, 3, H, W) to visual tokens (B, N, hidden_size)."""

    config_class = EfficientNetLiteConfig
    main_input_name = "pixel_values"
    input_modalities = ("image",)
    _no_split_modules = ("Block",)
    size_step = 32  # convolutions take any side that is a multiple of it

    def __init__(self, config: EfficientNetLiteConfig) -> None:
        super().__init__(config)
        self.patch_size = config.patch_size
        self.stem = SameConv(3, config.stem_channels, 3, 2)
        channels = config.stem_channels
        parts: list[list[nn.Module]] = [[], []]
        widths = []
        for number, (repeats, kernel, stride, expansion, outputs) in enumerate(config.stages):
            for k in range(repeats):
                block = Block(channels, outputs, kernel, stride if k == 0 else 1, expansion)
                parts[number >= LOWER_STAGES].append(block)
                channels = outputs
            widths.append(channels)
        self.lower, self.upper = (nn.Sequential(*blocks) for blocks in parts)
        both = widths[-1] + (config.patch_size // 16) ** 2 * widths[LOWER_STAGES - 1]
        self.adapter = nn.Sequential(
            nn.LayerNorm(both),
            nn.Linear(both, config.adapter_size),
            nn.GELU(),
            nn.Linear(config.adapter_size, config.hidden_size),
        )
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Weights are always loaded: converted ones for training, trained ones otherwise."""

    def stride16(self, pixel_values: Tensor) -> Tensor:
        """Images (B, 3, H, W) to the map (B, c, H/16, W/16). Training caches it while the lower part is frozen."""
        x: Tensor = self.lower(_relu6(self.stem(pixel_values)))
        return x

    def tokens(self, stride16: Tensor) -> Tensor:
        """That map to the tokens (B, N, hidden_size), row by row."""
        last = self.upper(stride16)
        if self.patch_size == 32:
            both = torch.cat([last, F.pixel_unshuffle(stride16, 2)], dim=1)
        else:
            both = torch.cat([F.interpolate(last, scale_factor=2), stride16], dim=1)
        done: Tensor = self.adapter(both.flatten(2).transpose(1, 2))
        return done

    def _encode(self, pixel_values: Tensor) -> Tensor:
        return self.tokens(self.stride16(pixel_values.contiguous(memory_format=torch.channels_last)))

    def forward(self, pixel_values: Tensor, **options: Any) -> BaseModelOutputWithPooling:
        if pixel_values.device.type == "cpu":
            tokens = torch.cat([self._encode(few) for few in pixel_values.split(CPU_BATCH)])
        else:
            tokens = self._encode(pixel_values)
        return BaseModelOutputWithPooling(last_hidden_state=tokens, hidden_states=(tokens,))


def register() -> None:
    """Let transformers build the tower by its model type in a config.json."""
    AutoConfig.register(EfficientNetLiteConfig.model_type, EfficientNetLiteConfig, exist_ok=True)
    AutoModel.register(EfficientNetLiteConfig, EfficientNetLiteTower, exist_ok=True)
