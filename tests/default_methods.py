"""Methods with options that suit the small random models, which the laws are tested on.

The small models have four layers, few tokens and confident logits, so layers and thresholds are set for them.
"""

from airvlm import AIR, VAF, VCD, AIRMemory, Composed, CropBlend, CutOff, EOSBias, MemVR, RandomCrops, YesBias
from airvlm.methods.base import Method

_SELECT = {"layers": (1, 4), "num_prototypes": 8, "keep": 2, "num_crops": 3, "strength": 0.5}

METHODS: dict[str, Method] = {
    "air": AIR(**_SELECT),
    "air-memory": AIRMemory(**_SELECT, threshold=0.3),
    "crop-blend": CropBlend(num_crops=3, weight=0.5),
    "memvr": MemVR(alpha=0.3, threshold=0.3, layers=(1, 4)),
    "vaf": VAF(enhance=0.8, suppress=0.4, layers=(1, 4)),
    "vaf-faithful": VAF(enhance=0.8, suppress=0.4, layers=(1, 4), faithful=True),
    # beta = 0: a token at the edge of the cut would fall on either side by the order of summation
    "vcd": VCD(alpha=0.5, beta=0.0),
}

# What does not depend on a family's layers: tested on a few families
OTHERS: dict[str, Method] = {
    "eos-bias": EOSBias(1.0),
    "yes-bias": YesBias(1.0),
    "cut-off": CutOff(0.1),
    "random-crops": RandomCrops(CropBlend(num_crops=4, keep=2, weight=0.5)),
    "composed": Composed(CropBlend(num_crops=3, weight=0.5), VAF(enhance=0.8, layers=(1, 4)), EOSBias(1.0)),
}
