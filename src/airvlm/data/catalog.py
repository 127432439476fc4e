"""Where each benchmark's data are, and how they become the folder that its task reads.

Files of repositories are pinned to a commit with their hash. Images of COCO and Visual Genome are fetched one by one,
only those that a benchmark asks about. Data sets of the hub are read in the layout that lmms-eval's tasks use.
"""

from __future__ import annotations

import json
import sys
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

MB = 1_000_000
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

    def hub(self, *names: str) -> HubRepository:
        """The first of some data sets that the hub has."""
        repository = open_hub(names)
        self.sources.add(f"hub: {repository.name}@{repository.commit}")
        return repository

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
        build: writes its files into the folder.
        size: bytes that are downloaded, about; None if only the server knows.
        source: where they come from, for people.
    """

    build: Callable[[Fetch], None]
    size: int | None
    source: str
    license: str = ""  # where it is not that of the data set


@dataclass(frozen=True)
class DataSet:
    """The data of one or several tasks, in one folder."""

    name: str
    license: str
    parts: Mapping[str, Part]

    def __repr__(self) -> str:
        return f"DataSet({self.name!r})"


@dataclass(frozen=True)
class Need:
    """What a task needs: a part of a data set."""

    task: str
    data: DataSet
    part: str

    @property
    def license(self) -> str:
        return self.data.parts[self.part].license or self.data.license


# -- files of repositories


@dataclass(frozen=True)
class Pinned:
    """A repository at one commit, and files of it: path -> (size, sha256)."""

    repository: str
    commit: str
    files: Mapping[str, tuple[int, str]]

    def get(self, fetch: Fetch, path: str, name: str) -> Path:
        size, sha256 = self.files[path]
        return fetch.file(f"{GITHUB}/{self.repository}/{self.commit}/{path}", name, Checks(size, sha256))


def _get_coco_urls(names: Iterable[str]) -> dict[str, list[str]]:
    return {f"val2014/{name}": [f"{COCO}/val2014/{name}"] for name in sorted(set(names))}


def _get_genome_urls(ids: Iterable[str], place: str) -> dict[str, list[str]]:
    return {f"{place}/{key}.jpg": [f"{folder}/{key}.jpg" for folder in VISUAL_GENOME] for key in sorted(set(ids))}


# -- POPE and RePOPE

SETTINGS = ("random", "popular", "adversarial")
POPE = Pinned(
    "DAMO-NLP-SG/VCD",
    "d6568ff81b8fd306a49e630df44f2db5c2300191",
    {
        f"experiments/data/POPE/{path}": facts
        for path, facts in {
            "coco/coco_pope_random.json": (368166, "ac25245170b975a5bdf9080b23fd431dfe6be458bc038259c1f4f09a6bef7994"),
            "coco/coco_pope_popular.json": (367190, "fa3a986eb3d586ceb527371112ad7170f398835cbe0a3f08a7e888771dbd8bd6"),
            "coco/coco_pope_adversarial.json": (
                367458,
                "185d7eb49958c882f15d46c51d5c0456fbd5efbf24c57ff8b7adc6648870c6ac",
            ),
            "aokvqa/aokvqa_pope_random.json": (
                366825,
                "900c244605e8d43626b9579a110e3631e534cddc2aff27fe91e3f080e15d4446",
            ),
            "aokvqa/aokvqa_pope_popular.json": (
                363595,
                "792d586a875c197362256b25e9252cc97df6fa1dca5aca72a53eba560414d6b7",
            ),
            "aokvqa/aokvqa_pope_adversarial.json": (
                365037,
                "87f9acb460fcb690f9120c6d69eb05cfedadab5af5eb385b5201fd48bfc6670c",
            ),
            "gqa/gqa_pope_random.json": (312270, "1c1117ce33df2eae0d7b04827896caff1f79dac7b99b9e1b0c87a415066cff98"),
            "gqa/gqa_pope_popular.json": (309332, "e48e138bd61dd3bc4ec35cc8d4357b4dbfc68f0e704283a92217325585a17653"),
            "gqa/gqa_pope_adversarial.json": (
                310784,
                "64a3bdeb8d24c02d175eafa5e1b24bc7fd611efa95bb87a031c880e548aef094",
            ),
        }.items()
    },
)
REPOPE = Pinned(
    "YanNeu/RePOPE",
    "bcf22e5690d587cce34e1728af3efdcfaf747d29",
    {
        "annotations/coco_repope_random.json": (
            340368,
            "f464fcaf60b24ce2f280cf33f122e000dbdd35c8e88f77c4141c9c2cba864611",
        ),
        "annotations/coco_repope_popular.json": (
            333773,
            "57832b055bae5fd6176278a4f104c98ddd84811f7d26dfcb93d481f6c9da09a5",
        ),
        "annotations/coco_repope_adversarial.json": (
            328764,
            "8c346dbb060bf422ff92e769fa68e5ab3e8a777cb28a26e973387441e05c9ccf",
        ),
    },
)
POPE_ON_HUB = ("lmms-lab-encoder/POPE", "lmms-lab/POPE")


def _build_pope(dataset: str) -> Callable[[Fetch], None]:
    def build(fetch: Fetch) -> None:
        names: set[str] = set()
        for setting in SETTINGS:
            file = f"{dataset}_pope_{setting}.json"
            path = POPE.get(fetch, f"experiments/data/POPE/{dataset}/{file}", file)
            names |= {row.read_text("image") for row in read_records(path)}
        if dataset == "gqa":
            fetch.images(_get_genome_urls((name.removesuffix(".jpg") for name in names), "gqa"))
        else:
            fetch.images(_get_coco_urls(names))

    return build


def _build_pope_coco(fetch: Fetch) -> None:
    """From the repository and COCO's server; from the hub if one of them cannot be reached or nothing may be."""
    try:
        _build_pope("coco")(fetch)
    except DataUnreachable as error:
        fetch.say(f"{error}; trying the hub")
        fetch.written.clear()
        repository = fetch.hub(*POPE_ON_HUB)
        for setting in SETTINGS:
            rows = []
            for row in repository.read_rows(setting, "Full", fetch.say):
                name = _name_image(row["image_source"], row["image"], ".jpg")
                fetch.write(f"val2014/{name}", row["image"]["bytes"])
                question = {"question_id": int(row["question_id"]), "image": name, "text": row["question"].strip()}
                rows.append({**question, "label": row["answer"].strip().lower()})
            fetch.write_lines(f"coco_pope_{setting}.json", rows)


