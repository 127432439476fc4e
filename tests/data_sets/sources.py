"""Small data sets in the schemas of the real ones, put onto the server."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Sequence
from typing import Any

import pytest

from airvlm.data import catalog
from tests.data_sets.server import DataServer, as_image, make_image, make_parquet

SETTINGS = ("random", "popular", "adversarial")


def pin(server: DataServer, name: str, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of a pinned repository of the catalog, with the hashes of these contents."""
    pinned = catalog.PINNED[name]
    facts = dict(pinned.files)
    for path, content in files.items():
        assert path in facts, path
        facts[path] = (len(content), hashlib.sha256(content).hexdigest())
        server.add_file(f"raw.githubusercontent.com/{pinned.repository}/{pinned.commit}/{path}", content)
    monkeypatch.setitem(catalog.PINNED, name, catalog.Pinned(pinned.repository, pinned.commit, facts))


def lines(rows: list[dict[str, Any]]) -> bytes:
    return "\n".join(map(json.dumps, rows)).encode()


def add_coco_images(server: DataServer, ids: range) -> None:
    for n in ids:
        server.add_file(f"images.cocodataset.org/val2014/COCO_val2014_{n:012d}.jpg", make_image(n))


def pope_questions(ids: range, suffix: str = "COCO_val2014_{:012d}.jpg") -> bytes:
    rows = []
    for n in ids:
        for name, label in (("dog", "yes"), ("cat", "no")):
            question = {"question_id": len(rows) + 1, "image": suffix.format(n), "label": label}
            rows.append({**question, "text": f"Is there a {name} in the image?"})
    return lines(rows)


