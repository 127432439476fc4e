"""airvlm: training-free methods against hallucination in vision-language models.

Names are imported lazily: `import airvlm` is cheap and has no side effects, and torch and transformers are imported
with the first name that needs them.
"""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

if _TYPE_CHECKING:
    from airvlm import tiny as tiny
    from airvlm.evaluation.evaluate import evaluate as evaluate
    from airvlm.evaluation.results import Results as Results
    from airvlm.inputs.remember import unwrap as unwrap
    from airvlm.inputs.remember import wrap as wrap
    from airvlm.integrations.attach import attach as attach
    from airvlm.integrations.attach import detach as detach
    from airvlm.integrations.attach import get_attachment as get_attachment
    from airvlm.integrations.pipeline import pipeline as pipeline
    from airvlm.methods import *  # noqa: F403
    from airvlm.models.parts import ModelParts as ModelParts
    from airvlm.report import Report as Report
    from airvlm.runtime.session import MethodInactiveWarning as MethodInactiveWarning
    from airvlm.runtime.session import MethodNotApplied as MethodNotApplied
    from airvlm.runtime.session import ModelInUseError as ModelInUseError
    from airvlm.tasks import load_task as load_task
    from airvlm.vlm import VLM as VLM
    from airvlm.vlm import Answer as Answer
    from airvlm.vlm import PromptTooLong as PromptTooLong

__version__ = "0.1.0"

# public name -> the module that defines it
_MODULES = {
    "airvlm.methods": """
        ADHH AIR AIRMemory Artifact AttentionMethod AvisC CIPHER CODE CRG CRoPS Composed ContrastiveMethod
        CropBlend CropVote CutOff DAMO DeCo DoLa ED EOSBias FarthestCrops FeedForwardMethod HeadMethod HulluEdit
        ICD LensMethod LogitsMethod LoopMethod M3ID MARINE MLIHE MeanToken MemVR Method NearTie NoisyCrops Nullu
        OPERA OppositeDirections OtherDirections OtherImage PAI ProjectAway RITUAL RUDDER RandomCrops
        RandomDirections ReAskMethod SID SPIN ShrunkCrops SteeringMethod Temperature TestTimeAugmentation VAF
        VAR VCD VISTA VTI ViCrop VisualTokenMethod YesBias get_method list_methods option
    """,
    "airvlm.vlm": "VLM Answer PromptTooLong",
    "airvlm.evaluation.evaluate": "evaluate",
    "airvlm.evaluation.results": "Results",
    "airvlm.tasks": "load_task",
    "airvlm.report": "Report",
    "airvlm.runtime.session": "MethodInactiveWarning MethodNotApplied ModelInUseError",
    "airvlm.runtime.image_check": "ImagesNotCheckedWarning WrongImages",
    "airvlm.runtime.intervention": "Context ForwardPass Intervention",
    "airvlm.models.parts": "ModelParts UnsupportedModel",
    "airvlm.models.loading": "LoadError",
    "airvlm.inputs.images": "BadImage",
    "airvlm.inputs.remember": "unwrap wrap",
    "airvlm.integrations.attach": "attach detach get_attachment",
    "airvlm.integrations.pipeline": "pipeline",
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}
_SUBMODULES = ("testing", "tiny")

__all__ = sorted([*_HOMES, *_SUBMODULES])  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> _Any:
    if name in _SUBMODULES:
        return _import_module(f"airvlm.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'airvlm' has no attribute {name!r}")
    return getattr(_import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
