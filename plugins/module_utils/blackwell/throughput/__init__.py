"""The throughput check: measure under fixed conditions, judge against a baseline, report."""
