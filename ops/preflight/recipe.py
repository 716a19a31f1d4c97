"""The checks of what a recipe names, and of what its processes need on the machine where they start.

A check returns all faults that it finds.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from headrace.consumers.curate.revision_chains import load_policy_chain
from headrace.envs.contract import Environment
from headrace.envs.data.rows import list_left_out_of, read_data_of
from headrace.envs.identity import find_version
from headrace.envs.registry import (
    check_alphabet,
    check_characters,
    check_first_problem,
    check_plays,
    check_roles,
    load_environment,
    load_workflow,
)
from headrace.infra.environment import temporary_folder
from headrace.infra.errors import UsageError
from headrace.infra.inflection import inflect
from headrace.infra.kafka.client_settings import merge_client_settings
from headrace.infra.recipe.kinds import list_started_kinds
from headrace.infra.recipe.named import find_named
from headrace.infra.recipe.settings import Lora, Policy, TrainerSettings
from headrace.ops.preflight.contract import Asked, Fault, collect_faults, find_faults
from headrace.ops.preflight.models import check_model, check_model_files, check_tokenizer
from headrace.ops.preflight.prompts import check_prompts_fit, check_template_takes_prompt
from headrace.producers.engines.contract import EngineError, Sampling, check_sampling
from headrace.producers.engines.registry import check_engine
from headrace.producers.feed.selectors.registry import load_feed_selectors
from headrace.producers.feed.task_source import refuse_small_held_out
from headrace.producers.feed.worked_examples import read_first_example
from headrace.schemas.topics import policy_of
from headrace.trainers.batches.estimator import check_advantage

LOSS_KEYS = ("loss", "aggregation", "correction", "count_rejected", "kl", "reference", "final_share")
"""Keys of `[trainer]` whose check needs torch. Importing it takes seconds, so it is done only if a key is set."""
SINGLE_TURN = "single_turn"
"""The workflow that only sends the environment's messages to its policies."""


# ----------------------------------------------------------------------------------------------------- of any machine


def examine_engine(asked: Asked) -> list[Fault]:
    """Check that the engine exists, and takes the sampling of rollouts and evaluations."""
    faults: list[Fault] = []
    with collect_faults(faults):
        check_engine(asked.recipe)
    rollout, evaluate = asked.recipe.rollout, asked.recipe.evaluate
    samplings = {
        "rollout": Sampling(rollout.temperature, rollout.top_p, rollout.top_k, rollout.min_p, rollout.max_tokens),
        "evaluate": Sampling(evaluate.temperature, evaluate.top_p, max_tokens=rollout.max_tokens),
    }
    for table, sampling in samplings.items():
        with collect_faults(faults):
            try:
                check_sampling(sampling)
            except EngineError as error:
                raise UsageError(f"{table}.{str(error).removeprefix('sampling.')}") from error
    return faults


def examine_models(asked: Asked) -> list[Fault]:
    """Check models, tokenizers, warm starts and adapters, as far as their configs show."""
    faults: list[Fault] = []
    for name, policy in asked.recipe.policies.items():
        with collect_faults(faults):
            check_model(name, policy)
        with collect_faults(faults):
            check_tokenizer(name, policy)
        if (band := policy.warm_start) is not None and not 0 < band.reward_low < band.reward_high:
            faults.append(
                Fault(
                    f"policies.{name}.warm_start: reward_low must be above 0 and below reward_high, got "
                    f"{band.reward_low} and {band.reward_high}"
                )
            )
        if policy.lora is not None and policy.lora.targets:
            from headrace.trainers.learner.lora import check_targets

            with collect_faults(faults):
                check_targets(asked.recipe, name)
    return faults


def examine_workflows(asked: Asked) -> list[Fault]:
    """Check environments, their data and their prompts, and the functions that play them."""
    recipe = asked.recipe
    faults = [
        Fault(
            f"no workflow plays policy {name}, so it is never trained: name it in the policies of a workflow, or "
            "remove it",
            is_doubt=True,
        )
        for name in recipe.policies
        if not recipe.workflows_of(name)
    ]
    for name, workflow in recipe.workflows.items():
        where = f"workflows.{name}: "
        with collect_faults(faults, where):
            load_workflow(workflow.workflow.use, workflow.workflow.settings)
            check_roles(workflow.workflow.use, workflow.policies)
        with collect_faults(faults, where):
            environment = load_environment(workflow.env.use, recipe.seed, workflow.env.settings)
            read_data_of(environment)
            check_first_problem(environment)
            check_plays(workflow.workflow.use, environment)
            find_version(environment)
            faults += [Fault(f"{where}{told}", is_doubt=True) for told in list_left_out_of(environment)]
            asked.environments[name] = environment
        if name not in asked.environments:
            continue
        for policy in recipe.policies_of(name):
            faults += _check_prompts(environment, policy, recipe.policies[policy], workflow.workflow.use, where)
    return faults


def _check_prompts(environment: Environment, name: str, policy: Policy, workflow: str, where: str) -> list[Fault]:
    """Check that a policy can read an environment's prompts; another workflow may give it other prompts."""
    faults: list[Fault] = []
    with collect_faults(faults, where):
        check_characters(environment, name, policy.alphabet)
        check_alphabet(workflow, environment, name, policy.alphabet)
        if workflow == SINGLE_TURN:
            check_prompts_fit(environment, name, policy)
        check_template_takes_prompt(environment, name, policy)
    return faults if workflow == SINGLE_TURN else [replace(fault, is_doubt=True) for fault in faults]


