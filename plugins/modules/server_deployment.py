#!/usr/bin/python
# Copyright the Blackwell SGLang contributors
# SPDX-License-Identifier: Apache-2.0
"""Write a deployment: everything that one start of a server depends on, in a folder named by its content."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: server_deployment
short_description: Write the settings of an SGLang server into a folder named by their content
description:
  - Renders SGLang's configuration file and the environment file, and puts them with the unit and its programs
    into O(folder)/<release id>-<8 hex digits of the content>.
  - Other settings make another folder, so the folder of a running or an accepted server is never changed. A
    file in the folder that was edited is put right.
  - A new folder appears in one step, after O(validate) has accepted it.
author: Blackwell SGLang contributors
options:
  folder:
    description: Where deployments live.
    type: path
    required: true
  release_id:
    description: The release that the deployment starts.
    type: str
    required: true
  profile:
    description: The profile.
    type: str
    required: true
    choices: [eagle3, baseline]
  arguments:
    description: SGLang's flags, with underscores and without the leading dashes. Null leaves one out.
    type: dict
    required: true
  environment:
    description: The environment of the server. Null leaves a variable out.
    type: dict
    required: true
  api_key:
    description: The key that clients send, empty for none.
    type: str
    default: ""
  admin_api_key:
    description: The key for the endpoints that change the server, empty for none.
    type: str
    default: ""
  unit:
    description: Text of the unit, with C(@deployment@) for the path of the folder.
    type: str
    required: true
  programs:
    description: Text by file name of the programs that the unit runs.
    type: dict
    default: {}
  group:
    description: The group of the service, which reads the configuration file.
    type: str
    required: true
  validate:
    description:
      - A command that is run on a new folder before it appears under its name; C(%s) stands for the folder.
      - If it fails, nothing is written, and its last line is the message.
    type: list
    elements: str
    default: []
attributes:
  check_mode:
    description: Says what would be written.
    support: full
  diff_mode:
    description: Shows the files without the keys.
    support: full
"""

EXAMPLES = r"""
- name: Write the deployment
  server_deployment:
    folder: /etc/sglang
    release_id: 0.5.9-0123456789ab
    profile: baseline
    arguments: {model_path: /srv/models/target, port: 30000}
    environment: {HF_HUB_OFFLINE: "1"}
    unit: "{{ lookup('ansible.builtin.template', 'sglang@.service.j2') }}"
    group: sglang
"""

RETURN = r"""
deployment:
  description:
    - C(profile), C(release), C(name), C(path), the C(config) file, the C(unit)'s text, the SHA-256 of all C(files) by
      name.
    - C(accepted) says whether this is the deployment that the machine starts at boot.
  returned: success
  type: dict
"""

import grp
import os
import shutil
import tempfile
from pathlib import Path
from shlex import quote

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.blackwell import argument_check, disclosure
from ansible.module_utils.blackwell.errors import OperatorError
from ansible.module_utils.blackwell.files import replace, sync_folder
from ansible.module_utils.blackwell.json_reader import find_object
from ansible.module_utils.blackwell.server import Deployment, make_deployment, unit_name


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "folder": {"type": "path", "required": True},
            "release_id": {"type": "str", "required": True},
            "profile": {"type": "str", "required": True, "choices": ["eagle3", "baseline"]},
            "arguments": {"type": "dict", "required": True},
            "environment": {"type": "dict", "required": True},
            "api_key": {"type": "str", "default": "", "no_log": True},
            "admin_api_key": {"type": "str", "default": "", "no_log": True},
            "unit": {"type": "str", "required": True},
            "programs": {"type": "dict", "default": {}},
            "group": {"type": "str", "required": True},
            "validate": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    given = module.params
    keys = {name: given[name] for name in ("api_key", "admin_api_key")}
    folder = Path(given["folder"])
    try:
        wanted = make_deployment(
            folder=str(folder),
            release_id=given["release_id"],
            profile=given["profile"],
            arguments=given["arguments"],
            environment=given["environment"],
            keys=keys,
            unit=given["unit"],
            programs=given["programs"],
        )
        path = folder / wanted.name
        group = _group_id(given["group"])
        wrong = [name for name in wanted.contents if not _is_as_wanted(wanted, path, name, group)]
        before = {name: _read(path / name) for name in wrong}
        if wrong and not module.check_mode:
            if path.exists():
                for name in wrong:
                    _write(wanted, path, name, group)
            else:
                _create(module, wanted, path, group, given["validate"])
    except OSError as error:
        module.fail_json(
            msg=f"{folder} cannot be written. Found: {error}. Expected: a folder with free space that root can "
            f"write to. To mend it: look at df {quote(str(folder))} and mount, or set eagle3_server_config_directory."
        )
    except OperatorError as error:
        module.fail_json(msg=str(error))
    secrets = disclosure.secrets_of(keys, given["environment"], before, f"{given['profile']}.yaml")

    def shown(name: str, text: str) -> str:
        return str(disclosure.show(name, text, wanted.contents[name], secrets))

    unit = wanted.contents[unit_name(given["profile"])]
    module.exit_json(
        changed=bool(wrong),
        deployment={
            "profile": given["profile"],
            "release": given["release_id"],
            "name": wanted.name,
            "path": str(path),
            "config": str(path / f"{given['profile']}.yaml"),
            "unit": unit,
            "files": wanted.digests,
            "accepted": (find_object(folder / "accepted.json") or {}).get("deployment") == wanted.name,
        },
        diff=[
            {
                "before_header": str(path / name),
                "after_header": str(path / name),
                "before": shown(name, before[name]),
                "after": shown(name, wanted.contents[name]),
            }
            for name in wrong
        ],
    )


def _group_id(name: str) -> int | None:
    # In check mode on a fresh host the group is not there yet.
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None


def _is_as_wanted(wanted: Deployment, path: Path, name: str, group: int | None) -> bool:
    file = path / name
    try:
        status = file.lstat()
    except OSError:
        return False
    owned = (status.st_uid, status.st_gid) == (
        os.geteuid(),
        group if name in wanted.readable else os.getegid(),
    )
    return owned and status.st_mode & 0o7777 == wanted.mode(name) and _read(file) == wanted.contents[name]


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _write(wanted: Deployment, path: Path, name: str, group: int | None) -> None:
    readers = group if name in wanted.readable else None
    replace(path / name, wanted.contents[name], wanted.mode(name), group=readers)


def _create(
    module: AnsibleModule, wanted: Deployment, path: Path, group: int | None, validate: list[str]
) -> None:
    draft = Path(tempfile.mkdtemp(dir=path.parent, prefix=".new-"))
    try:
        draft.chmod(0o755)
        for name in wanted.contents:
            _write(wanted, draft, name, group)
        if validate:
            _try(module, [part.replace("%s", str(draft)) for part in validate])
        draft.rename(path)
        sync_folder(path.parent)
    finally:
        if draft.exists():
            shutil.rmtree(draft)


def _try(module: AnsibleModule, command: list[str]) -> None:
    try:
        code, out, err = module.run_command(command, handle_exceptions=False)
    except OSError as error:
        code, out, err = 127, "", f"{command[0]}: {error.strerror or error}"
    argument_check.judge(code, out, err)


if __name__ == "__main__":
    main()
