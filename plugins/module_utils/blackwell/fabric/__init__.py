"""What a host is, as far as it matters to the server; whether that is enough; and why not.

``collect`` reads a host; ``smi``, ``pci`` and ``system`` understand what it read; ``host_rules``, ``gpu_rules``
and ``link_rules`` judge it; ``report`` makes the fingerprint and the table. Only ``collect`` touches anything,
and it only reads.
"""
