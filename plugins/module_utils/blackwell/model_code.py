"""Whether a model's folder has the code that its configuration names, and a tokenizer."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from .errors import OperatorError

CONFIG = "config.json"
# One of these rows is a tokenizer.
_TOKENIZERS = (
    ("tokenizer.json",),
    ("tokenizer.model",),
    ("tiktoken.model",),
    ("tekken.json",),
    ("vocab.json", "merges.txt"),
    ("vocab.txt",),
    ("spiece.model",),
    ("sentencepiece.bpe.model",),
)
# What is loaded by the code of a repository. SGLang has model classes of its own, so AutoModel and its kin are not.
_LOADED = re.compile(r"Auto(?!Model)\w+")
_CODE_FILES = (
    CONFIG,
    "tokenizer_config.json",
    "processor_config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
)
# As transformers finds what a module needs beside it.
_RELATIVE = re.compile(
    r"^\s*(?:from\s+\.(\w+)\s+import|import\s+\.(\w+)|from\s+\.\s+import\s+(\w+))", re.MULTILINE
)
AGAIN = "copy the file again"
FINISH = "finish copying the model"


def check_code(
    folder: Path, configs: Mapping[str, dict[str, Any]], *, tokenizer: bool
) -> Iterator[OperatorError]:
    """Whether the code that ``auto_map`` names is in the folder, with what it imports from beside it.

    Args:
        folder: the model's.
        configs: its JSON files by name.
        tokenizer: whether its tokenizer and its processor are read; else its configuration alone is.
    """
    for file in _CODE_FILES if tokenizer else (CONFIG,):
        loaded = _LOADED if tokenizer else re.compile("AutoConfig")
        for reference in dict.fromkeys(_references(configs.get(file, {}), loaded)):
            where, _, rest = reference.rpartition("--")
            module, _, name = rest.partition(".")
            if where:
                yield OperatorError(
                    f"{folder / file} takes code from another repository, which a unit without a network cannot reach",
                    found=reference,
                    expected="code in the folder of the model",
                    remedy=f"copy {module}.py and what it imports from {where} into {folder}, and take away "
                    f"{where}-- in auto_map of {file}",
                )
                continue
            if not re.fullmatch(r"\w+\.\w+", rest):
                yield OperatorError(
                    f"auto_map in {folder / file} means nothing",
                    found=reference[:80],
                    expected="module.Class",
                    remedy=AGAIN,
                )
                continue
            yield from _check_module(folder, file, module, name)


def _references(config: Mapping[str, Any], loaded: re.Pattern[str] = _LOADED) -> Iterator[str]:
    mapped = config.get("auto_map")
    # Older tokenizers have a list or a text at the place of the mapping.
    entries = mapped.items() if isinstance(mapped, dict) else [("AutoTokenizer", mapped)]
    for key, value in entries:
        if loaded.fullmatch(str(key)):
            for one in value if isinstance(value, list) else [value]:
                if one is not None:
                    yield str(one)


def _check_module(folder: Path, file: str, module: str, name: str) -> Iterator[OperatorError]:
    waiting, seen = [module], {module}
    while waiting:
        one = waiting.pop()
        path = folder / f"{one}.py"
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            yield OperatorError(
                f"{folder} has not all code that {file} names",
                found=f"{path.name}: {getattr(error, 'strerror', None) or error}",
                expected=f"{path.name}, which {module}.{name} needs",
                remedy=f"copy {path.name} from where the model is published",
            )
            continue
        if one == module and not re.search(rf"\b{re.escape(name)}\b", text):
            yield OperatorError(
                f"{path} has no {name}, which {file} names",
                found=f"{len(text)} characters without it",
                expected=f"the class {name}",
                remedy=AGAIN,
            )
        beside = {match for groups in _RELATIVE.findall(text) for match in groups if match} - seen
        seen |= beside
        waiting += sorted(beside)


def is_drafter(config: Mapping[str, Any]) -> bool:
    """Whether a configuration is a drafter's, which shares the tokenizer of its target."""
    named = config.get("architectures")
    architecture = str(named[0]) if isinstance(named, list) and named else ""
    return bool(
        re.search(r"Eagle|NextN$|MTP$|Speculator", architecture)
        or {"draft_vocab_size", "eagle_config", "speculators_model_type", "speculators_config"} & set(config)
    )


def check_tokenizer(
    folder: Path, names: Mapping[str, Any], configs: Mapping[str, dict[str, Any]]
) -> Iterator[OperatorError]:
    """Whether there is a tokenizer: a file of a usual name, or the one that its own code names."""
    own = _vocabulary_files(folder, configs.get("tokenizer_config.json", {}))
    usual = any(all(name in names for name in row) for row in _TOKENIZERS) or any(
        name.endswith(".tiktoken") and "/" not in name for name in names
    )
    # Its own code opens its own files only: another tokenizer beside it does not help.
    if any(all(name in names for name in row) for row in own) if own else usual:
        return
    yield OperatorError(
        f"{folder} has no tokenizer"
        if not usual
        else f"{folder} has not the tokenizer that its own code reads",
        found=", ".join(name for name in names if "token" in name) or "no file of a tokenizer",
        expected=" or ".join(" with ".join(row) for row in (own or _TOKENIZERS[:5])),
        remedy=f"{FINISH}; if the server takes its tokenizer from elsewhere (tokenizer_path), set "
        "model_weights_target_tokenizer: false",
    )


def _plain(name: Any) -> str:
    """A file's name without ``./``, which some write before it."""
    return str(PurePosixPath(str(name)))


def _vocabulary_files(folder: Path, config: Mapping[str, Any]) -> list[list[str]]:
    """The files that the tokenizer's own code names in ``VOCAB_FILES_NAMES``, as rows of which one suffices.

    Empty where that is not seen of all of its code.
    """
    rows = []
    for reference in dict.fromkeys(_references(config, re.compile("AutoTokenizer"))):
        module = reference.partition(".")[0]
        try:
            tree = ast.parse((folder / f"{module}.py").read_text(encoding="utf-8"))
            named = next(
                ast.literal_eval(node.value)
                for node in tree.body
                if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "VOCAB_FILES_NAMES"
            )
            # A fast tokenizer takes its one file, or the others that it is made of.
            fast = [_plain(name) for key, name in named.items() if key == "tokenizer_file"]
            slow = [_plain(name) for key, name in named.items() if key != "tokenizer_file"]
        except (OSError, ValueError, SyntaxError, RecursionError, AttributeError, StopIteration):
            return []
        rows += [row for row in (slow, fast) if row and row not in rows]
    return rows
