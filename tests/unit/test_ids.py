import json

import pytest

from headrace.schemas.ids import GroupId, UseId
from headrace.schemas.records import CuratedGroup, GroupUse


@pytest.mark.parametrize(
    ("found", "plain", "text"),
    [
        (GroupId.of(CuratedGroup(stream="sums", number=3)), ("sums", 3), "sums:3"),
        (UseId.of(GroupUse("sums", 3, 1, partition=2)), ("sums", 3, 1), "sums:3 use 1"),
    ],
)
def test_an_id_is_found_sorted_and_written_as_the_plain_tuple_that_snapshots_hold(
    found: GroupId | UseId, plain: tuple[str, int], text: str
) -> None:
    assert {plain: 1}[found]
    assert sorted([found, ("sums", 2, 9)]) == [("sums", 2, 9), plain]
    assert json.dumps(found) == json.dumps(plain)
    assert f"{found}" == text
