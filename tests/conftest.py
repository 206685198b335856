"""What every test shares: where Ansible finds our module_utils, and a way to run a module."""

from __future__ import annotations

import importlib.util
import io
import json
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import ansible.module_utils
import pytest
from ansible.module_utils.common import warnings
from ansible.module_utils.testing import patch_module_args

ROOT = Path(__file__).resolve().parents[1]
ansible.module_utils.__path__.append(str(ROOT / "plugins" / "module_utils"))


@pytest.fixture
def repository() -> Path:
    """The root of the working tree."""
    return ROOT


@pytest.fixture
def run_module() -> Callable[..., dict[str, Any]]:
    """Run a module's ``main()`` in this process and return what it would print.

    A failed module has ``failed: True`` in its result, as on a host.
    """

    def run(name: str, args: dict[str, Any], *, check: bool = False, diff: bool = False) -> dict[str, Any]:
        spec = importlib.util.spec_from_file_location(name, ROOT / "plugins" / "modules" / f"{name}.py")
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        out = io.StringIO()
        given = {**args, "_ansible_check_mode": check, "_ansible_diff": diff}
        # On a host each module is a process of its own, with no warnings of the one before.
        warnings._global_warnings.clear()
        with patch_module_args(given), redirect_stdout(out), pytest.raises(SystemExit):
            module.main()
        result: dict[str, Any] = json.loads(out.getvalue())
        return result

    return run
