import numpy as np
import pytest

from headrace.envs.contract import Generation
from headrace.envs.transcript import Transcript, TranscriptError, merge_runs
from headrace.schemas.records import Sampling, Span

SAMPLING = Sampling(temperature=0.5)


def generation(*ids: int, runs: tuple[tuple[int, int], ...] | None = None) -> Generation:
    return Generation(
        ids=np.array(ids, np.int32),
        logprobs=np.array([-i / 10 for i in ids], np.float32),
        version_runs=((3, len(ids)),) if runs is None else runs,
        finish_reason="stop",
        sampling=SAMPLING,
    )


def test_a_sequence_grows_token_by_token() -> None:
    transcript = Transcript("solver", "s-1", parent=2)
    transcript.prompt([1, 2])
    transcript.add_generation(generation(3, 4, runs=((3, 1), (4, 1))), reward=0.5)
    transcript.ids.append(9)
    assert transcript.ids == [1, 2, 3, 4], "what is given out is a copy"
    transcript.observe(np.array([5], np.int32))
    transcript.inject([6, 7])
    transcript.add_generation(generation(8, runs=((4, 1),)))
    sequence = transcript.sequence(reward=1.0, baseline=0.25)
    arrays = (sequence.ids, sequence.logprobs, sequence.version_runs)
    assert [array.dtype.name for array in arrays] == ["int32", "float32", "int32"]
    assert sequence.ids.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert sequence.logprobs.tolist() == np.array([0, 0, -0.3, -0.4, 0, 0, 0, -0.8], np.float32).tolist()
    assert sequence.version_runs.tolist() == [-1, 2, 3, 1, 4, 1, -1, 3, 4, 1]
    assert sequence.spans == (
        Span("prompt", 2, 0),
        Span("generated", 2, 0, 0.5, "stop", SAMPLING),
        Span("observation", 1, 1),
        Span("injected", 2, 1),
        Span("generated", 1, 1, None, "stop", SAMPLING),
    )
    assert (sequence.role, sequence.agent_id, sequence.parent) == ("solver", "s-1", 2)
    assert (sequence.reward, sequence.baseline, transcript.turn) == (1.0, 0.25, 2)


def test_no_tokens_make_no_span_but_a_generation_cut_at_once_does() -> None:
    transcript = Transcript("solver")
    transcript.prompt([1])
    transcript.observe([])
    transcript.add_generation(generation(runs=()))
    assert transcript.sequence().spans == (Span("prompt", 1), Span("generated", 0, 0, None, "stop", SAMPLING))
    assert transcript.sequence().version_runs.tolist() == [-1, 1]


def test_what_is_no_generation_is_refused() -> None:
    with pytest.raises(TranscriptError, match="last token predicts the first token"):
        Transcript("solver").add_generation(generation(1))
    for runs in ((), ((3, 1),), ((3, 3),), ((3, 1), (4, 2))):
        transcript = Transcript("solver")
        transcript.prompt([1])
        with pytest.raises(TranscriptError, match="2 tokens, 2 log-probabilities and"):
            transcript.add_generation(generation(2, 3, runs=runs))


def test_runs_of_one_version_are_joined_and_empty_ones_left_out() -> None:
    assert merge_runs([]).tolist() == []
    assert merge_runs([(3, 0)]).tolist() == []
    assert merge_runs([(3, 1), (3, 2), (4, 0), (3, 1), (4, 5), (3, 1)]).tolist() == [3, 4, 4, 5, 3, 1]
    assert merge_runs([(-1, 2), (-1, 3), (0, 1)]).tolist() == [-1, 5, 0, 1]
