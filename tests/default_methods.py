"""Methods with options that suit the small random models, which the laws are tested on.

The small models have four layers, few tokens and confident logits, so layers and thresholds are set for them.
"""

from airvlm import (
    ADHH,
    AIR,
    CODE,
    CRG,
    ICD,
    M3ID,
    MARINE,
    MLIHE,
    PAI,
    SID,
    SPIN,
    VAF,
    VAR,
    VCD,
    AIRMemory,
    AvisC,
    Composed,
    CropBlend,
    CRoPS,
    CutOff,
    DeCo,
    DoLa,
    EOSBias,
    MemVR,
    NearTie,
    RandomCrops,
    Temperature,
    YesBias,
)
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

# On logits and attention; beta = 0 for the reason above
ZOO: dict[str, Method] = {
    "pai": PAI(alpha=0.8, gamma=1.5, beta=0.0),
    "m3id": M3ID(decay=0.3),
    "sid": SID(beta=0.0),
    "icd": ICD(beta=0.0),
    "avisc": AvisC(beta=0.0),
    "crops": CRoPS(decay=0.3, beta=0.0, gate=1.0),
    "code": CODE(tokens=3),
    "marine": MARINE(objects=("dog and cat",)),
    "crg": CRG(boxes=((0.0, 0.2, 0.5, 1.0),)),
    "deco": DeCo(),
    "dola": DoLa(beta=0.0),
    "mlihe": MLIHE(alpha=1.5),
    "spin": SPIN(keep=0.5),
    "ad-hh": ADHH(heads=((1, 0), (1, 2), (2, 1)), tau=0.1),
    "var": VAR(dims=(3, 17), tau=1.0, min_image=0.05, keep=0.0, layers=(1, 4)),
}

# What does not depend on a family's layers: tested on a few families
OTHERS: dict[str, Method] = {
    "eos-bias": EOSBias(1.0),
    "yes-bias": YesBias(1.0),
    "cut-off": CutOff(0.1),
    "near-tie": NearTie(margin=1.0, mass=0.0),
    "temperature": Temperature(0.5),
    "random-crops": RandomCrops(CropBlend(num_crops=4, keep=2, weight=0.5)),
    "composed": Composed(CropBlend(num_crops=3, weight=0.5), VAF(enhance=0.8, layers=(1, 4)), EOSBias(1.0)),
}
