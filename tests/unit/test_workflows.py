import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from chat_models import KEEPS, prepare_actor, save_tokenizer

from headrace.consumers.algorithms.validate import find_sequence_fault
from headrace.envs.arithmetic import ALPHABET, Arithmetic
from headrace.envs.contract import Generation, Problem
from headrace.envs.data.scorers import BOX_INSTRUCTION
from headrace.envs.workflows.single_turn import single_turn
from headrace.envs.workflows.solver_verifier import SOLVE, SOLVE_AGAIN, VERIFY, find_verdict, solver_verifier
from headrace.schemas.records import Sampling, Span

PROBLEM = Problem(task_id="sum", prompt="kx=3+4?", answer="7")
ENV = Arithmetic(1)
RIGHT, WRONG = r"\boxed{7}", r"\boxed{8}"
END = len(ALPHABET)


@dataclass
class Scripted:
    """An actor that says prepared lines, one character a token, and keeps what it was asked."""

    lines: Iterable[str]
    context: int = 10_000
    asked: list[str] = field(default_factory=list)

    def encode(self, text: str) -> list[int]:
        return self.encode_plain(text)

    def render(self, messages: Sequence[Mapping[str, Any]], **_more: object) -> str:
        return "".join(message["content"] for message in messages)

    def encode_rendered(self, text: str) -> list[int]:
        return self.encode_plain(text)

    def encode_plain(self, text: str) -> list[int]:
        return [ALPHABET.index(character) for character in text]

    def decode(self, ids: Sequence[int] | npt.NDArray[np.int32], *, special_tokens: bool = False) -> str:
        return "".join(ALPHABET[i] for i in ids if i != END)

    async def generate(
        self,
        ids: Sequence[int],
        *,
        max_tokens: int | None = None,
    ) -> Generation:
        self.lines = iter(self.lines)
        await asyncio.sleep(0)
        self.asked.append(self.decode(ids))
        said = np.array([*self.encode_plain(next(self.lines)), END], np.int32)
        return Generation(said, np.full(said.size, -0.5, np.float32), ((3, said.size),), "stop")


def test_one_turn_is_one_sequence_with_the_environments_reward() -> None:
    for role, line, reward in (("solver", RIGHT, 1.0), ("anything", WRONG, 0.0), ("solver", "7", 0.0)):
        actor = Scripted([line])
        [(played, trajectory)] = asyncio.run(single_turn(PROBLEM, ENV, {role: actor})).items()
        [sequence] = trajectory.sequences
        assert (played, sequence.role, trajectory.reward) == (role, role, reward)
        assert actor.asked == [PROBLEM.prompt]
        assert actor.decode(sequence.ids) == PROBLEM.prompt + line
        generated = Span("generated", len(line) + 1, 0, None, "stop", Sampling())
        assert sequence.spans == (Span("prompt", 7), generated)
        assert find_sequence_fault(sequence, head_version=3) is None
    for roles in ([], ["a", "b"]):
        with pytest.raises(ValueError, match="single_turn needs exactly one role"):
            asyncio.run(single_turn(PROBLEM, ENV, {role: Scripted([]) for role in roles}))


def test_one_turn_of_messages_is_rendered_by_the_models_template(tmp_path: Path) -> None:
    tokenizer = save_tokenizer(tmp_path)
    messages = ({"role": "system", "content": "Box it."}, {"role": "user", "content": "3+4?"})
    problem = Problem("sum", messages, answer="7")
    actor = prepare_actor(tokenizer, f"{RIGHT}<|im_end|>")

    episode = asyncio.run(single_turn(problem, ENV, {"solver": actor}))

    [sequence] = episode["solver"].sequences
    assert episode["solver"].reward == 1
    assert tokenizer.decode(sequence.ids, special_tokens=True) == f"{tokenizer.render(messages)}{RIGHT}<|im_end|>"


def test_a_team_with_a_chat_template_reads_task_teammates_and_role_in_three_parts(tmp_path: Path) -> None:
    tokenizer = save_tokenizer(tmp_path)
    system = {"role": "system", "content": "Be brief."}
    problem = Problem("sum", (system, {"role": "user", "content": f"3+4?{BOX_INSTRUCTION}"}), answer="7")
    verdict = "8 is wrong. <verify>Reject</verify>"
    solver = prepare_actor(tokenizer, f"<think>1?</think>{WRONG}<|im_end|>", f"{RIGHT}<|im_end|>")
    verifier = prepare_actor(tokenizer, f"{verdict}<|im_end|>")

    episode = asyncio.run(solver_verifier(problem, ENV, {"solver": solver, "verifier": verifier}))

    first, second = episode["solver"].sequences
    [judged] = episode["verifier"].sequences
    for sequence, teammates, role, said in (
        (first, "", SOLVE, f"<think>1?</think>{WRONG}"),
        (judged, f"# Teammates\n\nsolver: {WRONG}\n\n", VERIFY, verdict),
        (second, f"# Teammates\n\nverifier: {verdict}\n\n", SOLVE_AGAIN, RIGHT),
    ):
        parts = f"# Task\n\n3+4?\n\n{teammates}# Your role\n\n{role}"
        rendered = tokenizer.render((system, {"role": "user", "content": parts}))
        assert tokenizer.decode(sequence.ids, special_tokens=True) == f"{rendered}{said}<|im_end|>"
    assert (first.reward, second.reward, judged.reward) == (0, 1, 1)
    assert [sequence.spans[-1].turn for sequence in (first, second)] == [0, 1]


