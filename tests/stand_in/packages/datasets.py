"""A name that sglang.bench_serving imports and does not use here."""

load_dataset = None
