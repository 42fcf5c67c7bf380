"""What every test run shares."""

from __future__ import annotations

import pytest
from hypothesis import settings

from loopfuse.cuda import engine

# `make test` draws the same examples every time, so that a change is judged by what it changes; `make test-all` draws
# new ones (`--hypothesis-profile=explore`).
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=300, deadline=None)
settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--bless` rewrites the expectations of file tests."""
    parser.addoption("--bless", action="store_true", help="rewrite the expectations of file tests")


@pytest.fixture
def bless(request: pytest.FixtureRequest) -> bool:
    """Whether expectations are to be rewritten."""
    return bool(request.config.getoption("--bless"))


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No colours unless a test asks for them."""
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def no_gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that is not marked gpu gives the same on every machine: what is left to choose runs on the reference."""
    if "gpu" not in request.keywords:
        monkeypatch.setattr(engine, "usable", lambda ordinal=0: "tests that are not marked gpu use none")
