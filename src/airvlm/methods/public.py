"""Every public name of `airvlm.methods`, imported together when one of them is first used."""

from airvlm.methods.adhh import ADHH
from airvlm.methods.air import AIR, AIRMemory
from airvlm.methods.artifacts import Artifact
from airvlm.methods.avisc import AvisC
from airvlm.methods.base import Method, option
from airvlm.methods.biases import CutOff, EOSBias, NearTie, Temperature, YesBias
from airvlm.methods.code import CODE
from airvlm.methods.composed import Composed
from airvlm.methods.controls import FarthestCrops, MeanToken, NoisyCrops, OtherImage, RandomCrops, ShrunkCrops
from airvlm.methods.crg import CRG
from airvlm.methods.crop_blend import CropBlend
from airvlm.methods.crops import CRoPS
from airvlm.methods.damo import DAMO
from airvlm.methods.deco import DeCo
from airvlm.methods.direction_controls import OppositeDirections, OtherDirections, RandomDirections
from airvlm.methods.dola import DoLa
from airvlm.methods.hulluedit import HulluEdit
from airvlm.methods.icd import ICD
from airvlm.methods.m3id import M3ID
from airvlm.methods.marine import MARINE
from airvlm.methods.memvr import MemVR
from airvlm.methods.mlihe import MLIHE
from airvlm.methods.names import METHODS, build_method, get_method, list_methods, parse_method
from airvlm.methods.nullu import CIPHER, Nullu
from airvlm.methods.opera import OPERA
from airvlm.methods.pai import PAI
from airvlm.methods.project_away import ProjectAway
from airvlm.methods.ritual import ED, RITUAL
from airvlm.methods.rudder import RUDDER
from airvlm.methods.sid import SID
from airvlm.methods.spin import SPIN
from airvlm.methods.templates import (
    AttentionMethod,
    ContrastiveMethod,
    FeedForwardMethod,
    HeadMethod,
    LensMethod,
    LogitsMethod,
    LoopMethod,
    ReAskMethod,
    SteeringMethod,
    VisualTokenMethod,
)
from airvlm.methods.vaf import VAF
from airvlm.methods.var import VAR
from airvlm.methods.vcd import VCD
from airvlm.methods.vicrop import ViCrop
from airvlm.methods.view_controls import CropVote, TestTimeAugmentation
from airvlm.methods.vista import VISTA
from airvlm.methods.vti import VTI

__all__ = [
    "ADHH",
    "AIR",
    "CIPHER",
    "CODE",
    "CRG",
    "DAMO",
    "ED",
    "ICD",
    "M3ID",
    "MARINE",
    "METHODS",
    "MLIHE",
    "OPERA",
    "PAI",
    "RITUAL",
    "RUDDER",
    "SID",
    "SPIN",
    "VAF",
    "VAR",
    "VCD",
    "VISTA",
    "VTI",
    "AIRMemory",
    "Artifact",
    "AttentionMethod",
    "AvisC",
    "CRoPS",
    "Composed",
    "ContrastiveMethod",
    "CropBlend",
    "CropVote",
    "CutOff",
    "DeCo",
    "DoLa",
    "EOSBias",
    "FarthestCrops",
    "FeedForwardMethod",
    "HeadMethod",
    "HulluEdit",
    "LensMethod",
    "LogitsMethod",
    "LoopMethod",
    "MeanToken",
    "MemVR",
    "Method",
    "NearTie",
    "NoisyCrops",
    "Nullu",
    "OppositeDirections",
    "OtherDirections",
    "OtherImage",
    "ProjectAway",
    "RandomCrops",
    "RandomDirections",
    "ReAskMethod",
    "ShrunkCrops",
    "SteeringMethod",
    "Temperature",
    "TestTimeAugmentation",
    "ViCrop",
    "VisualTokenMethod",
    "YesBias",
    "build_method",
    "get_method",
    "list_methods",
    "option",
    "parse_method",
]
