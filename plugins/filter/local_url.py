# Copyright the Blackwell SGLang contributors
# SPDX-License-Identifier: Apache-2.0
"""A filter that makes the URL at which a machine reaches its own server."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

# To the controller, module_utils is something that is sent to hosts; it does not put it on its own import
# path.
sys.path.append(str(Path(__file__).resolve().parents[1] / "module_utils"))

from blackwell.address import local_url

DOCUMENTATION = r"""
name: local_url
short_description: The URL at which a machine reaches its own server
description:
  - A wildcard is reached at the loopback, and an IPv6 address gets its brackets.
positional: port
options:
  _input:
    description: Where the server listens.
    type: str
    required: true
  port:
    description: The TCP port.
    type: int
    required: true
"""

EXAMPLES = r"""
url: "{{ eagle3_server_host | local_url(eagle3_server_port) }}"
"""

RETURN = r"""
_value:
  description: The URL, without a path.
  type: str
"""


class FilterModule:
    def filters(self) -> dict[str, Callable[[str, Any], str]]:
        return {"local_url": local_url}
