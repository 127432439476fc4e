"""Groups of options: one parameter of a command, several options on the command line; and `--set`."""

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer

from airvlm.cli.common import choose_method
from airvlm.cli.console import Failure
from airvlm.cli.options import expand_groups
from airvlm.methods import AIR, VAF, Composed, CropBlend, NoisyCrops, RandomCrops


@dataclass(frozen=True)
class Painting:
    color: Annotated[str, typer.Option("--color", help="Of the wall.")] = "white"
    coats: Annotated[int, typer.Option("--coats", min=1, help="One over the other.")] = 2


def paint(
    wall: Annotated[str, typer.Argument()], how: Painting = Painting(coats=1), dry: bool = False
) -> tuple[str, Painting, bool]:
    return wall, how, dry


def run(*arguments: str) -> object:
    app = typer.Typer(add_completion=False)
    app.command()(expand_groups(paint))
    return typer.main.get_command(app).main(list(arguments), standalone_mode=False)


def test_a_group_stands_for_its_options() -> None:
    assert run("left", "--color", "red", "--coats", "3", "--dry") == ("left", Painting("red", 3), True)


def test_what_is_not_given_is_as_the_command_has_it() -> None:
    assert run("left") == ("left", Painting("white", 1), False)


def test_options_in_a_group_are_explained_and_checked(capsys: pytest.CaptureFixture[str]) -> None:
    run("--help")
    assert "Of the wall." in capsys.readouterr().out
    with pytest.raises(typer.TyperException):
        run("left", "--coats", "0")


@pytest.mark.parametrize(
    ("method", "settings", "expected"),
    [
        ("crop-blend", ["weight=0.2", "keep=3"], CropBlend(weight=0.2, keep=3)),
        ("air:keep=3", ["strength=0.2"], AIR(keep=3, strength=0.2)),
        ("air:keep=3", ["keep=4"], AIR(keep=4)),
        ("air", ["layers=(1,3)"], AIR(layers=(1, 3))),
        ("airvlm.methods.vaf:VAF", ["enhance=0.5"], VAF(enhance=0.5)),
        ("airvlm.methods.vaf:VAF:enhance=0.5", ["suppress=0.1"], VAF(enhance=0.5, suppress=0.1)),
        ("random-crops(crop-blend:keep=2)", ["weight=0.2"], RandomCrops(CropBlend(keep=2, weight=0.2))),
        ("random-crops(crop-blend:keep=2)", ["seed=7"], RandomCrops(CropBlend(keep=2), seed=7)),
        ("crop-blend+vaf", ["weight=0.2", "enhance=0.5"], Composed(CropBlend(weight=0.2), VAF(enhance=0.5))),
        (
            "noisy-crops(crop-blend)+vaf",
            ["std=2.0", "weight=0.2"],
            Composed(NoisyCrops(CropBlend(weight=0.2), std=2.0), VAF()),
        ),
        ("vanilla", [], None),
    ],
)
def test_set_changes_the_part_that_has_the_option(method: str, settings: list[str], expected: object) -> None:
    assert choose_method(method, settings) == expected


@pytest.mark.parametrize(
    ("method", "setting", "said"),
    [
        ("crop-blend+air:keep=3", "keep=2", "crop-blend and air of"),
        ("noisy-crops(crop-blend)", "method=air", "has no option 'method'"),
        ("crop-blend+vaf", "wieght=0.2", "did you mean weight?"),
    ],
)
def test_set_refuses_what_is_ambiguous_or_unknown(method: str, setting: str, said: str) -> None:
    with pytest.raises(Failure, match=said.replace("?", r"\?")):
        choose_method(method, [setting])
