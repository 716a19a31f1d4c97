"""`headrace weights`: commands for weights and deltas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from headrace.app.cli.options import (
    DataChoice,
    JsonOption,
    PolicyChoice,
    RunChoice,
    VariantChoice,
    log_quietly,
    print_answer,
)

app = typer.Typer(
    help="Show how a run's versions were published; export one; make and apply deltas between folders, without a run.",
    rich_markup_mode="rich",
)

PlainJsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


@app.command()
def encode(
    base: Annotated[Path, typer.Argument(metavar="BASE_DIR", help="Folder with the older weights.")],
    new: Annotated[Path, typer.Argument(metavar="NEW_DIR", help="Folder with the newer weights.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="File to write.")],
    policy: Annotated[str, typer.Option(help="Policy name to write into the delta.")] = "",
    version: Annotated[int, typer.Option(help="Version to write into the delta; its base is the version before.")] = -1,
    as_json: PlainJsonOption = False,
) -> None:
    """Write what changed between two folders as one delta object.

    Example: [bold]headrace weights encode step-10/ step-11/ step-11.delta[/]
    """
    from headrace.infra.weights import offline
    from headrace.infra.weights.delta_header import Label

    done = offline.encode(base, new, out, Label(policy, 0, version - 1 if version > 0 else -1, version))
    header = done.header
    per_value = done.delta_bytes / header.changed_items if header.changed_items else 0.0
    if as_json:
        facts = {"base_hash": header.base_hash, "weights_hash": header.weights_hash, "items": header.items}
        facts |= {"changed": header.changed_items, "full_bytes": done.full_bytes, "delta_bytes": done.delta_bytes}
        typer.echo(json.dumps(facts, indent=1))
        return
    typer.echo(
        f"{out}: {header.changed_items:,} of {header.items:,} values changed ({header.density:.2%}), "
        f"{done.delta_bytes:,} bytes instead of {done.full_bytes:,} (1/{done.full_bytes / done.delta_bytes:.0f}), "
        f"{per_value:.2f} bytes per changed value"
    )


@app.command()
def apply(
    base: Annotated[
        Path, typer.Argument(metavar="BASE_DIR", help="Folder of weights that the first delta was made from.")
    ],
    deltas: Annotated[list[Path], typer.Argument(metavar="DELTA...", help="Deltas, in order.")],
    out: Annotated[Path, typer.Argument(metavar="OUT_DIR", help="Folder to write; it appears only when complete.")],
    as_json: PlainJsonOption = False,
) -> None:
    """Apply deltas to a folder of weights and write the result as another, checked before and after.

    A delta changes nothing if the folder already holds its result; that is reported.

    Example: [bold]headrace weights apply step-10/ step-11.delta step-12.delta step-12/[/]
    """
    from headrace.infra.weights import offline

    done = offline.apply(base, deltas, out)
    if as_json:
        typer.echo(json.dumps({"weights_hash": done.weights_hash, "unneeded": [str(path) for path in done.unneeded]}))
        return
    typer.echo(f"{out}: complete, weights hash {done.weights_hash}")
    for path in done.unneeded:
        typer.echo(f"{path}: not needed, because BASE_DIR or an earlier delta already gave its weights")


@app.command()
def verify(
    path: Annotated[Path, typer.Argument(metavar="OBJECT", help="Delta, safetensors file or folder of weights.")],
    as_json: PlainJsonOption = False,
) -> None:
    """Read a delta object, a safetensors file or a folder to its last byte. Damage gives one sentence and exit code 1.

    Example: [bold]headrace weights verify step-11.delta[/]
    """
    from headrace.infra.weights import offline

    found = offline.verify(path)
    if as_json:
        facts = {"ok": True, "kind": found.kind, "weights_hash": found.weights_hash, "checked": found.promised}
        if found.header is not None:
            facts |= {"base_hash": found.header.base_hash, "changed": found.header.changed_items}
        typer.echo(json.dumps(facts, indent=1))
        return
    if found.header is not None:
        label = found.header.label
        about = f"{label.policy or 'unnamed'}, version {label.base_version} to {label.version}; " * bool(label.policy)
        typer.echo(f"{path}: intact; {about}changes weights {found.header.base_hash} into {found.weights_hash}")
    else:
        checked = "as recorded in it" if found.promised else "well formed; it records no hash to compare with"
        typer.echo(f"{path}: weights hash {found.weights_hash}, {checked}")


@app.callback(invoke_without_command=True)
def weights(
    context: typer.Context,
    run: RunChoice = None,
    data: DataChoice = None,
    policy: PolicyChoice = None,
    variant: VariantChoice = None,
    as_json: JsonOption = False,
) -> None:
    """Show how a run's versions were published: whole or as deltas, sizes, times, and the version of each worker.

    The commands below write a version as a folder, and make deltas between folders without a run.

    Example: [bold]headrace weights --data .headrace/arithmetic[/]
    """
    if context.invoked_subcommand is not None:
        _pass_options(context, context.invoked_subcommand)
        return
    from headrace.app.views.weights_page import weights_page
    from headrace.ops.figures.weights_history import weights_history
    from headrace.ops.opened_run import open_run

    log_quietly()
    with open_run(run, data) as opened:
        policy_variant = opened.run.resolve(policy, variant)
        print_answer(weights_history(opened.run, policy_variant, opened.ledger), weights_page, as_json=as_json)


def _pass_options(context: typer.Context, command: str) -> None:
    """Let options that stand before a command count as if they stood behind it. Raises UsageError for foreign ones."""
    from headrace.infra.errors import UsageError

    given = {name: value for name, value in context.params.items() if value not in (None, False)}
    of_run = {"run", "data", "policy", "variant"} & given.keys()
    if of_run and command != "export":
        options = ", ".join(f"--{name}" for name in sorted(of_run))
        raise UsageError(f"`headrace weights {command}` reads folders and no run, so it takes no {options}")
    context.default_map = {command: given}


@app.command()
def export(  # noqa: PLR0913, PLR0917 - options, each given by its name
    out: Annotated[Path, typer.Argument(metavar="OUT_DIR", help="Folder to write; it appears only when complete.")],
    version: Annotated[int | None, typer.Option("--version", help="Version; default: the newest.")] = None,
    best: Annotated[bool, typer.Option("--best", help="The version with the highest held-out reward.")] = False,
    run: RunChoice = None,
    data: DataChoice = None,
    policy: PolicyChoice = None,
    variant: VariantChoice = None,
    as_json: JsonOption = False,
) -> None:
    """Write one version of a run as a folder in Hugging Face's layout, config and tokenizer beside the weights.

    Example: [bold]headrace weights export trained/ --best --data .headrace/arithmetic[/]
    """
    from headrace.infra.errors import UsageError
    from headrace.ops.opened_run import open_run
    from headrace.ops.weights_export import choose_best, export

    if best and version is not None:
        raise UsageError("--best and --version both name the version: give one of them")
    if best and variant:
        raise UsageError("--best cannot be used with --variant, because shadows are not evaluated: give --version")
    log_quietly()
    with open_run(run, data, store=True) as opened:
        name = opened.run.resolve(policy, variant)
        found = export(opened.run, name, choose_best(opened.run, name) if best else version, out)
    facts = {"version": found.version, "weights_hash": found.weights_hash}
    typer.echo(json.dumps(facts) if as_json else f"{out}: version {found.version}, weights hash {found.weights_hash}")
