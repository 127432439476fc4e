"""Nullu in the weights of a checkpoint: vLLM gives the answers that the hooks give in transformers."""

from pathlib import Path
from typing import Any

from vllm_engine import engine, request, said
from vllm_models import padded_tiny

from airvlm import VLM, Nullu
from airvlm.evaluation.artifacts import make_artifact
from airvlm.inputs.images import load_image
from airvlm.tiny import scenes

DESCRIBE = "Please describe this image in detail."


def test_the_baked_checkpoint_gives_the_texts_of_the_hooks(tmp_path: Path) -> None:
    vlm = VLM.load(str(padded_tiny(tmp_path / "model")))
    images: list[Any] = [load_image(scene.path) for scene in scenes("test")[:28]]
    make_artifact(vlm, Nullu, images[:12]).save(tmp_path / "nullu.safetensors")
    method = Nullu(artifact=str(tmp_path / "nullu.safetensors"), rank=6)
    asked = [(image, DESCRIBE) for image in images[12:]]
    hooks = list(vlm.batch(asked, method=method, max_new_tokens=24, progress=False))
    plain = list(vlm.batch(asked, max_new_tokens=24, progress=False))
    method.bake(vlm.model)
    vlm.model.save_pretrained(tmp_path / "baked")
    vlm.processor.save_pretrained(tmp_path / "baked")
    with engine(tmp_path / "baked", method=False) as llm:
        got = said(llm, [request(answer.prompt, [image]) for answer, (image, _) in zip(hooks, asked)])
    assert got == [answer.text for answer in hooks]
    assert got != [answer.text for answer in plain]
