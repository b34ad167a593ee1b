"""Make the recording of lesson 08: `python -m notebooks.make_frameworks` (minutes), with all frameworks installed."""

from __future__ import annotations

import json
import sys

import torch

from paci_lab.frameworks import CASES, FRAMEWORKS, compare
from paci_lab.frameworks.lesson import RECORDED, SEGMENTED, TRAININGS
from paci_lab.frameworks.registry import require
from paci_lab.frameworks.segment import segment


def main() -> int:
    for name in FRAMEWORKS:
        require(name)
    torch.set_num_threads(1)
    result = compare(say=print)
    if reasons := {row.why for row in result.rows if row.why}:
        print("nothing was recorded:", *reasons, sep="\n")
        return 1
    RECORDED.parent.mkdir(exist_ok=True)
    result.save(RECORDED)
    rows = [segment(norm, rows=rows, window=window).to_dict() for norm, rows, window in TRAININGS]
    SEGMENTED.write_text(json.dumps({"machine": result.machine, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    print(result.table(*(case.name for case in CASES if case.naive != "exchange")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
