"""Another chain for a running run: numbers keep their revision, chains end, and the first command goes on."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_curation import RECIPE, TOPIC, group, message, read
from test_feed_state import names, recipe, restore, state, version

from headrace.consumers.curate.chain_ends import ChainEnds
from headrace.consumers.curate.context import CuratorContext
from headrace.consumers.curate.curator import CuratorPartition
from headrace.consumers.curate.revision_chains import find_first_of_chain, load_policy_chain
from headrace.infra.errors import UsageError
from headrace.infra.kafka.clients import Connection, Message, RunAddress
from headrace.infra.recipe.recipe_file import replace_chain_from_file
from headrace.infra.recipe.settings import Recipe
from headrace.infra.recipe.table import Named
from headrace.infra.run import progress, revisions
from headrace.infra.run.progress import RunProgress
from headrace.infra.store.object_store import StoreAddress
from headrace.ops import swap
from headrace.schemas import codec
from headrace.schemas.ids import GroupId
from headrace.schemas.records import BatchTrained, CuratedGroup, GroupUse, Outcome, RecipeRevision, WeightsPublished
from headrace.schemas.topics import Topics

TRAINED = RunProgress(has_trained=True)
REPLAYING = (Named(use="validate"), Named.model_validate({"use": "replay_latest", "ratio": 0.5, "max_uses": 2}))


def chained(before: Recipe, *chain: Named) -> Recipe:
    return before.model_copy(update={"curate": before.curate.model_copy(update={"chain": chain})})


# -------------------------------------------------------------------------------------------------------------- feeder


def test_every_further_number_has_the_new_revision_and_one_that_is_lost_keeps_its_own() -> None:
    feeder = state()
    feeder.fold_weights(version("solver", 0))
    before = feeder.plan()
    [known] = {one.task.revision for one in before}
    feeder.swap(RecipeRevision("r", known + 1), chained(feeder.recipe, Named(use="validate")))
    done = [GroupUse(stream, number) for stream, number in names(before) if stream == "debate" or number in {0, 1}]
    feeder.fold_batch(BatchTrained("r", "solver", version=1, groups=tuple(done)))
    after = [one for one in feeder.plan() if one.task.purpose == "train"]
    assert after
    assert {one.task.revision for one in after} == {known + 1}
    again = state()
    restore(again, feeder)
    for feeding in (feeder, again):
        [lost] = [one for one in feeding.reissue_lost([GroupId("sums", 2)]) if one.task.stream == "sums"]
        assert (lost.task.attempt, lost.task.revision) == (1, known), "all attempts of a number are of one revision"


def test_a_feeder_that_comes_back_under_a_later_revision_stamps_it_from_the_next_number_on() -> None:
    feeder = state()
    feeder.fold_weights(version("solver", 0))
    first = names(feeder.plan())
    found = recipe()
    later = type(feeder)(found, replace(feeder.revision, revision=7), feeder.sources)
    restore(later, feeder)
    issued = sum(stream == "sums" for stream, _ in first)
    assert [later.revision_of("sums", number) for number in (0, issued - 1, issued)] == [2, 2, 7]
    assert later.snapshot()["revisions"]["sums"] == [[2, 0], [7, issued]]


# ------------------------------------------------------------------------------------------------------------- curator


def partition(*recipes: Recipe) -> CuratorPartition:
    context = CuratorContext("run-1", "solver", Topics("t"), lambda revision: recipes[revision], pytest.fail)
    return CuratorPartition(context, (TOPIC, 0), 4)


def outcome_of(curator: CuratorPartition, number: int, revision: int, *rewards: float) -> tuple[str, str]:
    made = group(number, rewards=rewards or (1.0, 0.0), revision=revision)
    outcome = read(list(curator.handle(message(made))))[0]
    assert isinstance(outcome, Outcome)
    return outcome.verdict, outcome.reason


def chains(curator: CuratorPartition) -> list[str]:
    return sorted(json.loads(curator.snapshot())["chains"])


def test_an_old_chain_ends_when_all_below_the_first_number_of_the_new_one_is_concluded() -> None:
    curator = partition(chained(RECIPE, *REPLAYING), RECIPE)
    outcome_of(curator, 0, 0)
    outcome_of(curator, 8, 1)
    assert chains(curator) == ["0", "1"], "number 4 may still come"
    restored = partition(chained(RECIPE, *REPLAYING), RECIPE)
    restored.restore(curator.snapshot())
    for one in (curator, restored):
        (outcome, curated, *again) = read(list(one.handle(message(group(4, revision=0)))))
        assert isinstance(outcome, Outcome)
        assert isinstance(curated, CuratedGroup)
        assert [record.number for record in again if isinstance(record, CuratedGroup)] == [0], "it still replays"
        assert chains(one) == ["1"]
        assert not json.loads(one.snapshot())["uses"]["groups"], "nothing of it is remembered"
    assert curator.snapshot() == restored.snapshot()


def test_revisions_in_a_row_that_have_one_chain_share_what_it_remembers() -> None:
    replaying = chained(RECIPE, *REPLAYING)
    other = replaying.model_copy(update={"trainer": replaying.trainer.model_copy(update={"learning_rate": 0.5})})
    recipes = (replaying, other, RECIPE, other)
    curator, restored = partition(*recipes), partition(*recipes)
    outcome_of(curator, 0, 0)
    restored.restore(curator.snapshot())
    for one in (curator, restored):
        replays = [record for record in read(list(one.handle(message(group(4, revision=1))))) if is_replay(record)]
        assert [(record.number, record.revision) for record in replays] == [(0, 0)], "the group keeps its own revision"
        assert chains(one) == ["0"], "revision 0 is over, and its chain goes on"
        assert not any(is_replay(record) for record in read(list(one.handle(message(group(8, revision=2))))))
        assert chains(one) == ["2"], "now it is over"
        assert not any(is_replay(record) for record in read(list(one.handle(message(group(12, revision=3))))))
        assert chains(one) == ["3"], "the same chain after another one begins anew"
    assert curator.snapshot() == restored.snapshot()


def is_replay(record: object) -> bool:
    return isinstance(record, CuratedGroup) and record.use > 0


def test_a_chain_that_takes_the_trainers_limit_or_the_seed_is_another_one_with_another() -> None:
    def first(*recipes: Recipe) -> int:
        return find_first_of_chain(recipes.__getitem__, len(recipes) - 1, "solver")

    stricter = RECIPE.trainer.model_copy(update={"max_staleness": RECIPE.trainer.max_staleness + 1})
    assert "max_staleness" in {one.use for one in RECIPE.chain_of("solver")}
    assert first(RECIPE, RECIPE, RECIPE) == 0
    assert first(RECIPE, RECIPE.model_copy(update={"trainer": stricter})) == 1
    assert first(RECIPE, RECIPE.model_copy(update={"seed": RECIPE.seed + 1}), RECIPE) == 2


def test_a_chain_does_not_end_while_another_stream_of_its_policy_may_still_have_groups_for_it() -> None:
    ends = ChainEnds()
    for stream, number, revision in (("sums", 0, 0), ("sums", 4, 1), ("debate", 0, 0)):
        ends.note_number(revision, stream, number)
    settled = {"sums": 8, "debate": 4}
    assert ends.pop_finished(("sums", "debate"), settled.__getitem__) == []
    ends.note_number(1, "debate", 4)
    assert ends.pop_finished(("sums", "debate"), settled.__getitem__) == [0]
    assert ends.snapshot() == {"1": {"debate": 4, "sums": 4}}
    ends.note_number(0, "sums", 0)  # sent back by redrive, after its chain was over
    assert ends.pop_finished(("sums", "debate"), settled.__getitem__) == [0]


# --------------------------------------------------------------------------------------------------------------- audit


# -------------------------------------------------------------------------------------------------------------- recipe


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`settled` over revisions that stand on no topic."""
    where = StoreAddress("127.0.0.1:1", "b", "key", "secret", prefix="run-1/", keys_file="/store.json")
    store = revisions.describe_store(where)

    def ask(
        recipe: Recipe,
        *before: tuple[Recipe, bool],
        new_recipe: bool = False,
        come: RunProgress = TRAINED,
    ) -> RecipeRevision | None:
        told = [
            replace(revisions.build_revision("run-1", number, one, store), swapped=swapped)
            for number, (one, swapped) in enumerate(before)
        ]
        monkeypatch.setattr(revisions, "read_known_revisions", lambda _: told)
        monkeypatch.setattr(revisions, "read_progress", lambda *_: come)
        address = RunAddress(Connection("127.0.0.1:1"), "t")
        return revisions.plan_revision(address, recipe, where, new_recipe=new_recipe)

    return ask


