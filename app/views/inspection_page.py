"""The pages of `headrace inspect`: a step and a trajectory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Column, Table

from headrace.app.views.answer_metrics import list_answer_metrics
from headrace.app.views.columns import fold_text, make_columns, number
from headrace.app.views.safe_text import Text
from headrace.infra.inflection import inflect
from headrace.infra.printable import escape_controls
from headrace.ops.lineage.inspection import StepSeen, TrajectoryFound
from headrace.ops.lineage.own_metrics import select_own_metrics
from headrace.ops.lineage.seen import GroupSeen, SequenceSeen, TokenSeen, TrajectorySeen
from headrace.schemas.episode_errors import describe_error

SHORT_COMPLETION = 40
"""Completions up to this many characters are shown in the table, on one line; longer ones below it."""
CROPPED_CHARACTERS = 400
"""Longer texts are cut if several groups are shown."""
SPAN_STYLES = {"prompt": "cyan", "observation": "magenta", "injected": "blue", "generated": ""}
"""Style of a span's text."""
SCALE = ((0.9, "green"), (0.5, "yellow"), (0.1, "dark_orange"), (0.0, "bold red"))
"""Least probability and colour of a generated token."""
BAR = "▁▂▃▄▅▆▇█"
TOKENS_BEFORE = 4
"""Prompt tokens that a cut table shows before the first generated token."""

INSPECTED_METRICS = (
    ("loss", "loss", "{:.4f}"),
    ("reward_mean", "reward", "{:.2f}"),
    ("entropy", "entropy", "{:.3f}"),
    ("clip_fraction", "clipped", "{:.1%}"),
    ("ratio_mean", "ratio", "{:.4f}"),
    ("kl_k3", "KL", "{:.4f}"),
    ("grad_norm_mean", "grad norm", "{:.2f}"),
    ("grad_norm_max", "grad norm max", "{:.2f}"),
    ("staleness_mean", "staleness", "{:.2f}"),
    ("tokens", "tokens", "{:,.0f}"),
    ("optimizer_steps", "updates", "{:.0f}"),
    ("learning_rate", "learning rate", "{:.2g}"),
    ("logprob_gap_max", "log-probability gap max", "{:.1e}"),
    ("step_s", "seconds", "{:.2f}"),
)
"""Metric, its label here, and its format; `--json` has all metrics."""


# ------------------------------------------------------------------------------------------------------------ one step


def step_page(found: StepSeen) -> RenderableType:
    """Return what `headrace inspect --step` shows."""
    title = Text.assemble(
        (f"step {found.version} of {found.policy}", "bold"),
        f"  run {found.run}, epoch {found.epoch}, recipe revision {found.revision}",
    )
    whole = len(found.groups) == 1
    parts: list[RenderableType] = [title, _show_metrics(found.metrics)]
    for group in found.groups:
        parts += [Text(), *_show_group(group, found.groups_trained, whole=whole)]
    if whole:
        (group,) = found.groups
        hint = f"token by token: --trajectory {group.stream}:{group.number}:SAMPLE"
    else:
        more = found.groups_trained - len(found.groups)
        hint = (
            f"{more} more {inflect(more, 'group')}: --limit 0 shows all, --group INDEX shows one in full"
            if more
            else ""
        )
    return Group(*parts, Text(), Text(hint, style="dim")) if hint else Group(*parts)


def _show_metrics(metrics: Mapping[str, float]) -> Columns:
    known = [(label, form.format(metrics[name])) for name, label, form in INSPECTED_METRICS if name in metrics]
    return facts([*known, *list_answer_metrics(metrics), *list_own_metrics(metrics)])


