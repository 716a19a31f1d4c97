"""The curator: `headrace curate --run kafka://host:port/run --policy NAME [--variant NAME]`.

A member of the consumer group of its policy, or of a shadow; `curation.py` is what it does with a partition.
"""

from __future__ import annotations

import secrets
from contextlib import closing

from headrace.consumers.curate.curation import CuratorPartition, Desk, chain_of, recipe_for
from headrace.infra.kafka.clients import parse_run
from headrace.infra.kafka.run_loop import run_loop
from headrace.infra.kafka.topic_reader import whole_topics
from headrace.infra.kafka.transactions import TransactionalWriter
from headrace.infra.log import configure_logging
from headrace.infra.process.signals import JOIN_PATIENCE_S, attempts, stop_on_signals
from headrace.infra.recipe.plug_in_sources import check_sources, curated
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run.group_consumer import GroupConsumer, Membership
from headrace.infra.run.revisions import join_to_write
from headrace.infra.run.run import RecipeNews, Run
from headrace.infra.stopwatch import Stopwatch


def main(run: str, policy: str | None = None, slot: str | None = None, variant: str | None = None) -> None:
    """Curate one policy's groups until told to stop, or a shadow's, by the name of its variant.

    `slot` names a supervised place, whose successor fences it.
    """
    configure_logging("curate", policy=policy or "", **({"variant": variant} if variant else {}))
    address, stop = parse_run(run), stop_on_signals()

    for attempt in attempts(stop):
        with attempt:
            joined = join_to_write(address, JOIN_PATIENCE_S, stop)
            name = joined.policy(joined.line(policy, variant))
            transactional_id = f"{joined.topics.curate_group(name)}.{slot or secrets.token_hex(4)}"
            writer = TransactionalWriter(joined.connection, transactional_id, joined.topic_names)
            with closing(writer), closing(curator(joined, name)) as consumer:
                run_loop(consumer, writer, stop, Stopwatch())


def curator(run: Run, line: str) -> GroupConsumer:
    """Return the group consumer of the curators of a policy or shadow; the chain is checked before it joins the group.

    Groups of before a shadow was there go through the first chain that it had. Raises OtherSource or SourceChanged
    where the chain's plug-ins are not those that the run goes by.
    """
    topics, topic = run.topics, run.topics.trajectories(line)
    check_sources(run.plug_ins, curated(run.recipe, line))
    chain_of(run.recipe, line)
    partitions = len(whole_topics(run.connection, [topic]))

    recipes, news = dict(enumerate(run.revisions)), RecipeNews(run.address, run.recipe_end)

    def recipe_of(revision: int) -> Recipe:
        if revision not in recipes:
            for new in news.look():
                if new.run_id == run.run_id:
                    recipes[new.revision] = Recipe.from_json(new.recipe)
                    check_sources(new.plug_ins, curated(recipes[new.revision], line))
        return recipe_for(recipes, revision, line)

    desk = Desk(run.run_id, line, topics, recipe_of, run.get_group)
    component = f"curate.{line}"
    return GroupConsumer(
        Membership(
            connection=run.connection,
            component=component,
            run_id=run.run_id,
            group=topics.curate_group(line),
            topics=(topic,),
            state_topic=topics.state,
            snapshot_every_s=run.recipe.curate.snapshot_every_s,
        ),
        lambda place: CuratorPartition(desk, place, partitions),
    )
