"""List or fetch a published model with the huggingface_hub of the release.

    fetch.py list|get REPOSITORY REVISION FOLDER

`list` prints size and SHA-256 of each file as JSON; the hub publishes a SHA-256 of large files only. `get` goes on
where an earlier one was interrupted.
"""

from __future__ import annotations

import json
import sys

from huggingface_hub import HfApi, snapshot_download


def main() -> None:
    action, repository, revision, folder = sys.argv[1:]
    if action == "get":
        snapshot_download(repository, revision=revision, local_dir=folder)
        return
    files = HfApi().model_info(repository, revision=revision, files_metadata=True).siblings or []
    listed = {
        file.rfilename: {"size": file.size or 0, "sha256": file.lfs.sha256 if file.lfs else ""}
        for file in files
    }
    print(json.dumps(listed))


if __name__ == "__main__":
    main()
