"""The methods, one paper a file, and their names."""

from airvlm.hooks.method import Method
from airvlm.hooks.run import NeverFired, Run
from airvlm.methods.air.config import AIR
from airvlm.methods.biases import Shorter, YesNo
from airvlm.methods.composed import Composed
from airvlm.methods.memvr import MemVR
from airvlm.methods.names import METHODS, MethodInfo, parse_method
from airvlm.methods.vaf import VAF
from airvlm.methods.vcd import VCD

__all__ = [
    "AIR",
    "METHODS",
    "VAF",
    "VCD",
    "Composed",
    "MemVR",
    "Method",
    "MethodInfo",
    "NeverFired",
    "Run",
    "Shorter",
    "YesNo",
    "parse_method",
]
