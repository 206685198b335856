"""List or fetch a published model with the huggingface_hub of the release.

    fetch.py list|get REPOSITORY REVISION FOLDER

`list` prints size and SHA-256 of each file as JSON; the hub publishes a SHA-256 of large files only. A mirror that
tells no sizes is asked for the headers of each file; a size that they do not tell either is null. `get` goes on where
an earlier one was interrupted.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor

from huggingface_hub import HfApi, get_hf_file_metadata, hf_hub_url, snapshot_download
from huggingface_hub.hf_api import RepoSibling


def size_by_headers(repository: str, revision: str, name: str) -> int | None:
    """The length of a file that the headers of its download announce; None if they do not."""
    try:
        return get_hf_file_metadata(hf_hub_url(repository, name, revision=revision)).size
    except Exception:  # whatever goes wrong, the download itself says it better
        return None


def main() -> None:
    action, repository, revision, folder = sys.argv[1:]
    if action == "get":
        snapshot_download(repository, revision=revision, local_dir=folder)
        return
    try:
        files = HfApi().model_info(repository, revision=revision, files_metadata=True).siblings or []
    except (AttributeError, KeyError, TypeError):
        # Details that the library does not understand; the names are enough.
        files = [RepoSibling(name) for name in HfApi().list_repo_files(repository, revision=revision)]
    unknown = [file.rfilename for file in files if type(file.size) is not int or file.size < 0]
    with ThreadPoolExecutor(8) as askers:
        sizes = dict(
            zip(unknown, askers.map(lambda name: size_by_headers(repository, revision, name), unknown))
        )
    # An ETag is not taken for a digest: what it is differs from mirror to mirror.
    listed = {
        file.rfilename: {
            "size": sizes.get(file.rfilename, file.size),
            "sha256": getattr(file.lfs, "sha256", None) or "",
        }
        for file in files
    }
    print(json.dumps(listed))


if __name__ == "__main__":
    main()
