"""What all tests share."""

import os
from collections.abc import Generator

import pytest
from hypothesis import settings

CI = "CI" in os.environ

# Deterministic in CI, so that a red run can be repeated; elsewhere new examples each time.
# No deadline: the first call of a torch function is slow.
settings.register_profile("mha", deadline=None, derandomize=CI, print_blob=True)
settings.load_profile("mha")

MAY_NOT_SKIP_IN_CI = {"browser", "inductor", "outside", "rerecord"}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail in CI where a test that needs something uncommon would be skipped elsewhere."""
    report = yield
    marks = {mark.name for mark in item.iter_markers()}
    if CI and report.skipped and marks & MAY_NOT_SKIP_IN_CI:
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} may not be skipped in CI: {report.longrepr}"
    return report
