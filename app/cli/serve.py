"""Commands that serve a part of Headrace to other programs: `headrace serve-env`."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.app.cli.options import log_quietly
from headrace.infra.errors import UsageError


def serve_env(  # noqa: PLR0913, PLR0917 - options, each given by its name
    name: Annotated[str, typer.Argument(help="A shipped environment by name, or your own as package.module:Name.")],
    host: Annotated[str, typer.Option(help="Address to listen at; 0.0.0.0 for other machines.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the training problems.")] = 1,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of the environment: --set most=20. Repeatable."),
    ] = None,
    sessions: Annotated[int, typer.Option(min=1, help="Most sessions at once; a further client is refused.")] = 64,
    step_limit_s: Annotated[
        float, typer.Option(min=0.001, help="Seconds that an action or a problem may take.")
    ] = 10.0,
) -> None:
    """Serve an environment over OpenEnv's wire, until Ctrl-C: any client of OpenEnv can play it.

    It asks for no password: whoever reaches the port can play.

    Example: [bold]headrace serve-env ledger --port 8000 --set most=20[/]
    """
    from headrace.envs.openenv.serving import serve_until_signal
    from headrace.infra.process.signals import INTERRUPTED
    from headrace.infra.recipe.recipe_file import read_value

    log_quietly()
    if wrong := [word for word in sets or () if "=" not in word]:
        raise UsageError(f"--set needs KEY=VALUE, such as most=20; got {wrong[0]!r}")
    settings = {key: read_value(value) for key, _, value in (word.partition("=") for word in sets or ())}
    try:
        serve_until_signal(
            name,
            settings,
            seed=seed,
            host=host,
            port=port,
            sessions=sessions,
            step_limit_s=step_limit_s,
            announce=lambda address: typer.echo(f"serving {name} at {address}"),
        )
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
