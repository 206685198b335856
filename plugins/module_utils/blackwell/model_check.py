"""Whether a model's folder has everything that a server without a network needs, as a quick look finds it.

SGLang and transformers look for these files themselves, some minutes into a start, and for some of them on the hub,
which the unit does not reach.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

from .errors import OperatorError
from .model_code import AGAIN, CONFIG, FINISH, check_code, check_tokenizer, is_drafter
from .safetensors import Tensor, read_header

INDEX = "model.safetensors.index.json"
# What SGLang loads from a folder; a GGUF file it loads by its own name only.
_WEIGHTS = (".safetensors", ".bin", ".pt")
# SGLang passes over these (filter_files_not_needed_for_inference).
_NO_WEIGHTS = {"training_args.bin", "optimizer.bin", "optimizer.pt", "scheduler.pt", "scaler.pt"}
_NUMBERED = re.compile(r"(?P<stem>.+)-(?P<number>\d+)-of-(?P<count>\d+)(?P<kind>\.safetensors|\.bin)")
# What is never empty, and never a page or a pointer.
_SOLID = (*_WEIGHTS, ".gguf", ".py", ".json", ".model", ".tiktoken")
# JSON files that are an object wherever they come from; others may be any JSON.
_OBJECTS = {
    CONFIG,
    INDEX,
    "added_tokens.json",
    "chat_template.json",
    "generation_config.json",
    "hf_quant_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "quantize_config.json",
    "special_tokens_map.json",
    "tekken.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "video_preprocessor_config.json",
    "vocab.json",
}
_SHOWN = 4


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file of a model.

    Raises:
        OperatorError: it cannot be read, or is not what transformers takes for a JSON object.
    """
    found = read_any_json(path)
    if not isinstance(found, dict):
        raise OperatorError(
            f"{path} holds no JSON object",
            found=f"a {type(found).__name__}",
            expected="a JSON object",
            remedy=AGAIN,
        )
    return found


def read_any_json(path: Path) -> Any:
    """What is in a JSON file of a model, read as transformers does: as UTF-8 without a byte order mark.

    Raises:
        OperatorError: it cannot be read, or is not JSON.
    """
    try:
        content = path.read_bytes()
        return json.loads(content.decode("utf-8"))
    except OSError as error:
        raise OperatorError(
            f"{path} cannot be read",
            found=error.strerror or str(error),
            expected="a readable file",
            remedy=AGAIN,
        ) from error
    except (ValueError, RecursionError) as error:
        raise OperatorError(
            f"{path} is not JSON",
            found=f"{error}, in {len(content)} bytes",
            expected="JSON in UTF-8",
            remedy=AGAIN,
        ) from error


def read_config(folder: Path) -> dict[str, Any]:
    """The ``config.json`` of a model.

    Raises:
        OperatorError: it is missing or not readable.
    """
    if not (folder / CONFIG).exists() and not (folder / CONFIG).is_symlink():
        raise _no_config(folder)
    return read_json(folder / CONFIG)


def loaded_weights(folder: Path) -> list[Path]:
    """The safetensors files that SGLang loads: those at the top that the index names, or all without an index.

    Raises:
        OperatorError: the index is damaged.
    """
    # Hidden ones are of other tools, such as ._model.safetensors of macOS; SGLang's pattern passes over them.
    found = sorted(
        path for path in folder.glob("*.safetensors") if path.is_file() and not path.name.startswith(".")
    )
    if (folder / INDEX).exists():
        named = set(read_index(folder / INDEX).values())
        return [path for path in found if path.name in named]
    # SGLang's own exception, for Mistral.
    if [path.name for path in found] == ["consolidated.safetensors", "model.safetensors"]:
        return found[1:]
    return found


def read_index(path: Path) -> dict[str, str]:
    """File by tensor, from an index.

    Raises:
        OperatorError: it is damaged.
    """
    named = read_json(path).get("weight_map")
    if (
        not isinstance(named, dict)
        or not named
        or not all(isinstance(shard, str) for shard in named.values())
    ):
        raise OperatorError(
            f"{path} is not readable",
            found="no weight_map with the file of each tensor",
            expected="a weight_map",
            remedy=AGAIN,
        )
    return named


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """The tensors that SGLang loads of a model, by name.

    Raises:
        OperatorError: a file is damaged, or a tensor is in two of them.
    """
    found: dict[str, Tensor] = {}
    for path in loaded_weights(folder):
        for name, tensor in read_header(path).items():
            if name in found:
                raise _twice(folder, f"{name} in {found[name].file.name} and in {path.name}")
            found[name] = tensor
    return found


