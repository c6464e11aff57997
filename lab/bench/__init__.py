"""Benchmarks beside peers, measured in one run: `python -m lab bench`.

`registry` lists them, `cases` says what one is, `measure` runs one in processes of its own (`worker`), `page` turns the
kept JSON into tables.
"""
