"""Hold a configuration file against SGLang's own argument parser, and do nothing else.

    check_arguments.py FILE

Unlike a start it asks no GPU and reads no model. It exits with status 2 and argparse's message on an argument
that the release does not know.
"""

from __future__ import annotations

import argparse
import sys

from sglang.srt.server_args import ServerArgs
from sglang.srt.server_args_config_parser import ConfigArgumentMerger

parser = argparse.ArgumentParser(prog="sglang")
ServerArgs.add_cli_args(parser)
parser.parse_args(ConfigArgumentMerger(parser).merge_config_with_args(["--config", sys.argv[1]]))
