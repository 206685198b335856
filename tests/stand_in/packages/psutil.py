"""sglang.bench_serving imports this and does not use it here."""
