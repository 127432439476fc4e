"""The data sets of the benchmarks (data_sets.toml), and how each becomes the folder that its tasks read.

Files of repositories are pinned to a commit with their hash. Images of COCO and Visual Genome are fetched one by one,
only those that a benchmark asks about. Data sets of the hub are read in the layout that lmms-eval's tasks use.
"""

from __future__ import annotations

import json
import sys
import tomllib
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airvlm.data.download import Checks, DataDamaged, DataUnreachable, download_file, download_images
from airvlm.data.hub import HubRepository, is_offline, open_hub
from airvlm.storage.atomic import write_atomically
from airvlm.tasks import TASKS
from airvlm.tasks.files.reading import read_records, read_table

__all__ = ["DATA_SETS", "DataSet", "Fetch", "Need", "Part", "find_need", "list_tasks"]

COCO = "http://images.cocodataset.org"
# Visual Genome keeps its images in two folders, and only its archives say which image is in which.
VISUAL_GENOME = tuple(f"https://cs.stanford.edu/people/rak248/{folder}" for folder in ("VG_100K_2", "VG_100K"))
GITHUB = "https://raw.githubusercontent.com"


class Fetch:
    """What a data set is built with; remembers what was written and where it came from."""

    def __init__(self, folder: Path, say: Callable[[str], Any]) -> None:
        self.folder = folder
        self.say = say
        self.written: set[Path] = set()
        self.sources: set[str] = set()

    def place(self, name: str) -> Path:
        """A path in the folder; a name from a server must not lead out of it."""
        parts = Path(name).parts
        if not parts or Path(name).is_absolute() or ".." in parts or "\\" in name or "\0" in name:
            raise DataDamaged(f"a source names a file {name!r}, which is not a path in {self.folder}")
        return self.folder / name

    def add(self, path: Path) -> Path:
        """Make a file part of the data set."""
        self.written.add(path)
        return path

    def file(self, url: str, name: str, checks: Checks = Checks()) -> Path:
        """Download one file."""
        path = self.place(name)
        self.sources.add(url)
        if not path.exists():
            _require_network(url)
        with _show_progress(path.name, checks.size) as advance:
            download_file(url, path, checks, advance)
        # a file that was there before this call may be an older version
        fault = checks.find_fault(path)
        if fault is not None:
            path.unlink()
            download_file(url, path, checks)
        return self.add(path)

    def images(self, wanted: Mapping[str, Sequence[str]], *, optional: bool = False) -> list[str]:
        """Download images one by one.

        Args:
            wanted: name of the image in the folder -> its addresses, which are tried in turn.
            optional: go on without images that no address has any more.

        Returns:
            The names of the images that are missing.
        """
        self.sources |= {urls[0].rsplit("/", 1)[0] + "/" for urls in wanted.values()}
        jobs = [(self.place(name), urls) for name, urls in wanted.items()]
        if not all(path.exists() for path, _ in jobs):
            _require_network(jobs[0][1][0])
        with _show_progress(f"{len(jobs)} images", len(jobs), unit="") as advance:
            lacking = download_images(jobs, advance)
        if lacking and not optional:
            raise DataUnreachable(f"{len(lacking)} of {len(jobs)} images are no longer there: {lacking[0][1]}")
        gone = {path for path, _ in lacking}
        self.written |= {path for path, _ in jobs if path not in gone}
        if lacking:
            self.say(f"{len(lacking)} of {len(jobs)} images are no longer there; first: {lacking[0][1]}")
        return [path.relative_to(self.folder).as_posix() for path in sorted(gone)]

    def open_hub(self, *names: str) -> HubRepository:
        """The first of some data sets that the hub has."""
        repository = open_hub(names)
        self.sources.add(f"hub: {repository.name}@{repository.commit}")
        return repository

    def read_hub(self, *names: str, split: str, config: str | None = None) -> Iterator[Any]:
        """The rows of a split of the first of some data sets that the hub has."""
        return self.open_hub(*names).read_rows(split, config, self.say)

    def write(self, name: str, content: str | bytes) -> Path:
        """Write a file, unless it has this content already."""
        path = self.place(name)
        data = content.encode() if isinstance(content, str) else content
        path.parent.mkdir(parents=True, exist_ok=True)
        if not (path.is_file() and path.stat().st_size == len(data) and path.read_bytes() == data):
            write_atomically(path, data)
        return self.add(path)

    def write_lines(self, name: str, rows: Iterable[Mapping[str, Any]]) -> Path:
        """Write JSON lines."""
        return self.write(name, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def _require_network(url: str) -> None:
    if is_offline():
        raise DataUnreachable(f"HF_HUB_OFFLINE is set, and {url} is not here")


@contextmanager
def _show_progress(name: str, total: int | None, unit: str = "bytes") -> Iterator[Callable[[int], Any]]:
    """A progress bar on standard error, if that is a terminal; gives a function that moves it on."""
    if not sys.stderr.isatty():
        yield lambda amount: None
        return
    from rich import progress
    from rich.console import Console

    columns: list[Any] = [progress.TextColumn("{task.description}"), progress.BarColumn()]
    columns += [progress.DownloadColumn(), progress.TransferSpeedColumn()] if unit else [progress.MofNCompleteColumn()]
    columns.append(progress.TimeRemainingColumn())
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=total)
        yield lambda amount: bar.update(task, advance=amount)


