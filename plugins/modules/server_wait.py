#!/usr/bin/python
# Copyright the Blackwell SGLang contributors
# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: server_wait
short_description: Wait until an SGLang server answers, saying what it does meanwhile
description:
  - Looks at the server again and again, through the module C(server_state), until it answers a real
    completion with the same main process before and after.
  - Prints a line when the state changes, and from time to time when it does not, with the time that has
    passed, the time that it usually takes and the last line of the journal.
  - Fails at once when the unit has failed, has ended or was restarted since the wait began. The message
    starts with the line of the journal that names the cause.
author: Blackwell SGLang contributors
options:
  profile:
    description: The profile whose unit is waited for.
    type: str
    required: true
    choices: [eagle3, baseline]
  config:
    description: The configuration file of its deployment on the host, for address and key.
    type: str
    required: true
  timeout:
    description: How long to wait at most, in seconds.
    type: float
    required: true
  interval:
    description: The pause between two looks, in seconds.
    type: float
    default: 5
  expected:
    description: How long a start usually takes, in seconds; only shown. V(0) when not known.
    type: float
    default: 0
  tokens:
    description: The length of the completion that proves it, in tokens.
    type: int
    default: 16
  restarts:
    description: The unit's C(NRestarts) before the start; one more means that the start crashed.
    type: int
    required: true
  since:
    description: The host's time of the start, in seconds since the epoch; older journal lines are left out.
    type: float
    default: 0
attributes:
  check_mode:
    description: Changes nothing, so it waits in check mode as well.
    support: full
  diff_mode:
    description: Changes nothing, so there is no difference to show.
    support: none
"""

EXAMPLES = r"""
- name: Wait until the server answers
  server_wait:
    profile: eagle3
    config: /etc/sglang/0.5.9-0123456789ab-01234567/eagle3.yaml
    timeout: 1800
    restarts: 0
"""

RETURN = r"""
seconds:
  description: How long it was waited, in seconds.
  returned: success
  type: float
completion:
  description: The text that the server answered with.
  returned: success
  type: str
"""
