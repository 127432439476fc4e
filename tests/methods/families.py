"""The families that a method is tested on.

FEW has one per layout of pixels. The laws, which take longest, run on two of these, and with `--all` on every family.
"""

import pytest

from airvlm.testing import small_models
from airvlm.testing.method_laws import FAMILIES as FEW

_FIRST = FEW[:2]
_REST = [family for family in small_models.list_families() if family not in _FIRST]
ALL = [*_FIRST, *(pytest.param(family, marks=pytest.mark.exhaustive) for family in _REST)]
