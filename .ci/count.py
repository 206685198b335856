"""Print ``N passed, N failed, N skipped`` over all JUnit files of a folder; fail when no test ran."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree


def main(folder: Path) -> int:
    total = failed = skipped = 0
    for report in folder.glob("*.xml"):
        for suite in ElementTree.parse(report).iter("testsuite"):
            total += int(suite.attrib["tests"])
            failed += int(suite.attrib["failures"]) + int(suite.attrib["errors"])
            skipped += int(suite.attrib["skipped"])
    print(f"{total - failed - skipped} passed, {failed} failed, {skipped} skipped")
    return 0 if total > skipped else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
