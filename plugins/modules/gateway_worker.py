#!/usr/bin/python
# Copyright the Blackwell SGLang contributors
# SPDX-License-Identifier: Apache-2.0
"""Take a host out of a gateway, or put it in."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: gateway_worker
short_description: Take a host out of a gateway, or put it in
description:
  - Runs on the gateway. Writes the manifest that smg watches, and waits until smg has done what it says. If smg does
    not do it in time, the host's entry is put back as it was, so that a gateway that starts again does what it does
    now, and the module fails.
  - smg refuses a whole manifest for one entry that it does not take. So what is no address is refused before anything
    is written, and such an entry of an older record is left out, with a warning.
  - A host that is taken out gets no new request; the open ones go on. Whether they have ended the host itself
    knows.
  - A host that somebody else took out is not put in again.
  - Counts how many other hosts serve and are healthy before it takes one out, and refuses if they are too few.
    Runs for several hosts at once wait for each other.
author: Blackwell SGLang contributors
options:
  config:
    description: The gateway's configuration folder, which says where it answers and where its manifest is.
    type: path
    default: /etc/sglang-gateway
  worker:
    description: The host's address as the gateway uses it, as V(http://HOST:PORT).
    type: str
    required: true
  state:
    description:
      - V(serving) sends requests to it.
      - V(drained) sends no new ones. Fails where O(by=operator) and the gateway does not know the host.
      - V(absent) forgets it, whoever took it out.
    type: str
    required: true
    choices: [serving, drained, absent]
  by:
    description: Who asks. Only the one who took a host out puts it in again.
    type: str
    default: operator
    choices: [operator, rollout]
  min_available:
    description: How many other hosts have to be left that serve and are healthy, where this one is healthy.
    type: int
    default: 0
  timeout:
    description: How long smg may take to do it, in seconds.
    type: float
    default: 60
  may_be_missing:
    description:
      - Whether a host without a gateway of this project counts as one whose gateway has no hosts. In check mode nobody
        has made it yet.
    type: bool
    default: false
attributes:
  check_mode:
    description: Says what it would do, and refuses what it would refuse.
    support: full
  diff_mode:
    description: Shows the manifest.
    support: full
"""

EXAMPLES = r"""
- name: Send no new requests to a host
  gateway_worker:
    worker: http://192.0.2.11:30000
    state: drained
    by: rollout
    min_available: 1
  delegate_to: gateway-1
"""

RETURN = r"""
owed:
  description: Whether the record or the manifest was not what it is to be; check mode says so as well.
  returned: success
  type: bool
was:
  description: Its state before, V(absent) if the gateway did not know it.
  returned: success
  type: str
now:
  description: Its state after.
  returned: success
  type: str
left_out:
  description: Why a host that was to serve does not; empty when it does.
  returned: success
  type: str
open:
  description: Requests of this gateway that were open on the host when it was taken out.
  returned: success
  type: int
serving:
  description: The addresses of all hosts that serve.
  returned: success
  type: list
  elements: str
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.blackwell import gateway
from ansible.module_utils.blackwell.address import worker_url
from ansible.module_utils.blackwell.errors import OperatorError

POLL_INTERVAL = 0.5


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "config": {"type": "path", "default": "/etc/sglang-gateway"},
            "worker": {"type": "str", "required": True},
            "state": {"type": "str", "required": True, "choices": ["serving", "drained", "absent"]},
            "by": {"type": "str", "default": "operator", "choices": ["operator", "rollout"]},
            "min_available": {"type": "int", "default": 0},
            "timeout": {"type": "float", "default": 60},
            "may_be_missing": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    try:
        done = _change(module, dict(module.params))
    except OperatorError as error:
        module.fail_json(msg=str(error))
    module.exit_json(**done)


def _change(module: AnsibleModule, given: Mapping[str, Any]) -> dict[str, Any]:
    """Do what is asked, or say what would be done."""
    url = worker_url(given["worker"])
    workers: dict[str, gateway.Worker] = {}
    config = Path(given["config"])
    if given["may_be_missing"] and not config.exists():
        # Made by now but for check mode, it would have started without hosts.
        before: dict[str, gateway.Host] = {}
        step = _step(given, url, before, workers)
        owed = step.changed
    else:
        access = gateway.Access.read(config)
        records = access.records
        with records.held():
            before, refused = gateway.usable(records.read())
            for entry in refused:
                module.warn(f"The gateway leaves out {entry!r}, which is not the address of a host.")
            if given["state"] == "drained" and _state(before, url) == gateway.SERVING:
                workers = access.workers()
            step = _step(given, url, before, workers)
            owed = step.changed or not records.manifest_is(step.hosts)
            if owed and not module.check_mode:
                records.write(step.hosts)
        if not module.check_mode:
            try:
                _wait(access, _state(step.hosts, url), url, given["timeout"])
            except OperatorError as error:
                if not step.changed or not records.put_back(url, before.get(url), step.hosts.get(url)):
                    raise
                raise OperatorError(
                    f"{error.problem}, so {_state(before, url)} is written again",
                    found=error.found,
                    expected=error.expected,
                    remedy=error.remedy,
                ) from None
    return {
        "changed": owed,
        "owed": owed,
        "was": _state(before, url),
        "now": _state(step.hosts, url),
        "left_out": step.left_out,
        "open": workers[url].load if url in workers else 0,
        "serving": sorted(other for other, host in step.hosts.items() if host.state == gateway.SERVING),
        "diff": {"before": gateway.manifest(before), "after": gateway.manifest(step.hosts)},
    }


def _state(hosts: Mapping[str, gateway.Host], url: str) -> str:
    return hosts[url].state if url in hosts else "absent"


def _step(
    given: Mapping[str, Any],
    url: str,
    before: Mapping[str, gateway.Host],
    workers: Mapping[str, gateway.Worker],
) -> gateway.Step:
    """What is asked for, from what there is."""
    if given["state"] == "serving":
        return gateway.serve(before, url, by=given["by"], now=time.time())
    if given["state"] == "absent":
        return gateway.forget(before, url)
    ready = frozenset(other for other, seen in workers.items() if seen.status == gateway.READY)
    return gateway.drain(
        before, url, by=given["by"], now=time.time(), ready=ready, min_available=given["min_available"]
    )


def _wait(access: gateway.Access, now: str, url: str, timeout: float) -> None:
    """Until smg has seen the manifest."""
    deadline = time.monotonic() + timeout
    while True:
        workers = access.workers()
        if gateway.arrived(now, url, workers):
            return
        if time.monotonic() > deadline:
            raise OperatorError(
                f"The gateway has not done what its manifest says about {url}",
                found=f"status {workers[url].status if url in workers else 'unknown'} after {timeout:.0f} s",
                expected="ready" if now == gateway.SERVING else "draining, or gone",
                remedy=f"curl {url}/health on the gateway; journalctl --unit sglang-gateway says what it makes of the "
                "manifest; then run again",
            )
        time.sleep(POLL_INTERVAL)


if __name__ == "__main__":
    main()
