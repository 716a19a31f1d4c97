"""The escape table as tests, for the files that name a back end: a lane takes one of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from attacks import ATTACKS
from users import USERS, attack_all


def make_test(backend: str) -> Callable[[str, str], None]:
    """Return the test of a back end."""

    @pytest.mark.sandbox
    @pytest.mark.parametrize("user", USERS)
    @pytest.mark.parametrize("attack", ATTACKS)
    def holds(user: str, attack: str) -> None:
        if found := attack_all(user, backend)[attack]:
            pytest.fail("\n".join(found))

    return holds
