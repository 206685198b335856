"""Serve a folder as the one model of a hub: serve_hub.py FOLDER PORT."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from tests.hub import Hub, serving

folder, port = Path(sys.argv[1]), int(sys.argv[2])
with serving(Hub({path.name: path.read_bytes() for path in folder.iterdir()}), port):
    threading.Event().wait()
