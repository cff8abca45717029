"""Run by every Python that a vLLM instance starts: its engine and worker processes die with what started them."""

import importlib.util
from pathlib import Path

_spec = importlib.util.spec_from_file_location("_processes", Path(__file__).parents[3] / "control" / "processes.py")
if _spec is not None and _spec.loader is not None:
    _processes = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(_processes)
    _processes.die_with_parent()
