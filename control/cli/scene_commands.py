"""`pdd scene`: shows what charts and alerts do when something goes wrong, and takes it back."""

from typing import Annotated

import typer

from control.cli.options import DEFAULT_DATA, DataOption

STOP = "stop"


def add_scene_command(app: typer.Typer) -> None:
    """Put it where it belongs."""
    app.command("scene")(scene)


def scene(
    name: Annotated[
        str, typer.Argument(help="link-squeeze, low-hit-storm, relay-loss, cache-lag, node-death or stop.")
    ],
    data: DataOption = DEFAULT_DATA,
    duration: Annotated[float, typer.Option("--for", min=1, help="Seconds until it is taken back.")] = 120.0,
) -> None:
    """Change the demo fleet for a while so that charts and alerts show it; everything is taken back at the end."""
    from control.cli.fleet_client import find_fleet
    from control.cli.operation_client import tell
    from control.cli.scene_run import Stage, stay

    fleet = find_fleet(data)
    stage = Stage(fleet, data.absolute(), tell)
    if name == STOP:
        ended = stage.end()
        print(f"took back the scene {ended}" if ended else "no scene is on")
        return
    plan = stage.begin(name)
    tell(f"scene {name} is on for {duration:.0f} s: look at {plan.look_at}; alert {plan.rule['name']}")
    try:
        stay(fleet, plan, duration)
    finally:
        stage.end()
        tell(f"took back the scene {name}")
