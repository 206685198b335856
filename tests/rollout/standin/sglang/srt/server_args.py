"""SGLang's parser as far as the check of a deployment's arguments needs it: everything is known."""


class ServerArgs:
    """The place of the arguments."""

    @staticmethod
    def add_cli_args(parser):
        """Take anything."""
        parser.add_argument("anything", nargs="*")