def _build_repope(fetch: Fetch) -> None:
    names: set[str] = set()
    for setting in SETTINGS:
        path = REPOPE.get(fetch, f"annotations/coco_repope_{setting}.json", f"coco_repope_{setting}.json")
        names |= {row.read_text("image") for row in read_records(path)}
    fetch.images(_get_coco_urls(names))


def _name_image(name: Any, image: Mapping[str, Any], suffix: str = "") -> str:
    """The file name of an image of the hub: the row's own, or the one inside the image; never a path."""
    found = Path(str(name or image.get("path") or "")).name
    if not found or found.startswith("."):
        raise DataDamaged(f"an image of the hub has no usable name ({name!r})")
    return found if Path(found).suffix else found + (Path(str(image.get("path") or "")).suffix or suffix or ".png")


# -- COCO: CHAIR, Object HalBench

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


def _build_coco(split: str) -> Callable[[Fetch], None]:
    def build(fetch: Fetch) -> None:
        _get_annotations(fetch)
        # `airvlm data list` needs none of them
        from airvlm.tasks.chair import draw_images
        from airvlm.tasks.files.coco import Instances, get_image_key

        listed = Instances(fetch.folder / "annotations/instances_val2014.json").files
        files = {get_image_key(image): name for image, name in listed.items()}
        fetch.images(_get_coco_urls(files[image] for image in draw_images(list(files), 0, split)))

    return build


# -- data sets of the hub


