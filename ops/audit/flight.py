"""How much of a policy's groups is in flight between feeder and trainer, and whether that is possible. No I/O."""

from __future__ import annotations

from headrace.infra.inflection import inflect
from headrace.ops.audit.bounds import Bounds
from headrace.ops.audit.numbers import PolicyNumbers


def find_overflow(numbers: PolicyNumbers, most: Bounds, issued: dict[str, int]) -> list[tuple[int, str]]:
    """Return how many more are in flight than possible, with a sentence. They are lost; which ones is not known.

    Args:
        numbers: Its numbers.
        most: How much may be in flight.
        issued: Next number of every stream of this policy, read before anything else.
    """
    found, policy_variant = [], numbers.variant
    waiting, room = numbers.count_waiting(), most.waiting[policy_variant]
    if waiting > room:
        lost = f"{waiting - room} {inflect(waiting - room, 'group is', 'groups are')} lost"
        what = (
            f"{waiting} groups of {policy_variant} were read by its trainer and neither trained nor evicted, but "
            f"the trainer's window and unfinished batches hold at most {room} groups: {lost}"
        )
        found.append((waiting - room, what))
    room = most.open.get(policy_variant, 0) + numbers.count_reopened() + numbers.count_played_though_dead()
    flying = numbers.count_open_below(issued) if policy_variant in most.open else 0
    if flying > room:
        what = (
            f"{flying} tasks of {policy_variant} are in flight, but the feeder allows at most {room} open tasks: "
            f"{flying - room} {inflect(flying - room, 'is', 'are')} lost"
        )
        found.append((flying - room, what))
    return found
