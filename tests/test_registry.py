"""Names from inside and outside: entry points are found, and broken ones break nothing."""

import sys
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import pytest

from airvlm.methods import METHODS, VAF, Composed, CropBlend, parse_method
from airvlm.models.families import FAMILIES
from airvlm.registry import Registry
from airvlm.tasks import TASKS, load_task

PACKAGE = '''
from dataclasses import dataclass
from typing import ClassVar

from airvlm.methods.base import option
from airvlm.methods.base import Method
from airvlm.models.families import Family
from airvlm.tasks import Task

@dataclass(frozen=True)
class Steer(Method):
    """Adds a direction to the visual tokens."""
    name: ClassVar[str] = "outside-steer"
    strength: float = option(0.1, "how far", low=0)

    @classmethod
    def strong(cls, **changes):
        return cls(**{"strength": 0.9, **changes})

@dataclass(frozen=True)
class Twenty(Task):
    """Twenty questions."""
    name: ClassVar[str] = "outside-twenty"

family = Family("outside_llava", "Outside", "me/outside", "fixed square")
nothing = 3
'''
ENTRIES = """
[airvlm.methods]
outside-steer = outside_airvlm:Steer
outside-strong = outside_airvlm:Steer.strong
outside-ready = outside_airvlm:Steer
outside-number = outside_airvlm:nothing
outside-absent = outside_airvlm:Absent
outside-missing = no_such_module_at_all:Steer
air = outside_airvlm:Steer

[airvlm.tasks]
outside-twenty = outside_airvlm:Twenty
outside-bad-task = outside_airvlm:nothing

[airvlm.families]
outside_llava = outside_airvlm:family
outside_other = outside_airvlm:family
"""


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """An installed package, as pip would leave it: a module and its entry points."""
    site = tmp_path_factory.mktemp("site")
    (site / "outside_airvlm.py").write_text(PACKAGE)
    info = site / "outside_airvlm-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outside-airvlm\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    registries: list[Registry[Any]] = [METHODS, TASKS, FAMILIES]
    sys.path.insert(0, str(site))
    for registry in registries:
        registry.refresh()
    assert any(entry.name == "outside-steer" for entry in metadata.entry_points(group="airvlm.methods"))
    yield sys.modules
    sys.path.remove(str(site))
    for registry in registries:
        registry.refresh()


def test_methods_of_another_package_are_spelled_like_our_own(outside: Any) -> None:
    steer = parse_method("outside-steer:strength=0.4")
    assert steer is not None and steer.to_json() == {"name": "outside-steer", "strength": 0.4}
    assert parse_method("outside-strong") == type(steer)(0.9)
    assert parse_method("outside_airvlm:Steer:strength=0.4") == steer
    assert parse_method("outside_airvlm:Steer.strong") == type(steer)(0.9)
    assert parse_method("air+outside-steer:strength=0.4") == Composed(CropBlend(), steer)
    assert parse_method("vaf+outside_airvlm:Steer+air") == Composed(VAF(), type(steer)(), CropBlend())
    assert METHODS["outside-steer"].package == METHODS.package("outside-steer") == "outside-airvlm"
    assert METHODS["outside-steer"].summary == "Adds a direction to the visual tokens."
    with pytest.raises(ValueError, match="negative"):
        parse_method("outside-steer:strength=-1")


def test_broken_entries_are_named_and_break_nothing(outside: Any) -> None:
    names = list(METHODS)
    assert "outside-steer" in names and "air" in names
    assert not {"outside-number", "outside-absent", "outside-missing"} & set(names)
    for name, why in [
        ("outside-number", "not a Method"),
        ("outside-absent", "Absent"),
        ("outside-missing", "no_such_module_at_all"),
        ("air", "taken by airvlm's own"),
    ]:
        assert why in METHODS.problems[name] and "outside-airvlm" in METHODS.problems[name]
    assert METHODS["air"].make is AIR
    with pytest.raises(ValueError, match=r"outside-number.*not a Method"):
        parse_method("outside-number")


def test_tasks_and_families_come_from_outside_too(outside: Any) -> None:
    assert load_task("outside-twenty").name == "outside-twenty"
    assert load_task("outside_airvlm:Twenty").name == "outside-twenty"
    assert "outside-bad-task" not in TASKS and "not a Task" in TASKS.problems["outside-bad-task"]
    assert FAMILIES["outside_llava"].title == "Outside"
    assert "outside_llava" in list(FAMILIES)
    assert "outside_other" not in FAMILIES and "must be the same" in FAMILIES.problems["outside_other"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("air:keep=", "keep= has no value"),
        ("air-paper:layers=9", r"layers = 9: give \(first, one after the last\)"),
        ("air:keep=2,keep=3", "keep is given twice"),
        ("air:strength=0.12", "it acts in air-paper and air-lineage"),
        ("air:weight=nan", "weight = nan: give a finite number"),
        ("os:system", "not a Method"),
        ("no.such.module:Thing", "no.such.module:Thing: No module named"),
        ("airvlm.methods:Nothing", "Nothing"),
        ("@nowhere.json", "nowhere.json"),
        ("telepathy", "unknown method 'telepathy'; known: vanilla, air"),
    ],
)
def test_what_cannot_be_meant_is_said_in_one_line(text: str, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        parse_method(text)
    assert "\n" not in str(caught.value)


def test_text_from_a_network_imports_and_reads_nothing(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    path.write_text('{"method": {"name": "vaf", "enhance": 0.3}}')
    assert parse_method(f"@{path}") == VAF(enhance=0.3)
    assert parse_method(f"@{path}:suppress=0.2") == VAF(enhance=0.3, suppress=0.2)
    assert parse_method("airvlm.methods:VAF", local=True) == VAF()
    for text in (f"@{path}", "airvlm.methods:VAF", f"air+@{path}"):
        with pytest.raises(ValueError):
            parse_method(text, local=False)
    assert parse_method("air:weight=0.3", local=False) == CropBlend(weight=0.3)


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("airvlm.evaluation", "Run", "airvlm.evaluation.results.Results"),
        ("airvlm.evaluation", "TaskRun", "airvlm.evaluation.task_results.TaskResults"),
        ("airvlm.inputs.images", "load_picture", "airvlm.inputs.images.load_image"),
        ("airvlm.inputs.images", "BadPicture", "airvlm.inputs.images.BadImage"),
    ],
)
def test_a_name_that_changed_still_works_and_says_what_it_is_called_now(module: str, old: str, new: str) -> None:
    home, _, name = new.rpartition(".")
    with pytest.warns(DeprecationWarning, match=f"{module}.{old} is now {new}"):
        found = getattr(import_module(module), old)
    assert found is getattr(import_module(home), name)
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        _ = import_module(module).nothing_of_the_kind
