#!/usr/bin/python
"""Make a bundle of wheels for hosts without network access."""

from __future__ import annotations

DOCUMENTATION = r"""
module: wheel_bundle
short_description: Make a bundle of wheels for hosts without network access
description:
  - Downloads, with pip and the machine's own pip configuration, every wheel that the given locks name, for
    the Python and the platform of the hosts.
  - Files that are there with the right checksum are not fetched again, and a complete bundle needs no
    network.
  - A lock with a package whose checksum nobody has published gets the checksum of what was downloaded written
    into it. From then on another file is refused.
options:
  path:
    description: Folder of the bundle.
    type: path
    required: true
  locks:
    description: Lock files.
    type: list
    elements: path
    required: true
  uv:
    description: Lock file of uv.
    type: path
    required: true
  indexes:
    description: Simple indexes that are asked for what pip does not find, for example PyTorch's.
    type: list
    elements: str
    default: []
  links:
    description: Pages with links to wheels, asked likewise.
    type: list
    elements: str
    default: []
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
    description: Shows the wheels that are fetched.
author: Blackwell SGLang
"""

EXAMPLES = r"""
- name: Make the bundle
  wheel_bundle:
    path: /srv/bundle
    locks: [files/locks/sglang-0.5.9-cu130-py312.txt]
    uv: files/locks/uv.txt
    indexes: [https://download.pytorch.org/whl/cu130]
"""

RETURN = r"""
fetch:
  description: Number of wheels that were (or would be) fetched.
  returned: success
  type: int
fetch_bytes:
  description: Their size in bytes, as far as the locks say.
  returned: success
  type: int
broken:
  description: Files that had another checksum than the locked one; they are fetched again.
  returned: success
  type: list
foreign:
  description: Files that no lock names; they are left alone.
  returned: success
  type: list
written:
  description: Files that were written, below I(path).
  returned: success
  type: list
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.blackwell import bundle
from ansible.module_utils.blackwell.errors import OperatorError


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "locks": {"type": "list", "elements": "path", "required": True},
            "uv": {"type": "path", "required": True},
            "indexes": {"type": "list", "elements": "str", "default": []},
            "links": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    given = module.params
    wanted = bundle.Bundle(
        path=Path(given["path"]),
        locks=tuple(Path(path) for path in given["locks"]),
        uv=Path(given["uv"]),
        indexes=tuple(given["indexes"]),
        links=tuple(given["links"]),
    )
    written: list[str] = []
    try:
        found = wanted.inspect()
        for name in found.broken:
            module.warn(f"Not what was locked, and fetched again: {name}")
        for name in found.foreign:
            module.warn(f"No lock names this file of the bundle: {name}")
        if not module.check_mode:
            written = wanted.make(found)
    except OperatorError as error:
        module.fail_json(msg=str(error))
    names = sorted(pin.filename for pins in found.missing.values() for pin in pins)
    module.exit_json(
        changed=bool(names or written),
        fetch=found.count,
        fetch_bytes=found.size,
        broken=found.broken,
        foreign=found.foreign,
        written=written,
        diff={"before": "", "after": "".join(f"{name}\n" for name in names)},
    )


if __name__ == "__main__":
    main()
