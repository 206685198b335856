#!/usr/bin/python
"""Keeps the kernel's parameters in a GRUB file of our own."""

from __future__ import annotations

DOCUMENTATION = r"""
module: kernel_command_line
short_description: Give the kernel parameters through a GRUB file of our own
description:
  - Writes a file in C(/etc/default/grub.d) with those of the wanted words that no other file gives, and runs
    C(update-grub) when it changed, or when GRUB's menu lacks one of them.
  - The host's C(sh) reads the files as C(update-grub) does, so what counts is what takes effect in the end.
  - Files of others are never edited; one that says otherwise (C(iommu=pt) where C(iommu=off) is wanted), or that is
    read later and throws our words away, is an error that names it. So is a reboot that did not bring them about.
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
from shlex import quote

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.blackwell import grub
from ansible.module_utils.blackwell.errors import OperatorError
from ansible.module_utils.blackwell.files import replace


def write(path: Path, text: str) -> None:
    """Write a file, or remove it where there is nothing to say."""
    if text:
        replace(path, text)
    else:
        path.unlink(missing_ok=True)


def plan(ours: Path, wanted: list[str]) -> str:
    """The text of our file.

    Raises:
        OperatorError: a word cannot be given, there is no GRUB, or it boots nothing, a file of others cannot be read
            or wins, or a reboot has been in vain.
    """
    if not wanted:
        return ""
    grub.check_words(wanted)
    texts = grub.read_files(ours)
    if not texts:
        raise OperatorError(
            "No GRUB",
            found=f"no {ours.parent.parent}/grub",
            expected="a host that GRUB boots",
            remedy="give the kernel its parameters by the boot loader of this host, and empty "
            "host_tuning_kernel_parameters",
        )
    grub.check_boot_loader()
    text = str(grub.drop_in(grub.evaluate(texts), wanted))
    grub.check(grub.evaluate({**texts, ours: text} if text else texts), ours, wanted)
    grub.check_booted(wanted)
    return text


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "parameters": {"type": "list", "elements": "str", "required": True},
            "path": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    wanted, ours = module.params["parameters"], Path(module.params["path"])
    try:
        after = plan(ours, wanted)
        before = ours.read_bytes().decode("utf-8", "replace") if ours.is_file() else ""
        tell = before != after or grub.untold(wanted)
        if tell and not module.check_mode:
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
    except OSError as error:
        module.fail_json(
            msg=f"{ours} cannot be written. Found: {error}. Expected: a folder that root can write to. To mend it: "
            f"look at ls -ld {quote(str(ours))} {quote(str(ours.parent))} and df {quote(str(ours.parent))}."
        )
    except OperatorError as error:
        module.fail_json(msg=str(error))
    module.exit_json(
        changed=tell,
        given=[word for word in wanted if f" {word} " in after.replace('"', " ")],
        diff={"before": before, "after": after, "before_header": str(ours), "after_header": str(ours)},
    )


if __name__ == "__main__":
    main()
