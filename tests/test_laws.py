"""The laws of `airvlm.testing` for every method on every family."""

import pytest

from airvlm.methods.base import Method
from airvlm.testing.laws import Law
from airvlm.testing.method_laws import FAMILIES as FEW
from airvlm.testing.method_laws import METHOD_LAWS, MethodOnFamily, turn_off
from tests.all_families import FAMILIES
from tests.default_methods import METHODS, OTHERS, ZOO

# of METHODS, one per kind of hook: the decoder's input, feed-forwards and a lens, attention, a second stream
KINDS = {"crop-blend", "air-memory", "vaf", "vcd"}


def cases() -> list[object]:
    """One per family, method and law that says something about the method.

    `--fast` runs those of a few families. On the others one method per kind of hook runs, and the methods of ZOO on the
    first of the few; `--all` runs every method on every family.
    """
    found = []
    for family in FAMILIES:
        methods = {**METHODS, **ZOO, **OTHERS} if family in FEW else {**METHODS, **ZOO}
        subjects = {name: MethodOnFamily(family, method, turn_off(method)) for name, method in methods.items()}
        slow = () if family in FEW else (pytest.mark.slow,)
        always = {*METHODS, *OTHERS, *(ZOO if family == FEW[0] else ())} if family in FEW else KINDS
        marks = {name: slow if name in always else (pytest.mark.exhaustive,) for name in methods}
        found += [
            pytest.param(
                law,
                subject,
                id=f"{family}-{name}-{law.name.replace(' ', '_')}",
                marks=marks[name],
            )
            for name, subject in subjects.items()
            for law in METHOD_LAWS
            if law.applies(subject)
        ]
    return found


@pytest.mark.parametrize(("law", "subject"), cases())
def test_every_method_keeps_every_law(law: Law[MethodOnFamily], subject: MethodOnFamily) -> None:
    law.check(subject)


@pytest.mark.parametrize(
    "method", [*METHODS.values(), *ZOO.values(), *OTHERS.values()], ids=lambda method: method.label
)
def test_turned_off_is_derived_from_the_options(method: Method) -> None:
    off = turn_off(method)
    if off is None:
        assert method.name == "random-crops"  # a control of a method that does nothing is refused
    elif method.name != "composed":
        assert off.disabled_reason is not None
