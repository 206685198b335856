#!/usr/bin/python
"""Keeps the kernel's parameters in a GRUB file of our own."""

from __future__ import annotations

DOCUMENTATION = r"""
module: kernel_command_line
short_description: Give the kernel parameters through a GRUB file of our own
description:
  - Writes a file in C(/etc/default/grub.d) with those of the wanted words that no other file gives, and runs
    C(update-grub) when it changed. Words are compared one by one, so order and what others add do not matter.
  - Files of others are never edited; one that says otherwise (C(iommu=pt) where C(iommu=off) is wanted) is an error
    that names it.
  - It never reboots.
options:
  parameters:
    description: The wanted words; none removes our file.
    type: list
    elements: str
    required: true
  path:
    description: Our file.
    type: path
    required: true
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
author: Blackwell SGLang
"""

EXAMPLES = r"""
- name: Turn the IOMMU off at the next boot
  kernel_command_line:
    parameters: [iommu=off]
    path: /etc/default/grub.d/90-sglang-host-tuning.cfg
"""

RETURN = r"""
given:
  description: The words that our file gives.
  returned: success
  type: list
  elements: str
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.blackwell import tuning


def write(path: Path, text: str) -> None:
    """Write a file, or remove it where there is nothing to say."""
    if text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    else:
        path.unlink(missing_ok=True)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "parameters": {"type": "list", "elements": "str", "required": True},
            "path": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    wanted, ours = module.params["parameters"], Path(module.params["path"])
    others = [ours.parent.parent / "grub", *sorted(ours.parent.glob("*.cfg"))]
    texts = {str(path): path.read_text() for path in others if path.is_file() and path != ours}
    if wanted and not texts:
        module.fail_json(
            msg=f"No GRUB: found no {ours.parent.parent}/grub. Give the kernel its parameters by the boot loader of "
            "this host, and empty host_tuning_kernel_parameters."
        )
    words = tuning.grub_words(texts)
    clashes = tuning.clashes(words, wanted)
    if clashes:
        module.fail_json(
            msg=f"GRUB says otherwise: {'; '.join(clashes)}. Take it out there, or do not want it here."
        )

    before = ours.read_text() if ours.is_file() else ""
    after = tuning.grub_drop_in(words, wanted)
    if before != after and not module.check_mode:
        write(ours, after)
        update = module.get_bin_path("update-grub")
        code, out, err = module.run_command([update]) if update else (0, "", "")
        if code:
            # Or the next run would find nothing to do, and GRUB would never be told.
            write(ours, before)
            module.fail_json(
                msg=f"update-grub fails: {(err or out).strip()[-1000:] or f'exit status {code}'}. "
                "The kernel's parameters are as they were. Mend GRUB's configuration, and run the playbook again."
            )
    module.exit_json(
        changed=before != after,
        given=[word for word in wanted if word not in words],
        diff={"before": before, "after": after, "before_header": str(ours), "after_header": str(ours)},
    )


if __name__ == "__main__":
    main()
