"""The command line tool: starts rollouts, shows how they go, and reads their receipts."""
