"""The methods, one paper per file, and their names."""

from airvlm.methods.air import AIR, AIRMemory
from airvlm.methods.base import Method, option
from airvlm.methods.biases import CutOff, EOSBias, YesBias
from airvlm.methods.composed import Composed
from airvlm.methods.controls import FarthestCrops, MeanToken, NoisyCrops, OtherImage, RandomCrops, ShrunkCrops
from airvlm.methods.crop_blend import CropBlend
from airvlm.methods.memvr import MemVR
from airvlm.methods.names import METHODS, build_method, get_method, list_methods, parse_method
from airvlm.methods.templates import AttentionMethod, FeedForwardMethod, LogitsMethod, VisualTokenMethod
from airvlm.methods.vaf import VAF
from airvlm.methods.vcd import VCD

__all__ = [
    "AIR",
    "METHODS",
    "VAF",
    "VCD",
    "AIRMemory",
    "AttentionMethod",
    "Composed",
    "CropBlend",
    "CutOff",
    "EOSBias",
    "FarthestCrops",
    "FeedForwardMethod",
    "LogitsMethod",
    "MeanToken",
    "MemVR",
    "Method",
    "NoisyCrops",
    "OtherImage",
    "RandomCrops",
    "ShrunkCrops",
    "VisualTokenMethod",
    "YesBias",
    "build_method",
    "get_method",
    "list_methods",
    "option",
    "parse_method",
]
