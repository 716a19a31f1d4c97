import pytest

from headrace.schemas.headers import HeaderError, Stamp, task_key, task_stamp
from headrace.schemas.records import Task

STAMP = Stamp("run-1", "sums.eu", 7, 1, 2, "train", 3, "solver", 4, 5, 6)


def test_a_stamp_comes_back_from_its_headers() -> None:
    assert Stamp.from_headers(STAMP.to_headers()) == STAMP
    assert Stamp.from_headers(Stamp("r", "s", 0).to_headers()) == Stamp("r", "s", 0)


def test_headers_are_plain_text_that_any_tool_can_read() -> None:
    headers = dict(STAMP.to_headers())
    assert headers["run_id"] == b"run-1"
    assert headers["stream"] == b"sums.eu"
    assert headers["number"] == b"7"
    assert headers["head_version"] == b"6"
    assert STAMP.key == b"sums.eu:7" == task_key("sums.eu", 7)


@pytest.mark.parametrize("missing", ["run_id", "stream", "number", "head_version"])
def test_a_missing_header_is_named(missing: str) -> None:
    with pytest.raises(HeaderError, match=f"'{missing}' is missing"):
        Stamp.from_headers([header for header in STAMP.to_headers() if header[0] != missing])


@pytest.mark.parametrize(
    "value", [b"", b"seven", b"7.0", b"\xff", b" 7", b"+7", b"1_0", "٣".encode(), str(2**63).encode(), b"9" * 4000]
)
def test_a_malformed_number_is_named_with_its_value(value: bytes) -> None:
    headers = [(name, value if name == "number" else old) for name, old in STAMP.to_headers()]
    with pytest.raises(HeaderError, match="'number' is malformed"):
        Stamp.from_headers(headers)


@pytest.mark.parametrize("value", [b"\xff\xfe", b"s" * 1001])
def test_a_text_that_is_none_or_without_end_is_refused(value: bytes) -> None:
    with pytest.raises(HeaderError, match="'stream' is malformed"):
        Stamp.from_headers([(name, value if name == "stream" else old) for name, old in STAMP.to_headers()])


def test_a_groups_stamp_is_that_of_its_task() -> None:
    task = Task(run_id="r", stream="eval.sums", number=9, attempt=1, purpose="eval", revision=2)
    assert task_stamp(task, "solver") == Stamp("r", "eval.sums", 9, 1, 0, "eval", 2, "solver")