def _build_dash_b(fetch: Fetch) -> None:
    repository, rows = fetch.hub("YanNeu/DASH-B"), []
    for row in repository.read_rows("test", say=fetch.say):
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


def _build_hr_bench(size: str) -> Callable[[Fetch], None]:
    def build(fetch: Fetch) -> None:
        from airvlm.tasks.hr_bench import extract_table

        repository = fetch.hub("DreamMr/HR-Bench")
        repository.announce([f"hr_bench_{size}.tsv"], fetch.say)
        table = repository.get(f"hr_bench_{size}.tsv")
        if fault := Checks(md5=HR_BENCH[size]).find_fault(table):
            fetch.say(f"note: {table.name} is not the version that VLMEvalKit names: {fault}")
        extracted = fetch.folder / f"hr_bench_{size}.jsonl"
        extract_table(table, extracted)
        fetch.add(extracted)
        for row in read_records(extracted):
            fetch.add(fetch.folder / row.read_text("image"))

    return build


def _build_mme(fetch: Fetch) -> None:
    """One folder per subtask, with NAME.txt (question, tab, answer) beside the image."""
    repository, questions = fetch.hub("lmms-lab-encoder/MME", "lmms-lab/MME"), dict[str, list[str]]()
    for row in repository.read_rows("test", say=fetch.say):
        category, name = row["category"], _name_image(row["question_id"], row["image"], ".jpg")
        if category in ("", ".", "..") or "/" in category:
            raise DataDamaged(f"MME on the hub has a category {category!r}")
        fetch.write(f"{category}/{name}", row["image"]["bytes"])
        text = f"{category}/{Path(name).stem}.txt"
        questions.setdefault(text, []).append(f"{row['question'].strip()}\t{row['answer'].strip()}")
    for text, lines in questions.items():
        fetch.write(text, "\n".join(lines) + "\n")


def _build_mmbench(fetch: Fetch) -> None:
    """The official table, with its hash; from the hub if its server cannot be reached."""
    name = "MMBench_DEV_EN.tsv"
    try:
        url = f"https://opencompass.openxlab.space/utils/benchmarks/MMBench/{name}"
        fetch.file(url, name, Checks(md5="b6caf1133a01c6bb705cf753bb527ed8"))
        return
    except DataUnreachable as error:
        fetch.say(f"{error}; trying the hub")
    columns = ("index", "question", "hint", "A", "B", "C", "D", "answer", "category", "l2-category", "split")
    lines = ["\t".join(columns)]
    for row in fetch.hub("lmms-lab-encoder/MMBench", "lmms-lab/MMBench").read_rows("dev", "en", fetch.say):
        fetch.write(f"MMBench_DEV_EN_images/{int(row['index'])}.jpg", row["image"]["bytes"])
        values = {**row, "l2-category": row.get("L2-category", row.get("l2-category"))}
        lines.append("\t".join(_quote(values.get(column)) for column in columns))
    fetch.write(name, "\n".join(lines) + "\n")


def _build_mmbench_llava(fetch: Fetch) -> None:
    name = "mmbench_dev_20230712.tsv"
    fetch.file(f"https://download.openmmlab.com/mmclassification/datasets/mmbench/{name}", name)


def _quote(value: Any) -> str:
    """A cell of a table; in quotes if it needs them."""
    text = "" if value is None or str(value) == "nan" else str(value)
    return '"' + text.replace('"', '""') + '"' if any(mark in text for mark in '\t\n\r"') else text


HALLUSION = Pinned(
    "tianyi-lab/HallusionBench",
    "744007c232c292942c7f80eb61edb2465482da31",
    {"HallusionBench.json": (431987, "ca6e0fb677dd56e5fb0e2700d06c58d01f8a6ae66e0f1773b2ac48c0a095d051")},
)


