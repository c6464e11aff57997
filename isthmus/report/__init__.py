"""The report of a run: one self-contained HTML file for the person who answers for the data.

>>> record = Record.from_dict({"format": "isthmus-run-1", "title": "Income", "data": {"name": "census"},
...                            "model": {"task": "classification", "algorithm": "gd"}, "privacy": None, "words": ""})
>>> "<h1>Income</h1>" in render(record)
True
"""

from isthmus.report.page import expectation, render, write
from isthmus.report.record import Record

__all__ = ["Record", "expectation", "render", "write"]
