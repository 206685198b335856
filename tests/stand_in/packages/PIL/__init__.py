"""A name that sglang.bench_serving imports and does not use here."""

Image = None