def test_an_approved_attempt_is_the_only_one() -> None:
    actors = {"solver": Scripted([RIGHT]), "verifier": Scripted(["approve"])}
    episode = asyncio.run(solver_verifier(PROBLEM, ENV, actors))
    assert [sequence.reward for sequence in episode["solver"].sequences] == [1.0]
    assert (episode["solver"].reward, episode["verifier"].reward) == (1.0, 1.0)
    assert actors["verifier"].asked == [f"{PROBLEM.prompt} {RIGHT} approve or reject? "]
    assert actors["solver"].asked == [PROBLEM.prompt]


def test_a_rejected_solver_tries_again_and_sees_the_verifiers_words_as_an_observation() -> None:
    actors = {"solver": Scripted([WRONG, RIGHT]), "verifier": Scripted(["no, reject"])}
    episode = asyncio.run(solver_verifier(PROBLEM, ENV, actors))
    solver, verifier = episode["solver"], episode["verifier"]
    assert [sequence.reward for sequence in solver.sequences] == [0.0, 1.0]
    assert (solver.reward, solver.parts["first"], solver.parts["attempts"]) == (1.0, 0.0, 2.0)
    assert (verifier.reward, [sequence.reward for sequence in verifier.sequences]) == (1.0, [1.0])
    assert actors["solver"].asked == [PROBLEM.prompt, f"{PROBLEM.prompt} no, reject "]
    _, second = solver.sequences
    assert [(span.kind, span.turn) for span in second.spans] == [("prompt", 1), ("observation", 1), ("generated", 1)]
    assert actors["solver"].decode(second.ids[7 : 7 + second.spans[1].length]) == " no, reject "
    assert all(find_sequence_fault(sequence, 3) is None for role in episode.values() for sequence in role.sequences)


def test_a_verdict_that_leaves_no_room_for_a_second_attempt_leaves_the_first_one() -> None:
    for context, attempts in ((27, 1), (28, 2)):
        actors = {"solver": Scripted([WRONG, RIGHT], context), "verifier": Scripted([f"{'no ' * 3}reject ok"])}
        episode = asyncio.run(solver_verifier(PROBLEM, ENV, actors))
        solver, no_room = episode["solver"], float(attempts == 1)
        assert (solver.parts["attempts"], solver.parts["no_room"]) == (attempts, no_room)
        assert (solver.reward, episode["verifier"].reward) == (1 - no_room, 1)


def test_the_verifier_earns_a_reward_when_its_verdict_is_right() -> None:
    for attempt, verdict, attempts, reward in (
        (RIGHT, "approve", 1, 1.0),
        (WRONG, "approve", 1, 0.0),
        (WRONG, "reject", 2, 1.0),
        (RIGHT, "reject", 2, 0.0),
        (RIGHT, "what?", 1, 0.0),
        (WRONG, "approve or reject", 1, 0.0),
    ):
        actors = {"solver": Scripted([attempt, WRONG]), "verifier": Scripted([verdict])}
        episode = asyncio.run(solver_verifier(PROBLEM, ENV, actors))
        last = WRONG if attempts == 2 else attempt
        assert len(episode["solver"].sequences) == attempts
        assert (episode["solver"].reward, episode["verifier"].reward) == (float(last == RIGHT), reward)


def test_a_verdict_is_the_last_tag_or_the_only_word() -> None:
    for output, verdict in (
        ("approve", "approve"),
        ("reject", "reject"),
        ("I would approve, but <verify>reject</verify>", "reject"),
        ("<verify>reject</verify> no: <verify> approve </verify>", "approve"),
        ("approve reject", None),
        ("I disapprove of this answer", None),
        ("it is approved", "approve"),
        ("3approve", "approve"),
        ("", None),
        ("<verify>perhaps</verify>", None),
        ("Approved? No: <verify>REJECT</verify>", "reject"),
        ("Approve.", "approve"),
    ):
        assert find_verdict(output) == verdict, output


def test_solver_verifier_refuses_other_roles() -> None:
    with pytest.raises(ValueError, match=r"roles solver and verifier .* got \['solver'\]"):
        asyncio.run(solver_verifier(PROBLEM, ENV, {"solver": Scripted([])}))


def test_a_cut_answer_within_the_thought_that_the_prompt_began_is_no_answer(tmp_path: Path) -> None:
    tokenizer = save_tokenizer(tmp_path, KEEPS + "{% if add_generation_prompt %}<think>\n{% endif %}")
    for prompt in ("3+4?", [{"role": "user", "content": "3+4?"}]):
        again = rf"maybe {RIGHT} <think> no </think> I do not know"
        problem, said = Problem("sum", prompt, "7"), (rf"maybe {RIGHT}", rf"{WRONG}</think>{RIGHT}", again)
        played = [asyncio.run(single_turn(problem, ENV, {"solver": prepare_actor(tokenizer, text)})) for text in said]
        assert [one["solver"].reward for one in played] == [0, 1, 0], prompt
