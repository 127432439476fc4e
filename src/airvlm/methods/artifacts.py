"""Calibration artifacts: a safetensors file with vectors or bases per layer, made for one model by `airvlm calibrate`.

The file's metadata says which model it was made for (name and fingerprint), for which method, from how many pairs of
which kind, and the hash of the pairs. An artifact of another model is refused. A method that needs one derives from
`ArtifactMethod` and writes `fit`, which turns the differences between the members of pairs into tensors.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal
from weakref import WeakKeyDictionary

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from airvlm.methods.base import Method, option
from airvlm.models.parts import ModelParts
from airvlm.storage.atomic import write_atomically

__all__ = ["Artifact", "ArtifactError", "ArtifactInfo", "ArtifactMethod", "PairKind", "Reads", "sample_weights"]

FORMAT = "airvlm-artifact-1"
SAMPLE = "sample"  # name of the tensor that holds `sample_weights` of the model
PER_WEIGHT = 16  # values that are sampled of each weight
CLOSE = 5e-3  # relative distance up to which weights are the same in another precision: bfloat16 rounds by 2e-3

PairKind = Literal["image", "degraded", "swapped"]
Reads = Literal["caption", "last", "all"]
_CHECKED: WeakKeyDictionary[nn.Module, set[tuple[str, int]]] = WeakKeyDictionary()  # fingerprint, version of weights


class ArtifactError(ValueError):
    """An artifact cannot be used; the message says why."""


@dataclass(frozen=True)
class ArtifactInfo:
    """Where an artifact comes from."""

    method: str  # that it was made for
    model: str  # name of the model
    fingerprint: str  # of its configuration and weights
    pairs: int  # how many pairs, or images, it was made of
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
        metadata = {"format": FORMAT, "info": json.dumps(asdict(self.info))}
        content = save({name: t.contiguous().cpu() for name, t in self.tensors.items()}, metadata)
        write_atomically(Path(path), content)

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
        """Refuse an artifact that was made for another method or model. The same weights in another dtype are fine."""
        from airvlm.models.loading import fingerprint  # hashes the weights

        if self.info.method != method:
            raise ArtifactError(f"this artifact was made for {self.info.method}, not for {method}")
        version = sum(parameter._version for parameter in model.parameters())  # counts changes in place
        known = _CHECKED.setdefault(model, set())
        if (self.info.fingerprint, version) in known:
            return
        own = fingerprint(model)
        if self.info.fingerprint != own and not self._is_close(model):
            raise ArtifactError(
                f"this artifact was made for {self.info.model} (fingerprint {self.info.fingerprint}); this model has "
                f"{own}. Make one for it: airvlm calibrate {method} --data FOLDER"
            )
        known.add((self.info.fingerprint, version))

    def _is_close(self, model: nn.Module) -> bool:
        there, here = self.tensors.get(SAMPLE), sample_weights(model)
        if there is None or there.shape != here.shape or not len(here):
            return False
        return bool((there - here).norm() <= CLOSE * there.norm())


@torch.no_grad()
def sample_weights(model: nn.Module) -> Tensor:
    """A few values of every matrix of the model, in float32: they tell models apart whatever their dtype."""
    found = []
    for _, weight in sorted(model.named_parameters()):
        if weight.is_floating_point() and weight.dim() > 1 and weight.device.type != "meta":
            flat = weight.detach().reshape(-1)
            step = max(1, flat.numel() // PER_WEIGHT)
            found.append(flat[::step][:PER_WEIGHT].float().cpu())
    return torch.cat(found) if found else torch.zeros(0)


@dataclass(frozen=True)
class ArtifactMethod(Method):
    """Base of methods that need vectors or bases which were found on pairs, in a file made by `airvlm calibrate`."""

    data: ClassVar[str] = "an artifact of airvlm calibrate (unlabeled images)"
    # What the two members of a pair are, unless the user says otherwise; None: `measure` is all there is
    pairs: ClassVar[PairKind | None] = "degraded"
    reads: ClassVar[Reads] = "caption"  # positions whose states are averaged
    published_reads: ClassVar[Reads | None] = None  # those of the published code, if its artifact differs

    artifact: str = option("", "file made by airvlm calibrate", file=True)

    @classmethod
    def fit(cls, differences: Mapping[int, Tensor]) -> dict[str, Tensor]:
        """The artifact's tensors.

        Args:
            differences: per layer (n, d), float32: the truthful member's state minus the other one's, for n pairs.
        """
        raise NotImplementedError

    @classmethod
    def measure(cls, parts: ModelParts, prompts: Iterable[Mapping[str, Tensor]], seed: int) -> dict[str, Tensor]:
        """Further tensors of the artifact, from plain passes over the images' prompts; none unless a method says so.

        Args:
            parts: of the model.
            prompts: the model's inputs for each image, batches of one row.
            seed: of whatever is drawn at random.
        """
        return {}

    def load_artifact(self, parts: ModelParts) -> Artifact:
        """The artifact, which must have been made for this method and model."""
        if not self.artifact:
            raise ArtifactError(
                f"{self.name} needs an artifact: airvlm calibrate {self.name} --data FOLDER --output FILE, then "
                f"{self.name}:artifact=FILE"
            )
        artifact = Artifact.load(self.artifact)
        artifact.check(parts.model, self.name)
        return artifact


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
