"""What the door tests share: their environments hold other packages named `tests`, so siblings import each other by
their own names."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