@dataclass(frozen=True)
class Part:
    """A part of a data set that is fetched at once.

    Args:
        source: where its files come from, for people.
        license: of these files.
        size: bytes that are downloaded, about; None if only the server knows.
        tasks: the tasks that read it; TASK:VARIANT if only a variant does.
    """

    source: str
    license: str
    size: int | None
    tasks: tuple[str, ...]


@dataclass(frozen=True)
class DataSet:
    """The data of one or several tasks, in one folder."""

    name: str
    parts: Mapping[str, Part]

    def __repr__(self) -> str:
        return f"DataSet({self.name!r})"

    def build(self, part: str, fetch: Fetch) -> None:
        """Write the files of a part into the folder."""
        _BUILDERS[self.name](fetch, part)


@dataclass(frozen=True)
class Need:
    """What a task needs: a part of a data set."""

    task: str
    data: DataSet
    part: str

    @property
    def license(self) -> str:
        return self.data.parts[self.part].license


@dataclass(frozen=True)
class Pinned:
    """A repository at one commit, and files of it: path -> (size, sha256)."""

    repository: str
    commit: str
    files: Mapping[str, tuple[int, str]]

    def get(self, fetch: Fetch, path: str, name: str | None = None) -> Path:
        """Download one of the files; by default under its own name."""
        size, sha256 = self.files[path]
        url = f"{GITHUB}/{self.repository}/{self.commit}/{path}"
        return fetch.file(url, name or Path(path).name, Checks(size, sha256))


def _read_data_set(name: str, content: Mapping[str, Any]) -> DataSet:
    parts = {
        key: Part(
            part["source"],
            part.get("license", content["license"]),
            part["megabytes"] * 1_000_000 if "megabytes" in part else None,
            tuple(part.get("tasks", ())),
        )
        for key, part in content["parts"].items()
    }
    return DataSet(name, parts)


_CONTENT = tomllib.loads((Path(__file__).parent / "data_sets.toml").read_text(encoding="utf-8"))
DATA_SETS = {name: _read_data_set(name, content) for name, content in _CONTENT["data"].items()}
PINNED = {name: Pinned(**content) for name, content in _CONTENT["pinned"].items()}


