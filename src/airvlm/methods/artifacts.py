"""Calibration artifacts: a safetensors file with vectors or bases per layer, made for one model by `airvlm calibrate`.

The file's metadata says which model it was made for (name and fingerprint), for which method, from how many pairs of
which kind, and the hash of the pairs. An artifact of another model is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

__all__ = ["Artifact", "ArtifactError", "ArtifactInfo"]

FORMAT = "airvlm-artifact-1"


class ArtifactError(ValueError):
    """An artifact cannot be used; the message says why."""


@dataclass(frozen=True)
class ArtifactInfo:
    """Where an artifact comes from."""

    method: str  # that it was made for
    model: str  # name of the model
    fingerprint: str  # of its configuration and weights
    pairs: int  # how many pairs it was made of
    pairs_kind: str  # what the two members of a pair are
    pairs_hash: str  # of the images and texts
    version: str  # of airvlm


@dataclass(frozen=True)
class Artifact:
    """Tensors by name ("layer.16") and where they come from."""

    tensors: Mapping[str, Tensor]
    info: ArtifactInfo

    def save(self, path: str | Path) -> None:
        """Write the file; an existing one is replaced in one step."""
        path = Path(path)
        part = path.with_name(path.name + ".part")
        metadata = {"format": FORMAT, "info": json.dumps(asdict(self.info))}
        save_file({name: t.contiguous().cpu() for name, t in self.tensors.items()}, part, metadata)
        part.replace(path)

    @staticmethod
    def load(path: str | Path) -> Artifact:
        """Read a file, or raise ArtifactError."""
        path = Path(path).expanduser()
        try:
            return _load(path, path.stat().st_mtime_ns)
        except OSError as error:
            raise ArtifactError(f"{path}: {error.strerror or error}") from error

    def layers(self, prefix: str = "layer") -> dict[int, Tensor]:
        """The tensors named `prefix.N`, by layer."""
        found = {}
        for name, tensor in self.tensors.items():
            head, _, number = name.rpartition(".")
            if head == prefix and number.isdigit():
                found[int(number)] = tensor
        return found

    def check(self, model: nn.Module, method: str) -> None:
        """Refuse an artifact that was made for another method or model."""
        from airvlm.models.loading import fingerprint  # hashes the weights

        if self.info.method != method:
            raise ArtifactError(f"this artifact was made for {self.info.method}, not for {method}")
        own = fingerprint(model)
        if self.info.fingerprint != own:
            raise ArtifactError(
                f"this artifact was made for {self.info.model} (fingerprint {self.info.fingerprint}); this model has "
                f"{own}. Make one for it: airvlm calibrate --method {method}"
            )


@lru_cache(maxsize=8)
def _load(path: Path, modified: int) -> Artifact:
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise ArtifactError(f"{path} is not an artifact of airvlm calibrate")
            info = ArtifactInfo(**json.loads(metadata["info"]))
            return Artifact({name: file.get_tensor(name) for name in file.keys()}, info)  # noqa: SIM118  # not a dict
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, ArtifactError):
            raise
        raise ArtifactError(f"{path} is not a readable artifact: {error}") from error
