"""Edits: from a place in the syntax tree and a text to the lines that change."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from . import syntax
from .definition import Edit
from .hunks import Change, with_changes
from .syntax import NotFound


def changes(text: str, tree: ast.Module, edits: Sequence[Edit]) -> list[Change]:
    """The line changes that ``edits`` make in one file.

    Raises:
        NotFound: a place is missing, ambiguous, or shares its lines with other code.
    """
    lines = text.split("\n")
    return [_change(lines, tree, edit) for edit in edits]


def restored(text: str, tree: ast.Module, edits: Sequence[Edit]) -> list[str]:
    """Candidates for the published text of one file that somebody edited, the likeliest first.

    Edits whose place is not there are passed over: people seldom make all of them. A removed method may
    have stood among one, two or no blank lines; only a hash can tell which, hence several candidates.
    """
    found: list[Change] = []
    spans: list[tuple[int, int]] = []
    lines = text.split("\n")
    for edit in edits:
        if edit.remove is not None:
            spans += [_span(lines, node) for node in syntax.definitions(tree, edit.remove)]
            found += [_import_removed(lines, *one) for one in syntax.imports(tree, edit.remove)]
            continue
        try:
            found.append(_change(lines, tree, edit))
        except NotFound:
            continue
    candidates = []
    for blank in (2, 1, 0):
        removals = [Change(start, end, ("",) * blank) for start, end in _joined(lines, spans)]
        candidate = with_changes(text, [*found, *removals])
        if candidate not in candidates:
            candidates.append(candidate)
    return candidates


def _change(lines: Sequence[str], tree: ast.Module, edit: Edit) -> Change:
    if edit.find is not None:
        found = syntax.only(tree, edit.find, edit.at)
        statement = syntax.occurrences(tree, edit.find, edit.at, whole=True)
        return _replacement(lines, statement[0] if statement else found, edit)
    if edit.before is not None or edit.after is not None:
        found = syntax.only(tree, edit.before or edit.after or "", edit.at, whole=True)
        _must_stand_alone(lines, found)
        row = found.line - 1 if edit.before is not None else found.end_line
        return Change(row, row, _indented(lines[found.line - 1], edit.text or ""))
    if edit.into is not None:
        body = syntax.definition(tree, edit.into)
        end = body.end_lineno or body.lineno
        return Change(end, end, tuple((edit.text or "").rstrip("\n").split("\n")))
    if edit.parameter is not None:
        function = syntax.definition(tree, edit.at or "")
        return _appended(lines, _last_parameter(function), edit.parameter)
    found = syntax.only(tree, edit.call or "", edit.at)
    call = found.first
    if not isinstance(call, ast.Call) or not (call.args or call.keywords):
        raise NotFound(f"`{edit.call}` is not a call with arguments (line {found.line})")
    return _appended(lines, max([*call.args, *call.keywords], key=_end), edit.argument or "")


def _replacement(lines: Sequence[str], found: syntax.Found, edit: Edit) -> Change:
    new = edit.replace or ""
    if isinstance(found.first, ast.expr):
        first, last = lines[found.line - 1], lines[found.end_line - 1]
        head = _columns(first, found.first.col_offset)[0]
        tail = _columns(last, found.first.end_col_offset or 0)[1]
        return Change(found.line - 1, found.end_line, tuple(f"{head}{new.strip()}{tail}".split("\n")))
    _must_stand_alone(lines, found)
    return Change(found.line - 1, found.end_line, _indented(lines[found.line - 1], new))


def _appended(lines: Sequence[str], node: ast.AST, text: str) -> Change:
    """One more element after ``node``, which must end its line with a comma, as formatted code has it."""
    end = int(getattr(node, "end_lineno", 0))
    line = lines[end - 1]
    if _columns(line, int(getattr(node, "end_col_offset", 0)))[1].strip() != ",":
        raise NotFound(f"the last element does not stand on a line of its own (line {end})")
    return Change(end, end, _indented(lines[int(getattr(node, "lineno", end)) - 1], text.strip() + ","))


def _last_parameter(function: syntax.Definition) -> ast.AST:
    if isinstance(function, ast.ClassDef):
        raise NotFound(f"{function.name} is a class, not a function")
    arguments = function.args
    if arguments.kwarg or arguments.vararg or not (arguments.args or arguments.kwonlyargs):
        raise NotFound(f"{function.name} has no plain list of parameters (line {function.lineno})")
    every: list[ast.AST] = [*arguments.args, *arguments.kwonlyargs, *arguments.defaults]
    every += [default for default in arguments.kw_defaults if default is not None]
    return max(every, key=_end)


def _end(node: ast.AST) -> tuple[int, int]:
    return getattr(node, "end_lineno", 0), getattr(node, "end_col_offset", 0)


def _import_removed(lines: Sequence[str], statement: ast.stmt, alias: ast.alias) -> Change:
    """Without one imported name: the whole statement if it imports nothing else, else the line of the name."""
    if len(getattr(statement, "names", ())) == 1:
        return Change(statement.lineno - 1, statement.end_lineno or statement.lineno, ())
    row = getattr(alias, "lineno", 1) - 1
    alone = lines[row].strip().rstrip(",") == alias.name
    return Change(row, row + 1, () if alone else (lines[row],))


def _must_stand_alone(lines: Sequence[str], found: syntax.Found) -> None:
    head = _columns(lines[found.line - 1], int(getattr(found.first, "col_offset", 0)))[0]
    tail = _columns(lines[found.end_line - 1], int(getattr(found.last, "end_col_offset", 0)))[1].strip()
    if head.strip() or (tail and not tail.startswith("#")):
        raise NotFound(f"the statement shares its line with another one (line {found.line})")


def _indented(sample: str, text: str) -> tuple[str, ...]:
    if not text:
        return ()
    indent = sample[: len(sample) - len(sample.lstrip(" \t"))]
    return tuple(indent + line if line else "" for line in text.rstrip("\n").split("\n"))


def _columns(line: str, offset: int) -> tuple[str, str]:
    """``line`` cut at a column as the syntax tree counts them, in bytes of UTF-8."""
    encoded = line.encode()
    return encoded[:offset].decode(), encoded[offset:].decode()


def _span(lines: Sequence[str], node: syntax.Definition) -> tuple[int, int]:
    """The lines of a definition with its decorators and the comments that stand directly around it."""
    start = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]) - 1
    end = node.end_lineno or node.lineno
    while start and lines[start - 1].lstrip().startswith("#"):
        start -= 1
    while end < len(lines) and lines[end].lstrip().startswith("#"):
        end += 1
    return start, end


def _joined(lines: Sequence[str], spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """``spans`` with the blank lines around them; spans with nothing but blank lines between become one."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        while start and not lines[start - 1].strip():
            start -= 1
        while end < len(lines) and not lines[end].strip():
            end += 1
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined
