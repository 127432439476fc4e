"""Offline tasks of lmms-eval on the embedded model's own scenes: a parquet file, and the YAML that asks about it.

Written into a folder for `--include_path`.
"""

import io
import json
from pathlib import Path
from typing import Any

from datasets import Dataset
from PIL import Image

from airvlm.tiny import questions, scenes

FUNCTIONS = """
import io

from PIL import Image


def images(doc):
    return [Image.open(io.BytesIO(doc["image"])).convert("RGB")]


def broken(doc):
    return [Image.new("RGB", (0, 5))]


def question(doc, lmms_eval_specific_kwargs=None, round_idx=None, previous_output=None, previous_round_info=None):
    if not round_idx:
        return doc["question"]
    if round_idx == 1:
        return images(doc), "Please describe this image in detail.", False, previous_output, "described"
    assert previous_round_info == "described"
    return None, None, True, previous_output, previous_round_info


def turns(doc):
    shown = [{"type": "image", "url": images(doc)[0]}, {"type": "text", "text": doc["question"]}]
    return [
        {"role": "user", "content": shown},
        {"role": "assistant", "content": [{"type": "text", "text": "yes"}]},
        {"role": "user", "content": [{"type": "text", "text": "Please describe this image in detail."}]},
    ]


def kept(doc, results):
    return {"answered": {"doc": doc["id"], "said": results}}


def count(results):
    return len(results)
"""
TASK = """
task: {name}
dataset_path: parquet
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: {kind}
doc_to_visual: !function functions.{visual}
doc_to_text: !function functions.question
{messages}
doc_to_target: label
process_results: !function functions.kept
generation_kwargs:
{generation}
metric_list:
  - metric: answered
    aggregation: !function functions.count
    higher_is_better: true
"""
GREEDY = {"max_new_tokens": 24, "temperature": 0, "do_sample": False, "num_beams": 1, "until": []}


def write_tasks(folder: Path, count: int = 12) -> list[dict[str, Any]]:
    """The tasks, and the documents they ask about: one of each kind."""
    folder.mkdir(parents=True)
    by_id = {scene.id: scene for scene in scenes("test")}
    docs = []
    for item in questions("test", "random")[: 6 * count : 6]:
        buffer = io.BytesIO()
        Image.open(by_id[item.scene].path).convert("RGB").save(buffer, "PNG")
        docs.append({"id": item.id, "image": buffer.getvalue(), "question": item.text, "label": item.label})
    Dataset.from_list(docs).to_parquet(str(folder / "scenes.parquet"))
    (folder / "functions.py").write_text(FUNCTIONS)
    for name, kind, messages, generation in [
        ("asked", "generate_until", "", GREEDY),
        ("conversation", "generate_until", "doc_to_messages: !function functions.turns", GREEDY),
        ("rounds", "generate_until_multi_round", "", GREEDY),
        ("stopped", "generate_until", "", {**GREEDY, "until": ["e"]}),
        ("strange", "generate_until", "", {**GREEDY, "image_aspect_ratio": "pad"}),
        ("broken", "generate_until", "", GREEDY),
    ]:
        lines = "\n".join(f"  {key}: {json.dumps(value)}" for key, value in generation.items())
        text = TASK.format(
            visual="broken" if name == "broken" else "images",
            name=name,
            kind=kind,
            data=folder / "scenes.parquet",
            messages=messages,
            generation=lines,
        )
        (folder / f"{name}.yaml").write_text(text)
    return docs


def image_of(doc: dict[str, Any]) -> Image.Image:
    return Image.open(io.BytesIO(doc["image"])).convert("RGB")
