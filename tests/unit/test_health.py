from headrace.trainers.health import HEALTH_LOOK_BACK, findings

WELL = {
    "entropy": 0.5,
    "reward_mean": 0.6,
    "grad_norm_mean": 0.2,
    "grad_norm_max": 0.4,
    "logprob_gap_mean": 1e-6,
    "ess_share": 0.95,
    "kl_k3": 1e-3,
    "clip_fraction": 0.01,
    "steps_skipped": 0.0,
    "truncated_share": 0.1,
    "zero_variance_share": 0.0,
}


def names(*later: dict[str, float]) -> list[str]:
    past = [WELL] * (HEALTH_LOOK_BACK - len(later))
    return [finding.name for finding in findings([*past, *(WELL | one for one in later)])]


def test_a_run_that_is_well_has_no_findings() -> None:
    assert names(WELL) == []
    for past in ([], [{}], [WELL | {"reward_mean": 0.0}] * HEALTH_LOOK_BACK, [WELL, WELL | {"grad_norm_max": 9.0}]):
        assert findings(past) == []


def test_each_sign_is_found_alone_and_by_its_figure() -> None:
    for figure, value, name in (
        ("steps_skipped", 1.0, "not_finite"),
        ("entropy", 0.04, "entropy_collapse"),
        ("grad_norm_max", 2.1, "steep"),
        ("logprob_gap_mean", 0.03, "mismatch"),
        ("ess_share", 0.2, "off_policy"),
        ("kl_k3", 0.2, "off_policy"),
        ("clip_fraction", 0.5, "clipped"),
        ("rejected_fraction", 0.6, "rejected"),
        ("truncated_share", 0.6, "truncated"),
        ("zero_variance_share", 1.0, "equal_rewards"),
    ):
        assert names({figure: value}) == [name]


def test_a_slow_collapse_is_seen_against_the_first_version_of_the_run() -> None:
    slowly = [WELL | {"entropy": 0.5 * 0.9**version, "entropy_first": 0.5} for version in range(300)]
    found = [bool(findings(slowly[max(0, end - HEALTH_LOOK_BACK) : end])) for end in range(1, 301)]
    assert found.index(True) == 22, "0.9^22 is below a tenth"
    assert all(found[22:])


def test_a_reward_that_falls_by_half_and_stays_down_is_a_collapse_and_one_bad_version_is_not() -> None:
    assert names({"reward_mean": 0.0}) == []
    assert names(*[{"reward_mean": 0.2}] * 5) == ["reward_collapse"]


def test_rewards_below_zero_and_noise_around_it_are_no_collapse() -> None:
    assert findings([WELL | {"reward_mean": -1.0}] * HEALTH_LOOK_BACK) == []
    assert findings([WELL | {"reward_mean": -100.0 - 0.2 * (n > 5)} for n in range(HEALTH_LOOK_BACK)]) == []
    fallen = findings([WELL | {"reward_mean": -1.0 - (n > 4)} for n in range(10)])
    assert [one.name for one in fallen] == ["reward_collapse"]
    assert names(*[{"reward_mean": 0.05}] * 10, *[{"reward_mean": 0.02}] * 10) == []


def test_the_worst_comes_first_and_every_sentence_says_what_to_do() -> None:
    found = findings([*[WELL] * 10, WELL | {"steps_skipped": 2.0, "clip_fraction": 0.9}])
    assert [finding.name for finding in found] == ["not_finite", "clipped"]
    assert found[0].sentence.startswith("Skipped optimizer steps of this version: 2")
    assert all(": " in finding.sentence for finding in found)
