"""What was published for the two ported models, as methods ready to use: `SETTINGS["qwen"]["memvr"]`.

MemVR's layers and shares are those of its scripts, whose windows (9, 16) and (5, 16) are exclusive at both ends and
name the layers before those that are changed; the values differ by benchmark there, and so do the names here.
The paper of AIR gives no settings of its own for these models: it was built on MemVR, whose activation (SiLU here,
none for LLaVA) and share are taken over; its window, the last fifth of the decoder, is measured on LLaVA. Published
MemVR never acted on either model (its switch is off by default), so that no published number stands behind these.
Knows nothing of how the models compute.
"""

from airvlm.methods.base import Method
from airvlm.methods.air import AIR
from airvlm.methods.memvr import MemVR

__all__ = ["SETTINGS"]

SETTINGS: dict[str, dict[str, Method]] = {
    "qwen": {
        "memvr": MemVR(layers=(11, 17), alpha=0.28),  # MME, MM-Vet, LLaVA-Bench, VizWiz
        "memvr-chair": MemVR(layers=(11, 17), alpha=0.29),
        "memvr-demo": MemVR(layers=(11, 17), alpha=0.1),
        "air-paper": AIR.paper(layers=(26, 32), strength=0.28, phi="silu"),
        "air-lineage": AIR.lineage(layers=(26, 32), strength=0.28, phi="silu"),
    },
    "chatglm": {
        "memvr": MemVR(layers=(11, 17), alpha=0.28),  # MME, MM-Vet, LLaVA-Bench
        "memvr-chair": MemVR(layers=(11, 17), alpha=0.26),  # also VizWiz
        "memvr-demo": MemVR(layers=(7, 17), alpha=0.1),
        "air-paper": AIR.paper(layers=(32, 40), strength=0.28, phi="silu"),
        "air-lineage": AIR.lineage(layers=(32, 40), strength=0.28, phi="silu"),
    },
}
