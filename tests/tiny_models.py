"""Temporary: import airvlm.testing.small_models (and tests.all_families) instead."""

from airvlm.testing.small_models import *  # noqa: F403
from airvlm.testing.small_models import build_inputs as inputs  # noqa: F401
from airvlm.testing.small_models import build_tokenizer as tokenizer  # noqa: F401
from airvlm.testing.small_models import sample_rows as rows  # noqa: F401
from airvlm.testing.small_models import scale_weights as scale  # noqa: F401
from airvlm.testing.small_models import shared_model as shared  # noqa: F401
from tests.all_families import FAMILIES  # noqa: F401
