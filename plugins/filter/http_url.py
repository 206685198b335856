# Copyright the Blackwell SGLang contributors
# SPDX-License-Identifier: Apache-2.0
"""A filter that makes the URL of a host."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

# To the controller, module_utils is something that is sent to hosts; it does not put it on its own import
# path.
sys.path.append(str(Path(__file__).resolve().parents[1] / "module_utils"))

from blackwell.address import http_url

DOCUMENTATION = r"""
name: http_url
short_description: The URL of a host
description:
  - An IPv6 address gets its brackets.
positional: port
options:
  _input:
    description: A name or an address.
    type: str
    required: true
  port:
    description: The TCP port.
    type: int
    required: true
"""

EXAMPLES = r"""
url: "{{ ansible_host | http_url(30000) }}"
"""

RETURN = r"""
_value:
  description: The URL, without a path.
  type: str
"""


class FilterModule:
    def filters(self) -> dict[str, Callable[[str, Any], str]]:
        return {"http_url": http_url}