def check_files(
    folder: Path, names: Mapping[str, Any], *, tokenizer: bool | None = None, code: bool = True
) -> Iterator[OperatorError]:
    """Everything about a model's files that would keep it from loading.

    Args:
        folder: the model's.
        names: its files, by path below the folder.
        tokenizer: whether it has to have a tokenizer; None for all models but drafters, as config.json tells them.
        code: whether code of its own is run (``trust_remote_code``).
    """
    spoilt = yield from _check_kinds(folder, names)
    configs: dict[str, dict[str, Any]] = {}
    for name in sorted(
        {CONFIG, *(name for name in names if name.endswith(".json") and "/" not in name)} - spoilt
    ):
        try:
            if name in _OBJECTS or name.endswith(".index.json"):
                configs[name] = read_json(folder / name)
            elif name in names:
                read_any_json(folder / name)
        except OperatorError as error:
            yield error if name in names else _no_config(folder)
    yield from _check_shards(folder, names, spoilt)
    if tokenizer is None:
        tokenizer = not is_drafter(configs.get(CONFIG, {}))
    if code:
        yield from check_code(folder, configs, tokenizer=tokenizer)
    if tokenizer:
        yield from check_tokenizer(folder, names, configs if code else {})


def unchecked_types(folder: Path, names: Mapping[str, Any]) -> list[str]:
    """The types of tensors whose length this check cannot hold against their shape, with one file of each.

    Raises:
        OperatorError: a file is damaged.
    """
    found: dict[str, str] = {}
    for name in names:
        if name.endswith(".safetensors"):
            for tensor in read_header(folder / name).values():
                if not tensor.known:
                    found.setdefault(tensor.dtype, name)
    return [f"{dtype} in {name}" for dtype, name in sorted(found.items())]


def _no_config(folder: Path) -> OperatorError:
    snapshots = sorted(path.parent for path in (folder / "snapshots").glob(f"*/{CONFIG}"))
    if snapshots:
        return OperatorError(
            f"{folder} is a cache of huggingface_hub, and no model itself",
            found=", ".join(str(path) for path in snapshots),
            expected="the folder of one commit in it",
            remedy="set eagle3_server_model_path or eagle3_server_draft_model_path to that folder",
        )
    return OperatorError(
        f"{folder} has no {CONFIG}",
        expected="a model as it is published, with its configuration",
        remedy=f"{FINISH}, or correct eagle3_server_model_path or eagle3_server_draft_model_path",
    )


def _check_kinds(folder: Path, names: Mapping[str, Any]) -> Generator[OperatorError, None, set[str]]:
    """Things in place of files; returns the names that need no further look."""
    spoilt: set[str] = set()
    for path in sorted(folder.iterdir()):
        name = path.name
        if name.startswith("."):
            continue
        if name.endswith(".aria2"):
            found = "the notes of aria2, which removes them once the file is whole"
        elif path.is_symlink() and not path.exists():
            found = f"a link to {path.readlink()}, where nothing is"
        elif not (name.endswith(_SOLID) or name in ("merges.txt", "vocab.txt")):
            continue
        elif path.is_dir():
            found = "a folder"
        elif name in names:
            found = _looks_like(path)
        else:
            found = "no plain file"
        if found:
            spoilt.add(name)
            unfinished = name.endswith(".aria2")
            yield OperatorError(
                f"{path.with_suffix('') if unfinished else path} is not the file that it should be",
                found=f"{name}, {found}" if unfinished else found,
                expected="a whole file, as it is published",
                remedy="let aria2c finish it, or remove both and fetch the file again"
                if unfinished
                else "remove it and copy or fetch the file itself (with git-lfs: git lfs pull)",
            )
    return spoilt


def _looks_like(path: Path) -> str:
    """What a file is that is none of a model; empty if it may be one."""
    try:
        with path.open("rb") as source:
            start = source.read(512)
    except OSError as error:
        return f"a file that cannot be read ({error.strerror or error})"
    if not start:
        # Python is often empty where it marks a package.
        return "" if path.suffix == ".py" else "an empty file"
    if start.startswith(b"version https://git-lfs."):
        return "a pointer of git-lfs"
    if re.match(rb"\s*<(!doctype|html|head|\?xml|error)\b", start.lower().removeprefix(b"\xef\xbb\xbf")):
        return "a page of a web server"
    if re.match(rb'\s*\{\s*"(error|detail)"\s*:', start):
        return "an error of a web server"
    return ""


