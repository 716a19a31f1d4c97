"""The check of all that a recipe names, before anything is started."""

from __future__ import annotations

from headrace.consumers.curate.revision_chains import load_policy_chain
from headrace.envs.data.rows import read_data_of
from headrace.envs.registry import check_characters, check_first_problem, load_environment, load_workflow
from headrace.infra.errors import UsageError
from headrace.infra.recipe.settings import Lora, Recipe, TrainerSettings
from headrace.ops.prompt_check import check_model, check_prompts_fit
from headrace.producers.engines.contract import EngineError, Sampling, check_sampling
from headrace.producers.engines.registry import check_engine
from headrace.schemas.topics import policy_of
from headrace.trainers.batches.estimator import check_advantage

LOSS_KEYS = ("loss", "aggregation", "correction", "count_rejected", "kl", "reference", "final_share")
"""Keys of `[trainer]` that a check of the loss needs torch for: seconds, spent only where one is set."""
SINGLE_TURN = "single_turn"
"""The workflow that only sends the environment's messages to its policies."""


def check_names(recipe: Recipe) -> None:
    """Find all that the recipe names, from algorithms to environments, before anything is started for it.

    Raises UsageError, with what there is instead.
    """
    check_engine(recipe)
    _check_sampling(recipe)
    for policy_variant in recipe.policy_variants:
        load_policy_chain(recipe, policy_variant)
        check_advantage(recipe, policy_variant)
        trainer = recipe.trainer_of(policy_variant)
        _check_processes(policy_variant, trainer, recipe.policies[policy_of(policy_variant)].lora)
        if any(getattr(trainer, key) != TrainerSettings.model_fields[key].default for key in LOSS_KEYS):
            from headrace.trainers.learner.chosen_loss import check_loss

            check_loss(recipe, policy_variant)
        if trainer.replay_routing or trainer.router_aux:
            from headrace.trainers.learner.routing import check_experts

            check_experts(recipe, policy_of(policy_variant))
    for policy in recipe.policies:
        check_model(policy, recipe.policies[policy])
        if (lora := recipe.policies[policy].lora) is not None and lora.targets:
            from headrace.trainers.learner.lora import check_targets

            check_targets(recipe, policy)
    for name, workflow in recipe.workflows.items():
        try:
            load_workflow(workflow.workflow)
            environment = load_environment(workflow.env.use, recipe.seed, workflow.env.settings)
            read_data_of(environment)
            check_first_problem(environment)
            for policy in recipe.policies_of(name) if workflow.workflow == SINGLE_TURN else ():
                check_characters(environment, policy, recipe.policies[policy].alphabet)
                check_prompts_fit(environment, policy, recipe.policies[policy])
        except ValueError as error:
            raise UsageError(f"workflows.{name}: {error}") from error


def _check_sampling(recipe: Recipe) -> None:
    """Refuse what every engine would refuse for each episode."""
    rollout, evaluate = recipe.rollout, recipe.evaluate
    samplings = {
        "rollout": Sampling(rollout.temperature, rollout.top_p, rollout.top_k, rollout.min_p, rollout.max_tokens),
        "evaluate": Sampling(evaluate.temperature, evaluate.top_p, max_tokens=rollout.max_tokens),
    }
    for table, sampling in samplings.items():
        try:
            check_sampling(sampling)
        except EngineError as error:
            raise UsageError(f"{table}: {str(error).removeprefix('sampling.')}") from error


def _check_processes(policy: str, trainer: TrainerSettings, lora: Lora | None) -> None:
    """Refuse what the processes of a trainer would refuse once they run."""
    processes, cut = trainer.processes, trainer.tensor_parallel
    if processes and cut not in {1, processes}:
        raise UsageError(
            f"policy {policy}: trainer.tensor_parallel = {cut} takes a trainer of {cut} processes, and "
            f"trainer.processes is {processes}: set that to {cut} too, or to 0 to start it by yourself"
        )
    if lora is not None and (cut > 1 or (processes > 1 and lora.publish == "merged")):
        raise UsageError(
            f"policy {policy}: a lora that is published merged, or beside trainer.tensor_parallel, is for a trainer of "
            "one process so far: leave trainer.processes and trainer.tensor_parallel at 1"
        )
