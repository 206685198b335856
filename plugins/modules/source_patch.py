#!/usr/bin/python
# Copyright the Blackwell SGLang contributors
# SPDX-License-Identifier: Apache-2.0
"""Patches of installed Python sources: report, apply, revert, verify."""

from __future__ import annotations

DOCUMENTATION = r"""
module: source_patch
short_description: Report, apply, revert and verify patches of installed Python sources
description:
  - Finds the sources through the interpreter that will run them, which covers virtual environments, source
    checkouts and editable installs alike, and their releases from the metadata. Nothing is imported.
  - Says for each patch whether it is needed, applied, upstream and so on, see RV(patches).
  - Places are found in the syntax tree. The result has to satisfy the patch's postconditions before a byte
    is written.
  - All files of a patch are changed or none. A run that was cut off is completed by the next one.
  - The lines that a patch replaced stay in the file as comments, so that it can be taken out to the byte.
options:
  python:
    description: Path of the interpreter that runs SGLang on this host.
    type: path
    required: true
  patches:
    description: The patches, as the filter P(patch_definitions#filter) reads them from a folder on the
      controller.
    type: list
    elements: dict
    required: true
  state:
    description:
      - V(status) only reports.
      - V(applied) makes what is needed and renews or takes out what is stale. With a conflict it fails and
        changes nothing.
      - V(reverted) takes the patches out, and those that need them, whatever the switches say.
      - V(verified) only reports, and fails if a patch is needed, stale or in conflict.
    type: str
    choices: [status, applied, reverted, verified]
    default: status
  enabled:
    description: Switches by patch id, over the patches' own defaults. A patch that is on turns on what it
      needs. With O(kind), only patches of that kind may be named.
    type: dict
    default: {}
  enabled_by_kind:
    description:
      - Instead of O(enabled), the switches of each kind (V(model), V(guard)). A switch of a patch of another kind is
        refused. All count for every kind, for a patch may need one of another kind.
    type: dict
  ids:
    description: Only these patches; empty means all.
    type: list
    elements: str
    default: []
  kind:
    description:
      - Only patches of this kind.
      - V(unknown) means text in the sources whose markers name a patch that is not among O(patches). It is reported,
        taken out with O(state=reverted), and fails O(state=verified). All other kinds leave it alone.
    type: str
    choices: [model, guard, unknown]
  adopt:
    description: Replace equivalent edits made by hand (state V(foreign)) with the project's own.
    type: bool
    default: false
attributes:
  check_mode:
    support: full
    description: Says what would change, having proved that it can.
  diff_mode:
    support: full
    description: Shows each file before and after.
author: Blackwell SGLang contributors
"""

EXAMPLES = r"""
- name: Report the patches of any installation
  source_patch:
    python: /root/sglang/venv/bin/python
    patches: "{{ (playbook_dir ~ '/../files/patches') | patch_definitions }}"
  register: report

- name: Measure the fused allreduce on this host
  source_patch:
    python: "{{ sglang_stack_release.python }}"
    patches: "{{ (playbook_dir ~ '/../files/patches') | patch_definitions }}"
    state: applied
    enabled:
      flashinfer-allreduce-guard: true
"""