def add_pope(server: DataServer, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {f"experiments/data/POPE/coco/coco_pope_{s}.json": pope_questions(range(3)) for s in SETTINGS}
    files |= {
        f"experiments/data/POPE/gqa/gqa_pope_{s}.json": pope_questions(range(2), "24{:02d}.jpg") for s in SETTINGS
    }
    pin(server, "pope", files, monkeypatch)
    pin(
        server,
        "repope",
        {f"annotations/coco_repope_{s}.json": pope_questions(range(1, 4)) for s in SETTINGS},
        monkeypatch,
    )
    add_coco_images(server, range(4))
    server.add_file("cs.stanford.edu/people/rak248/VG_100K_2/2400.jpg", make_image(70))
    server.add_file("cs.stanford.edu/people/rak248/VG_100K/2401.jpg", make_image(71))


def add_pope_on_hub(server: DataServer, name: str = "lmms-lab/POPE") -> None:
    """lmms-lab's POPE: id, question_id, question, answer, image_source, image, category."""
    files = {}
    for setting in SETTINGS:
        rows = [
            {
                "id": str(2 * n + k),
                "question_id": str(2 * n + k + 1),
                "question": f"Is there a {thing} in the image?",
                "answer": answer,
                "image_source": f"COCO_val2014_{n:012d}",
                "image": as_image(make_image(n), f"COCO_val2014_{n:012d}.jpg"),
                "category": setting,
            }
            for n in range(3)
            for k, (thing, answer) in enumerate((("dog", "yes"), ("cat", "no")))
        ]
        files[f"Full/{setting}-00000-of-00001.parquet"] = make_parquet(rows)
    server.add_repository(name, files)


def add_coco(server: DataServer, count: int = 12) -> None:
    images = [{"id": n, "file_name": f"COCO_val2014_{n:012d}.jpg"} for n in range(count)]
    instances = {
        "images": images,
        "categories": [{"id": 18, "name": "dog"}],
        "annotations": [{"image_id": n, "category_id": 18, "area": 5.0} for n in range(count)],
    }
    captions = {"annotations": [{"image_id": n, "caption": "A dog on a chair."} for n in range(count)]}
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as content:
        content.writestr("annotations/instances_val2014.json", json.dumps(instances))
        content.writestr("annotations/captions_val2014.json", json.dumps(captions))
        content.writestr("annotations/instances_train2014.json", "{}")
    server.add_file("images.cocodataset.org/annotations/annotations_trainval2014.zip", archive.getvalue())
    add_coco_images(server, range(count))


def add_dash_b(server: DataServer) -> None:
    rows = [
        {
            "image": as_image(make_image(n, "PNG")),
            "img_id": "7.png",
            "question_id": n,
            "object": thing,
            "question": f"Can you see a {thing} in this image? Please answer only with yes or no.",
            "answer": answer,
        }
        for n, (thing, answer) in enumerate((a, b) for a in ("fire hydrant", "ladder") for b in ("no", "yes"))
    ]
    server.add_repository("YanNeu/DASH-B", {"data/test-00000-of-00001.parquet": make_parquet(rows)})


def add_hr_bench(server: DataServer) -> None:
    import base64

    head = "index\tquestion\tanswer\tcategory\tA\tB\tC\tD\tcycle_category\timage"
    image = base64.b64encode(make_image(3)).decode()
    rows = [f"0\tWhat?\tA\tsingle\tx\ty\tz\tw\t0\t{image}", "1\tWhat?\tB\tsingle\tw\tx\ty\tz\t1\t0"]
    server.add_repository("DreamMr/HR-Bench", {"hr_bench_4k.tsv": "\n".join([head, *rows]).encode()})


def add_mme(server: DataServer) -> None:
    """lmms-lab's MME: question_id, image, question, answer, category."""
    from airvlm.tasks.mme import QUESTIONS

    rows = [
        {
            "question_id": f"{category}/000{n}.png",
            "image": as_image(make_image(n, "PNG"), f"{category}/000{n}.png"),
            "question": f"Is it {answer}? Please answer yes or no.",
            "answer": answer,
            "category": category,
        }
        for category in QUESTIONS
        for n in range(2)
        for answer in ("Yes", "No")
    ]
    server.add_repository("lmms-lab-encoder/MME", {"data/test-00000-of-00001.parquet": make_parquet(rows)})


def add_mmbench_on_hub(server: DataServer) -> None:
    row = {
        "question": 'What "is"\tit?',
        "hint": "nan",
        "A": "a cat",
        "B": "a dog",
        "C": "nan",
        "D": "nan",
        "answer": "B",
        "category": "object_localization",
        "image": as_image(make_image(5)),
        "source": "x",
        "L2-category": "coarse_perception",
        "comment": "nan",
        "split": "dev",
    }
    rows = [{"index": n, **row} for n in (3, 1000003)]
    rows[1] |= {"A": "a dog", "B": "a cat", "answer": "A"}
    server.add_repository("lmms-lab-encoder/MMBench", {"en/dev-00000-of-00001.parquet": make_parquet(rows)})


def add_hallusionbench(server: DataServer, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {"category": "VD", "subcategory": "figure", "set_id": "0", "question_id": "0", "sample_note": "x"}
    rows = [
        {
            **keys,
            "visual_input": "1",
            "figure_id": str(n),
            "question": "Is it?",
            "gt_answer_details": "It is.",
            "gt_answer": "1",
            "filename": f"./VD/figure/0_{n}.png",
        }
        for n in range(2)
    ]
    rows.append({**rows[0], "visual_input": "0", "filename": None, "category": "VS"})
    pin(server, "hallusionbench", {"HallusionBench.json": json.dumps(rows).encode()}, monkeypatch)
    on_hub = [{**row, "image": as_image(make_image(n, "PNG"))} for n, row in enumerate(rows[:2])]
    server.add_repository(
        "lmms-lab-encoder/HallusionBench", {"data/image-00000-of-00001.parquet": make_parquet(on_hub)}
    )


def add_vstar(server: DataServer) -> None:
    files = {}
    for n, part in enumerate(("direct_attributes", "relative_position")):
        facts = {
            "question": "What color?",
            "options": ["red", "blue"],
            "target_object": ["kite"],
            "bbox": [[0, 0, 1, 1]],
        }
        files |= {f"{part}/sa_1.jpg": make_image(n), f"{part}/sa_1.json": json.dumps(facts).encode()}
    server.add_repository("craigwu/vstar_bench", {**files, "test_questions.jsonl": b"{}"})


def add_mmvet(server: DataServer) -> None:
    """lmms-lab's MMVet: question_id, image, image_source, question, answer, capability."""
    rows = [
        {
            "question_id": f"v1_{n}",
            "image": as_image(make_image(n), f"v1_{n}.png"),
            "image_source": f"v1_{n}.png",
            "question": "What is x?",
            "answer": "1",
            "capability": "ocr,math",
        }
        for n in range(2)
    ]
    server.add_repository("lmms-lab/MMVet", {"data/test-00000-of-00001.parquet": make_parquet(rows)})


def add_llava_bench(server: DataServer, monkeypatch: pytest.MonkeyPatch) -> None:
    question = {"question_id": 0, "image": "001.jpg", "text": "What?", "category": "conv"}
    files = {
        "questions.jsonl": lines([question]),
        "answers_gpt4.jsonl": lines([{"question_id": 0, "text": "This."}]),
        "context.jsonl": lines([{"image": "001.jpg", "caption": "A thing."}]),
        "images/001.jpg": make_image(1),
    }
    server.add_repository("liuhaotian/llava-bench-in-the-wild", files)
    coco = {**question, "image": "000000000002.jpg"}
    pin(
        server,
        "llava-bench",
        {
            "playground/data/coco2014_val_qa_eval/qa90_questions.jsonl": lines([coco]),
            "playground/data/coco2014_val_qa_eval/qa90_gpt4_answer.jsonl": lines([{"question_id": 0, "text": "This."}]),
            "llava/eval/table/caps_boxes_coco2014_val_80.jsonl": lines(
                [{"image": "000000000002.jpg", "captions": ["A thing."], "instances": []}]
            ),
        },
        monkeypatch,
    )
    add_coco_images(server, range(2, 3))


def add_amber(server: DataServer, monkeypatch: pytest.MonkeyPatch, truth: Sequence[str] = ("dog",)) -> None:
    notes = [{"id": 1, "type": "generative", "truth": ["dog"], "hallu": ["cat"]}]
    notes.append({"id": 1005, "type": "discriminative-hallucination", "truth": "no"})
    pin(
        server,
        "amber",
        {
            "data/annotations.json": json.dumps(notes).encode(),
            "data/relation.json": b'{"dog": ["puppy"], "cat": []}',
            "data/safe_words.txt": b"air\n",
            "data/query/query_generative.json": lines(
                [{"id": 1, "image": "AMBER_1.jpg", "query": "Describe this image."}]
            ),
            "data/query/query_discriminative.json": lines(
                [{"id": 1005, "image": "AMBER_1.jpg", "query": "Is there a cat in this image?"}]
            ),
        },
        monkeypatch,
    )
    row = {
        "question_id": 1,
        "text": "Describe this image.",
        "truth": list(truth),
        "hallu": ["cat"],
        "task_type": "generative",
    }
    rows = [{**row, "image": as_image(make_image(1), "AMBER_1.jpg")}]
    server.add_repository("Kyunnilee/amber_g", {"data/train-00000-of-00001.parquet": make_parquet(rows)})


def add_mmhal(server: DataServer, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"question_type": "attribute", "image_id": "a1", "image_content": ["Dog"], "question": "What?"}
    row = {**facts, "image_src": "https://c1.staticflickr.com/1/1_o.jpg", "gt_answer": "A dog.", "model_answer": ""}
    pin(server, "mmhal", {"eval/data/mmhal-bench_answer_template.json": json.dumps([row]).encode()}, monkeypatch)
    server.add_file("c1.staticflickr.com/1/1_o.jpg", make_image(1))


def add_haloquest(server: DataServer, monkeypatch: pytest.MonkeyPatch) -> None:
    head = ",image_name,url,image type,hallucination type,question,groundtruth responses,split"
    rows = [
        f"{n},{n}.png,https://midjourney-image.s3.amazonaws.com/{n}.png,generated,false premises,What?,Nothing.,eval"
        for n in range(3)
    ]
    pin(server, "haloquest", {"haloquest-eval.csv": "\n".join([head, *rows]).encode()}, monkeypatch)
    for n in range(2):  # the third is gone
        server.add_file(f"midjourney-image.s3.amazonaws.com/{n}.png", make_image(n, "PNG"))


def add_reefknot(server: DataServer, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"image_id": "713", "query_prompt": "Is it? Please answer yes or no.", "label": "yes"}
    row |= {"type": "Yes/No", "mllm_name": "", "response": "", "relation_type": "perception"}
    pin(server, "reefknot", {"Dataset/YESNO.jsonl": lines([row])}, monkeypatch)
    server.add_file("cs.stanford.edu/people/rak248/VG_100K/713.jpg", make_image(1))


def add_detailcaps(server: DataServer) -> None:
    """DetailCaps-4870: image, source, binary and three captions."""
    rows = [
        {
            "image": f"{n}.jpg",
            "source": "coco",
            "binary": make_image(n, kind),
            "GT_Caption_GPT4O": "A dog.",
            "GT_Caption_GPT4V": "A brown dog.",
            "GT_Caption_Gemini15Pro": "A dog on a chair.",
        }
        for n, kind in enumerate(("JPEG", "PNG"))
    ]
    name = "foundation-multimodal-models/DetailCaps-4870"
    server.add_repository(name, {"data/test-00000-of-00001.parquet": make_parquet(rows)})
