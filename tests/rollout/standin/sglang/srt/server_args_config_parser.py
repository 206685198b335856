"""SGLang's reader of --config files as far as the check of a deployment's arguments needs it."""


class ConfigArgumentMerger:
    """Reads nothing."""

    def __init__(self, parser):
        self.parser = parser

    def merge_config_with_args(self, arguments):
        """No arguments."""
        return []
