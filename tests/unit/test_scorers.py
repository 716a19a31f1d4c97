"""How answers of a data set are judged: by comparison, by an expression, by own functions, by a model."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from headrace.envs.arithmetic import Arithmetic
from headrace.envs.contract import Problem, Score
from headrace.envs.data import judge
from headrace.envs.data.judge import JudgeError
from headrace.envs.data.scorers import build_scorer
from headrace.envs.dataset import Dataset
from headrace.infra.errors import UsageError
from headrace.infra.unreachable import is_unreachable


def rewards(scorer: Any, answer: str, *texts: str) -> list[float]:
    found = [build_scorer(scorer).score(Problem("t", "p", answer), text) for text in texts]
    return [one.reward if isinstance(one, Score) else one for one in found]


def test_numbers_are_compared_within_a_tolerance() -> None:
    texts = (r"\boxed{3.14}", r"\boxed{22/7}", r"\boxed{pi}", "3.14")
    assert rewards("numeric", "3.14", *texts) == [1, 0, 0, 0]
    assert rewards({"use": "numeric", "tolerance": 0.01}, "3.14", *texts) == [1, 1, 0, 0]


@pytest.mark.parametrize("scorer", ["exact", "numeric", {"use": "regex", "pattern": r"boxed\{(\d+)"}])
def test_what_a_policy_only_thinks_is_no_answer(scorer: Any) -> None:
    considered = (r"<think>or \boxed{12}", r"or \boxed{12}</think>It is 13.", r"<think>\boxed{12}</think>\boxed{1}")
    assert rewards(scorer, "12", *considered, r"13?</think>It is \boxed{12}.") == [0, 0, 0, 1]
    assert Arithmetic(1).score(Problem("t", "p", "12"), considered[1]).reward == 0


def test_an_expression_about_thoughts_reads_them_too() -> None:
    texts = ("<think>a</think><answer>4</answer>", "<answer>4</answer>")
    assert rewards("regex", "^<think>.*</think>\\s*<answer>4</answer>$", *texts) == [1, 0]


def test_an_answer_may_name_its_variable() -> None:
    texts = (r"\boxed{x=5}", r"\boxed{$x = 5$}", r"\boxed{x_1 = 5.0}", r"\boxed{5}")
    for scorer in ("exact", "numeric"):
        assert rewards(scorer, "5", *texts, r"\boxed{x=6}", r"\boxed{x=y=5}") == [1, 1, 1, 1, 0, 0]
    assert rewards("exact", "x=5", *texts, r"\boxed{y=5}") == [1, 1, 0, 1, 0]


def test_an_answer_is_an_expression_or_is_found_by_one() -> None:
    assert rewards("regex", r"(?i)\bparis\b", "It is PARIS.", "It is comparison.") == [1, 0]
    found = {"use": "regex", "pattern": r"####\s*(\S+)"}
    assert rewards(found, "72", "#### 3\n#### 72.0", "#### 72\n#### 3", "72") == [1, 0, 0]


def own(problem: Problem, text: str, factor: float = 1.0) -> float:
    return factor * (text == problem.extra.get("tests", problem.answer))


async def own_async(problem: Problem, text: str) -> float:
    return 1.0


def test_a_function_of_ones_own_judges_with_settings_and_what_was_kept_of_the_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.envs.permutation.own", own, raising=False)
    monkeypatch.setattr("headrace.envs.permutation.own_async", own_async, raising=False)
    (tmp_path / "a.jsonl").write_text('{"problem": "p", "tests": "assert"}')
    scorer = {"use": "headrace.envs.permutation:own", "factor": 0.5}
    columns = {"answer": ""}
    env = Dataset(1, str(tmp_path / "a.jsonl"), held_out=0, columns=columns, scorer=scorer, keep=["tests"])
    problem = env.problem("train", 0)
    assert problem.prompt == "p"
    assert [env.score(problem, text).reward for text in ("assert", "other")] == [0.5, 0]
    with pytest.raises(ValueError, match=r"scorer .*own: got an unexpected keyword argument 'by'"):
        build_scorer({"use": "headrace.envs.permutation:own", "by": 1})
    with pytest.raises(ValueError, match="must not be async"):
        build_scorer("headrace.envs.permutation:own_async")
    with pytest.raises(UsageError, match="scorer: 'exakt' is not known; take one of exact"):
        build_scorer("exakt")


def test_each_line_may_name_its_scorer(tmp_path: Path) -> None:
    lines = [
        {"problem": "a", "answer": "^x+$", "kind": "regex"},
        {"problem": "b", "answer": "100", "kind": "close"},
        {"problem": "c", "answer": "100", "kind": None},
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    env = Dataset(
        1,
        str(tmp_path / "a.jsonl"),
        held_out=0,
        columns={"scorer": "kind"},
        scorers={"close": {"use": "numeric", "tolerance": 0.1}},
    )
    by_text = {problem.prompt[0]: problem for problem in (env.problem("train", index) for index in range(3))}
    scored = {name: [env.score(by_text[name], text).reward for text in ("xx", r"\boxed{95}")] for name in "abc"}
    assert scored == {"a": [1, 0], "b": [0, 1], "c": [0, 0]}
    assert by_text["a"].prompt == "a"
    assert by_text["b"].prompt.startswith("b\nReason step by step")


# ----------------------------------------------------------------------------------------------------------- the judge


@dataclass
class Endpoint:
    """A server that answers requests by what is queued, and else with `yes`."""

    url: str = ""
    queued: list[tuple[int, Any]] = field(default_factory=list)
    asked: list[tuple[str | None, Any]] = field(default_factory=list)
    """Authorization and body of each request."""
    retry_after: str = "0"


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    found = Endpoint()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            found.asked.append((self.headers["Authorization"], body))
            code, said = found.queued.pop(0) if found.queued else (200, "yes")
            content = {"choices": [{"message": {"content": said}}]} if isinstance(said, str) else said
            answer = json.dumps(content).encode()
            self.send_response(code if self.path == "/v1/chat/completions" else 404)
            self.send_header("Content-Length", str(len(answer)))
            self.send_header("Retry-After", found.retry_after)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        found.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        yield found
        server.shutdown()
        thread.join()


PROBLEM = Problem("t", "What is {answer}?", "42")


def test_a_judge_is_asked_with_the_key_of_the_environment_and_its_last_word_counts(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"use": "judge", "url": endpoint.url, "model": "m", "key": "MY_JUDGE_KEY"}
    with pytest.raises(ValueError, match=r"must name an environment variable .* is not set, or empty"):
        build_scorer(settings)
    monkeypatch.setenv("MY_JUDGE_KEY", "secret")
    scorer = build_scorer({**settings, "prompt": "{problem}|{answer}|{completion}", "most": 10})
    said = {"No doubt: yes": 1.0, "yes? No.": 0.0, "Score: 7": 0.7, "7/10": 0.7, "I give 12": 1.0, "**0.5**": 0.05}
    said |= {"I give 2 out of 10": 0.2, "Score: 3 / 4": 0.75, "<think>9 or 8?</think> 4": 0.4}
    endpoint.queued = [(200, one) for one in said]
    scores = [scorer.score(PROBLEM, f"{{problem}} {number}") for number in range(len(said))]
    assert [one.reward for one in scores if isinstance(one, Score)] == list(said.values())
    key, body = endpoint.asked[0]
    assert key == "Bearer secret"
    assert body["model"] == "m"
    assert body["messages"] == [{"role": "user", "content": "What is {answer}?|42|{problem} 0"}]


def test_a_judge_that_is_asked_for_yes_or_no_gives_no_marks_for_numbers_and_thoughts(endpoint: Endpoint) -> None:
    scorer = build_scorer({"use": "judge", "url": endpoint.url, "model": "m"})
    said = {"No. The answer is 42, not 7": 0.0, "<think>yes, 72</think>no": 0.0, "the answers agree</think>\nYes.": 1.0}
    endpoint.queued = [(200, one) for one in said]
    scores = [scorer.score(PROBLEM, str(number)) for number in range(len(said))]
    assert [one.reward for one in scores if isinstance(one, Score)] == list(said.values())
    for reply in ("The answer is 42.", "<think>yes, 48 + 24 is 72"):
        endpoint.queued = [(200, reply)]
        with pytest.raises(JudgeError, match="must answer yes or no; its reply ends with"):
            scorer.score(PROBLEM, f"about {len(reply)}")


def test_a_judge_reads_what_follows_the_thought_and_is_not_asked_where_nothing_does(endpoint: Endpoint) -> None:
    scorer = build_scorer({"use": "judge", "url": endpoint.url, "model": "m", "prompt": "{completion}"})
    scores = [scorer.score(PROBLEM, text) for text in ("<think>42?</think>43", "<think>42, because")]
    assert [one.reward for one in scores if isinstance(one, Score)] == [1, 0]
    assert [body["messages"][0]["content"] for _, body in endpoint.asked] == ["43"]


def test_a_verdict_that_was_cut_off_is_none(endpoint: Endpoint) -> None:
    scorer = build_scorer({"use": "judge", "url": endpoint.url, "model": "m"})
    endpoint.queued = [(200, {"choices": [{"message": {"content": "yes, or"}, "finish_reason": "length"}]})]
    with pytest.raises(JudgeError, match="was cut off, perhaps before its verdict: raise `max_tokens`"):
        scorer.score(PROBLEM, "42")
    assert scorer.score(PROBLEM, "42") == Score(1.0, {"judged": 1.0}), "it is not remembered"


def test_a_verdict_is_asked_for_once_also_by_another_process(endpoint: Endpoint, tmp_path: Path) -> None:
    settings = {"use": "judge", "url": endpoint.url, "model": "m", "cache": str(tmp_path / "verdicts"), "budget": 1}
    first, second = build_scorer(settings), build_scorer(settings)
    assert [first.score(PROBLEM, "42"), first.score(PROBLEM, "42"), second.score(PROBLEM, "42")] == [
        Score(1.0, {"judged": 1.0})
    ] * 3
    assert len(endpoint.asked) == 1
    with pytest.raises(JudgeError, match="used up the `budget` of 1 requests to the judge"):
        first.score(PROBLEM, "43")


def test_a_judge_that_is_busy_is_asked_again_and_one_that_stays_away_is_a_pause(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer = build_scorer({"use": "judge", "url": endpoint.url, "model": "m"})
    endpoint.queued = [(429, {}), (503, {})]
    assert scorer.score(PROBLEM, "42") == Score(1.0, {"judged": 1.0})
    assert len(endpoint.asked) == 3
    impatient = build_scorer({"use": "judge", "url": endpoint.url, "model": "m", "limit_s": 30})
    endpoint.queued, endpoint.retry_after = [(500, {"error": "overloaded"})], "60"
    with pytest.raises(ConnectionError, match=r"is busy or failing: HTTP 500: .*overloaded") as busy:
        impatient.score(PROBLEM, "42")
    assert is_unreachable(busy.value)
    monkeypatch.setattr(judge, "FIRST_PAUSE_S", 60.0)  # beyond the limit: it is asked once
    nobody = build_scorer({"use": "judge", "url": "http://127.0.0.1:9/v1", "model": "m", "limit_s": 30})
    with pytest.raises(
        ConnectionError, match=r"judge http://127\.0\.0\.1:9/v1/chat/completions cannot be reached"
    ) as away:
        nobody.score(PROBLEM, "42")
    assert is_unreachable(away.value)


def test_what_a_judge_refuses_or_does_not_decide_is_an_error_and_no_wrong_answer(endpoint: Endpoint) -> None:
    scorer = build_scorer({"use": "judge", "url": endpoint.url, "model": "m"})
    endpoint.queued = [(401, {"error": "no key"}), (200, "Perhaps."), (200, {"odd": 1})]
    for words in (
        "refused the request: HTTP 401: .*no key",
        "yes or no; .* 'Perhaps.'",
        "with a chat completion",
    ):
        with pytest.raises(JudgeError, match=words) as raised:
            scorer.score(PROBLEM, "42")
        assert not is_unreachable(raised.value)
    assert scorer.score(PROBLEM, "42") == Score(1.0, {"judged": 1.0})


def test_a_judge_is_asked_no_more_often_than_its_rate(endpoint: Endpoint) -> None:
    scorer = build_scorer({"use": "judge", "url": endpoint.url, "model": "m", "rate": 20})
    began = time.monotonic()
    for number in range(5):
        scorer.score(PROBLEM, str(number))
    assert time.monotonic() - began >= 4 / 20
    slow = build_scorer({"use": "judge", "url": endpoint.url, "model": "m", "rate": 0.001, "limit_s": 30})
    slow.score(PROBLEM, "1")
    with pytest.raises(ConnectionError, match=r"`rate` allows no further request in the .* s that remain"):
        slow.score(PROBLEM, "2")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"url": "host/v1"}, "url must begin with http"),
        ({"prompt": "Is it right?"}, r"prompt must contain \{completion\}"),
        ({"rate": -1}, "`rate` and `budget` 0 or more"),
        ({"modell": "m"}, "unexpected keyword argument 'modell'"),
    ],
)
def test_settings_that_a_judge_cannot_use_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=f"scorer judge: .*{words}"):
        build_scorer({"use": "judge", "url": "http://host/v1", "model": "m", **settings})
