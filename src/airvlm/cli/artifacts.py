"""`airvlm calibrate METHOD --data FOLDER`: the artifact of a method that needs one."""

from __future__ import annotations

import json as _json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airvlm.cli import common
from airvlm.cli.console import Failure, emit
from airvlm.cli.options import ModelOptions

if TYPE_CHECKING:
    from airvlm.evaluation.artifacts import TextPair
    from airvlm.methods.artifacts import ArtifactMethod, PairKind

__all__ = ["write_artifact"]

ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff")
TEXTS = (".jsonl", ".ndjson")


def write_artifact(
    method: str,
    images: Path | None,
    output: Path | None,
    *,
    pairs: PairKind | None,
    nouns: Path | None,
    limit: int | None,
    max_new_tokens: int | None,
    model: ModelOptions,
    json: bool,
) -> None:
    """Make a method's artifact and write it.

    Args:
        method: the method's name.
        images: a folder of images, or a JSON Lines file of text pairs.
        output: the file that is written; by default METHOD.safetensors.
        pairs: what the members of a pair are; by default what the method asks for.
        nouns: a file with one word per line that may be swapped.
        limit: use the first images only.
        max_new_tokens: longest caption.
        model: which model.
        json: print one JSON object.
    """
    kind = _find_method(method)
    if images is None:
        raise Failure(f"{method}: add --data FOLDER, a folder of images or a JSON Lines file of text pairs")
    given: list[Any] = read_text_pairs(images) if images.suffix.lower() in TEXTS else _list_images(images)
    from airvlm.evaluation.artifacts import make_artifact

    words = [line.strip() for line in nouns.read_text(encoding="utf-8").splitlines()] if nouns else []
    vlm = common.load_model(model)
    path = output or Path(f"{method}.safetensors")
    artifact = make_artifact(
        vlm,
        kind,
        given[:limit],
        pairs=pairs,
        nouns=[word for word in words if word],
        max_new_tokens=max_new_tokens or 64,
        progress=not json,
    )
    artifact.save(path)
    info = asdict(artifact.info)
    if json:
        emit({"file": str(path), **info})
        return
    made_of = "images" if kind.pairs is None else f"pairs ({info['pairs_kind']})"
    print(f"{path}: {info['pairs']} {made_of}, for {info['model']} {info['fingerprint']}")
    print(f"use it: --method {method}:artifact={path}")


def _find_method(name: str) -> type[ArtifactMethod]:
    from airvlm.methods.artifacts import ArtifactMethod
    from airvlm.methods.names import METHODS

    kind = METHODS.get(name)
    if kind is None or not issubclass(kind, ArtifactMethod):
        known = ", ".join(sorted(n for n, k in METHODS.items() if issubclass(k, ArtifactMethod)))
        problem = (
            METHODS.unknown("method", name)
            if kind is None
            else f"{name} needs no artifact (its options: airvlm calibrate TASK --method {name})"
        )
        raise Failure(f"{problem}. Methods that need one: {known}")
    return kind


def _list_images(folder: Path) -> list[Path]:
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in ENDINGS) if folder.is_dir() else []
    if not found:
        raise Failure(f"--data {folder}: it is not a folder with images")
    return found


def read_text_pairs(path: Path) -> list[TextPair]:
    """Lines {"image": FILE, "truthful": TEXT, "hallucinated": TEXT}; files are found beside this one."""
    from airvlm.evaluation.artifacts import TextPair

    pairs = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            entry = _json.loads(line)
            pairs.append(TextPair(path.parent / entry["image"], entry["truthful"], entry["hallucinated"]))
        except (ValueError, KeyError, TypeError) as error:
            raise Failure(
                f'{path}, line {number}: expected {{"image": ..., "truthful": ..., "hallucinated": ...}}'
            ) from error
    return pairs