def _build_hallusionbench(fetch: Fetch) -> None:
    """The questions of the repository, and the figures of the hub's split `image`."""
    path = HALLUSION.get(fetch, "HallusionBench.json", "HallusionBench.json")
    wanted = {row.read_text("filename").removeprefix("./") for row in read_records(path) if row.has("filename")}
    found: set[str] = set()
    for row in fetch.hub("lmms-lab-encoder/HallusionBench", "lmms-lab/HallusionBench").read_rows(
        "image", None, fetch.say
    ):
        name = str(row["filename"]).removeprefix("./")
        if name in wanted and name not in found:
            found.add(name)
            fetch.write(f"hallusion_bench/{name}", row["image"]["bytes"])
    if wanted - found:
        raise DataDamaged(
            f"the hub's HallusionBench lacks {len(wanted - found)} figures, such as {min(wanted - found)}"
        )


def _build_vstar(fetch: Fetch) -> None:
    """The official folder as it is."""
    repository = fetch.hub("craigwu/vstar_bench")
    paths = repository.match(["direct_attributes/*", "relative_position/*"])
    if not paths:
        raise DataUnreachable("the hub's data set craigwu/vstar_bench has no direct_attributes/: it must have changed")
    _copy_files(fetch, repository, {path: path for path in paths})


def _copy_files(fetch: Fetch, repository: HubRepository, names: Mapping[str, str]) -> None:
    """Copy files of the hub: path in the repository -> name in the folder."""
    repository.announce(list(names), fetch.say)
    with _show_progress(f"{len(names)} files", len(names), unit="") as advance:
        for path, name in names.items():
            fetch.write(name, repository.get(path, quiet=True).read_bytes())
            advance(1)


def _build_mmvet(fetch: Fetch) -> None:
    repository, questions = fetch.hub("lmms-lab-encoder/MMVet", "lmms-lab/MMVet"), dict[str, Any]()
    for row in repository.read_rows("test", say=fetch.say):
        name = _name_image(row.get("image_source"), row["image"], ".jpg")
        fetch.write(f"images/{name}", row["image"]["bytes"])
        needed = row["capability"]
        capabilities = needed.split(",") if isinstance(needed, str) else list(needed)
        question = {"imagename": name, "question": row["question"], "answer": row["answer"]}
        key = str(row["question_id"])
        key = key if key.startswith("v1_") else f"v1_{key}"
        questions[key] = {**question, "capability": [one.strip() for one in capabilities if one.strip()]}
    fetch.write("mm-vet.json", json.dumps(questions, ensure_ascii=False, indent=1))


def _build_llava_wild(fetch: Fetch) -> None:
    """The official folder as it is."""
    repository = fetch.hub("liuhaotian/llava-bench-in-the-wild")
    texts = ("questions.jsonl", "answers_gpt4.jsonl", "context.jsonl")
    paths = [*texts, *repository.match(["images/*"])]
    _copy_files(fetch, repository, {path: path for path in paths})


LLAVA = Pinned(
    "haotian-liu/LLaVA",
    "c121f0432da27facab705978f83c4ada465e46fd",
    {
        "playground/data/coco2014_val_qa_eval/qa90_questions.jsonl": (
            12242,
            "2a77196696b5602b544244ace9aeac21300513be85b5e53eb2414d00cddbe1c7",
        ),
        "playground/data/coco2014_val_qa_eval/qa90_gpt4_answer.jsonl": (
            41305,
            "5fd1a760483fb54e62a717a406add8a986f3e03a40d037b5d6515828cc90dbc5",
        ),
        "llava/eval/table/caps_boxes_coco2014_val_80.jsonl": (
            58574,
            "818d3df2b52784699bbdc129b6bc68e035d78ff8f5093c3e2ce5e0f726549b15",
        ),
    },
)


def _build_llava_coco(fetch: Fetch) -> None:
    for path in LLAVA.files:
        LLAVA.get(fetch, path, Path(path).name)
    rows = read_records(fetch.folder / "qa90_questions.jsonl")
    fetch.images(_get_coco_urls(f"COCO_val2014_{row.read_id('image')}" for row in rows))


