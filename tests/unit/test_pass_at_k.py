from itertools import combinations

import pytest

from headrace.consumers.evaluate.pass_at_k import avg_at_k, mean_pass_at_k, pass_at_k


def test_golden_values() -> None:
    assert pass_at_k(8, 2, 1) == 0.25
    assert pass_at_k(8, 2, 4) == pytest.approx(0.78571, abs=1e-5)


@pytest.mark.parametrize("samples", [1, 2, 5, 6])
def test_it_is_the_share_of_draws_with_a_right_one(samples: int) -> None:
    for right in range(samples + 1):
        for k in range(1, samples + 1):
            draws = list(combinations([True] * right + [False] * (samples - right), k))
            assert pass_at_k(samples, right, k) == pytest.approx(sum(map(any, draws)) / len(draws))


def test_every_problem_counts_alike() -> None:
    assert mean_pass_at_k([(8, 2), (4, 4)], 1) == 0.625
    assert avg_at_k([(8, 2), (4, 4)]) == 0.625
    assert avg_at_k([(1, 0), (1, 1), (1, 1), (1, 1)]) == 0.75


@pytest.mark.parametrize(("samples", "right", "k"), [(8, 9, 1), (8, -1, 1), (8, 2, 0), (8, 2, 9), (0, 0, 1)])
def test_what_cannot_be_is_refused(samples: int, right: int, k: int) -> None:
    with pytest.raises(ValueError, match="needs 0 <= right <= samples and 1 <= k <= samples"):
        pass_at_k(samples, right, k)
