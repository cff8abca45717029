"""What the command line says in one plain sentence, without a traceback."""


class CommandError(Exception):
    """The command cannot do what was asked; its text is for the operator. Ends with exit code 1."""
