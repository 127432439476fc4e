"""Memory of one call of the vision tower, for as many views (tiles, crops) as a call may hold, at real widths.

The tower and projector of each model run on the meta device in half precision: shapes without numbers. What is alive at
once is counted tensor by tensor; weights are not. At native resolution a view is a square of 448 pixels. Two numbers of
views show that memory is linear in them: `Family.view_bytes` holds the bytes of one, and `airvlm info models NAME`
multiplies.

    python -m experiments.speed.tower_memory [--views 10]
"""

from __future__ import annotations

import weakref
from typing import Any
from unittest import mock

import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from transformers import AutoConfig, AutoModelForImageTextToText

from airvlm.models.families import MAX_CROP_BATCH, VIEW_SIDE
from experiments.speed import timing

# One decoder layer: the tower and the projector to the decoder's width are what is run
CLIP = {"model_type": "clip_vision_model", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24}
CLIP |= {"num_attention_heads": 16, "image_size": 336, "patch_size": 14}
MODELS: dict[str, dict[str, Any]] = {
    "llava": {"vision_config": CLIP, "text_config": {"hidden_size": 4096, "num_hidden_layers": 1}},
    "llava_next": {"vision_config": CLIP, "text_config": {"hidden_size": 4096, "num_hidden_layers": 1}},
    "internvl": {
        "vision_config": {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24},
        "text_config": {"hidden_size": 3584, "num_hidden_layers": 1},
    },
    "qwen2_5_vl": {
        "vision_config": {"out_hidden_size": 3584},  # depth 32, width 1280, feed-forward 3420
        "text_config": {"hidden_size": 3584, "num_hidden_layers": 1},
    },
}


class LivePeak(TorchDispatchMode):
    """Counts the bytes of tensors that are alive, and the most there were."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.live, self.peak = 0, 0
        self._weights = [parameter.untyped_storage() for parameter in model.parameters()]  # kept alive
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet(self._weights)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = (args, kwargs or {})
        if any(isinstance(one, torch.Tensor) and one.is_meta for one in tree_leaves(given)):
            # positions are computed from the grid on the CPU
            given = tree_map(lambda one: one.to("meta") if isinstance(one, torch.Tensor) else one, given)
        out = func(*given[0], **given[1])
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage not in self._seen:
                    self._seen.add(storage)
                    self.live += storage.nbytes()
                    weakref.finalize(storage, self._free, storage.nbytes())
        self.peak = max(self.peak, self.live)
        return out

    def _free(self, size: int) -> None:
        self.live -= size


def image_inputs(family: str, views: int) -> dict[str, torch.Tensor]:
    """Inputs of the tower, as many as `views` views."""
    if family == "qwen2_5_vl":
        side = VIEW_SIDE // 14
        pixels = torch.empty(views * side * side, 3 * 2 * 14 * 14, dtype=torch.bfloat16, device="meta")
        return {"pixel_values": pixels, "image_grid_thw": torch.tensor([[1, side, side]] * views)}
    side = 448 if family == "internvl" else 336
    if family == "llava_next":  # five views per crop, the base one and 2 x 2 tiles
        crops = -(-views // 5)
        pixels = torch.empty(crops, 5, 3, side, side, dtype=torch.bfloat16, device="meta")
        return {"pixel_values": pixels, "image_sizes": torch.tensor([[2 * side, 2 * side]] * crops)}
    return {"pixel_values": torch.empty(views, 3, side, side, dtype=torch.bfloat16, device="meta")}


@torch.no_grad()
def measure(family: str, views: int) -> int:
    """Most bytes that are alive during one call of the tower and projector."""
    config = AutoConfig.for_model(family, **MODELS[family])
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16)
    inputs = image_inputs(family, views)
    # as flash attention does, which never holds the scores; on the meta device they would be held
    flash = mock.patch.object(functional, "scaled_dot_product_attention", lambda q, *_, **__: torch.empty_like(q))
    with LivePeak(model) as counted, flash:
        model.base_model.get_image_features(**inputs, return_dict=True)
    return counted.peak


def main() -> None:
    given = timing.parse_arguments(__doc__ or "", views=10)
    rows, result = [], {}
    for family in MODELS:
        half, whole = result[family] = [measure(family, views) for views in (given.views // 2, given.views)]
        per_view = whole / given.views
        print(f"{family}: {per_view:.0f} bytes per view, {half / (given.views // 2):.0f} with half as many", flush=True)
        rows.append([family, f"{per_view / 1e6:.1f}", f"{MAX_CROP_BATCH * per_view / 1e9:.2f}"])
    head = ["family", "MB per view", f"GB of {MAX_CROP_BATCH} views"]
    timing.print_table("One call of the vision tower in half precision, without weights", head, rows)
    timing.write_result("tower_memory", {"views": given.views, "bytes": result})


if __name__ == "__main__":
    main()
