#!/usr/bin/python
# Copyright the Blackwell SGLang contributors
# SPDX-License-Identifier: Apache-2.0
"""Fetch a published model at a commit."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: model_fetch
short_description: Fetch a published model at a commit
description:
  - Fetches a repository of the Hugging Face hub with the C(huggingface_hub) of a release, as the service user, in a
    transient unit of systemd. An interrupted download goes on where it was; one that runs already is joined.
  - Space is checked before, as far as the hub tells sizes; a warning says so if it does not.
  - A model that the manifest records from this commit is not looked up again while all of its files are there, so
    converged hosts need no network.
  - The action plugin of the same name shows how far it is.
author: Blackwell SGLang contributors
options:
  repository:
    description: C(owner/name).
    type: str
    required: true
  revision:
    description: The commit, 40 hex digits. Branches and tags move and are refused.
    type: str
    required: true
  path:
    description: Folder that the model is fetched to. It is made, and belongs to O(user).
    type: path
    required: true
  manifest:
    description: Where M(model_files) records the model.
    type: path
    required: true
  python:
    description: Interpreter that has C(huggingface_hub).
    type: path
    required: true
  program:
    description: Text of the program that lists and fetches.
    type: str
    required: true
  user:
    description: Who fetches.
    type: str
    required: true
  token:
    description: Access token for a closed repository.
    type: str
    default: ""
  environment:
    description: Further variables, such as C(HTTPS_PROXY) or C(HF_ENDPOINT).
    type: dict
    default: {}
  published:
    description: What an earlier call returned; the download is then only waited for.
    type: dict
    default: {}
  seconds:
    description: Come back after that time, whether it has ended or not.
    type: float
    default: 3600
attributes:
  check_mode:
    support: full
    description: Says what would be fetched, and whether there is enough space, once there is a release to ask with.
  diff_mode:
    support: none
    description: Files of gigabytes are not shown.
"""

EXAMPLES = r"""
- name: Fetch a drafter
  model_fetch:
    repository: lightseekorg/kimi-k2.5-eagle3
    revision: "{{ commit }}"
    path: /srv/models/kimi-k2.5-eagle3
    manifest: /var/lib/sglang/models/kimi-k2.5-eagle3.json
    python: "{{ sglang_stack_release.python }}"
    program: "{{ lookup('ansible.builtin.file', 'fetch.py') }}"
    user: sglang
"""

RETURN = r"""
done:
  description: Whether everything is there.
  returned: success
  type: bool
have:
  description: Bytes that are there.
  returned: success
  type: int
total:
  description: Bytes of the whole model; 0 if it was not looked up, null if the hub does not tell all sizes.
  returned: success
  type: int
published:
  description: C(size) (null if unknown) and C(sha256) (empty if unknown) of each file of the repository, by name.
  returned: success
  type: dict
"""

import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.blackwell import hub, weights
from ansible.module_utils.blackwell.errors import OperatorError

PAUSE = 1.0


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "repository": {"type": "str", "required": True},
            "revision": {"type": "str", "required": True},
            "path": {"type": "path", "required": True},
            "manifest": {"type": "path", "required": True},
            "python": {"type": "path", "required": True},
            "program": {"type": "str", "required": True},
            "user": {"type": "str", "required": True},
            "token": {"type": "str", "default": "", "no_log": True},
            "environment": {"type": "dict", "default": {}},
            "published": {"type": "dict", "default": {}},
            "seconds": {"type": "float", "default": 3600},
        },
        supports_check_mode=True,
    )
    given = module.params
    environment = {key: str(value) for key, value in given["environment"].items()}
    if given["token"]:
        environment["HF_TOKEN"] = given["token"]
    fetch = hub.Fetch(
        repository=given["repository"],
        revision=given["revision"],
        folder=Path(given["path"]),
        python=given["python"],
        program=given["program"],
        user=given["user"],
        environment=environment,
    )
    try:
        fetch.check()
        recorded = weights.read_manifest(Path(given["manifest"]))
        known = (recorded.path, recorded.source) == (given["path"], fetch.source) and fetch.folder.is_dir()
        if known and all((fetch.folder / name).exists() for name in recorded.files):
            module.exit_json(changed=False, done=True, have=0, total=0, published={})
        if module.check_mode and not Path(fetch.python).exists():
            module.exit_json(changed=True, done=False, have=0, total=0, published={})
        published = given["published"] or fetch.published()
        sizes = [entry["size"] for entry in published.values()]
        total = None if None in sizes else sum(sizes)
        if not given["published"] and (unchecked := fetch.check_space(published)):
            module.warn(unchecked)
        if module.check_mode:
            module.exit_json(
                changed=True, done=False, have=fetch.have(published), total=total, published=published
            )
        if not given["published"]:
            fetch.begin()
        until = time.monotonic() + given["seconds"]
        while (state := fetch.state()) in ("active", "activating") and time.monotonic() < until:
            time.sleep(PAUSE)
        running = state in ("active", "activating")
        missing = fetch.missing(published)
        if missing and state == "inactive" and (odd := fetch.other_sizes(published)):
            raise OperatorError(
                f"The hub lists other sizes of {fetch.repository} than it sends",
                found=", ".join(f"{name} of {size} bytes" for name, size in odd.items()),
                expected=", ".join(f"{published[name]['size']} bytes" for name in odd),
                remedy="look at what answers: HF_ENDPOINT in model_weights_fetch_environment has to be a hub of models "
                "that has this commit whole",
            )
        if state == "failed" or (missing and not running):
            raise OperatorError(
                f"Fetching {fetch.repository} failed",
                found=fetch.last_lines() or state,
                expected=f"{len(published)} files, {len(missing)} are missing",
                remedy="run the playbook again: it goes on where it stopped",
            )
    except OperatorError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"Cannot fetch {given['repository']} to {given['path']}: {error}")
    module.exit_json(
        changed=True, done=not running, have=fetch.have(published), total=total, published=published
    )


if __name__ == "__main__":
    main()