def examine_feed(asked: Asked) -> list[Fault]:
    """Check what the feeder needs of selectors and of environments."""
    recipe, faults = asked.recipe, list[Fault]()
    with collect_faults(faults):
        load_feed_selectors(recipe.feed, recipe.seed)
    if recipe.evaluate.stop_after and not recipe.evaluate.every:
        faults.append(
            Fault("evaluate.stop_after needs evaluations, but evaluate.every is 0: set every, or remove stop_after")
        )
    if recipe.evaluate.every and recipe.evaluate.played_samples < recipe.evaluate.samples:
        faults.append(
            Fault(
                "evaluate.temperature is 0, so all samples of a problem are equal: each held-out problem is played "
                f"once, not {recipe.evaluate.samples} times (evaluate.samples); for pass@k set a temperature above 0",
                is_doubt=True,
            )
        )
    for name, environment in asked.environments.items() if recipe.evaluate.every else ():
        with collect_faults(faults):
            refuse_small_held_out(name, environment, recipe.evaluate.problems)
    return faults


def examine_warm_starts(asked: Asked) -> list[Fault]:
    """Check that there are worked examples for each warm start."""
    recipe, faults = asked.recipe, list[Fault]()
    for name, policy in recipe.policies.items():
        if policy.warm_start is not None and asked.environments.keys() >= set(recipe.workflows_of(name)):
            with collect_faults(faults):
                read_first_example(recipe, name, asked.environments)
    return faults


def examine_algorithms(asked: Asked) -> list[Fault]:
    """Check the algorithms, advantages and losses of curators and trainers."""
    recipe, faults = asked.recipe, list[Fault]()
    for policy_variant in recipe.policy_variants:
        trainer = recipe.trainer_of(policy_variant)
        with collect_faults(faults):
            load_policy_chain(recipe, policy_variant)
        with collect_faults(faults):
            check_advantage(recipe, policy_variant)
        with collect_faults(faults):
            _check_processes(policy_variant, trainer, recipe.policies[policy_of(policy_variant)].lora)
        if any(getattr(trainer, key) != TrainerSettings.model_fields[key].default for key in LOSS_KEYS):
            from headrace.trainers.learner.chosen_loss import check_loss

            with collect_faults(faults):
                check_loss(recipe, policy_variant)
        if trainer.replay_routing or trainer.router_aux:
            from headrace.trainers.learner.routing import check_experts

            with collect_faults(faults):
                check_experts(recipe, policy_of(policy_variant))
    return faults


def _check_processes(policy: str, trainer: TrainerSettings, lora: Lora | None) -> None:
    """Refuse settings that the processes of a trainer would refuse after their start."""
    processes, cut = trainer.processes, trainer.tensor_parallel
    if processes and cut not in {1, processes}:
        raise UsageError(
            f"policy {policy}: trainer.tensor_parallel is {cut}, so trainer.processes must be {cut} too, or 0 if you "
            f"start this trainer yourself; it is {processes}"
        )
    if lora is not None and cut > 1:
        raise UsageError(f"policy {policy} is a lora, so trainer.tensor_parallel must be 1; it is {cut}")
    if lora is not None and processes > 1 and lora.publish == "merged":
        raise UsageError(
            f'policy {policy} is a lora with publish = "merged", so trainer.processes must be 1; it is {processes}'
        )


# --------------------------------------------------------------------------------- of the machine where processes start


def examine_own_engine(asked: Asked) -> list[Fault]:
    """Check that the user's own engine can be imported: only a machine with rollout workers needs it."""
    engines = {asked.recipe.rollout_of(kind).engine.use for kind in list_started_kinds(asked.recipe)}
    own = sorted(name for name in engines if ":" in name)
    return [fault for name in own for fault in find_faults(partial(find_named, "rollout.engine", name, {}))]


def examine_boxes(asked: Asked) -> list[Fault]:
    """Let environments look whether this machine can play them: only one with rollout workers must."""
    faults: list[Fault] = []
    for name, environment in asked.environments.items() if asked.recipe.launch.workers else ():
        faults += find_faults(getattr(environment, "check_machine", lambda: None), f"workflows.{name}: ")
    return faults


def examine_partitions(asked: Asked) -> list[Fault]:
    """Doubt processes that would idle, because each needs a partition of its own."""
    launch, kafka, regions = asked.recipe.launch, asked.recipe.kafka, asked.recipe.regions
    of_tasks = "task_partitions" if kafka.task_partitions else "partitions"
    workers = {"launch": launch.workers, **{f"regions.{name}": one.workers for name, one in regions.items()}}
    return [
        Fault(
            f"{table}.{what} is {count}, but kafka.{key} is {there}: {count - there} of the {what} "
            f"{inflect(count - there, 'gets', 'get')} no {gets}. Start fewer, or set kafka.{to_raise} to {count} or "
            "more; the key is fixed once the run has begun",
            is_doubt=True,
        )
        for table, what, count, gets, key, there, to_raise in (
            *(
                (table, "workers", count, "task", of_tasks, asked.recipe.task_partitions, "task_partitions")
                for table, count in workers.items()
            ),
            ("launch", "curators", launch.curators, "group", "partitions", kafka.partitions, "partitions"),
        )
        if count > there
    ]


def examine_model_files(asked: Asked) -> list[Fault]:
    """Check the folders that trainers on this machine read; once a run has begun, they take the files of version 0."""
    recipe, faults = asked.recipe, list[Fault]()
    for name, policy in recipe.policies.items():
        if policy.path and recipe.trainer_of(name).processes:
            found = find_faults(partial(check_model_files, name, policy))
            faults += [Fault(fault.sentence, asked.has_begun, fault.cause) for fault in found]
    return faults


def examine_temporary_folder(_: Asked) -> list[Fault]:
    """Check that temporary files can be made."""
    return find_faults(temporary_folder)


def examine_client(asked: Asked) -> list[Fault]:
    """Check the settings of the Kafka client."""
    return find_faults(lambda: merge_client_settings(asked.recipe.kafka.client))