def find_need(task: str, *, split: str = "test", variant: str | None = None) -> Need | None:
    """What a task needs; None if it needs nothing, or nothing that can be fetched.

    Args:
        task: the task's name.
        split: the split of its items.
        variant: its variant.
    """
    places = {
        name: (data, part) for data in DATA_SETS.values() for part in data.parts for name in data.parts[part].tasks
    }
    if task not in places:
        return None
    data, part = places.get(f"{task}:{variant}", places[task])
    return Need(task, data, split if data.name == "coco" else part)


def list_tasks() -> list[str]:
    """The tasks whose data can be fetched, in the order of `airvlm info tasks`."""
    return [name for name in TASKS if find_need(name)]


# -- the folders of the tasks


def _get_coco_urls(names: Iterable[str]) -> dict[str, list[str]]:
    return {f"val2014/{name}": [f"{COCO}/val2014/{name}"] for name in sorted(set(names))}


def _get_genome_urls(ids: Iterable[str], place: str) -> dict[str, list[str]]:
    return {f"{place}/{key}.jpg": [f"{folder}/{key}.jpg" for folder in VISUAL_GENOME] for key in sorted(set(ids))}


SETTINGS = ("random", "popular", "adversarial")


def _build_pope(fetch: Fetch, part: str) -> None:
    """From the repository and the images' servers; COCO from the hub if one of them cannot be reached or is offline."""
    try:
        names: set[str] = set()
        for setting in SETTINGS:
            if part == "repope":
                path = PINNED["repope"].get(fetch, f"annotations/coco_repope_{setting}.json")
            else:
                path = PINNED["pope"].get(fetch, f"experiments/data/POPE/{part}/{part}_pope_{setting}.json")
            names |= {row.read_text("image") for row in read_records(path)}
        if part == "gqa":
            fetch.images(_get_genome_urls((name.removesuffix(".jpg") for name in names), "gqa"))
        else:
            fetch.images(_get_coco_urls(names))
    except DataUnreachable as error:
        if part != "coco":
            raise
        fetch.say(f"{error}; trying the hub")
        fetch.written.clear()
        _build_pope_from_hub(fetch)


def _build_pope_from_hub(fetch: Fetch) -> None:
    repository = fetch.open_hub("lmms-lab-encoder/POPE", "lmms-lab/POPE")
    for setting in SETTINGS:
        rows = []
        for row in repository.read_rows(setting, "Full", fetch.say):
            name = _name_image(row["image_source"], row["image"], ".jpg")
            fetch.write(f"val2014/{name}", row["image"]["bytes"])
            question = {"question_id": int(row["question_id"]), "image": name, "text": row["question"].strip()}
            rows.append({**question, "label": row["answer"].strip().lower()})
        fetch.write_lines(f"coco_pope_{setting}.json", rows)


def _name_image(name: Any, image: Mapping[str, Any], suffix: str = "") -> str:
    """The file name of an image of the hub: the row's own, or the one inside the image; never a path."""
    found = Path(str(name or image.get("path") or "")).name
    if not found or found.startswith("."):
        raise DataDamaged(f"an image of the hub has no usable name ({name!r})")
    return found if Path(found).suffix else found + (Path(str(image.get("path") or "")).suffix or suffix or ".png")


ANNOTATIONS = "annotations/annotations_trainval2014.zip"


def _get_annotations(fetch: Fetch) -> None:
    """The instances and captions of val2014, from the archive with those of train2014, which is removed afterwards."""
    names = ("annotations/instances_val2014.json", "annotations/captions_val2014.json")
    if not all((fetch.folder / name).is_file() for name in names):
        archive = fetch.file(f"{COCO}/{ANNOTATIONS}", Path(ANNOTATIONS).name)
        fetch.written.discard(archive)
        try:
            with zipfile.ZipFile(archive) as content:
                for name in names:
                    fetch.write(name, content.read(name))
        except (zipfile.BadZipFile, KeyError) as error:
            archive.unlink()
            raise DataDamaged(f"{COCO}/{ANNOTATIONS} is damaged or has changed: {error}") from None
        archive.unlink()
    for name in names:
        fetch.add(fetch.folder / name)


