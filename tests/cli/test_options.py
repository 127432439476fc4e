"""Groups of options: one parameter of a command, several options on the command line."""

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer

from airvlm.cli.options import grouped


@dataclass(frozen=True)
class Painting:
    colour: Annotated[str, typer.Option("--colour", help="Of the wall.")] = "white"
    coats: Annotated[int, typer.Option("--coats", min=1, help="One over the other.")] = 2


def paint(
    wall: Annotated[str, typer.Argument()], how: Painting = Painting(coats=1), dry: bool = False
) -> tuple[str, Painting, bool]:
    return wall, how, dry


def run(*arguments: str) -> object:
    app = typer.Typer(add_completion=False)
    app.command()(grouped(paint))
    return typer.main.get_command(app).main(list(arguments), standalone_mode=False)


def test_a_group_stands_for_its_options() -> None:
    assert run("left", "--colour", "red", "--coats", "3", "--dry") == ("left", Painting("red", 3), True)


def test_what_is_not_given_is_as_the_command_has_it() -> None:
    assert run("left") == ("left", Painting("white", 1), False)


def test_options_in_a_group_are_explained_and_checked(capsys: pytest.CaptureFixture[str]) -> None:
    run("--help")
    assert "Of the wall." in capsys.readouterr().out
    with pytest.raises(typer.TyperException):
        run("left", "--coats", "0")
