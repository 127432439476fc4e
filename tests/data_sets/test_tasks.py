"""`find_data` gives every task a folder that it reads, from small data sets in the real schemas."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from PIL import Image

from airvlm.data import DATA_SETS, DataDamaged, catalog, find_data, find_need, list_tasks
from airvlm.tasks import Task, load_task
from airvlm.testing import check_task
from tests.data_sets import sources
from tests.data_sets.server import DataServer, make_image

ADD: dict[str, Callable[..., None]] = {
    "dash-b": lambda server, patch: sources.add_dash_b(server),
    "hr-bench": lambda server, patch: sources.add_hr_bench(server),
    "mme": lambda server, patch: sources.add_mme(server),
    "mmbench": lambda server, patch: sources.add_mmbench_on_hub(server),
    "vstar": lambda server, patch: sources.add_vstar(server),
    "mmvet": lambda server, patch: sources.add_mmvet(server),
    "detailcaps": lambda server, patch: sources.add_detailcaps(server),
    "haloquest": sources.add_haloquest,
    "reefknot": sources.add_reefknot,
    "chair": lambda server, patch: sources.add_coco(server),
    "object-halbench": lambda server, patch: sources.add_coco(server),
    "pope": sources.add_pope,
    "pope-gqa-popular": sources.add_pope,
    "repope": sources.add_pope,
    "hallusionbench": sources.add_hallusionbench,
    "llava-bench": sources.add_llava_bench,
    "amber-yesno": sources.add_amber,
    "mmhal": sources.add_mmhal,
}
ITEMS = {
    "haloquest": 2,
    "mme": 56,
    "hr-bench": 2,
    "dash-b": 4,
    "pope": 18,
    "pope-gqa-popular": 4,
    "repope": 18,
    "chair": 12,
    "mmbench": 2,
}


def quiet(line: str) -> None:
    pass


def fetch(name: str, server: DataServer, patch: pytest.MonkeyPatch, **options: Any) -> Task:
    ADD[name](server, patch)
    folder = find_data(name, say=quiet, **options)
    assert folder is not None
    more = {"approximate": True} if name == "detailcaps" else {}  # CAPTURE's models are not installed
    return load_task(name, folder, variant=options.get("variant"), **more)


@pytest.mark.parametrize("name", ADD)
def test_a_task_reads_what_is_fetched(name: str, server: DataServer, monkeypatch: pytest.MonkeyPatch) -> None:
    task = fetch(name, server, monkeypatch)
    items = task.items()
    assert len(items) == ITEMS.get(name, len(items)) > 0
    for item in items:
        if item.image is not None:
            with Image.open(item.image) as image:
                image.load()
    if task.kind != "judged":
        check_task(task)
    before = len(server.requests)
    assert find_data(name, say=quiet) == task.data
    assert len(server.requests) == before  # nothing is fetched twice


def test_images_belong_to_their_questions(server: DataServer, monkeypatch: pytest.MonkeyPatch) -> None:
    item = next(item for item in fetch("pope", server, monkeypatch).items() if "000000000002" in str(item.image))
    assert item.image.read_bytes() == make_image(2)
    dash = {item.id: item for item in fetch("dash-b", server, monkeypatch).items()}
    assert dash["3"].image.read_bytes() == make_image(3, "PNG") and dash["3"].truth == "yes"
    assert dash["3"].meta["object"] == "ladder"


def test_pope_comes_from_the_hub_if_the_other_hosts_are_away(
    server: DataServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources.add_pope_on_hub(server)
    said: list[str] = []
    folder = find_data("pope", say=said.append)
    items = load_task("pope", folder).items()
    assert len(items) == 18 and [item.truth for item in items[:2]] == ["yes", "no"]
    assert items[2].image.read_bytes() == make_image(1)
    assert any("trying the hub" in line for line in said)


def test_only_the_images_that_a_split_needs_are_fetched(server: DataServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airvlm.tasks.chair.IMAGES", 4)
    monkeypatch.setattr("airvlm.tasks.chair.draw_images", lambda ids, seed, split: sorted(ids)[:3])
    sources.add_coco(server)
    find_data("chair", say=quiet)
    assert server.count("/val2014/COCO_") == 3
    assert server.count("annotations_trainval2014.zip") == 1
    find_data("chair", split="calibration", say=quiet)
    assert server.count("annotations_trainval2014.zip") == 1  # the annotations are there


def test_images_of_amber_are_refused_if_the_hub_numbers_them_otherwise(
    server: DataServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources.add_amber(server, monkeypatch, truth=["zebra"])
    with pytest.raises(DataDamaged, match="number its images"):
        find_data("amber", say=quiet)


@pytest.mark.parametrize("name", ["direct_attributes/../../../x.json", "direct_attributes/..", "/etc/x"])
def test_no_file_is_written_outside_the_folder(name: str, server: DataServer, tmp_path: Any) -> None:
    fetch = catalog.Fetch(tmp_path / "data", quiet)
    with pytest.raises(DataDamaged, match="not a path in"):
        fetch.write(name, b"x")
    with pytest.raises(DataDamaged, match="not a path in"):
        fetch.images({name: ["https://example.org/x.jpg"]})
    assert not server.requests


def test_a_variant_has_data_of_its_own(server: DataServer, monkeypatch: pytest.MonkeyPatch) -> None:
    task = fetch("llava-bench", server, monkeypatch, variant="coco")
    assert [item.image.name for item in task.items()] == ["COCO_val2014_000000000002.jpg"]
    assert find_need("llava-bench", variant="official") == find_need("llava-bench")


def test_size_source_and_license_are_said_before_anything_is_asked_for(
    server: DataServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources.add_pope(server, monkeypatch)
    said: list[tuple[int, str]] = []
    find_data("pope", say=lambda line: said.append((len(server.requests), line)))
    first = said[0]
    assert first[0] == 0
    assert re.fullmatch(r"pope: fetching about 85 MB from .*cocodataset.*; license: .*Apache-2.0.*", first[1])


@pytest.mark.parametrize("name", ["dash-b", "hr-bench", "mme", "vstar"])
def test_the_size_of_the_hubs_files_is_said_before_they_come(
    name: str, server: DataServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ADD[name](server, monkeypatch)
    said: list[str] = []

    def say(line: str) -> None:
        fetched = [one.path for one in server.requests if "/resolve/" in one.path and "README.md" not in one.path]
        if " on the hub: " in line:
            assert not fetched
        said.append(line)

    find_data(name, say=say)
    assert any(re.search(r" on the hub: \d+ files, [\d.]+ MB$", line) for line in said)


def test_a_folder_of_the_user_is_taken_as_it_is(server: DataServer, tmp_path: Any) -> None:
    assert find_data("pope", tmp_path / "mine") == tmp_path / "mine"
    assert find_data("tiny-chair") is None and find_data("gpt4v") is None
    assert not server.requests


def test_every_part_belongs_to_a_task() -> None:
    variants = {("mmbench", "llava"), ("llava-bench", "coco"), ("coco", "validation"), ("coco", "calibration")}
    needs = [find_need(name) for name in list_tasks()]
    used = {(need.data.name, need.part) for need in needs if need is not None}
    assert used | variants == {(data.name, part) for data in DATA_SETS.values() for part in data.parts}
    for name, part in variants:
        assert find_need("chair" if name == "coco" else name, variant=part, split=part)
