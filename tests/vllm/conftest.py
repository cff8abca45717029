"""Keeps the vLLM tests out of every run that does not ask for them by their marker."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(config, items):
    if "vllm" in config.option.markexpr:
        return
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.skip(reason="installs 3 GB and takes minutes: make test-vllm"))
