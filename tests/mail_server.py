"""A third-party mail server (aiosmtpd, in a separate process), and hostile ones."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from email import message_from_string, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).parent / "programs" / "mail_server.py"
USER, PASSWORD = "sluice", "correct horse battery"
START_SECONDS = 40.0


@dataclass(frozen=True)
class Delivered:
    """A mail that the server received."""

    mail: EmailMessage
    recipients: list[str]


@dataclass
class MailServer:
    """A server with the certificate in ``identity``; ``answer`` is its answer to each mail."""

    identity: Path
    implicit: bool = False
    sign_in: bool = False
    old: bool = False
    refused: tuple[str, ...] = ()
    answer: str = "250 OK"
    delivered: list[Delivered] = field(default_factory=list)
    """The received mails. They are known when the server has ended."""

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[int]:
        """Run the server within the block; yields its port."""
        settings = {
            "identity": str(self.identity),
            "implicit": self.implicit,
            "sign_in": [USER, PASSWORD] if self.sign_in else [],
            "old": self.old,
            "refused": list(self.refused),
            "answer": self.answer,
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable, PROGRAM, json.dumps(settings), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert process.stdout is not None
        try:
            yield int(await asyncio.wait_for(process.stdout.readline(), START_SECONDS))
        finally:
            process.terminate()
            for line in (await process.stdout.read()).splitlines():
                told = json.loads(line)
                mail = message_from_string(told["mail"], policy=policy.default)
                assert isinstance(mail, EmailMessage)
                self.delivered.append(Delivered(mail, told["recipients"]))
            await process.wait()


Conversation = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send nothing."""
    del writer
    await reader.read()


async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send an endless greeting byte by byte."""
    del reader
    while True:
        writer.write(b"2")
        await writer.drain()
        await asyncio.sleep(0.01)


async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send an endless greeting line by line."""
    del reader
    while True:
        writer.write(b"220-" + b"x" * 1000 + b"\r\n")
        await writer.drain()


async def greet_and_hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Offer STARTTLS, but never begin the handshake."""
    writer.write(b"220 mail.test\r\n")
    await reader.readline()
    writer.write(b"250-mail.test\r\n250 STARTTLS\r\n")
    await reader.readline()
    writer.write(b"220 go ahead\r\n")
    await reader.read()


async def no_starttls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Behave like a machine in the middle: do not offer STARTTLS, but accept authentication and mails."""
    writer.write(b"220 mail.test\r\n")
    while line := await reader.readline():
        writer.write(
            b"250-mail.test\r\n250 AUTH PLAIN LOGIN\r\n" if line.upper().startswith(b"EHLO") else b"250 OK\r\n"
        )
        heard.append(line)


heard: list[bytes] = []
"""The lines that :func:`no_starttls` received."""


@contextlib.asynccontextmanager
async def serving(conversation: Conversation) -> AsyncIterator[int]:
    """Run a server with this conversation within the block; yields its port."""
    tasks: set[asyncio.Task[Any]] = set()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await conversation(reader, writer)
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()
