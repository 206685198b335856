#!/usr/bin/python
# Copyright the Blackwell SGLang contributors
# SPDX-License-Identifier: Apache-2.0
"""Wait until an SGLang server has no open requests."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: server_inflight
short_description: Wait until an SGLang server has no open requests
description:
  - Waits until the server has been idle for two seconds, or the time is over. Does not fail then; what is open is
    returned. SGLang itself waits for open requests when it is stopped.
  - A server that does not say how many are open is waited for as long. Then it fails if C(/health) answers 200, and
    returns null as RV(left) if not, because a server that gives no answers is there to be replaced.
author: Blackwell SGLang contributors
options:
  config:
    description: The configuration file of the running deployment, for address and key.
    type: path
    required: true
  timeout:
    description: How long to wait at most, in seconds.
    type: float
    required: true
attributes:
  check_mode:
    description: Changes nothing, so it does the same in check mode.
    support: full
  diff_mode:
    description: Changes nothing, so there is no difference to show.
    support: none
"""

EXAMPLES = r"""
- name: Wait for open requests
  server_inflight:
    config: /etc/sglang/0.5.9-0123456789ab-01234567/eagle3.yaml
    timeout: 600
"""

RETURN = r"""
open:
  description: Requests that were open at the beginning; null when it was not known.
  returned: success
  type: int
left:
  description: Requests that were still open; null when it was not known.
  returned: success
  type: int
why:
  description: Why it was not known at the end; else empty.
  returned: success
  type: str
seconds:
  description: How long it took.
  returned: success
  type: float
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.blackwell import inflight
from ansible.module_utils.blackwell.errors import OperatorError
from ansible.module_utils.blackwell.readiness import get_health, read_arguments, server_url


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "config": {"type": "path", "required": True},
            "timeout": {"type": "float", "required": True},
        },
        supports_check_mode=True,
    )
    try:
        # Whoever does not want to wait does not ask either: a server that cannot say it must not be in the way.
        if module.params["timeout"] <= 0:
            done = inflight.Wait(None, None, 0.0, "it was not asked")
        else:
            arguments = read_arguments(Path(module.params["config"]))
            url, key = server_url(arguments), str(arguments.get("api_key", ""))
            timeout = 0.0 if module.check_mode else module.params["timeout"]
            done = inflight.wait(lambda: inflight.look(url, key), timeout=timeout)
            inflight.judge_unknown(url, done, get_health(url) if done.left is None else 0)
    except OperatorError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, open=done.open, left=done.left, seconds=done.seconds, why=done.why)


if __name__ == "__main__":
    main()
