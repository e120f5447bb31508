"""How fast: each module is one benchmark, `python -m benchmarks.NAME [--json]`; `make bench` runs them all."""
