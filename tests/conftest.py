from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def token_cache(tmp_path_factory):
    """No test writes into the cache of whoever runs it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SACCADE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
