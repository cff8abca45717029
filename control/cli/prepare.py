"""Prepares the database in a process of its own, so that the starter itself stays small and quick."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

from control.services.bootstrap import prepare
from control.settings import Settings


def main() -> None:
    """Read the fleet document named on the command line, print what there is to show as JSON."""
    settings = Settings.from_environment()
    fleet = json.loads(Path(sys.argv[1]).read_text())
    token = (settings.data_dir / "operator-token").read_text().strip()
    shown = asdict(prepare(settings, fleet, token))
    shown.pop("operator_token")
    print(json.dumps(shown))


if __name__ == "__main__":
    main()
