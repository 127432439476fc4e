"""Names of this package and of others: entry points are found, and broken ones break nothing."""

import sys
from importlib import metadata
from typing import Any

import pytest

from airvlm.methods import AIR, METHODS, VAF, Composed, CropBlend, Method, list_methods, parse_method
from airvlm.models.families import FAMILIES
from airvlm.registry import Registry, import_object
from airvlm.tasks import TASKS, load_task

PACKAGE = '''
from dataclasses import dataclass
from typing import ClassVar

from airvlm.methods import Method, option
from airvlm.models.families import Family
from airvlm.tasks import Task

@dataclass(frozen=True)
class Steer(Method):
    """Adds a direction to the visual tokens."""
    name: ClassVar[str] = "outside-steer"
    summary: ClassVar[str] = "adds a direction to the visual tokens"
    strength: float = option(0.1, "how far", low=0)

@dataclass(frozen=True)
class Broken(Method):
    name: ClassVar[str] = "outside-broken"
    strength: float = option(-1.0, "its default is not valid", low=0)

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
outside-other-name = outside_airvlm:Steer
outside-broken = outside_airvlm:Broken
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
    assert Method.from_json(steer.to_json()) == steer
    assert parse_method("outside_airvlm:Steer:strength=0.4") == steer
    assert parse_method("crop-blend+outside-steer:strength=0.4") == Composed(CropBlend(), steer)
    assert parse_method("vaf+outside_airvlm:Steer+crop-blend") == Composed(VAF(), type(steer)(), CropBlend())
    assert METHODS["outside-steer"] is type(steer) and METHODS.package("outside-steer") == "outside-airvlm"
    assert METHODS.package("vaf") == "airvlm"
    assert "outside-steer" in list_methods()
    with pytest.raises(ValueError, match="negative"):
        parse_method("outside-steer:strength=-1")


def test_broken_entries_are_named_and_break_nothing(outside: Any) -> None:
    names = list(METHODS)
    assert "outside-steer" in names and "air" in names
    for name, why in [
        ("outside-number", "is not a method"),
        ("outside-absent", "Absent"),
        ("outside-missing", "no_such_module_at_all"),
        ("outside-other-name", "its name is 'outside-steer', and the entry point's name must be the same"),
        ("outside-broken", "strength = -1.0"),
        ("air", "taken by airvlm's own"),
    ]:
        assert why in METHODS.problems[name] and "outside-airvlm" in METHODS.problems[name]
        assert name == "air" or name not in names
    assert METHODS["air"] is AIR
    with pytest.raises(ValueError, match=r"the method outside-number.*is not a method"):
        parse_method("outside-number")


def test_tasks_and_families_come_from_outside_too(outside: Any) -> None:
    assert load_task("outside-twenty").name == "outside-twenty"
    assert load_task("outside_airvlm:Twenty").name == "outside-twenty"
    assert "outside-bad-task" not in TASKS and "not a Task" in TASKS.problems["outside-bad-task"]
    assert FAMILIES["outside_llava"].title == "Outside"
    assert "outside_llava" in list(FAMILIES)
    assert "outside_other" not in FAMILIES and "must be the same" in FAMILIES.problems["outside_other"]


def test_an_unknown_name_is_told_with_the_nearest_and_all_known() -> None:
    registry: Registry[int] = Registry("airvlm.nothing", {"apple": 1, "pear": 2}, lambda name, thing, package: thing)
    assert registry.unknown("fruit", "aple") == "unknown fruit 'aple'; did you mean apple?"
    assert registry.unknown("fruit", "x") == "unknown fruit 'x'. Known: apple, pear"
    assert list(registry) == registry.names == ["apple", "pear"] and len(registry) == 2
    registry["plum"] = 3
    assert registry["plum"] == 3
    del registry["plum"]
    assert "plum" not in registry


def test_an_object_is_imported_by_its_path() -> None:
    assert import_object("airvlm.methods:VAF") is VAF
    assert import_object("airvlm.methods:VAF.name") == "vaf"
    for target in ("no.such:Thing", "airvlm.methods:Nothing"):
        with pytest.raises(ValueError, match=target):
            import_object(target)