AMBER = Pinned(
    "junyangwang0410/AMBER",
    "534babf6bbfcce2e735c26289dedfb21cef3c939",
    {
        "data/annotations.json": (1813301, "db22a436c4836fbb295e60b4e80d519573077579fb7032f01b193c1bd022b797"),
        "data/relation.json": (12699, "c4c1491e9bbc3209abc1888c12a1bf8413bdbab8a0d8be04b990a2e7680cf23e"),
        "data/safe_words.txt": (57, "f92cf1123f4578a2630832fac3e6ac4de36212ea55859d3bed4fd233723f4043"),
        "data/query/query_generative.json": (
            106220,
            "b7e4c36596126ee36d2c3922638b7fa98743c26efda78fea2315f4425258d087",
        ),
        "data/query/query_discriminative.json": (
            1738529,
            "1502887ac020f4bb7ea564af4e37bddcb030d61b78490d00f9da492a2307abb8",
        ),
    },
)


def _build_amber(fetch: Fetch) -> None:
    """The repository's files, and the images of the hub's copy, whose official archive no program can fetch."""
    for path in AMBER.files:
        AMBER.get(fetch, path, path)
    queries = read_records(fetch.folder / "data/query/query_generative.json")
    wanted = {row.read_int("id"): row.read_text("image") for row in queries}
    notes = {row.read_int("id"): row.get("truth") for row in read_records(fetch.folder / "data/annotations.json")}
    for row in fetch.hub("Kyunnilee/amber_g").read_rows("train", say=fetch.say):
        key = int(row["question_id"])
        # the annotations of both must agree, or the images would belong to other questions
        if key not in wanted or sorted(row["truth"]) != sorted(notes.get(key) or ()):
            raise DataDamaged(f"the hub's AMBER does not number its images as the repository does (image {key})")
        fetch.write(f"image/{wanted.pop(key)}", row["image"]["bytes"])
    if wanted:
        raise DataDamaged(f"the hub's AMBER lacks {len(wanted)} images, such as {min(wanted.values())}")


def _build_detailcaps(fetch: Fetch) -> None:
    columns = {"gpt4o": "GT_Caption_GPT4O", "gpt4v": "GT_Caption_GPT4V", "gemini": "GT_Caption_Gemini15Pro"}
    rows = []
    for n, row in enumerate(
        fetch.hub("foundation-multimodal-models/DetailCaps-4870").read_rows("test", None, fetch.say)
    ):
        image = f"images/{n:04d}{_find_suffix(row['binary'])}"
        fetch.write(image, row["binary"])
        references = [row[column] for column in columns.values() if row.get(column)]
        rows.append({"id": str(n), "image": image, "source": row.get("source"), "references": references})
    fetch.write_lines("detailcaps.jsonl", rows)


def _find_suffix(content: bytes) -> str:
    return ".png" if content[:4] == b"\x89PNG" else ".webp" if content[8:12] == b"WEBP" else ".jpg"


# -- images by their addresses

HALOQUEST = Pinned(
    "google/haloquest",
    "2f643ebb77aeae40f4c5323db38f99f0dc257cf5",
    {"haloquest-eval.csv": (212226, "6c88c8d6eb6d0a98881ec3e50ae52b5919247b53a47b7c723819603621b838b4")},
)
MMHAL = Pinned(
    "RLHF-V/RLHF-V",
    "8daac8a8f30df123818ae9d3a0e3f0018497714c",
    {
        "eval/data/mmhal-bench_answer_template.json": (
            50519,
            "28ed24e19ffef292597c35f1dad37760b2e0a088b3b40ca3b50f105fc1b951bb",
        )
    },
)
MISSING = "missing_images.json"  # images whose addresses are dead; their questions are left out


def _build_haloquest(fetch: Fetch) -> None:
    table = HALOQUEST.get(fetch, "haloquest-eval.csv", "haloquest-eval.csv")
    wanted: dict[str, list[str]] = {}
    for row in read_table(table):
        urls = wanted.setdefault(f"images/{Path(row['image_name']).name}", [])
        urls += [row["url"]] if row["url"] not in urls else []
    lacking = fetch.images(wanted, optional=True)
    fetch.write(MISSING, json.dumps([Path(name).name for name in lacking]))


