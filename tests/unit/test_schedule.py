import pytest

from headrace.infra.recipe.settings import TrainerSettings
from headrace.trainers.learner.schedule import learning_rate


def rates(versions: tuple[int, ...], **settings: object) -> list[float]:
    trainer = TrainerSettings.model_validate({"learning_rate": 1e-3, "warmup_versions": 4, "steps": 24} | settings)
    return [learning_rate(trainer, version) for version in versions]


def test_the_learning_rate_warms_up_over_versions_and_stays() -> None:
    assert rates((1, 2, 4, 5, 900)) == pytest.approx([2.5e-4, 5e-4, 1e-3, 1e-3, 1e-3])


def test_a_linear_schedule_falls_to_its_share_at_the_last_version_and_no_further() -> None:
    assert rates((4, 9, 14, 24, 30), schedule="linear") == pytest.approx([1e-3, 7.75e-4, 5.5e-4, 1e-4, 1e-4])


def test_a_cosine_schedule_is_half_way_down_in_the_middle() -> None:
    assert rates((4, 9, 14, 24, 30), schedule="cosine", final_share=0) == pytest.approx([1e-3, 8.53553e-4, 5e-4, 0, 0])
