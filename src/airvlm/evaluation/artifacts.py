"""Making the artifact of a method from pairs, by default without labels: what `airvlm calibrate METHOD --data` does.

The two members of a pair are one of

* image: the prompt with the image, and without it;
* degraded: the model's own caption under the image, and under degraded ones (blurred, its patches shuffled, another
  image), whose states are averaged;
* swapped: the model's own caption, and the same with one noun replaced by one that it does not name;

or a text pair of the user's. States are the layers' outputs, in plain passes that no method sees. A method may measure
more on the images themselves (VTI's visual half, VAR's massive dimensions).
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from PIL import Image, ImageFilter
from torch import Tensor
from tqdm import tqdm

from airvlm.inputs.images import ImageSource, LoadedImage, read_image
from airvlm.inputs.prompts import DESCRIBE
from airvlm.methods.artifacts import SAMPLE, Artifact, ArtifactInfo, ArtifactMethod, PairKind, Reads, sample_weights
from airvlm.runtime.probe import run_probe
from airvlm.tasks.words.objects import CATEGORIES
from airvlm.vlm import VLM

__all__ = ["TextPair", "degrade", "make_artifact", "read_states", "swap_noun"]

GRID = 4  # patches per side that are shuffled
FEWEST = 2  # pairs that an artifact needs


@dataclass(frozen=True)
class TextPair:
    """A truthful and a hallucinated text about one image."""

    image: ImageSource
    truthful: str
    hallucinated: str


@dataclass(frozen=True)
class _Shown:
    """One member of a pair: what is read."""

    image: LoadedImage | None
    text: str  # "" for the prompt alone


def make_artifact(
    vlm: VLM,
    method: type[ArtifactMethod],
    images: Sequence[ImageSource | TextPair],
    *,
    pairs: PairKind | None = None,
    question: str = DESCRIBE,
    nouns: Sequence[str] = (),
    max_new_tokens: int = 64,
    batch_size: int = 16,
    seed: int = 0,
    progress: bool = False,
) -> Artifact:
    """Find the vectors of a method for a model.

    Args:
        vlm: the model.
        method: the method's class.
        images: unlabeled images, or text pairs of your own.
        pairs: what the members of a pair are; by default what the method asks for.
        question: the prompt under which captions are made and read.
        nouns: words that may be swapped; by default the 80 categories of COCO.
        max_new_tokens: longest caption.
        batch_size: captions made at once.
        seed: of the shuffled patches and the swapped nouns.
        progress: show a progress bar.
    """
    if not images:
        raise ValueError("no images: an artifact is made of pairs")
    kind: str = pairs or method.pairs or "images"
    members: Members
    if method.pairs is None:
        if pairs or isinstance(images[0], TextPair):
            raise ValueError(f"{method.name} is measured on images, not on pairs: give images alone")
        members = iter(())
    elif isinstance(images[0], TextPair):
        kind = "texts"
        members = _text_pairs(images)
    elif kind == "image":
        members = ((_Shown(one, ""), [_Shown(None, "")]) for one in map(read_image, map(_image, images)))
    else:
        loaded = [read_image(_image(one)) for one in images]
        asked = [(one, question) for one in loaded]
        answers = vlm.batch(asked, batch_size=batch_size, max_new_tokens=max_new_tokens, progress=progress)
        captions = [answer.text for answer in answers]
        members = (
            _degraded_pairs(loaded, captions, seed)
            if kind == "degraded"
            else _swapped_pairs(loaded, captions, nouns or CATEGORIES, seed)
        )
    reads = ["last" if kind == "image" else method.reads]
    reads += [method.published_reads] if method.published_reads else []
    digest, found = hashlib.sha256(f"{kind} {reads} {question}".encode()), []
    with vlm.lock.acquire():
        quiet = None if progress else True  # None: no bar unless standard error is a terminal
        for one, others in tqdm(members, total=len(images), disable=quiet, unit="pair", desc=vlm.name):
            states = torch.stack([read_states(vlm, m.image, question, m.text, reads) for m in others])
            difference = read_states(vlm, one.image, question, one.text, reads) - states.mean(0)
            found.append(difference)  # (reads, layers, d)
            for member in (one, *others):
                digest.update(f"{member.image.key if member.image else None} {member.text}\n".encode())
    sources = [one.image if isinstance(one, TextPair) else one for one in images]
    if method.pairs is None:
        for source in sources:
            digest.update(f"{read_image(source).key}\n".encode())
    elif len(found) < FEWEST:
        hint = "give `nouns` that its captions name" if kind == "swapped" else "give more images"
        raise ValueError(f"only {len(found)} of {len(images)} images make a pair of the kind {kind!r}: {hint}")
    import airvlm

    info = ArtifactInfo(
        method=method.name,
        model=vlm.name,
        fingerprint=vlm.fingerprint,
        pairs=len(found) or len(images),
        pairs_kind=kind,
        pairs_hash=digest.hexdigest()[:16],
        version=airvlm.__version__,
    )
    tensors: dict[str, Tensor] = {}
    for i, differences in enumerate(torch.stack(found, 2) if found else ()):  # (layers, n, d) of each way of reading
        fitted = method.fit(dict(enumerate(differences)))
        tensors |= {name.replace("layer.", "published.") if i else name: value for name, value in fitted.items()}
    prompts = (vlm.builder.build([vlm.builder.read(read_image(one), question)], pixels=True) for one in sources)
    with vlm.lock.acquire():
        more = method.measure(vlm.parts, prompts, seed)
    return Artifact({**tensors, **more, SAMPLE: sample_weights(vlm.model)}, info)


@torch.no_grad()
def read_states(vlm: VLM, image: LoadedImage | None, question: str, text: str, reads: Sequence[Reads]) -> Tensor:
    """Every layer's output (reads, layers, d), float32 on the CPU, for a text that answers a question.

    Args:
        vlm: the model.
        image: what is shown.
        question: the prompt.
        text: the answer that is read, or "" for the prompt alone.
        reads: each "caption", the mean over the answer's positions, "all", over all, or "last", the last one.
    """
    row = vlm.builder.read(image, question)
    row = replace(row, prompt=row.prompt + getattr(vlm.processor, "answer_start", ""))
    start = vlm.builder.build([row], pixels=True)["input_ids"].shape[1] if "caption" in reads else 0
    if text:  # tokenized together with the prompt: a space belongs to the word that follows it
        gap = "" if row.prompt[-1:].isspace() else " "
        row = replace(row, prompt=row.prompt + gap + text.strip())
    inputs = vlm.builder.build([row], pixels=True)
    layers = range(len(vlm.parts.layers))
    states = run_probe(vlm.parts, inputs, sites={"residual": layers}, all_positions=True).states
    h = torch.stack([states["residual", layer][0].float() for layer in layers])  # (layers, L, d)
    first = {"last": h.shape[1] - 1, "caption": min(start, h.shape[1] - 1), "all": 0}
    return torch.stack([h[:, first[one] :].mean(1) for one in reads]).cpu()


# -- pairs

Members = Iterator[tuple[_Shown, list[_Shown]]]


def _image(one: ImageSource | TextPair) -> ImageSource:
    if isinstance(one, TextPair):
        raise ValueError("give images or text pairs, not both")
    return one


def _text_pairs(pairs: Iterable[ImageSource | TextPair]) -> Members:
    for one in pairs:
        if not isinstance(one, TextPair):
            raise ValueError("give images or text pairs, not both")
        image = read_image(one.image)
        yield _Shown(image, one.truthful), [_Shown(image, one.hallucinated)]


def _degraded_pairs(images: Sequence[LoadedImage], captions: Sequence[str], seed: int) -> Members:
    for i, (image, caption) in enumerate(zip(images, captions, strict=True)):
        if caption:
            other = images[(i + 1) % len(images)].rgb if len(images) > 1 else None
            edits = degrade(image.rgb, other, seed + i)
            yield _Shown(image, caption), [_Shown(read_image(edit), caption) for edit in edits]


def _swapped_pairs(images: Sequence[LoadedImage], captions: Sequence[str], nouns: Iterable[str], seed: int) -> Members:
    words = list(nouns)
    for i, (image, caption) in enumerate(zip(images, captions, strict=True)):
        swapped = swap_noun(caption, words, random.Random(seed + i))
        if swapped is not None:
            yield _Shown(image, caption), [_Shown(image, swapped)]


def degrade(image: Image.Image, other: Image.Image | None, seed: int) -> list[Image.Image]:
    """Images of the same size that show less of what `image` shows: blurred, shuffled, and another one.

    Args:
        image: the image.
        other: another image, if there is one.
        seed: of the shuffled patches.
    """
    width, height = image.size
    blurred = image.filter(ImageFilter.GaussianBlur(max(width, height) / 16))
    xs, ys = ([round(i * side / GRID) for i in range(GRID + 1)] for side in (width, height))
    places = [(xs[i], ys[j], xs[i + 1], ys[j + 1]) for j in range(GRID) for i in range(GRID)]
    patches = [image.crop(place) for place in places]
    random.Random(seed).shuffle(patches)
    shuffled = image.copy()
    for place, patch in zip(places, patches, strict=True):
        shuffled.paste(patch.resize((place[2] - place[0], place[3] - place[1])), place[:2])
    return [blurred, shuffled, *([] if other is None else [other.resize(image.size)])]


def swap_noun(caption: str, nouns: Sequence[str], draw: random.Random) -> str | None:
    """The caption with one of its nouns replaced by one that it does not name; None if it names none, or all."""
    pattern = "|".join(re.escape(noun) for noun in sorted(nouns, key=len, reverse=True))
    named = list(re.finditer(rf"\b({pattern})(s|es)?\b", caption, re.IGNORECASE))
    free = sorted(set(nouns) - {match[1].lower() for match in named})
    if not named or not free:
        return None
    match, new = draw.choice(named), draw.choice(free)
    return caption[: match.start()] + new + (match[2] or "") + caption[match.end() :]
