"""The `penstock` command. One module a subcommand; main.py only names them."""
