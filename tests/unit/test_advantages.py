import numpy as np
import pytest

from trainers.advantages import GroupBy, Member, RewardError, grpo


def group(*rewards: float, role: str = "solver") -> list[Member]:
    return [Member(trajectory, role, reward) for trajectory, reward in enumerate(rewards)]


def test_grpo_normalises_by_the_unbiased_deviation_of_the_complete_group() -> None:
    advantages = grpo(group(1, 0, 0, 0, 1, 0, 0, 0))
    assert advantages.dtype == np.float32
    np.testing.assert_allclose(advantages[[0, 1]], [1.62015, -0.54005], atol=1e-5)
    assert advantages[0] == advantages[4]


@pytest.mark.parametrize("rewards", [[0.1] * 7, [1.0], [1.0, 1.0 + 1e-9]])
def test_equal_rewards_and_singletons_give_exactly_zero(rewards: list[float]) -> None:
    assert grpo(group(*rewards)).tolist() == [0.0] * len(rewards)


def test_an_empty_group_has_no_advantages() -> None:
    assert grpo([]).shape == (0,)


def test_a_trajectory_weighs_once_however_many_sequences_it_has() -> None:
    members = [Member(0, "solver", 1.0), *[Member(1, "solver", 0.0)] * 3]
    by_trajectory = grpo(members, weight="trajectory")
    np.testing.assert_allclose(by_trajectory, np.array([0.5, -0.5, -0.5, -0.5]) / (0.70711 + 1e-5), atol=1e-5)
    by_sequence = grpo(members, weight="sequence")
    np.testing.assert_allclose(by_sequence, np.array([0.75, -0.25, -0.25, -0.25]) / (0.5 + 1e-5), atol=1e-5)


def test_only_sequence_weight_tells_the_attempts_of_one_trajectory_apart() -> None:
    members = [Member(0, "solver", 0.0), Member(0, "solver", 1.0), Member(1, "solver", 0.0)]
    assert grpo(members, weight="trajectory")[0] == grpo(members, weight="trajectory")[1] > 0
    assert grpo(members, weight="sequence")[0] < 0 < grpo(members, weight="sequence")[1]


@pytest.mark.parametrize(
    ("group_by", "signs"), [("task", [0, 0, 1, -1]), ("task+role", [-1, 1, 1, -1]), ("task+role+turn", [0, 0, 0, 0])]
)
def test_each_key_is_compared_with_itself_alone(group_by: GroupBy, signs: list[int]) -> None:
    members = [
        Member(0, "solver", 0.25, turn=0),
        Member(1, "solver", 0.75, turn=1),
        Member(0, "verifier", 1.0, turn=0),
        Member(1, "verifier", 0.0, turn=1),
    ]
    if group_by == "task":
        assert np.sign(grpo(members, group_by=group_by, weight="sequence")).tolist() == [-1, 1, 1, -1]
        # As trajectories: (0.25 + 1) / 2 against (0.75 + 0) / 2.
        assert np.sign(grpo(members, group_by=group_by)).tolist() == [1, -1, 1, -1]
    else:
        assert np.sign(grpo(members, group_by=group_by)).tolist() == signs


def test_a_reward_that_is_not_finite_is_refused() -> None:
    with pytest.raises(RewardError, match="finite"):
        grpo(group(1.0, float("nan")))
