"""Lets a script's groups be over a double that behaves as NCCL. For the scripts of tests."""

import os
import sys
from pathlib import Path
from types import ModuleType

DOUBLE = Path(__file__).resolve().parents[2] / "unit/process_groups/nccl_double.py"


def nccl() -> None:
    """Call it before the script makes its world. OVER_NCCL=both: they have Gloo, too.

    The double is a package's: else ftrun would take its loops, and what it imports, for the
    script's.
    """
    double = ModuleType("nccl_double")
    double.__file__ = f"/usr/site-packages/{DOUBLE.name}"
    sys.modules[double.__name__] = double
    exec(compile(DOUBLE.read_text(), double.__file__, "exec"), vars(double))
    double.install_for_scripts(has_host=os.environ["OVER_NCCL"] == "both")