def list_own_metrics(metrics: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return the metrics of a user's own loss, by their names."""
    return [(name, f"{value:.4g}") for name, value in select_own_metrics(metrics).items()]


def facts(named: Iterable[tuple[str, str]]) -> Columns:
    """Return names with values in as many columns as fit."""
    return Columns([Text.assemble((f"{name} ", "dim"), value) for name, value in named], padding=(0, 3))


def _show_group(group: GroupSeen, of: int, *, whole: bool) -> Iterator[RenderableType]:
    yield _describe_group(group, of)
    members = group.trajectories
    prompts = {_join_prompt(sequence) for member in members for sequence in member.sequences}
    shared = prompts.pop() if len(prompts) == 1 else ""
    if shared:
        yield Padding(Text(shared if whole else crop(shared), style=SPAN_STYLES["prompt"]), (0, 0, 0, 2))
    rows = [(member, index, sequence) for member in members for index, sequence in enumerate(member.sequences)]
    texts = [_color_completion(sequence, skip_prompt=bool(shared), whole=whole) for _, _, sequence in rows]
    if all(len(text) <= SHORT_COMPLETION and "\n" not in text.plain for text in texts):
        table = _build_table("completion")
        for (member, index, sequence), text in zip(rows, texts, strict=True):
            table.add_row(*_build_row(member, index, sequence), text)
        yield table
    else:
        for (member, index, sequence), text in zip(rows, texts, strict=True):
            table = _build_table()
            table.add_row(*_build_row(member, index, sequence))
            yield table
            yield Padding(text, (0, 0, 0, 7))
    if group.failures:
        count = len(group.failures)
        yield Text(f"  {count} {inflect(count, 'episode')} failed: {', '.join(group.failures)}", style="red")
    yield from (Text(f"    {error.episodes} by {describe_error(error)}", style="red") for error in group.errors)


def _describe_group(group: GroupSeen, of: int) -> Text:
    text = Text()
    if group.place is not None:
        text.append(f"{group.place}", style="dim").append(f" of {of}  ", style="dim")
    text.append(f"{group.stream}:{group.number}", style="bold")
    if group.use:
        text.append(f" use {group.use}")
    rewards = [m.shaped_reward for m in group.trajectories if m.shaped_reward is not None]
    if rewards:
        mean = sum(rewards) / len(rewards)
        spread = math.sqrt(sum((r - mean) ** 2 for r in rewards) / max(1, len(rewards) - 1))
        text.append(f"  reward {mean:.2f} ± {spread:.2f}")
    text.append(f"  {group.task_id}  {group.worker} {group.region}".rstrip(), style="dim")
    return text


def _build_table(*more: str) -> Table:
    numbers = ("  #", "reward", "advantage", "logprob", "least", "tokens", "version")
    return make_columns(*map(number, numbers), *map(fold_text, more))


def _build_row(member: TrajectorySeen, index: int, sequence: SequenceSeen) -> list[RenderableType]:
    sample = member.id.rpartition(":")[2]
    name = sample if len(member.sequences) == 1 else f"{sample}.{index}"
    reward = member.reward if member.shaped_reward is None else member.shaped_reward
    return [
        Text(f"  {name}", style="dim"),
        f"{reward:.2f}",
        format_advantage(sequence.advantage),
        _format_number(sequence.logprob_mean),
        _format_number(sequence.logprob_min),
        str(sequence.tokens),
        _format_versions(sequence.versions),
    ]


def format_advantage(advantage: float | None) -> Text:
    """Return an advantage with its sign."""
    if advantage is None:
        return Text("not used", style="dim")
    return Text(f"{advantage:+.2f}", style="green" if advantage > 0 else "red" if advantage < 0 else "dim")


def _format_number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _format_versions(versions: Mapping[str, int]) -> str:
    names = list(versions)
    return names[0] if len(names) == 1 else f"{names[0]}-{names[-1]}" if names else ""


def _join_prompt(sequence: SequenceSeen) -> str:
    """Return the text before the first generated token."""
    texts = []
    for span in sequence.spans:
        if span.kind == "generated":
            break
        texts.append(span.text)
    return "".join(texts)


def _color_completion(sequence: SequenceSeen, *, skip_prompt: bool, whole: bool) -> Text:
    """Return a sequence's text, each kind of span in its colour, and why a generation was cut.

    Observations are between guillemets, because some terminals have no colours.
    """
    text, generated = Text(), False
    for span in sequence.spans:
        generated = generated or span.kind == "generated"
        if generated or not skip_prompt:
            shown = f" «{span.text}» " if span.kind == "observation" else span.text
            text.append(shown, style=SPAN_STYLES.get(span.kind, ""))
        if span.finish_reason not in ("", "stop"):
            text.append(f" [{span.finish_reason}]", style="dim")
    if not whole and len(text) > CROPPED_CHARACTERS:
        cut = len(text) - CROPPED_CHARACTERS
        text.truncate(CROPPED_CHARACTERS)
        text.append(f" … {cut:,} characters more", style="dim")
    return text


def crop(text: str) -> str:
    """Return a text, cut if it is long."""
    return (
        text
        if len(text) <= CROPPED_CHARACTERS
        else f"{text[:CROPPED_CHARACTERS]} … {len(text) - CROPPED_CHARACTERS:,} characters more"
    )


# ------------------------------------------------------------------------------------------------------ one trajectory


def trajectory_page(found: TrajectoryFound, limit: int) -> RenderableType:
    """Return what `headrace inspect --trajectory` shows: the text, then up to `limit` tokens of it; 0 for all.

    The tokens begin shortly before the first generated one.
    """
    group = found.group
    (member,) = group.trajectories
    fate = "not trained" if found.version is None else f"trained into version {found.version}"
    title = Text.assemble((member.id, "bold"), f" of {found.policy}, {fate}", (f"  {found.found_on}", "dim"))
    parts: list[RenderableType] = [title, _show_member_facts(group, member)]
    for sequence in member.sequences:
        parts += [Text(), _color_tokens(sequence.each)]
    parts += [Text(), _build_legend()]
    left = limit
    for index, sequence in enumerate(member.sequences):
        if len(member.sequences) > 1:
            parts += [
                Text(),
                Text(f"sequence {index} {sequence.role} {sequence.agent_id}".rstrip(), style="bold"),
            ]
        begin = find_table_begin(sequence.each, left) if limit else 0
        shown = sequence.each[begin : begin + left] if limit else sequence.each
        left -= len(shown)
        parts += [Text(), token_table(shown, begin)]
        if more := len(sequence.each) - len(shown):
            parts.append(Text(f"{more:,} more {inflect(more, 'token')}: --limit 0 shows all", style="dim"))
    return Group(*parts)


def _show_member_facts(group: GroupSeen, member: TrajectorySeen) -> Columns:
    found = [("reward", f"{member.reward:g}")]
    found += [(name, f"{value:g}") for name, value in member.reward_parts.items()]
    for sequence in member.sequences:
        found.append(("advantage", "none" if sequence.advantage is None else f"{sequence.advantage:+.3f}"))
        if sequence.logprob_mean is not None:
            found.append(("logprob", f"{sequence.logprob_mean:.3f}"))
            found.append(("least", f"{sequence.logprob_min:.3f}"))
        found.append(("generated", f"{sequence.tokens}"))
    found += [("task", group.task_id), ("worker", f"{group.worker} {group.region}".rstrip())]
    return facts(found)


def _color_tokens(tokens: Sequence[TokenSeen]) -> Text:
    """Return the text of a sequence: generated tokens coloured by probability, and each change of version."""
    text, version = Text(), None
    for token in tokens:
        if token.version is not None and token.version != version:
            version = token.version
            text.append(f"⟨v{version}⟩", style="dim")
        text.append(token.text, style="dim" if token.special else _choose_style(token))
    return text


def _choose_style(token: TokenSeen) -> str:
    if token.logprob is None:
        return SPAN_STYLES.get(token.kind, "")
    chance = _find_probability(token) or 0.0
    return next(colour for least, colour in SCALE if chance >= least)


def _find_probability(token: TokenSeen) -> float | None:
    """Return the probability of a generated token, at most 1; None for other tokens, and if the engine gave NaN."""
    if token.logprob is None or math.isnan(token.logprob):
        return None
    return math.exp(min(token.logprob, 0.0))


def _build_legend() -> Text:
    text = Text("generated tokens by probability: ", style="dim")
    for least, colour in SCALE:
        text.append(f"≥ {least:.0%} " if least else "less ", style=colour)
    text.append("  others: ", style="dim")
    for kind, style in SPAN_STYLES.items():
        if style:
            text.append(f"{kind} ", style=style)
    return text


def find_table_begin(tokens: Sequence[TokenSeen], most: int) -> int:
    """Return the index at which a table of so many tokens begins: shortly before the first generated token."""
    first = next((index for index, token in enumerate(tokens) if token.logprob is not None), 0)
    return max(0, min(first - TOKENS_BEFORE, len(tokens) - most))


def token_table(tokens: Sequence[TokenSeen], begin: int = 0) -> Table:
    """Return a row for each token: its source, whether and how it is trained on, its probability.

    Args:
        tokens: Tokens of one sequence.
        begin: Index of the first of these tokens in the sequence.
    """
    numbers = map(number, ("#", "version", "mask", "advantage", "logprob", "probability"))
    kind = Column("kind", style="dim", no_wrap=True)
    table = make_columns(*numbers, Column(no_wrap=True), fold_text("token"), kind)
    for index, token in enumerate(tokens, begin):
        generated = token.logprob is not None
        chance = _find_probability(token)
        table.add_row(
            Text(str(index), style="dim"),
            str(token.version) if generated else "",
            str(int(generated)),
            format_advantage(token.advantage) if generated else "",
            f"{token.logprob:.4f}" if generated else "",
            "" if chance is None else f"{chance:.1%}",
            Text("" if chance is None else BAR[min(len(BAR) - 1, int(chance * len(BAR)))], style=_choose_style(token)),
            Text(_mark_white_space(token.text), style=_choose_style(token)),
            Text(f"{token.kind} {token.turn}" if token.turn else token.kind),
        )
    return table


def _mark_white_space(text: str) -> str:
    """Return a token with visible white space; a part of a character is shown as a dot."""
    return escape_controls(text.replace(" ", "␣").replace("\n", "⏎").replace("\t", "⇥")) or "·"