def test_the_command_that_began_a_run_goes_on_with_the_chain_that_it_was_swapped_to(
    settled: Callable[..., Any],
) -> None:
    other = chained(RECIPE, *REPLAYING)
    assert settled(RECIPE, (RECIPE, False), (other, True)) is None
    longer = RECIPE.model_copy(update={"trainer": RECIPE.trainer.model_copy(update={"steps": 9})})
    with pytest.raises(UsageError, match=r"trainer\.steps") as refused:
        settled(longer, (RECIPE, False), (other, True))
    assert "curate.chain" not in str(refused.value)
    made = settled(longer, (RECIPE, False), (other, True), new_recipe=True)
    assert (made.revision, made.swapped) == (2, True)
    assert Recipe.from_json(made.recipe) == chained(longer, *REPLAYING)
    assert settled(longer, (RECIPE, False), (other, True), (chained(longer, *REPLAYING), True)) is None
    third = chained(RECIPE, Named(use="validate"))
    with pytest.raises(UsageError, match=r"curate\.chain"):
        settled(third, (RECIPE, False), (other, True))


def test_a_corrected_recipe_of_a_run_that_trained_nothing_is_the_next_revision(settled: Callable[..., Any]) -> None:
    faster = RECIPE.model_copy(update={"trainer": RECIPE.trainer.model_copy(update={"learning_rate": 1e-3})})
    policies = {name: policy.model_copy(update={"path": "/models/other"}) for name, policy in RECIPE.policies.items()}
    other_model = RECIPE.model_copy(update={"policies": policies})
    made = settled(faster, (RECIPE, False), come=RunProgress())
    assert (made.revision, Recipe.from_json(made.recipe)) == (1, faster)
    assert settled(faster, (RECIPE, False), come=RunProgress(begun=frozenset(policies))).revision == 1
    assert settled(other_model, (RECIPE, False), come=RunProgress()).revision == 1
    with pytest.raises(UsageError, match=r"trainer\.learning_rate"):
        settled(faster, (RECIPE, False), come=RunProgress(has_trained=True))
    with pytest.raises(UsageError, match=r"policies\.\w+\.path"):  # its version 0 is of the model before, and stays
        settled(other_model, (RECIPE, False), come=RunProgress(begun=frozenset(policies)))


