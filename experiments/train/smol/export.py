"""Write the trained part as one safetensors file, and the whole model as a transformers folder.

python -m experiments.train.smol.export CHECKPOINT PARTS --trained FILE [--model FOLDER]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoTokenizer, CLIPVisionModel, LlamaForCausalLM

from airvlm.smol.assembly import LANGUAGE_MODEL, PROBE, TOWER, assemble, sample_weights
from experiments.train.smol.features import SIDE
from experiments.train.smol.tune import LORA_ALPHA, LORA_RANK


def rename_lora(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """PEFT's names as the names of the weights they belong to: `<weight>.A` and `<weight>.B`."""
    found = {}
    for name, tensor in state.items():
        owner, kind = name.removeprefix("base_model.model.").removesuffix(".weight").rsplit(".lora_", 1)
        found[f"lora.{owner}.{kind[0]}"] = tensor
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("parts", type=Path, help="folder that experiments.train.smol.parts wrote")
    parser.add_argument("--trained", type=Path, required=True, help="safetensors file to write")
    parser.add_argument("--model", type=Path, default=None, help="folder for the assembled model")
    given = parser.parse_args()
    kept = torch.load(given.checkpoint, weights_only=True)
    tensors = {f"projector.{name}": tensor for name, tensor in kept["projector"].items()} | rename_lora(kept["lora"])
    for prefix, kind, part in (
        ("tower_sample", CLIPVisionModel, TOWER),
        ("language_model_sample", LlamaForCausalLM, LANGUAGE_MODEL),
    ):
        sample = sample_weights(kind.from_pretrained(given.parts / part.folder))
        tensors |= {f"{prefix}.{name}": tensor for name, tensor in sample.items()}
    tokenizer = AutoTokenizer.from_pretrained(given.parts / LANGUAGE_MODEL.folder)
    facts = {
        "image_size": str(SIDE),
        "lora_scale": str(LORA_ALPHA / LORA_RANK),
        "probe": json.dumps(tokenizer(PROBE, add_special_tokens=False)["input_ids"]),
    }
    given.trained.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.half().contiguous() for name, tensor in sorted(tensors.items())}, given.trained, facts)
    print(f"{given.trained}: {given.trained.stat().st_size / 1e6:.1f} MB")
    if given.model:
        model, processor = assemble(given.parts, trained=given.trained)
        model.save_pretrained(given.model)
        processor.save_pretrained(given.model)
        print(f"{given.model}: {sum(p.numel() for p in model.parameters()):,} parameters")


if __name__ == "__main__":
    main()
