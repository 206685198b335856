"""The patches on every published release that they speak of."""

import sys
from pathlib import Path

# So that `python -m tests.patches.row` works without a setting; pytest has it from pyproject.toml.
sys.path.append(str(Path(__file__).resolve().parents[2] / "plugins" / "module_utils"))
