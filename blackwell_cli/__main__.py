"""blackwell rollout, blackwell receipts, blackwell explain."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from rich.console import Console

ROOT = Path(__file__).resolve().parents[1]
# The logic is where Ansible finds it; only from here on it can be imported (E402).
sys.path.append(str(ROOT / "plugins" / "module_utils"))

from blackwell_cli import progress, receipts  # noqa: E402

# What makes Ansible ask at the terminal: --ask-..., -k, -K and -J, also behind other letters, and vault ids like
# production@prompt.
_ASKS = re.compile(r"--ask-.*|-[bvCD]*[kKJ].*|.*@prompt")


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="blackwell", description="Roll SGLang releases out, watch it, and read what came of it."
    )
    commands = parser.add_subparsers(dest="command", required=True)

    rollout = commands.add_parser("rollout", help="run a playbook (site.yml) and show hosts and phases")
    rollout.add_argument("-i", "--inventory", required=True, help="inventory, as for ansible-playbook")
    rollout.add_argument("--playbook", default="site.yml", help="site.yml, playbooks/upgrade.yml, ...")
    rollout.add_argument("--receipts", type=Path, default=receipts.FOLDER, help="folder of the receipts")
    rollout.add_argument("rest", nargs=argparse.REMAINDER, help="after --: any option of ansible-playbook")

    listing = commands.add_parser("receipts", help="list the receipts on this controller, newest first")
    listing.add_argument("host", nargs="?", help="only this host")
    listing.add_argument("--receipts", type=Path, default=receipts.FOLDER, help="folder of the receipts")

    explain = commands.add_parser(
        "explain", help="say what differs between two receipts, likely causes first"
    )
    explain.add_argument("before", help="a file, an id, or HOST~1 for the one before the newest")
    explain.add_argument("after", help="a file, an id, or HOST for the newest of a host")
    explain.add_argument("--receipts", type=Path, default=receipts.FOLDER, help="folder of the receipts")

    given = parser.parse_args(arguments)
    console = Console(highlight=False)
    if given.command == "rollout":
        rest = [word for word in given.rest if word != "--"]
        asks = next(filter(_ASKS.fullmatch, rest), None)
        if asks:
            rollout.error(
                f"{asks} asks for a password, and behind the table nobody could see that. Name a file instead: "
                "--vault-password-file, --become-password-file or --connection-password-file"
            )
        return progress.run(console, ROOT, given.playbook, given.inventory, rest, given.receipts)
    if given.command == "receipts":
        return receipts.show(console, given.receipts, given.host)
    return receipts.explain(console, given.receipts, given.before, given.after)


if __name__ == "__main__":
    sys.exit(main())
