"""What `pytest --nbval` does with the cells that follow a slow one."""

import pytest


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip them: one cell that takes too long is one failure."""
    if getattr(item.parent, "timed_out", False):
        pytest.skip("an earlier cell of this notebook took too long")
