"""The commands that a server has: those that are built in, and those of the modules that it was started with.

All declarations of a process are in one registry, because importing a module declares its commands. Two servers in one
process may have different modules, so a server looks commands up here, where those of other modules are unknown.
Permissions and the keys of a command are looked up in the registry itself: what a server does not have is refused
before anyone asks for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.engine.declarations import REGISTRY, Command, Module, unknown_command
from penstock.protocol.command_digest import command_digest


class ServerCommands:
    """See the top of this file. Immutable, but for what tests declare."""

    def __init__(self, modules: Sequence[Module] = ()) -> None:
        self.modules = modules
        """In the order in which they were loaded."""
        names = {name for module in modules for name in module.commands}
        containers = {name.partition(" ")[0] for name in names if " " in name}
        self._own = names | containers | {f"{name} HELP" for name in containers}

    def has(self, command: Command) -> bool:
        return not command.of_module or command.name in self._own

    def find(self, argv: Sequence[bytes]) -> Command | None:
        """The command argv calls, its subcommand included; None if this server has no such command."""
        command = REGISTRY.find(argv)
        return command if command is None or self.has(command) else None

    def resolve(self, argv: Sequence[bytes]) -> Command:
        """Like `find`, with Redis's error for what is unknown; the arity is checked too."""
        command = REGISTRY.resolve(argv)
        if command.of_module and command.name not in self._own:
            raise unknown_command(argv)
        return command

    def by_name(self) -> Iterator[tuple[bytes, Command]]:
        """Every command that is no subcommand, with its name in upper case."""
        return ((name, command) for name, command in REGISTRY.by_name.items() if self.has(command))

    def walk(self) -> Iterator[Command]:
        """Every command, containers included, each before its subcommands."""
        return filter(self.has, REGISTRY.walk())

    def digest(self) -> str:
        """See protocol/command_digest.py."""
        if not any(command.of_module for command in REGISTRY.by_name.values()):
            return REGISTRY.digest()
        every = list(self.walk())
        return command_digest([each.name for each in every], {each.name for each in every if each.writes})
