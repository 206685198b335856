"""Give a stand-in's release SGLang's published load generator and what it needs, out of the bundle. Runs on a host.

load_generator.py BUNDLE SITE_PACKAGES
"""

import sys
import zipfile
from pathlib import Path

NEEDS = (
    "aiohappyeyeballs", "aiohttp", "aiosignal", "attrs", "certifi", "charset_normalizer", "frozenlist", "idna",
    "multidict", "numpy", "propcache", "requests", "tqdm", "typing_extensions", "urllib3", "yarl",
)  # fmt: skip

bundle, packages = map(Path, sys.argv[1:])
for name in NEEDS:
    # The releases of two locks may differ; either does.
    wheel = sorted((bundle / "wheels").glob(f"{name}-*.whl"))[0]
    zipfile.ZipFile(wheel).extractall(packages)
zipfile.ZipFile(bundle / "wheels" / "sglang-0.5.9-py3-none-any.whl").extract(
    "sglang/bench_serving.py", packages
)
