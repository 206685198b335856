"""Receipts for people: a list, and what differs between two."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from blackwell import explain as differences
from blackwell import receipt as receipts
from blackwell.errors import OperatorError
from rich.console import Console
from rich.table import Table

FOLDER = Path(__file__).resolve().parents[1] / "reports" / "receipts"
COLOURS = {"accepted": "green", "returned": "yellow", "down": "red"}


class NotFound(Exception):
    """No receipt is meant by what was given."""


def find(folder: Path, name: str) -> dict[str, Any]:
    """A receipt by file, by id, or by ``host`` and ``host~N``: the N-th before its newest.

    Raises:
        NotFound: there is none.
        OperatorError: it is damaged.
    """
    file = Path(name)
    if file.is_file():
        return receipts.read(file)
    host, _, back = name.partition("~")
    of_host = receipts.read_all(folder / host)
    place = int(back) if back.isdigit() else 0
    if place < len(of_host):
        return of_host[place]
    if of_host:
        only = f"only {len(of_host)} receipt{'s' * (len(of_host) != 1)}"
        raise NotFound(f"There is no receipt {name}: {host} has {only} in {folder}.")
    for candidate in folder.glob(f"*/{name}.json"):
        return receipts.read(candidate)
    hosts = ", ".join(sorted(entry.name for entry in folder.glob("*"))) or "none"
    raise NotFound(f"There is no receipt {name} in {folder}. Hosts with receipts: {hosts}.")


def show(console: Console, folder: Path, host: str | None) -> int:
    """The list, newest first."""
    folders = [folder / host] if host else sorted(folder.glob("*"))
    damaged: list[OperatorError] = []
    found = sorted(
        (entry for each in folders for entry in receipts.read_all(each, damaged)),
        key=lambda entry: -entry["began"],
    )
    for error in damaged:
        console.print(f"Passed over: {error}", style="yellow", markup=False)
    if not found:
        console.print(f"There are no receipts in {folder}{f' of {host}' if host else ''}.")
        return 1
    table = Table(box=None)
    for heading in ("began (UTC)", "host", "outcome", "release", "took", "without answer"):
        table.add_column(heading, no_wrap=True)
    for entry in found:
        colour = COLOURS[entry["outcome"]]
        table.add_row(
            time.strftime("%d %b %H:%M", time.gmtime(entry["began"])),
            entry["host"],
            f"[{colour}]{entry['outcome']}[/]",
            entry["requested"]["release"],
            f"{entry['ended'] - entry['began']:.0f} s",
            f"{entry['outage']['seconds']:.1f} s" if entry["outage"] else "-",
        )
    console.print(table)
    for entry in found:
        if entry["reason"]:
            began = time.strftime("%d %b %H:%M", time.gmtime(entry["began"]))
            console.print(f"\n[{COLOURS[entry['outcome']]}]{began} {entry['host']}[/]", end=" ")
            console.print(entry["reason"].partition("\n")[0], markup=False)
    return 0


def explain(console: Console, folder: Path, before: str, after: str) -> int:
    """What differs between two of them. Status 1 when nothing does, 2 when one is missing."""
    try:
        old, new = find(folder, before), find(folder, after)
        found, effects = differences.explain(old, new), differences.effects(old, new)
    except (NotFound, OperatorError) as error:
        console.print(str(error), style="red", markup=False)
        return 2
    console.print(f"{old['id']} ({old['outcome']})  ->  {new['id']} ({new['outcome']})\n")
    for entry in (old, new):
        if entry["outcome"] != receipts.ACCEPTED:
            why = entry["reason"].partition("\n")[0]
            what = f"{entry['id']} asked for {entry['requested']['release']}, which does not serve"
            console.print(f"{what}: {why}\n", markup=False)
    causes = Table("", "what", "before", "after", "meaning", box=None, title="Causes, the most likely first")
    for place, difference in enumerate(found, 1):
        causes.add_row(str(place), difference.name, difference.before, difference.after, difference.why)
    console.print(
        causes if found else "Nothing differs that could be a cause: release, settings and host are the same."
    )
    figures = Table("", "before", "after", "change", box=None, title="What came of it")
    for name, was, now in effects:
        change = f"{(now / was - 1) * 100:+.0f} %" if was and now is not None else ""
        figures.add_row(name, *("-" if value is None else f"{value:.2f}" for value in (was, now)), change)
    if figures.row_count:
        console.print(figures)
    return 0 if found else 1