RETURN = r"""
patches:
  description: The state of each selected patch; after the change, or as it would be after it in check mode.
  returned: success
  type: list
  elements: dict
  contains:
    id:
      description: The patch.
      type: str
    title:
      description: What it does, in one line.
      type: str
    kind:
      description: V(model), V(guard) or V(unknown).
      type: str
    method:
      description: V(blockinfile) or V(edit).
      type: str
    package:
      description: The package that it changes.
      type: str
    version:
      description: Its release; none if it is not installed.
      type: str
    enabled:
      description: Whether its switch is on.
      type: bool
    state:
      description:
        - V(needed) is on and not there; V(applied) has our text in place; V(foreign) has an equivalent edit
          that we did not make; V(upstream) is in the release, or a replacement is; V(not_applicable) has no
          place in the release; V(disabled) is off; V(stale) has our text in place, but outdated or no longer
          wanted; V(conflict) cannot be made; V(unknown) has text in place, but is not among O(patches); V(removed) was
          such text.
      type: str
    before:
      description: The state before this run.
      type: str
    reason:
      description: Why it is in this state.
      type: str
    file:
      description: The file that the reason speaks of, else the first one to patch, relative to the
        package's folder.
      type: str
    path:
      description: The same file as an absolute path; none if the package is not installed.
      type: str
    edited:
      description:
        - Whether a file of the patch differs from the published one, our patches apart. None if the
          installation has
          no record of hashes, as a source checkout.
      type: bool
    written:
      description:
        - When the patch's files were last written, in seconds since the epoch. What was started before runs
          without the change.
      type: float
    text_file:
      description: The file in the patch's folder with the text to insert, if the text has a file of its own.
      type: str
    sha256:
      description: With V(needed) or V(stale), the hash that the file will have.
      type: str
changed_files:
  description: The files that were changed, or would have been.
  returned: success
  type: list
  elements: str
recovered:
  description: Files that a run which was cut off had left half done, and this one completed or took back.
  returned: success
  type: list
  elements: str
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.blackwell.errors import OperatorError
from ansible.module_utils.blackwell.patching import engine, unknown


def run(module: AnsibleModule) -> dict[str, Any]:
    params = module.params
    installation = engine.Installation(
        params["python"],
        params["patches"],
        params["enabled"],
        adopt=params["adopt"],
        kind=params["kind"],
        enabled_by_kind=params["enabled_by_kind"],
    )
    if params["kind"] == "unknown":
        return unknown_text(module, installation)
    selected = installation.select(params["ids"], params["kind"])
    if params["state"] in ("status", "verified"):
        look = engine.status if params["state"] == "status" else engine.verify
        found = look(installation, selected)
        outcome = engine.Outcome(found, found, [], [])
    else:
        act = engine.apply if params["state"] == "applied" else engine.revert
        outcome = act(installation, selected, write=not module.check_mode)
    before = {one.patch.id: one.state for one in outcome.before}
    patches = [{**one.describe(), "before": before[one.patch.id]} for one in outcome.after]
    return result(module, patches, outcome.changes, outcome.recovered)


def unknown_text(module: AnsibleModule, installation: engine.Installation) -> dict[str, Any]:
    """Text of patches that are not among those given: report it, or take it out."""
    state = module.params["state"]
    if state == "reverted":
        outcome = unknown.remove(installation, write=not module.check_mode)
    else:
        outcome = unknown.Outcome((unknown.verify if state == "verified" else unknown.find)(installation))
    patches = [one.describe(removed=state == "reverted") for one in outcome.found]
    return result(module, patches, outcome.changes, outcome.recovered)


def result(
    module: AnsibleModule,
    patches: list[dict[str, Any]],
    changes: list[tuple[str, str, str]],
    recovered: list[str],
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "changed": bool(changes or recovered),
        "patches": patches,
        "changed_files": [path for path, _, _ in changes],
        "recovered": recovered,
    }
    if module._diff:
        found["diff"] = [
            {"before_header": path, "after_header": path, "before": old, "after": new}
            for path, old, new in changes
        ]
    return found


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "python": {"type": "path", "required": True},
            "patches": {"type": "list", "elements": "dict", "required": True},
            "state": {
                "type": "str",
                "choices": ["status", "applied", "reverted", "verified"],
                "default": "status",
            },
            "enabled": {"type": "dict", "default": {}},
            "enabled_by_kind": {"type": "dict"},
            "ids": {"type": "list", "elements": "str", "default": []},
            "kind": {"type": "str", "choices": ["model", "guard", "unknown"]},
            "adopt": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    try:
        module.exit_json(**run(module))
    except OperatorError as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
