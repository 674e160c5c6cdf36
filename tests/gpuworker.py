"""The process of the GPU crash tests: works on a node with GPUs, and dies at a given point of that work.

A case: `root`, `options`, `work` (a list of verb and claim name), and `fatal`, the point at which the process kills
itself, 0 for none; the stub driver kills it besides where a test has set that. What was answered is written down at
once, since from then on the kubelet counts on it.
"""

import json
from pathlib import Path
from typing import Any

from crashworker import Points, serve, watch
from dradriver.model import ClaimRef
from dradriver_gpu import GpuBackend
from gpumachine import GpuMachine


def work(case: dict[str, Any]) -> list[str]:
    """Do what a case asks for; return the points that were passed."""
    root = Path(case["root"])
    points = Points(case.get("fatal", 0))
    watch(points, [GpuBackend])
    machine = GpuMachine(root, case["options"])
    for verb, name in case["work"]:
        answer = getattr(machine, verb)(ClaimRef(f"uid-{name}", "default", name))
        points.reach("before answer")
        with (root / "answers").open("a") as file:
            file.write(json.dumps([verb, name, answer if isinstance(answer, str) else ""]) + "\n")
        points.reach("after answer")
    machine.close()
    return points.names


if __name__ == "__main__":
    serve(work)
