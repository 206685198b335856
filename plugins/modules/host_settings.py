#!/usr/bin/python
"""Sets what can be set while a host runs, and says what waits for a reboot."""

from __future__ import annotations

DOCUMENTATION = r"""
module: host_settings
short_description: Set and compare settings of a host that matter to a GPU server
description:
  - Sets persistence mode, power limit, CPU governor, PCIe power saving and access control, the size of /dev/shm and
    kernel settings where they differ from what is wanted.
  - Compares parameters of drivers and of the kernel, which only a reboot changes, and says so. It never reboots.
  - Something that the host does not have counts as it should be.
options:
  wanted:
    description:
      - What is wanted; what is left out or empty is left alone.
      - C(gpus) (UUIDs of the cards that are meant; none for all), C(persistence) (bool), C(power_limit_w) (watts),
        C(governor), C(aspm) (policy), C(disable_acs) (bool), C(shm_gib), C(sysctl) (name to value), C(modprobe)
        (module to parameters), C(kernel_parameters) (words).
    type: dict
    required: true
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
author: Blackwell SGLang
"""

EXAMPLES = r"""
- name: Keep the driver loaded and the processor awake
  host_settings:
    wanted:
      persistence: true
      governor: performance
"""

RETURN = r"""
settings:
  description: Every wanted setting.
  returned: always
  type: list
  elements: dict
  contains:
    name:
      description: The setting.
      type: str
    found:
      description: What the host has now; empty if it has no such thing.
      type: str
    wanted:
      description: What was asked for.
      type: str
    fits:
      description: Whether it is so, or the host has no such thing.
      type: bool
    reboot:
      description: Whether only a reboot brings it about.
      type: bool
    error:
      description: What stood in the way when it was set.
      type: str
table:
  description: The settings for a terminal.
  returned: always
  type: str
reboot_required:
  description: The settings that wait for a reboot.
  returned: always
  type: list
  elements: str
"""

from dataclasses import asdict

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.blackwell import tuning


def main() -> None:
    module = AnsibleModule(
        argument_spec={"wanted": {"type": "dict", "required": True}}, supports_check_mode=True
    )
    host = tuning.Host()
    wanted = module.params["wanted"]
    before = tuning.settings_of(host, wanted, apply=False)
    settable = [setting.name for setting in before if not setting.fits and not setting.reboot]
    after = before if module.check_mode or not settable else tuning.settings_of(host, wanted, apply=True)

    def values(settings: list[tuning.Setting], shown: str) -> str:
        lines = [
            f"{item.name}: {getattr(item, shown if item.name in settable else 'found')}" for item in settings
        ]
        return "".join(f"{line}\n" for line in lines)

    result = {
        "changed": bool(settable),
        "settings": [asdict(setting) for setting in after],
        "table": tuning.table(after),
        "reboot_required": [setting.name for setting in after if setting.reboot],
        "diff": {"before": values(before, "found"), "after": values(after, "wanted")},
    }
    failed = [
        setting for setting in after if not module.check_mode and not setting.fits and not setting.reboot
    ]
    if failed:
        told = "; ".join(
            f"{item.name} is {item.found}, wanted is {item.wanted} ({item.error or 'it did not take'})"
            for item in failed
        )
        module.fail_json(msg=f"The host does not take these settings: {told}.", **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
