"""The families that the laws of a method are tested on: one per layout of pixels in the fast run, all otherwise."""

import pytest

from airvlm.testing import small_models
from airvlm.testing.method_laws import FAMILIES as FEW

ALL = [*FEW, *(pytest.param(f, marks=pytest.mark.exhaustive) for f in small_models.list_families() if f not in FEW)]
