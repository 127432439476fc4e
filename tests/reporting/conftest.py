"""The evaluation's fakes serve here too."""

from tests.evaluation.conftest import fake_names

__all__ = ["fake_names"]
