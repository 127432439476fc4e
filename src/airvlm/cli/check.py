"""`airvlm check`: the laws of a method, checked on small random models."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from airvlm.cli import common
from airvlm.cli.console import Failure, emit, print_columns
from airvlm.cli.options import JsonOption, SetOption, option

__all__ = ["check"]

OK = "ok"


def check(
    method: Annotated[
        str, typer.Argument(metavar="METHOD", help="A name, as in air:keep=3, or your own: package.module:Class.")
    ],
    settings: SetOption = None,
    family: Annotated[
        list[str] | None, option("--family", "TYPE", "A model type, as in llava, or all. Repeatable.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Check that a method keeps the laws of methods, on small random models.

    Each law is checked on each family of models: off means off, strength 0 equals vanilla, a batch equals its rows, the
    cache changes nothing, and so on. Nothing is downloaded. The small models have four layers and few visual tokens:
    give options that act there. Ends with code 1 if a law is broken.

    \b
    Examples:
      airvlm check vaf --family llava
      airvlm check airvlm.methods.vaf:VAF --family llava --set layers=1-3
    """
    chosen = common.choose_method(method, settings)
    if chosen is None:
        raise Failure("vanilla is the model as it is: there is nothing to check")
    from airvlm.testing import small_models
    from airvlm.testing.method_laws import FAMILIES, METHOD_LAWS, MethodOnFamily, turn_off

    known = small_models.list_families()
    families = known if family == ["all"] else family or list(FAMILIES)
    if unknown := [name for name in families if name not in known]:
        raise Failure(f"--family {unknown[0]}: there are {', '.join(known)}, and all")
    outcomes: dict[str, dict[str, str]] = {law.name: {} for law in METHOD_LAWS}  # law -> family -> ok, or what failed
    for name in families:
        subject = MethodOnFamily(name, chosen, turn_off(chosen))
        for law in METHOD_LAWS:
            if sys.stderr.isatty():
                print(f"\r\033[K{name}: {law.name}", end="", file=sys.stderr, flush=True)
            if law.applies(subject):
                outcomes[law.name][name] = _run_law(law, subject)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    broken = [(law, name, what) for law, own in outcomes.items() for name, what in own.items() if what != OK]
    if json:
        emit({"method": chosen.to_json(), "laws": outcomes, "broken": len(broken)})
    else:
        rows = [[chosen.label, *families]]
        for title, own in outcomes.items():
            rows.append([title, *("-" if f not in own else OK if own[f] == OK else "broken" for f in families)])
        print_columns(rows)
        for title, name, what in broken:
            print(f"\n{name}: {title}\n  {what}")
    if broken:
        raise typer.Exit(1)


def _run_law(law: Any, subject: Any) -> str:
    """OK, or what is wrong."""
    try:
        law.check(subject)
    except Exception as error:  # whatever the method raises breaks the law
        kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
        return kind + (" ".join(str(error).split()) or "it does not hold")
    return OK
