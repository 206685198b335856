"""Documentation of the action plugin of this name, which runs on the controller and reads every host's variables."""

from __future__ import annotations

DOCUMENTATION = r"""
module: known_variables
short_description: Refuse variables that no role of this project knows
description:
  - Holds the variables of every host of the play against those that the roles declare, and fails with all problems
    at once. It runs on the controller and connects to no host.
  - Refused are unknown names under this project's prefixes, names that are a slip of the finger away from a known
    one, renamed names, values of another type than their variable's, outside its choices or its limits, values that
    contradict each other, references to C(vault_...) variables that nothing sets, and names of hosts that cannot stand
    in the name of a file and in an address.
  - Variables of others are left alone.
options:
  roles:
    description: Folder that holds the roles.
    type: path
    required: true
  playbooks:
    description:
      - Folder that holds the playbooks. Its C(argument_specs.yml), where there is one, declares what playbooks read.
    type: path
    required: true
  foreign:
    description: Names to leave alone although they look like ours.
    type: list
    elements: str
    default: []
attributes:
  check_mode:
    support: full
    description: It only reads.
  diff_mode:
    support: none
    description: It changes nothing.
author: Blackwell SGLang
"""

EXAMPLES = r"""
- name: Refuse unknown variables
  known_variables:
    roles: "{{ role_path }}/.."
    playbooks: "{{ playbook_dir }}"
  run_once: true
"""

RETURN = r"""
problems:
  description: What is wrong, one entry a variable.
  returned: always
  type: list
  elements: dict
  contains:
    name:
      description: The variable.
      type: str
    text:
      description: What is wrong with it.
      type: str
    remedy:
      description: What to write instead.
      type: str
    hosts:
      description: The hosts that have it.
      type: list
      elements: str
    places:
      description: Where the inventory sets it, as file and line; empty if it came from elsewhere.
      type: list
      elements: str
judged:
  description: How many names were judged on how many hosts.
  returned: always
  type: dict
  sample: {hosts: 8, names: 112}
"""