def _build_coco(fetch: Fetch, part: str) -> None:
    _get_annotations(fetch)
    # `airvlm data list` needs none of them
    from airvlm.tasks.chair import draw_images
    from airvlm.tasks.files.coco import Instances, get_image_key

    listed = Instances(fetch.folder / "annotations/instances_val2014.json").files
    files = {get_image_key(image): name for image, name in listed.items()}
    fetch.images(_get_coco_urls(files[image] for image in draw_images(list(files), 0, part)))


def _build_dash_b(fetch: Fetch, part: str) -> None:
    rows = []
    for row in fetch.read_hub("YanNeu/DASH-B", split="test"):
        key, name = str(row["question_id"]), _name_image(row.get("img_id"), row["image"])
        # images with and without an object may have the same name
        image = f"images/{row['answer'].strip().lower()}/{_name_folder(row['object'])}/{name}"
        fetch.write(image, row["image"]["bytes"])
        line = {"question_id": key, "image": image, "object": row["object"], "question": row["question"]}
        rows.append({**line, "answer": row["answer"].strip().lower()})
    fetch.write_lines("questions.jsonl", rows)


def _name_folder(name: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in name)


# as in VLMEvalKit
HR_BENCH = {"4k": "f6b041b03d49543494b8a56d2e35be65", "8k": "274c9c7f89329b804a4723178a00219c"}


def _build_hr_bench(fetch: Fetch, part: str) -> None:
    from airvlm.tasks.hr_bench import extract_table

    repository = fetch.open_hub("DreamMr/HR-Bench")
    repository.announce([f"hr_bench_{part}.tsv"], fetch.say)
    table = repository.get(f"hr_bench_{part}.tsv")
    if fault := Checks(md5=HR_BENCH[part]).find_fault(table):
        fetch.say(f"note: {table.name} is not the version that VLMEvalKit names: {fault}")
    extracted = fetch.folder / f"hr_bench_{part}.jsonl"
    extract_table(table, extracted)
    fetch.add(extracted)
    for row in read_records(extracted):
        fetch.add(fetch.folder / row.read_text("image"))


def _build_mme(fetch: Fetch, part: str) -> None:
    """One folder per subtask, with NAME.txt (question, tab, answer) beside the image."""
    questions: dict[str, list[str]] = {}
    for row in fetch.read_hub("lmms-lab-encoder/MME", "lmms-lab/MME", split="test"):
        category, name = row["category"], _name_image(row["question_id"], row["image"], ".jpg")
        if category in ("", ".", "..") or "/" in category:
            raise DataDamaged(f"MME on the hub has a category {category!r}")
        fetch.write(f"{category}/{name}", row["image"]["bytes"])
        text = f"{category}/{Path(name).stem}.txt"
        questions.setdefault(text, []).append(f"{row['question'].strip()}\t{row['answer'].strip()}")
    for text, lines in questions.items():
        fetch.write(text, "\n".join(lines) + "\n")


def _build_mmbench(fetch: Fetch, part: str) -> None:
    """The official table, with its hash; from the hub if its server cannot be reached."""
    if part == "llava":
        name = "mmbench_dev_20230712.tsv"
        fetch.file(f"https://download.openmmlab.com/mmclassification/datasets/mmbench/{name}", name)
        return
    name = "MMBench_DEV_EN.tsv"
    try:
        url = f"https://opencompass.openxlab.space/utils/benchmarks/MMBench/{name}"
        fetch.file(url, name, Checks(md5="b6caf1133a01c6bb705cf753bb527ed8"))
        return
    except DataUnreachable as error:
        fetch.say(f"{error}; trying the hub")
    columns = ("index", "question", "hint", "A", "B", "C", "D", "answer", "category", "l2-category", "split")
    lines = ["\t".join(columns)]
    for row in fetch.read_hub("lmms-lab-encoder/MMBench", "lmms-lab/MMBench", split="dev", config="en"):
        fetch.write(f"MMBench_DEV_EN_images/{int(row['index'])}.jpg", row["image"]["bytes"])
        values = {**row, "l2-category": row.get("L2-category", row.get("l2-category"))}
        lines.append("\t".join(_quote(values.get(column)) for column in columns))
    fetch.write(name, "\n".join(lines) + "\n")


