"""Make one runnable file of a module and everything of its package that it imports."""

from __future__ import annotations

import ast
import importlib.util
import io
import zipfile

# The oldest time that a zip file can hold: the same parts always make the same bytes.
_TIME = (1980, 1, 1, 0, 0, 0)


def parts_of(package: str, module: str) -> dict[str, str]:
    """The sources that ``module`` needs of ``package``, by their names within it ("throughput.result").

    Follows relative imports, which are the only ones that modules of the package use among themselves.
    """
    parts: dict[str, str] = {}
    owed = [module]
    while owed:
        name = owed.pop()
        within = name[len(package) + 1 :]
        if within in parts:
            continue
        source = _source(name)
        if source is None:
            continue  # A name that an import took out of a module, not a module.
        parts[within] = source
        owed.append(name.rpartition(".")[0])
        path = name.split(".")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom) and node.level:
                base = path[: len(path) - node.level + _is_package(name)]
                target = ".".join([*base, *([node.module] if node.module else [])])
                owed += [target, *(f"{target}.{alias.name}" for alias in node.names)]
    return parts


def application(parts: dict[str, str], main: str) -> bytes:
    """A zip application of these parts under the package ``blackwell``; it calls ``main`` of the module ``main``."""
    packages = {""} | {name.rpartition(".")[0] for name in parts}
    files = {f"blackwell/{_path(name, name in packages)}": source for name, source in parts.items()}
    files["__main__.py"] = f"import sys\n\nfrom {main} import main\n\nsys.exit(main(sys.argv[1:]))\n"
    content = io.BytesIO()
    content.write(b"#!/usr/bin/env python3\n")
    with zipfile.ZipFile(content, "a", zipfile.ZIP_DEFLATED) as archive:
        for path, source in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(path, _TIME), source)
    return content.getvalue()


def _path(name: str, is_package: bool) -> str:
    path = name.replace(".", "/")
    if not is_package:
        return f"{path}.py"
    return f"{path}/__init__.py" if path else "__init__.py"


def _source(name: str) -> str | None:
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return None
    if spec is None or spec.loader is None:
        return None
    source: str | None = spec.loader.get_source(name)  # type: ignore[attr-defined]
    return source


def _is_package(name: str) -> bool:
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.submodule_search_locations is not None
