"""Stores worked examples for a supervised warm start, once per policy."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import structlog

from headrace.envs.contract import Environment, GivesExamples, WorkedExample
from headrace.envs.registry import load_environment
from headrace.envs.tools.forms import AUTO, HERMES, SHORT
from headrace.envs.tools.solutions import SolutionExamples, Solves, open_solved_calls
from headrace.envs.worlds.solutions import WorldSolutions
from headrace.infra.errors import UsageError
from headrace.infra.kafka.clients import Outgoing
from headrace.infra.kafka.topic_reader import read_partition
from headrace.infra.kafka.transactions import TransactionalWriter
from headrace.infra.own_frames import describe_with_location
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run.run import Run
from headrace.schemas import codec
from headrace.schemas.records import WarmStartExamples
from headrace.schemas.topics import examples_key, trainer_component

WORLD = "world"
"""The workflow whose solutions are actions in a world."""

log = structlog.get_logger()


def send_examples(run: Run, writer: TransactionalWriter, environments: Mapping[str, Environment]) -> None:
    """Store and announce the worked examples of the recipe in one transaction; earlier announcements stay valid.

    Args:
        run: The run.
        writer: The feeder's.
        environments: Environment by workflow. A policy's examples come from the first workflow that uses the policy.

    Raises UsageError when that environment gives none.
    """
    wanted = {name: policy.warm_start for name, policy in run.recipe.policies.items() if policy.warm_start}
    if not wanted:
        return
    partition_ids = {policy: run.state_partition_id(trainer_component(policy)) for policy in wanted}
    there = {
        m.key
        for partition_id in set(partition_ids.values())
        for m in read_partition(run.connection, partition_id)
        if m.value
    }
    missing = {policy: warm for policy, warm in wanted.items() if examples_key(policy) not in there}
    if not missing:
        return
    records = []
    for policy, warm in missing.items():
        source = find_first_environment(run.recipe, policy, environments)
        claim = run.put("".join(_write_lines(source, warm.examples)).encode(), "examples", ".jsonl")
        record = WarmStartExamples(run_id=run.run_id, policy=policy, examples=claim)
        topic, partition = partition_ids[policy]
        records.append(Outgoing(topic, codec.encode(record), examples_key(policy), partition=partition))
        # Worked examples of a warm start are in the store.
        log.info("examples.stored", policy=policy, examples=warm.examples, bytes=claim.size_bytes)
    writer.begin()
    writer.produce(records)
    writer.commit()


def find_first_environment(recipe: Recipe, policy: str, environments: Mapping[str, Environment]) -> GivesExamples:
    """Return the source of a policy's worked examples: the environment of the first workflow that uses the policy.

    Raises UsageError if no workflow uses the policy, or if the environment gives no examples.
    """
    workflow = next((name for name in environments if policy in recipe.policies_of(name)), None)
    if workflow is None:
        raise UsageError(
            f"policies.{policy}.warm_start needs the worked examples of an environment, but no workflow uses policy "
            f"{policy}: remove warm_start, or let a workflow use the policy"
        )
    found = environments[workflow]
    if isinstance(found, Solves) and not isinstance(found, GivesExamples):
        played = recipe.workflows[workflow].workflow
        form = SHORT if recipe.policies[policy].alphabet else HERMES
        asked = played.settings.get("calls", AUTO)
        env = recipe.workflows[workflow].env
        build = partial(load_environment, env.use, recipe.seed, env.settings)
        form = form if asked == AUTO else asked
        if played.use == WORLD:
            return WorldSolutions(found, played.settings, form, build)
        return SolutionExamples(open_solved_calls(found, played.use, played.settings, build), form)
    if not isinstance(found, GivesExamples):
        raise UsageError(
            f"policies.{policy}.warm_start needs worked examples, but environment "
            f"{recipe.workflows[workflow].env.use!r} of workflow {workflow} gives none: use an environment with a "
            f"method `example` or `solve`, or remove warm_start and set policies.{policy}.path to a trained model"
        )
    return found


def read_first_example(recipe: Recipe, policy: str, environments: Mapping[str, Environment]) -> WorkedExample:
    """Return a policy's first worked example. Raises UsageError if there is none or it is not a WorkedExample."""
    source = find_first_environment(recipe, policy, environments)
    try:
        example = source.example(0)
    except Exception as error:
        raise UsageError(
            f"policies.{policy}.warm_start needs worked examples, but the environment failed to build the first "
            f"example: {describe_with_location(error)}"
        ) from error
    if not isinstance(example, WorkedExample):
        raise UsageError(
            f"policies.{policy}.warm_start needs worked examples: the environment's `example` must return a "
            f"WorkedExample, got {type(example).__name__}"
        )
    return example


def _write_lines(source: GivesExamples, count: int) -> Iterator[str]:
    for index in range(count):
        example = source.example(index)
        line: dict[str, Any] = {"prompt": example.prompt, "completion": example.completion}
        if example.template_arguments:
            line["template_arguments"] = dict(example.template_arguments)
        if example.tools:
            line["tools"] = example.tools
        yield json.dumps(line) + "\n"