def _quote(value: Any) -> str:
    """A cell of a table; in quotes if it needs them."""
    text = "" if value is None or str(value) == "nan" else str(value)
    return '"' + text.replace('"', '""') + '"' if any(mark in text for mark in '\t\n\r"') else text


def _build_hallusionbench(fetch: Fetch, part: str) -> None:
    """The questions of the repository, and the figures of the hub's split `image`."""
    path = PINNED["hallusionbench"].get(fetch, "HallusionBench.json")
    wanted = {row.read_text("filename").removeprefix("./") for row in read_records(path) if row.has("filename")}
    found: set[str] = set()
    for row in fetch.read_hub("lmms-lab-encoder/HallusionBench", "lmms-lab/HallusionBench", split="image"):
        name = str(row["filename"]).removeprefix("./")
        if name in wanted and name not in found:
            found.add(name)
            fetch.write(f"hallusion_bench/{name}", row["image"]["bytes"])
    if wanted - found:
        raise DataDamaged(
            f"the hub's HallusionBench lacks {len(wanted - found)} figures, such as {min(wanted - found)}"
        )


def _build_vstar(fetch: Fetch, part: str) -> None:
    """The official folder as it is."""
    repository = fetch.open_hub("craigwu/vstar_bench")
    paths = repository.match(["direct_attributes/*", "relative_position/*"])
    if not paths:
        raise DataUnreachable("the hub's data set craigwu/vstar_bench has no direct_attributes/: it must have changed")
    _copy_files(fetch, repository, paths)


def _copy_files(fetch: Fetch, repository: HubRepository, paths: Sequence[str]) -> None:
    repository.announce(paths, fetch.say)
    with _show_progress(f"{len(paths)} files", len(paths), unit="") as advance:
        for path in paths:
            fetch.write(path, repository.get(path, quiet=True).read_bytes())
            advance(1)


def _build_mmvet(fetch: Fetch, part: str) -> None:
    questions: dict[str, Any] = {}
    for row in fetch.read_hub("lmms-lab-encoder/MMVet", "lmms-lab/MMVet", split="test"):
        name = _name_image(row.get("image_source"), row["image"], ".jpg")
        fetch.write(f"images/{name}", row["image"]["bytes"])
        needed = row["capability"]
        capabilities = needed.split(",") if isinstance(needed, str) else list(needed)
        question = {"imagename": name, "question": row["question"], "answer": row["answer"]}
        key = str(row["question_id"])
        key = key if key.startswith("v1_") else f"v1_{key}"
        questions[key] = {**question, "capability": [one.strip() for one in capabilities if one.strip()]}
    fetch.write("mm-vet.json", json.dumps(questions, ensure_ascii=False, indent=1))


def _build_llava_bench(fetch: Fetch, part: str) -> None:
    if part == "wild":  # the official folder as it is
        repository = fetch.open_hub("liuhaotian/llava-bench-in-the-wild")
        texts = ("questions.jsonl", "answers_gpt4.jsonl", "context.jsonl")
        _copy_files(fetch, repository, [*texts, *repository.match(["images/*"])])
        return
    for path in PINNED["llava-bench"].files:
        PINNED["llava-bench"].get(fetch, path)
    rows = read_records(fetch.folder / "qa90_questions.jsonl")
    fetch.images(_get_coco_urls(f"COCO_val2014_{row.read_id('image')}" for row in rows))


