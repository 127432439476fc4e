"""Every family that has a small random model; those of the two ported models are added here."""

from airvlm.testing import small_configs, small_models
from tests.models.ported import tiny_ports

_MARKS = {name.lower(): getattr(small_configs, name) for name in ("VIEW", "IMAGE", "START", "END")}
_PROCESSORS = tiny_ports.image_processors(small_configs.VIEW)

for _name, _config in tiny_ports.configs(small_configs.TEXT, **_MARKS).items():
    small_models.add_family(_name, _config, *_PROCESSORS[_name])

FAMILIES = small_models.list_families()
