"""The throughput check: measure under fixed conditions, judge against an anchored measurement, report."""