def test_how_far_a_run_has_come_is_read_from_its_batches_and_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    topics, address = RECIPE.topics, RunAddress(Connection("127.0.0.1:1"), RECIPE.name)
    [policy, *_] = RECIPE.policies

    def so_far(*records: BatchTrained | WeightsPublished, torn: bytes = b"") -> RunProgress:
        held = {topics.batches(policy): BatchTrained, topics.weights(policy): WeightsPublished}
        values = {
            topic: [codec.encode(one) for one in records if isinstance(one, kind)] for topic, kind in held.items()
        }
        if torn:
            values[topics.batches(policy)].append(torn)
        monkeypatch.setattr(
            progress,
            "read_all",
            lambda _, asked: [Message(one, 0, 0, b"", value) for one in asked for value in values.get(one, ())],
        )
        return progress.read_progress(address, RECIPE)

    assert so_far() == RunProgress()
    first = WeightsPublished(policy=policy, version=0)
    assert so_far(BatchTrained(policy=policy, version=-1), first) == RunProgress(begun=frozenset({policy}))
    for further in (BatchTrained(policy=policy, version=1), WeightsPublished(policy=policy, version=1)):
        assert so_far(first, further).has_trained
    assert so_far(first, torn=b"torn").has_trained, "what cannot be read may be a version"


def test_a_swap_keeps_the_servers_of_the_regions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"west": '{"bootstrap": "w:1", "store": "{}"}'}
    newest = revisions.build_revision("run-1", 0, RECIPE, "{}", there)
    monkeypatch.setattr(swap, "read_revisions", lambda _: [newest])
    written: list[RecipeRevision | None] = []
    monkeypatch.setattr(swap, "write_later_revision", lambda _, settle: written.append(settle()))
    chain = tmp_path / "chain.toml"
    chain.write_text('chain = ["validate"]')
    run: Any = SimpleNamespace(address=RunAddress(Connection("127.0.0.1:1"), "t"))
    swap.swap(run, chain)
    assert [one.regions for one in written if one is not None] == [there]


def test_recipes_that_differ_in_more_than_the_chain_are_told_apart(tmp_path: Path) -> None:
    file = tmp_path / "chain.toml"
    file.write_text('[[curate.chain]]\nuse = "validate"\n')
    swapped = replace_chain_from_file(RECIPE, file)
    assert swapped != RECIPE
    assert revisions.is_chain_change(RECIPE, swapped)
    slower = swapped.model_copy(update={"trainer": swapped.trainer.model_copy(update={"learning_rate": 1e-9})})
    assert not revisions.is_chain_change(RECIPE, slower)


def test_every_form_in_which_the_pages_write_a_chain_is_one(tmp_path: Path) -> None:
    pages = [(Path(__file__).parents[2] / "docs" / name).read_text() for name in ("data-algorithms.md", "archive.md")]
    [in_recipe, *_] = re.findall(r"^```toml\n(\[curate\].*?)^```", pages[0], re.DOTALL | re.MULTILINE)
    [tables] = re.findall(r"^\$ cat chain\.toml\n(.*?)^\$", pages[1], re.DOTALL | re.MULTILINE)
    file, lengths = tmp_path / "chain.toml", []
    for text in (in_recipe, in_recipe.removeprefix("[curate]\n"), tables):
        file.write_text(text)
        swapped = replace_chain_from_file(RECIPE, file)
        lengths.append(len(swapped.curate.chain))
        load_policy_chain(swapped, "solver")

    assert lengths == [6, 6, 2]


def test_a_file_that_holds_more_than_a_chain_or_none_is_told_by_its_keys(tmp_path: Path) -> None:
    file = tmp_path / "chain.toml"
    for text, told in (
        (
            "steps = 4\n[[curate.chain]]\nuse = 'validate'\n",
            "must hold a chain and nothing else.*: remove steps$",
        ),
        ("[[curate.chain]]\nuse = 'validate'\n[curate.more]\na = 1\n", r": remove curate\.more$"),
        ("chain = ['validate']\nsteps = 4\n", ": remove steps$"),
        ("curate = 3\n", "it has no list `chain`$"),
        ("", "it has no list `chain`$"),
        ("chain = 'validate'\n", "it has no list `chain`$"),
    ):
        file.write_text(text)
        with pytest.raises(UsageError, match=told):
            replace_chain_from_file(RECIPE, file)
