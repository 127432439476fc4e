"""A tower in open_clip's layout gives the features that transformers' own layout gives."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import CLIPVisionConfig, CLIPVisionModel

from airvlm.smol.tower import read_open_clip_tower

WIDTH, PATCH, SIDE, LAYERS = 128, 8, 4, 3


def make_open_clip_tensors() -> dict[str, Tensor]:
    """Random tensors under the names of open_clip's visual transformer, and some of its text half."""

    def layer(name: str, *shape: int) -> dict[str, Tensor]:
        return {f"visual.{name}.weight": torch.randn(shape) * 0.1, f"visual.{name}.bias": torch.randn(shape[0]) * 0.1}

    tensors = {
        "logit_scale": torch.tensor(4.6),
        "token_embedding.weight": torch.randn(10, 8),
        "transformer.resblocks.0.ln_1.weight": torch.randn(8),
        "visual.class_embedding": torch.randn(WIDTH),
        "visual.positional_embedding": torch.randn(SIDE * SIDE + 1, WIDTH),
        "visual.proj": torch.randn(WIDTH, 16),
        "visual.conv1.weight": torch.randn(WIDTH, 3, PATCH, PATCH) * 0.1,
        **layer("ln_pre", WIDTH),
        **layer("ln_post", WIDTH),
    }
    for number in range(LAYERS):
        block = f"transformer.resblocks.{number}"
        tensors |= layer(f"{block}.ln_1", WIDTH) | layer(f"{block}.ln_2", WIDTH)
        tensors |= layer(f"{block}.attn.out_proj", WIDTH, WIDTH)
        tensors |= layer(f"{block}.mlp.c_fc", 96, WIDTH) | layer(f"{block}.mlp.c_proj", WIDTH, 96)
        tensors[f"visual.{block}.attn.in_proj_weight"] = torch.randn(3 * WIDTH, WIDTH) * 0.1
        tensors[f"visual.{block}.attn.in_proj_bias"] = torch.randn(3 * WIDTH) * 0.1
    return tensors


def attend(tensors: dict[str, Tensor], block: str, hidden: Tensor) -> Tensor:
    """One residual block, written out from open_clip's names with torch's own attention."""
    attention = torch.nn.MultiheadAttention(WIDTH, WIDTH // 64, batch_first=True)
    names = ("in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias")
    attention.load_state_dict({name: tensors[f"{block}.attn.{name}"] for name in names})

    def norm(name: str, x: Tensor) -> Tensor:
        return torch.layer_norm(x, (WIDTH,), tensors[f"{block}.{name}.weight"], tensors[f"{block}.{name}.bias"])

    def linear(name: str, x: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, tensors[f"{block}.{name}.weight"], tensors[f"{block}.{name}.bias"])

    x = norm("ln_1", hidden)
    hidden = hidden + attention(x, x, x, need_weights=False)[0]
    x = linear("mlp.c_fc", norm("ln_2", hidden))
    return hidden + linear("mlp.c_proj", x * torch.sigmoid(1.702 * x))


@torch.no_grad()
def test_it_computes_what_the_original_computes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tensors = make_open_clip_tensors()
    save_file(tensors, tmp_path / "open_clip_model.safetensors")
    model = read_open_clip_tower(tmp_path / "open_clip_model.safetensors")
    pixels = torch.randn(2, 3, SIDE * PATCH, SIDE * PATCH)
    found = model(pixels, output_hidden_states=True).hidden_states

    patches = torch.conv2d(pixels, tensors["visual.conv1.weight"], stride=PATCH).flatten(2).mT
    start = tensors["visual.class_embedding"].expand(2, 1, WIDTH)
    hidden = torch.cat([start, patches], 1) + tensors["visual.positional_embedding"]
    hidden = torch.layer_norm(hidden, (WIDTH,), tensors["visual.ln_pre.weight"], tensors["visual.ln_pre.bias"])
    torch.testing.assert_close(found[0], hidden)
    for number in range(LAYERS):
        hidden = attend(tensors, f"visual.transformer.resblocks.{number}", hidden)
        torch.testing.assert_close(found[number + 1], hidden, rtol=1e-4, atol=1e-4)


def test_sizes_are_those_of_vit_b_16() -> None:
    plain = CLIPVisionConfig(patch_size=16)
    assert (plain.hidden_act, plain.hidden_size // plain.num_attention_heads) == ("quick_gelu", 64)
    assert plain.layer_norm_eps == 1e-5


def test_another_file_is_refused(tmp_path: Path) -> None:
    tensors = make_open_clip_tensors()
    del tensors["visual.transformer.resblocks.1.mlp.c_fc.bias"]
    save_file(tensors, tmp_path / "part.safetensors")
    with pytest.raises(ValueError, match=r"part\.safetensors is not a CLIP checkpoint"):
        read_open_clip_tower(tmp_path / "part.safetensors")
    save_file(CLIPVisionModel(CLIPVisionConfig(num_hidden_layers=1)).state_dict(), tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match=r"other\.safetensors is not a CLIP checkpoint"):
        read_open_clip_tower(tmp_path / "other.safetensors")


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("positional_embedding", torch.tensor(1.0)),
        ("positional_embedding", torch.zeros(0)),
        ("transformer.resblocks.0.mlp.c_fc.weight", torch.tensor(1.0)),
        ("transformer.resblocks.0.attn.in_proj_weight", torch.zeros(7)),
        ("conv1.weight", torch.zeros(64, 1, 0, 0)),
        ("transformer.resblocks.x.ln_1.weight", torch.zeros(3)),
        ("unknown.weight", torch.zeros(3)),
    ],
)
def test_tensors_of_any_shape_give_one_error(tmp_path: Path, name: str, tensor: Tensor) -> None:
    save_file({**make_open_clip_tensors(), f"visual.{name}": tensor}, tmp_path / "odd.safetensors")
    with pytest.raises(ValueError, match=r"odd\.safetensors is not a CLIP checkpoint"):
        read_open_clip_tower(tmp_path / "odd.safetensors")
