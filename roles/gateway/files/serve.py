"""Start smg from a file instead of a command line, where every user of the machine could read the keys.

    serve.py SETTINGS.json KEY_FILE DIGEST

The settings are the fields of ``smg.router_args.RouterArgs``. The key file holds the key of the control plane. The
digest, of everything that this start depends on, is left in the unit's runtime directory, where a later run of Ansible
compares it with what it should be.
"""

import json
import os
import sys
from pathlib import Path

from smg.launch_router import launch_router
from smg.router_args import RouterArgs

settings, key_file, digest = sys.argv[1:]
arguments = RouterArgs(**json.loads(Path(settings).read_text(encoding="utf-8")))
key = Path(key_file).read_text(encoding="utf-8").strip()
arguments.control_plane_api_keys = [("ansible", "Ansible on this host", key, "admin")]
(Path(os.environ["RUNTIME_DIRECTORY"]) / "started").write_text(digest, encoding="utf-8")
launch_router(arguments)
