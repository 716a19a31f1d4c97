"""A group over which the trainer's process ends without a word, each time that it is trained on."""

from __future__ import annotations

from pathlib import Path

import deadly_loss
import pytest
from forked import headrace
from made_run import make_run, tiny_recipe
from trained_run import batches, curated, feed

from headrace.infra.environment import CACHE_VARIABLE
from headrace.infra.process.supervisor import USAGE_ERROR
from headrace.infra.store.object_store import ObjectStore
from headrace.trainers.versions.step_note import MOST_DEATHS

LETHAL = 5
TRAINER = {
    "steps": 4,
    "groups_per_batch": 4,
    "minibatches": 2,
    "max_staleness": 20,
    "checkpoint_every": 2,
    "loss": {"use": "deadly_loss:deadly"},
}


@pytest.mark.training
def test_a_batch_that_kills_the_trainer_three_times_ends_the_run_with_its_groups(
    bootstrap: str, store: ObjectStore, run_name: str, tmp_path: Path
) -> None:
    run = make_run(bootstrap, store, tiny_recipe(run_name, trainer=TRAINER, kafka={"partitions": 1}))
    groups = [curated(number, stale=100) for number in range(8)]
    groups[LETHAL] = curated(LETHAL, stale=100, lengths=(30, 31))
    feed(run, groups)
    words, log = ("train", "--run", str(run.address), "--policy", "solver"), tmp_path / "train.log"

    def live() -> int:
        return headrace(words, log, {CACHE_VARIABLE: str(tmp_path)}).wait(120)

    for _ in range(MOST_DEATHS):  # the first may die before version 1 is committed, which is then made again
        assert live() == deadly_loss.EXIT_CODE
    assert live() == USAGE_ERROR
    told = " ".join(log.read_text().split())
    assert "died 3 times while it trained version 2 on this batch of groups: sums:4 to 7." in told
    assert f"/{run_name}@1`" in told
    assert [[use.number for use in batch.groups] for batch in batches(run)] == [[0, 1, 2, 3]]
