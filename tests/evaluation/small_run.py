"""A small run on made-up COCO data, written without any model: answers of three methods to CHAIR and POPE."""

from __future__ import annotations

import json
from pathlib import Path

from PIL import Image, ImageDraw

from airvlm.evaluation.manifest import update_manifest
from airvlm.evaluation.plan import EvalItem, ModelInfo, TaskSpec, plan_batches
from airvlm.evaluation.store import Record, Store

HOSTILE = '<script>document.title="taken"</script><img src=x onerror="document.title=\'taken\'"> & "quotes"'
OBJECTS = ["dog", "cat", "chair", "fork", "car", "bus"]
COLORS = ["#b5651d", "#888888", "#264653", "#e9c46a", "#a30000", "#2a9d8f"]


class Named:
    """Stands in for a method: a run stores only its configuration."""

    def __init__(self, name: str, **fields: float) -> None:
        self.fields = {"name": name, **fields}

    def to_json(self) -> dict[str, object]:
        return dict(self.fields)


METHODS = {"vanilla": None, "air": Named("air", tau=0.06), "memvr": Named("memvr")}
EOS = {f"eos-bias:bias={b}": Named("eos-bias", bias=float(b)) for b in (1, 2)}
YES = {f"yes-bias:bias={b}": Named("yes-bias", bias=float(b)) for b in (-1, 1)}


def coco(folder: Path, n: int = 24) -> Path:
    """Images with two of six objects each, annotations, captions, and POPE's random questions on them."""
    (folder / "annotations").mkdir(parents=True)
    (folder / "val2014").mkdir()
    images, notes, captions, questions = [], [], [], []
    for i in range(n):
        name, present = f"COCO_val2014_{i + 1:012}.jpg", [OBJECTS[i % 6], OBJECTS[(i * 5 + 1) % 6]]
        image = Image.new("RGB", (320, 240), "#dddddd")
        for place, shown in enumerate(dict.fromkeys(present)):
            box = (40 + 130 * place, 60, 140 + 130 * place, 180)
            ImageDraw.Draw(image).ellipse(box, fill=COLORS[OBJECTS.index(shown)])
        image.save(folder / "val2014" / name)
        images.append({"id": i + 1, "file_name": name})
        notes += [{"image_id": i + 1, "category_id": OBJECTS.index(o) + 1} for o in present]
        captions.append({"image_id": i + 1, "caption": f"A {present[0]} and a {present[1]} stand there."})
        for o, label in ((present[0], "yes"), (next(o for o in OBJECTS if o not in present), "no")):
            text = f"Is there a {o} in the image?"
            questions.append({"question_id": len(questions) + 1, "image": name, "text": text, "label": label})
    categories = [{"id": k + 1, "name": o} for k, o in enumerate(OBJECTS)]
    content = {"images": images, "annotations": notes, "categories": categories}
    (folder / "annotations/instances_val2014.json").write_text(json.dumps(content))
    (folder / "annotations/captions_val2014.json").write_text(json.dumps({"images": images, "annotations": captions}))
    (folder / "coco_pope_random.json").write_text("\n".join(map(json.dumps, questions)))
    return folder


def small_run(folder: Path, *, model: str = "a/small-model", max_new_tokens: int = 64, hostile: bool = False) -> Path:
    """The run's folder; each stronger method hallucinates and recalls a little less."""
    data = coco(folder / "data")
    info = ModelInfo(model, "f" * 16)
    chair = TaskSpec.of("chair", data=data, max_new_tokens=max_new_tokens)
    pope = TaskSpec.of("pope-coco-random", data=data)
    known = {k: None if m is None else m.to_json() for k, m in METHODS.items()}
    curves = {
        "chair": {k: m.to_json() for k, m in EOS.items()},
        "pope-coco-random": {k: m.to_json() for k, m in YES.items()},
    }
    out = folder / "run"
    update_manifest(out, info, [chair, pope], known, curves=curves)
    with Store(out) as store:
        for spec, controls in ((chair, EOS), (pope, YES)):
            methods = {**METHODS, **controls}
            for chunk in plan_batches(spec, methods, info, 8):
                for rank, batch in enumerate(chunk):
                    store.extend(_record(asked, spec, rank, batch.label, hostile) for asked in batch.items)
    return out


def _record(asked: EvalItem, spec: TaskSpec, rank: int, label: str, hostile: bool) -> Record:
    item = next(item for item in spec.items if item.id == asked.key.item)
    number = spec.items.index(item)
    if spec.name == "chair":
        wrong = next(o for o in ("fork", "bus", "dog", "cat") if o not in item.truth)
        text = f"A {item.truth[0]} is in a room. " + ("There is also a baby dog. " if "dog" in item.truth else "")
        text += f"A {wrong} can be seen too. " if (number + rank) % (2 + rank) == 0 else "It is a sunny day. "
        text += f"Next to it is a {item.truth[-1]}." if number % (5 - rank % 3) else ""
        if hostile and number == 0:
            text += HOSTILE
    else:
        flip = (number * 7 + rank) % (4 + rank) == 0
        text = item.truth if not flip else {"yes": "no", "no": "yes"}[item.truth]
    report = None if label == "vanilla" else {"fired": number % 5 != 0}
    return Record(asked.key, text=text.strip(), tokens=12, finished=number % 7 != 0, report=report)