def _build_amber(fetch: Fetch, part: str) -> None:
    """The repository's files, and the images of the hub's copy, whose official archive no program can fetch."""
    for path in PINNED["amber"].files:
        PINNED["amber"].get(fetch, path, path)
    queries = read_records(fetch.folder / "data/query/query_generative.json")
    wanted = {row.read_int("id"): row.read_text("image") for row in queries}
    notes = {row.read_int("id"): row.get("truth") for row in read_records(fetch.folder / "data/annotations.json")}
    for row in fetch.read_hub("Kyunnilee/amber_g", split="train"):
        key = int(row["question_id"])
        # the annotations of both must agree, or the images would belong to other questions
        if key not in wanted or sorted(row["truth"]) != sorted(notes.get(key) or ()):
            raise DataDamaged(f"the hub's AMBER does not number its images as the repository does (image {key})")
        fetch.write(f"image/{wanted.pop(key)}", row["image"]["bytes"])
    if wanted:
        raise DataDamaged(f"the hub's AMBER lacks {len(wanted)} images, such as {min(wanted.values())}")


def _build_detailcaps(fetch: Fetch, part: str) -> None:
    columns = ("GT_Caption_GPT4O", "GT_Caption_GPT4V", "GT_Caption_Gemini15Pro")
    rows = []
    for n, row in enumerate(fetch.read_hub("foundation-multimodal-models/DetailCaps-4870", split="test")):
        image = f"images/{n:04d}{_find_suffix(row['binary'])}"
        fetch.write(image, row["binary"])
        references = [row[column] for column in columns if row.get(column)]
        rows.append({"id": str(n), "image": image, "source": row.get("source"), "references": references})
    fetch.write_lines("detailcaps.jsonl", rows)


def _find_suffix(content: bytes) -> str:
    return ".png" if content[:4] == b"\x89PNG" else ".webp" if content[8:12] == b"WEBP" else ".jpg"


MISSING = "missing_images.json"  # images whose addresses are dead; their questions are left out


def _build_haloquest(fetch: Fetch, part: str) -> None:
    table = PINNED["haloquest"].get(fetch, "haloquest-eval.csv")
    wanted: dict[str, list[str]] = {}
    for row in read_table(table):
        urls = wanted.setdefault(f"images/{Path(row['image_name']).name}", [])
        urls += [row["url"]] if row["url"] not in urls else []
    lacking = fetch.images(wanted, optional=True)
    fetch.write(MISSING, json.dumps([Path(name).name for name in lacking]))


def _build_mmhal(fetch: Fetch, part: str) -> None:
    path = "eval/data/mmhal-bench_answer_template.json"
    template = PINNED["mmhal"].get(fetch, path, "response_template.json")
    rows = read_records(template)
    fetch.images({f"images/{row.read_text('image_src').rsplit('/', 1)[-1]}": [row["image_src"]] for row in rows})


def _build_reefknot(fetch: Fetch, part: str) -> None:
    file = {"yesno": "YESNO.jsonl", "choice": "Multichoice.jsonl", "vqa": "VQA.jsonl"}[part]
    path = PINNED["reefknot"].get(fetch, f"Dataset/{file}")
    ids = {row.read_id("image_id").removesuffix(".jpg") for row in read_records(path)}
    fetch.images(_get_genome_urls(ids, "images"))


_BUILDERS: dict[str, Callable[[Fetch, str], None]] = {
    "coco": _build_coco,
    "pope": _build_pope,
    "dash-b": _build_dash_b,
    "hr-bench": _build_hr_bench,
    "haloquest": _build_haloquest,
    "reefknot": _build_reefknot,
    "detailcaps": _build_detailcaps,
    "amber": _build_amber,
    "mme": _build_mme,
    "mmbench": _build_mmbench,
    "hallusionbench": _build_hallusionbench,
    "vstar": _build_vstar,
    "mmvet": _build_mmvet,
    "mmhal": _build_mmhal,
    "llava-bench": _build_llava_bench,
}