def _build_mmhal(fetch: Fetch) -> None:
    template = MMHAL.get(fetch, "eval/data/mmhal-bench_answer_template.json", "response_template.json")
    rows = read_records(template)
    fetch.images({f"images/{row.read_text('image_src').rsplit('/', 1)[-1]}": [row["image_src"]] for row in rows})


REEFKNOT = Pinned(
    "JackChen-seu/Reefknot",
    "310ec0c468f7763440ca4ffb53f1fe00d9a3deb7",
    {
        "Dataset/YESNO.jsonl": (2032423, "d0cc32f76763dcc4dd9c02d0d6c69cec8671d1ed834a8e77e1aa86dfad364247"),
        "Dataset/Multichoice.jsonl": (1813915, "537bc558e9a207f354f53c56ec02dcd7f3e01347699abf47f104fc291786ef6b"),
        "Dataset/VQA.jsonl": (1376012, "6ce3866908636d23897f078bf9c8105a205eeec3c8a03b27e026d8ae8f3cf300"),
    },
)


def _build_reefknot(file: str) -> Callable[[Fetch], None]:
    def build(fetch: Fetch) -> None:
        path = REEFKNOT.get(fetch, f"Dataset/{file}", file)
        ids = {row.read_id("image_id").removesuffix(".jpg") for row in read_records(path)}
        fetch.images(_get_genome_urls(ids, "images"))

    return build


# -- the table

_PHOTOS = "the photographs belong to their owners"
_COCO_PARTS = {
    split: Part(_build_coco(split), 335 * MB, "images.cocodataset.org (annotations, 500 images)")
    for split in ("test", "validation", "calibration")
}
DATA_SETS: dict[str, DataSet] = {
    data.name: data
    for data in (
        DataSet("coco", f"annotations CC BY 4.0; {_PHOTOS}", _COCO_PARTS),
        DataSet(
            "pope",
            f"questions Apache-2.0 (VCD's copy); {_PHOTOS}",
            {
                "coco": Part(
                    _build_pope_coco, 85 * MB, "github.com/DAMO-NLP-SG/VCD, images.cocodataset.org (500 images)"
                ),
                "aokvqa": Part(
                    _build_pope("aokvqa"), 85 * MB, "github.com/DAMO-NLP-SG/VCD, images.cocodataset.org (500 images)"
                ),
                "gqa": Part(_build_pope("gqa"), 70 * MB, "github.com/DAMO-NLP-SG/VCD, Visual Genome (500 images)"),
                "repope": Part(
                    _build_repope,
                    85 * MB,
                    "github.com/YanNeu/RePOPE, images.cocodataset.org (500 images)",
                    license=f"labels not stated; {_PHOTOS}",
                ),
            },
        ),
        DataSet("dash-b", "not stated", {"all": Part(_build_dash_b, None, "hub: YanNeu/DASH-B")}),
        DataSet(
            "hr-bench",
            "Apache-2.0",
            {
                "4k": Part(_build_hr_bench("4k"), None, "hub: DreamMr/HR-Bench"),
                "8k": Part(_build_hr_bench("8k"), None, "hub: DreamMr/HR-Bench"),
            },
        ),
        DataSet(
            "haloquest",
            "CC BY 4.0; the images may have licenses of their own",
            {"all": Part(_build_haloquest, None, "github.com/google/haloquest, and each image's address")},
        ),
        DataSet(
            "reefknot",
            f"not stated; {_PHOTOS}",
            {
                part: Part(_build_reefknot(file), size * MB, "github.com/JackChen-seu/Reefknot, Visual Genome")
                for part, file, size in (
                    ("yesno", "YESNO.jsonl", 650),
                    ("choice", "Multichoice.jsonl", 800),
                    ("vqa", "VQA.jsonl", 650),
                )
            },
        ),
        DataSet(
            "detailcaps",
            "Apache-2.0",
            {"all": Part(_build_detailcaps, None, "hub: foundation-multimodal-models/DetailCaps-4870")},
        ),
        DataSet(
            "amber",
            "Apache-2.0",
            {"all": Part(_build_amber, None, "github.com/junyangwang0410/AMBER, hub: Kyunnilee/amber_g")},
        ),
        DataSet(
            "mme",
            "academic research only",
            {"all": Part(_build_mme, None, "hub: lmms-lab-encoder/MME")},
        ),
        DataSet(
            "mmbench",
            "Apache-2.0",
            {
                "dev": Part(_build_mmbench, None, "opencompass.openxlab.space"),
                "llava": Part(_build_mmbench_llava, None, "download.openmmlab.com"),
            },
        ),
        DataSet(
            "hallusionbench",
            "BSD-3-Clause",
            {
                "all": Part(
                    _build_hallusionbench,
                    None,
                    "github.com/tianyi-lab/HallusionBench, hub: lmms-lab-encoder/HallusionBench",
                )
            },
        ),
        DataSet("vstar", "MIT", {"all": Part(_build_vstar, None, "hub: craigwu/vstar_bench")}),
        DataSet("mmvet", "CC BY-NC 4.0", {"all": Part(_build_mmvet, None, "hub: lmms-lab-encoder/MMVet")}),
        DataSet(
            "mmhal",
            f"CC BY-NC 4.0 (RLHF-V's copy); {_PHOTOS}",
            {"all": Part(_build_mmhal, None, "github.com/RLHF-V/RLHF-V, and each image's address")},
        ),
        DataSet(
            "llava-bench",
            "Apache-2.0, answers by GPT-4",
            {
                "wild": Part(_build_llava_wild, None, "hub: liuhaotian/llava-bench-in-the-wild"),
                "coco": Part(_build_llava_coco, 5 * MB, "github.com/haotian-liu/LLaVA, images.cocodataset.org"),
            },
        ),
    )
}

