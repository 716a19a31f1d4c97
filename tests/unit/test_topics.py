import pytest

from headrace.schemas.topics import (
    Topics,
    check_name,
    checkpoint_key,
    checkpoint_prefix,
    state_partition,
    trainer_component,
)

TOPICS = Topics("demo")


def test_the_topics_of_a_run_are_those_of_the_design() -> None:
    names = {spec.name for spec in TOPICS.all(("sums",), ("solver",), 4)}
    assert names == {
        "demo.recipe", "demo.tasks.sums", "demo.eval-tasks.sums", "demo.trajectories.solver", "demo.eval-groups.solver",
        "demo.curated.solver", "demo.outcomes.solver", "demo.batches.solver", "demo.weights.solver",
        "demo.evals.solver", "demo.workers", "demo.scaling", "demo.dead-letters", "demo.state",
    }  # fmt: skip


def test_what_is_ordered_as_a_whole_has_one_partition() -> None:
    partitions = {spec.name.split(".")[1]: spec.partitions for spec in TOPICS.all(("sums",), ("solver",), 4)}
    single = {"recipe", "batches", "weights", "evals", "workers", "scaling", "dead-letters", "state"}
    assert {name for name, count in partitions.items() if count == 1} == single
    assert {count for name, count in partitions.items() if name not in single} == {4}


def test_only_the_newest_of_state_and_workers_is_kept_and_all_of_the_rest() -> None:
    for spec in TOPICS.all(("sums",), ("solver",), 4):
        if spec.name in (TOPICS.state, TOPICS.workers):
            assert spec.config["cleanup.policy"] == "compact"
            assert spec.made_with["segment.bytes"] == str(16 * 1024 * 1024), "it only tunes, so it is not required"
        else:
            assert (spec.config["cleanup.policy"], spec.config["retention.ms"]) == ("delete", "-1")


def test_every_topic_but_workers_takes_records_of_eight_mebibytes() -> None:
    largest = {
        spec.name: (spec.config | spec.made_with).get("max.message.bytes")
        for spec in TOPICS.all(("sums",), ("solver",), 4, ("solver.free",))
    }
    assert largest.pop(TOPICS.workers) is None
    assert set(largest.values()) == {str(8 * 1024 * 1024)}


def test_a_components_partition_of_state_never_changes() -> None:
    components = ("feed", "evaluate", "curate.solver", trainer_component("solver.free"))
    assert [state_partition(one, 64) for one in components] == [43, 8, 21, 0]
    assert {state_partition(one, 1) for one in components} == {0}


@pytest.mark.parametrize("name", ["", "a.b", "a b", "ü", "-a", "a/b", "a" * 64, "a\n"])
def test_a_name_that_cannot_be_part_of_a_topic_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="policy name"):
        check_name("policy", name)
    with pytest.raises(ValueError, match="run name"):
        Topics(name)


def test_a_shadow_has_topics_of_its_own_and_no_trajectories() -> None:
    alone = {spec.name for spec in TOPICS.all(("sums",), ("solver",), 4)}
    beside = [spec for spec in TOPICS.all(("sums",), ("solver",), 4, ("solver.free",)) if spec.name not in alone]

    kinds = ("curated", "outcomes", "batches", "weights")
    assert [spec.name for spec in beside] == [f"{TOPICS.run}.{kind}.solver.free" for kind in kinds]
    assert [spec.partitions for spec in beside] == [4, 4, 1, 1]
    assert TOPICS.trajectories("solver.free") == TOPICS.trajectories("solver")
    assert TOPICS.curated("solver.free") == TOPICS.curated("solver", "free")
    assert checkpoint_key("solver.free", 1).startswith(checkpoint_prefix("solver.free"))
    assert not checkpoint_key("solver.free", 1).startswith(checkpoint_prefix("solver"))
