"""What the tests of integrations share. `make test-integrations` runs each file in the environment that it needs; `make
test` collects none of them."""

import os
import sys
from pathlib import Path

# the environments hold other packages named `tests`, so that siblings import each other by their own names
sys.path.insert(0, str(Path(__file__).parent))

if "AIRVLM_INTEGRATIONS" not in os.environ:
    collect_ignore_glob = ["test_*"]

os.environ.update(
    HF_HUB_OFFLINE="1",
    HF_DATASETS_OFFLINE="1",
    VLLM_ENABLE_V1_MULTIPROCESSING="0",  # the engine in this process, so that tests may look into the model
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_LOGGING_LEVEL="WARNING",
    VLLM_NO_USAGE_STATS="1",
)
