"""`airvlm check`: the laws of a method, checked on small random models."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from airvlm.cli import common
from airvlm.cli.console import Failure, emit, print_columns
from airvlm.cli.options import JsonOption, SetOption, option

__all__ = ["check"]


def check(
    method: Annotated[
        str | None,
        typer.Argument(metavar="METHOD", help="A name, as in air:keep=3, or your own: package.module:Class."),
    ] = None,
    settings: SetOption = None,
    family: Annotated[
        list[str] | None, option("--family", "TYPE", "A model type, as in llava, or all. Repeatable.")
    ] = None,
    device: Annotated[
        str | None, option("--device", "NAME", "Check on this device, as in cuda; without METHOD, every method.")
    ] = None,
    output: Annotated[
        Path, option("--output -o", "FOLDER", "With --device alone: where device.json and device.md are written.")
    ] = Path("device-check"),
    layers: Annotated[
        int | None,
        option("--layers", "N", "With --device alone: decoder layers at 7B widths.", show_default="what fits"),
    ] = None,
    minutes: Annotated[
        float, option("--minutes", "N", "With --device alone: the time that it may take; the report names the rest.")
    ] = 10.0,
    json: JsonOption = False,
) -> None:
    """Check that a method keeps the laws of methods, on small random models.

    Each law is checked on each family of models: off means off, strength 0 equals vanilla, a batch equals its rows, the
    cache changes nothing, and so on. Nothing is downloaded. The small models have four layers and few visual tokens:
    give options that act there. Exits with 1 if a law is broken.

    With --device and without METHOD (airvlm check --device cuda), the laws of every method are checked on that device
    in float32 and bfloat16, synchronizations are counted, and prefill, decode and memory are measured on a random LLaVA
    at 7B widths. It ends after ten minutes (--minutes) and writes device.json and device.md, to attach to an issue.

    \b
    Examples:
      airvlm check vaf --family llava
      airvlm check airvlm.methods.vaf:VAF --family llava --set layers=1-3
      airvlm check vaf --family llava --device cpu
    """
    if method is None:
        if device is None:
            raise Failure("give a method, or --device to check every method there")
        _check_device(device, output, layers, family, minutes, json=json)
        return
    chosen = common.choose_method(method, settings)
    if chosen is None:
        raise Failure("vanilla is the model as it is: there is nothing to check")
    from airvlm.testing import small_models
    from airvlm.testing.laws import OK, run_law
    from airvlm.testing.method_laws import FAMILIES, METHOD_LAWS, MethodOnFamily, turn_off

    known = small_models.list_families()
    families = known if family == ["all"] else family or list(FAMILIES)
    if unknown := [name for name in families if name not in known]:
        raise Failure(f"--family {unknown[0]}: there are {', '.join(known)}, and all")
    outcomes: dict[str, dict[str, str]] = {law.name: {} for law in METHOD_LAWS}  # law -> family -> ok, or what failed
    with small_models.use_device(device or "cpu"):
        for name in families:
            subject = MethodOnFamily(name, chosen, turn_off(chosen))
            for law in METHOD_LAWS:
                if sys.stderr.isatty():
                    print(f"\r\033[K{name}: {law.name}", end="", file=sys.stderr, flush=True)
                if law.applies(subject):
                    outcomes[law.name][name] = run_law(law, subject)
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


def _check_device(
    device: str, output: Path, layers: int | None, families: list[str] | None, minutes: float, *, json: bool
) -> None:
    from tqdm import tqdm

    from airvlm.bench.device import check_device
    from airvlm.storage.atomic import write_atomically

    with tqdm(unit="step", disable=None) as bar:

        def show(what: str) -> None:
            bar.set_description(what, refresh=False)
            bar.update()

        found = check_device(device, layers=layers, families=families, minutes=minutes, progress=show)
    output.mkdir(parents=True, exist_ok=True)
    write_atomically(output / "device.json", found.to_json())
    write_atomically(output / "device.md", found.to_markdown())
    if json:
        print(found.to_json(), end="")
    else:
        print(found.to_markdown())
        print(output / "device.json", output / "device.md", sep="\n")
    if found.broken:
        raise typer.Exit(1)
