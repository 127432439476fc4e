"""Lets torchvision import beside a CPU build of torch: PyPI's is a CUDA build, and lacks two operators there.

Their schemas are all that its import needs. On PYTHONPATH of the vLLM tests, so that every process vLLM starts has it.
"""

import sys
from importlib.abc import MetaPathFinder


class _BeforeTorchvision(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            library = torch.library.Library("torchvision", "DEF")
            sys.modules[__name__].library = library  # kept alive: its end would undo the definitions
            for operator in ("nms", "qnms"):
                library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return None  # the ordinary finders find it


sys.meta_path.insert(0, _BeforeTorchvision())
