#!/usr/bin/python
# Copyright the Blackwell SGLang contributors
# SPDX-License-Identifier: Apache-2.0
"""Check that the files of a model are there, whole, and the recorded ones."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: model_files
short_description: Check that the files of a model are there, whole, and the recorded ones
description:
  - Looks for the configuration and every file of weights, reads the headers of the weights, and compares all files with
    a manifest on the host that has size, time of change and SHA-256 of each. What has not changed since is not read
    again. A model without a manifest is read once and recorded.
  - All problems are reported at once. The model's folder may be read-only.
  - Reading 590 GB takes minutes, so the action plugin of the same name calls the module again and again and shows how
    far it is. What was read is kept, so an interrupted run goes on where it was.
author: Blackwell SGLang contributors
options:
  path:
    description: The model's folder.
    type: path
    required: true
  manifest:
    description: File that records the model.
    type: path
    required: true
  source:
    description: Where the model was fetched from, with C(repository) and C(revision). Another source is another model.
    type: dict
    default: {}
  published:
    description: C(size) (null if unknown) and C(sha256) of the files in that repository, by name.
    type: dict
    default: {}
  verify:
    description:
      - Which files are read in full. V(changed) are those without a record and those whose time has changed, V(full) is
        all, V(sizes) is none; the manifest then has no digests of new files.
    type: str
    choices: [sizes, changed, full]
    default: changed
  user:
    description: User who has to be able to read all files. Not looked at if there is no such user yet.
    type: str
    default: ""
  tokenizer:
    description:
      - Whether the model has to have a tokenizer. Left out, all have to but those that C(config.json) tells to be
        drafters, which share that of their target.
    type: bool
  code:
    description: Whether the server runs code of the model's own (C(trust_remote_code)), which then has to be there.
    type: bool
    default: true
  seconds:
    description: Begin no further file after that time. Left out, all files are read.
    type: float
attributes:
  check_mode:
    support: full
    description: The manifest is not written, and files are read with V(full) only.
  diff_mode:
    support: full
    description: Shows the manifest.
"""

EXAMPLES = r"""
- name: Check the drafter's files
  model_files:
    path: /srv/models/kimi-k2.5-eagle3
    manifest: /var/lib/sglang/models/kimi-k2.5-eagle3.json
    user: sglang
"""

RETURN = r"""
files:
  description: Number of files.
  returned: success
  type: int
bytes:
  description: Size of all files.
  returned: success
  type: int
unread:
  description: Bytes that still have to be read; 0 at the end.
  returned: success
  type: int
"""

import pwd
import shlex
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.blackwell import weights
from ansible.module_utils.blackwell.errors import OperatorError
from ansible.module_utils.blackwell.files import replace
from ansible.module_utils.blackwell.model_check import unchecked_types


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "manifest": {"type": "path", "required": True},
            "source": {"type": "dict", "default": {}},
            "published": {"type": "dict", "default": {}},
            "verify": {"type": "str", "choices": ["sizes", "changed", "full"], "default": "changed"},
            "user": {"type": "str", "default": ""},
            "tokenizer": {"type": "bool"},
            "code": {"type": "bool", "default": True},
            "seconds": {"type": "float"},
        },
        supports_check_mode=True,
    )
    given = module.params
    folder, path = Path(given["path"]), Path(given["manifest"])
    begun = path.with_suffix(".part")
    before = weights.read_manifest(path)
    recorded = before.files if (before.path, before.source) == (given["path"], given["source"]) else {}
    try:
        files = weights.find_files(folder)
        found = weights.problems(folder, files, tokenizer=given["tokenizer"], code=given["code"])
        if not found:
            odd = unchecked_types(folder, files)
            if odd:
                module.warn(
                    f"Whether tensors in {folder} are as long as their shapes is not checked for types that are not "
                    f"known: {', '.join(odd)}"
                )
            read = {name: file for name, file in weights.read_manifest(begun).files.items() if file.sha256}
            files = weights.carry_over(files, read if given["verify"] == "full" else {**recorded, **read})
            if given["verify"] != "sizes" and (given["verify"] == "full" or not module.check_mode):
                files = weights.read_fully(folder, files, given["seconds"])
            found = weights.differences(folder, files, recorded, given["published"], path)
        if not found and given["user"] in {entry.pw_name for entry in pwd.getpwall()}:
            closed = weights.unreadable(folder, files, given["user"])
            if closed:
                found.append(
                    OperatorError(
                        f"The user {given['user']} may not read all files of {folder}",
                        found=", ".join(closed[:3]) + (", ..." if len(closed) > 3 else ""),
                        expected="files and folders that the server's user can read",
                        remedy=f"chmod -R a+rX {shlex.join(weights.places(folder, closed))}, and a+x for the folders "
                        "above",
                    )
                )
    except OperatorError as error:
        found = [error]
    except OSError as error:
        module.fail_json(msg=f"Cannot read the model in {folder}: {error}")
    if found:
        module.fail_json(msg="\n".join(map(str, found)))
    unread = 0 if given["verify"] == "sizes" else sum(file.size for file in files.values() if not file.sha256)
    after = weights.Manifest(given["path"], given["source"], files)
    changed = after != before
    if not module.check_mode:
        if unread:
            replace(begun, after.text())
        elif changed:
            replace(path, after.text())
        if not unread:
            begun.unlink(missing_ok=True)
    module.exit_json(
        changed=changed,
        files=len(files),
        bytes=sum(file.size for file in files.values()),
        unread=unread,
        diff={
            "before_header": str(path),
            "after_header": str(path),
            "before": before.text() if before.path else "",
            "after": after.text(),
        },
    )


if __name__ == "__main__":
    main()
