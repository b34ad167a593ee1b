"""Gradient accumulation in the frameworks people use, compared with a hand-written loop number by number.

`compare()` trains the same cases with each; what the lesson shows is in `lesson`. The frameworks are the extra
`frameworks`; one that is not installed is named in the table.
"""

from __future__ import annotations

from paci_lab.frameworks.case import Case
from paci_lab.frameworks.compare import CASES, Comparison, Row, compare
from paci_lab.frameworks.registry import FRAMEWORKS, installed_version
from paci_lab.frameworks.run import run
from paci_lab.frameworks.segment import segment

__all__ = ["CASES", "FRAMEWORKS", "Case", "Comparison", "Row", "compare", "installed_version", "run", "segment"]
