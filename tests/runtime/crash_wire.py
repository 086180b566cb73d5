"""The network between an agent and its scheduler, which a test can break."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Literal

Mode = Literal["open", "cut", "silent", "deaf"]


class Wire:
    """Passes TCP connections on to ``port`` of this machine, as ``mode`` says.

    ``open`` · ``cut``: no connection stands or comes about · ``silent``: all stand, and nothing passes · ``deaf``: what
    the agent says arrives, what it is answered does not.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._mode: Mode = "open"
        self._ends: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._listening = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._connected, "127.0.0.1", 0), self._loop
        ).result(10)
        self.url = f"http://127.0.0.1:{self._listening.sockets[0].getsockname()[1]}"

    def become(self, mode: Mode) -> None:
        """Change, and for what is under way too."""
        asyncio.run_coroutine_threadsafe(self._become(mode), self._loop).result(10)

    def close(self) -> None:
        """Cut it for good."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _become(self, mode: Mode) -> None:
        self._mode = mode
        if mode == "cut":
            for end in self._ends:
                end.transport.abort()

    async def _end(self) -> None:
        self._listening.close()
        await self._become("cut")
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._mode == "cut":
            writer.transport.abort()
            return
        try:
            other_reader, other_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        ends = {writer, other_writer}
        self._ends |= ends
        await asyncio.gather(
            self._pass(reader, other_writer, answers=False), self._pass(other_reader, writer, answers=True)
        )
        self._ends -= ends

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                while self._mode == "silent":
                    await asyncio.sleep(0.02)
                if self._mode == "deaf" and answers:
                    continue
                writer.write(data)
                await writer.drain()
        writer.close()
