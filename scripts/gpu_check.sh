#!/usr/bin/env bash
# Checks what needs a GPU: NCCL groups, abort, reconfiguration, healing, and whole jobs on one GPU.
# Uses the Python given by PYTHON (default python3) with ftrun's dependencies; prints a line a check.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
"$PYTHON" scripts/gpu_check.py "$@"