_NEEDS: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("chair", "object-halbench"), ("coco", "test")),
    "pope": ("pope", "coco"),
    **{f"pope-{dataset}-{setting}": ("pope", dataset) for dataset in ("coco", "aokvqa", "gqa") for setting in SETTINGS},
    "repope": ("pope", "repope"),
    **{f"repope-{setting}": ("pope", "repope") for setting in SETTINGS},
    "dash-b": ("dash-b", "all"),
    "hr-bench": ("hr-bench", "4k"),
    "hr-bench-8k": ("hr-bench", "8k"),
    "haloquest": ("haloquest", "all"),
    "reefknot": ("reefknot", "yesno"),
    "reefknot-choice": ("reefknot", "choice"),
    "reefknot-vqa": ("reefknot", "vqa"),
    "detailcaps": ("detailcaps", "all"),
    "amber": ("amber", "all"),
    "amber-yesno": ("amber", "all"),
    "mme": ("mme", "all"),
    "mmbench": ("mmbench", "dev"),
    "hallusionbench": ("hallusionbench", "all"),
    "vstar": ("vstar", "all"),
    "mmvet": ("mmvet", "all"),
    "mmhal": ("mmhal", "all"),
    "llava-bench": ("llava-bench", "wild"),
}
_OF_VARIANTS = {  # (task, variant) -> part, where a variant has other data
    ("mmbench", "llava"): "llava",
    ("llava-bench", "coco"): "coco",
    ("llava-bench", "coco-official"): "coco",
}


def find_need(task: str, *, split: str = "test", variant: str | None = None) -> Need | None:
    """What a task needs; None if it needs nothing, or nothing that can be fetched.

    Args:
        task: the task's name.
        split: the split of its items.
        variant: its variant.
    """
    if task not in _NEEDS:
        return None
    name, part = _NEEDS[task]
    part = _OF_VARIANTS.get((task, variant or ""), part)
    if name == "coco":
        part = split
    return Need(task, DATA_SETS[name], part)


def list_tasks() -> list[str]:
    """The tasks whose data can be fetched, in the order of `airvlm info tasks`."""
    return [name for name in TASKS if name in _NEEDS]