def _check_shards(folder: Path, names: Mapping[str, Any], spoilt: set[str]) -> Iterator[OperatorError]:
    """Whether all weights are there and whole, by their names, by the index, and by their headers."""
    top = [name for name in names if "/" not in name]
    weights = [name for name in top if name.endswith(_WEIGHTS) and name not in _NO_WEIGHTS]
    if not weights:
        yield OperatorError(
            f"{folder} has no weights",
            found=_some(sorted(names)) or "an empty folder",
            expected="files *.safetensors, *.bin or *.pt, as SGLang loads no others from a folder",
            remedy=FINISH,
        )
    kind = next((kind for kind in _WEIGHTS if any(name.endswith(kind) for name in weights)), "")
    index = {".safetensors": INDEX, ".bin": "pytorch_model.bin.index.json"}.get(kind, "")
    named: dict[str, str] = {}
    if index and index in top and index not in spoilt:
        try:
            named = read_index(folder / index)
        except OperatorError as error:
            # What is no JSON object was said.
            if "weight_map" in error.expected:
                yield error
    shards = sorted(set(named.values()))
    missing = [shard for shard in shards if shard not in top and shard not in spoilt]
    if missing:
        yield _missing(folder, missing, f"the {len(shards)} files that {index} names")
    yield from _check_numbers(folder, [name for name in weights if name.endswith(kind)], index, shards)
    files = [name for name in names if name.endswith(".safetensors") and name not in spoilt]
    try:
        loaded = {path.name for path in loaded_weights(folder)} if kind == ".safetensors" else set()
    except OperatorError:
        # The index is damaged, which was said.
        loaded = set()
    yield from _check_headers(
        folder, files, loaded, named if not missing and not spoilt & set(shards) else {}
    )


def _check_headers(
    folder: Path, files: list[str], loaded: set[str], named: Mapping[str, str]
) -> Iterator[OperatorError]:
    """Whether the headers of all files fit their files, and the tensors of those that are loaded fit the index."""
    places: dict[str, str] = {}
    twice, whole = [], True
    for name in files:
        try:
            header = read_header(folder / name)
        except OperatorError as error:
            whole = False
            yield error
            continue
        if name in loaded:
            twice += [f"{one} in {places[one]} and in {name}" for one in header if one in places]
            places |= dict.fromkeys(header, name)
    if twice:
        yield _twice(folder, _some(twice))
    absent = sorted(set(named) - set(places)) if whole and loaded else []
    if absent:
        yield OperatorError(
            f"{folder} has not all tensors",
            found=f"{_some(absent)} in no file ({len(absent)} in all)",
            expected=f"the {len(named)} tensors that the index names",
            remedy="copy the index and the weights again, from one revision",
        )


def _twice(folder: Path, found: str) -> OperatorError:
    return OperatorError(
        f"{folder} has tensors twice, and which of them stay is left to chance",
        found=found,
        expected="each tensor once",
        remedy="remove the files that do not belong to the model, or copy it again",
    )


def _check_numbers(
    folder: Path, weights: list[str], index: str, shards: list[str]
) -> Iterator[OperatorError]:
    """Whether files numbered 1 to N are all there, with an index, and of one set."""
    sets: dict[tuple[str, int, str], dict[int, str]] = defaultdict(dict)
    for name in [*weights, *shards]:
        found = _NUMBERED.fullmatch(name)
        if found:
            sets[found["stem"], int(found["count"]), found["kind"]][int(found["number"])] = name
    named_sets = {key for key, members in sets.items() if set(members.values()) & set(shards)}
    stems = {key[0] for key in named_sets}
    counted = {key: members for key, members in sets.items() if not shards or key[0] in stems}
    for (stem, count, kind), members in sorted(counted.items()):
        first = 0 if 0 in members and count not in members else 1
        # A number beyond all reason is not counted up to.
        absent = [at for at in range(first, min(count, 100_000) + first) if at not in members]
        if absent:
            width = len(next(iter(members.values())).rpartition("-of-")[2]) - len(kind)
            yield _missing(
                folder,
                [f"{stem}-{at:0{width}}-of-{count:0{width}}{kind}" for at in absent],
                f"{count} files, as their names say",
            )
        extra = sorted(members[at] for at in members if not first <= at < count + first)
        if extra:
            yield _extra(folder, extra, f"numbers up to {count}")
        unnamed = sorted(name for name in members.values() if shards and name not in shards)
        if unnamed and not extra and (stem, count, kind) in named_sets:
            yield _extra(folder, unnamed, f"files that {index} names: SGLang loads no others")
    many = [key for key in counted if key[1] > 1]
    for stem in sorted({key[0] for key in many}):
        counts = sorted(key[1] for key in many if key[0] == stem)
        if len(counts) > 1:
            yield _extra(
                folder,
                [f"{stem}-*-of-{count}" for count in counts],
                "the files of one set: those of another are left from another revision",
            )
    if index and many and not shards and not (folder / index).exists():
        yield OperatorError(
            f"{folder} has weights in several files and no {index}",
            found=_some(weights),
            expected=f"{index}, which says what is in which file",
            remedy=FINISH,
        )


def _missing(folder: Path, missing: list[str], expected: str) -> OperatorError:
    return OperatorError(
        f"{folder} has not all weights", found=f"{_some(missing)} missing", expected=expected, remedy=FINISH
    )


def _extra(folder: Path, extra: list[str], expected: str) -> OperatorError:
    return OperatorError(
        f"{folder} has weights that do not belong together",
        found=_some(extra),
        expected=expected,
        remedy="remove those that the published model does not have",
    )


def _some(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
