"""What SGLang 0.5.9 expects of sgl-kernel 0.3.21 and sglang-kernel 0.4.2 lacks. It becomes a module of ``sgl_kernel``.

No operator is written anew. Names that were dropped can be imported, and fail when they are called. Norms and sampling
take the library's own operators, as 0.3.21 did, instead of compiling those of FlashInfer.
"""

from __future__ import annotations

from typing import Any

import sgl_kernel.elementwise
import sgl_kernel.sampling

sgl_kernel.elementwise._has_flashinfer = False
sgl_kernel.sampling._has_flashinfer = False


def missing(name: str) -> Any:
    """What stands for a name that the library does not have: ``__getattr__`` of the package."""
    if name.startswith("_"):
        raise AttributeError(name)

    def refuse(*_given: Any, **_named: Any) -> Any:
        raise NotImplementedError(
            f"sgl_kernel.{name} is in sgl-kernel 0.3.21, and not in sglang-kernel 0.4.2"
        )

    # A type's name is used in annotations while modules are imported.
    return type(name, (), {"__init__": refuse}) if name[0].isupper() else refuse
