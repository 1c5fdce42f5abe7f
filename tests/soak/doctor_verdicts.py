"""Runs `fastload doctor` on 20 real trainings whose loader and step are calibrated by sleeping.

    python tests/soak/doctor_verdicts.py [--steps 40]

The loader needs 10 % or more longer than the step (data-bound), or at most 2 % (compute-bound). It
takes some minutes, and wants the machine for itself. The exit code is 1 if a verdict is wrong.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPT = """
import sys, time, torch
batch_s, step_s, workers = float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
class Slow(torch.utils.data.Dataset):
    def __len__(self): return 4000
    def __getitems__(self, indices):
        time.sleep(batch_s * max(1, workers))
        return [0.0] * len(indices)
parameter = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([parameter], lr=0.1)
for batch in torch.utils.data.DataLoader(Slow(), 4, num_workers=workers):
    time.sleep(step_s)
    optimizer.step()
"""
STEP_S = 0.1  # against it, what worker processes take besides sleeping is little
# Time of a batch over that of a step, and workers.
DATA = [
    (1.1, 1),
    (1.12, 2),
    (1.15, 1),
    (1.2, 2),
    (1.3, 4),
    (1.5, 2),
    (2, 1),
    (4, 2),
    (0.1, 0),
    (1, 0),
]
COMPUTE = [(1.0, 1), (1.0, 2), (0.98, 1), (0.95, 2), (0.9, 4), (0.7, 2), (0.5, 1), (0.1, 4)]
COMPUTE += [(0.02, 0), (0, 0)]


def main() -> int:
    """Runs all of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40)
    steps = parser.parse_args().steps
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "train.py")
        path.write_text(SCRIPT)
        cases = [(*case, "data-bound") for case in DATA] + [(*c, "compute-bound") for c in COMPUTE]
        for ratio, workers, verdict in cases:
            command = [sys.executable, "-m", "fastload", "doctor", "--json", "--steps", str(steps)]
            command += [str(path), str(STEP_S * ratio), str(STEP_S), str(workers)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            report = json.loads(done.stdout)
            good = report["verdict"] == verdict
            wrong += not good
            gain, sure = report["perfect_loader_gain"], report["confidence"]["level"]
            found = f"{report['verdict']}, {gain['low']} to {gain['high']}, confidence {sure}"
            print(f"{ratio:5} {workers} workers: {found}", good, flush=True)
    print(f"{len(cases) - wrong} of {len(cases)} right")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
