"""A whole job as one debug session: it starts the job or finds a live one, and has the editor open a session a rank.

Belongs to the adapter's event loop.
"""

from __future__ import annotations

import asyncio
import codecs
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from raytrain_debug.dap import launching
from raytrain_debug.dap.openings import Openings, RankStatus
from raytrain_debug.dap.stream import CHUNK, Stream
from raytrain_debug.errors import ControlError, DapError, RaytrainDebugError, RunNotFound
from raytrain_debug.run import channel, codec, layout
from raytrain_debug.run.layout import RunPaths
from raytrain_debug.run.reader import read_record
from raytrain_debug.run.records import LauncherRecord, RunRecord

STOP_PATIENCE = 15.0  # seconds in which a job that was asked to end does
LAST_OUTPUT = 1.0  # seconds for the rest of a job's output: a child of it may hold the pipe open
_READY = re.compile(r"^raytrain_debug: gateway ready on .*\(run (\S+)\)$", re.MULTILINE)
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # how to reach what listens on every address
_LINES_KEPT = 20  # lines of the job's stderr


FindRun = Callable[[str | None, Path], RunPaths]


class JobSession:
    """`open_rank(configuration)` asks the editor for a session of one rank."""

    def __init__(self, stream: Stream, open_rank: Callable[[dict[str, Any]], None]) -> None:
        self._stream = stream
        self._open_rank = open_rank
        self._arguments: dict[str, Any] = {}
        self._openings = Openings(())
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = self._told_end = False
        self._stderr: list[str] = []  # the last lines of it
        self._run: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._paths: RunPaths | None = None
        self._tasks: set[asyncio.Future[Any]] = set()

    async def launch(self, arguments: dict[str, Any]) -> None:
        """Start the job and return once its ports are open; raises RaytrainDebugError when it does not get there."""
        self._arguments, self._openings = arguments, Openings(launching.wanted_ranks(arguments))
        plan = launching.plan_launch(arguments)
        try:
            process = self._process = await asyncio.create_subprocess_exec(
                *plan.command,
                cwd=plan.cwd,
                env=plan.environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,  # a signal for the editor is not for the job
                limit=CHUNK,
            )
        except OSError as error:
            raise RaytrainDebugError(f"cannot start {plan.command[0]}: {error.strerror}") from None
        assert process.stdout is not None
        assert process.stderr is not None
        output = [
            self._do(self._pass_on(process.stdout, "stdout", lambda text: None)),
            self._do(self._pass_on(process.stderr, "stderr", self._look_for_run)),
        ]
        over = self._do(self._await_exit(process, output))
        await asyncio.wait({self._run, over}, return_when=asyncio.FIRST_COMPLETED)
        if not self._run.done():
            raise RaytrainDebugError(self._why_not())
        self._follow(layout.find_run(self._run.result(), plan.run_root))

    async def attach(self, arguments: dict[str, Any], find_run: FindRun) -> None:
        """Take up a live run; raises RaytrainDebugError when there is none."""
        self._arguments, self._openings = arguments, Openings(launching.wanted_ranks(arguments))
        root = Path(arguments.get("cwd") or "", arguments.get("runRoot") or layout.ROOT_NAME).absolute()
        self._follow(find_run(arguments.get("run"), root))

    async def stop(self) -> None:
        """End the job if this session has started it, and the session."""
        process = self._process
        if process is not None and process.returncode is None:
            await self.ask_to_stop()
            try:
                await asyncio.wait_for(process.wait(), STOP_PATIENCE)
            except asyncio.TimeoutError:
                _signal(process, signal.SIGKILL)
                await process.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def ask_to_stop(self) -> None:
        """Ask the job to end, if this session has started it; its end is told by events."""
        if self._stopping:
            return
        self._stopping = True
        if self._process is None:
            self._over(None)
        elif self._process.returncode is None:
            launcher = self._launcher
            try:
                if launcher is None:
                    raise ControlError("it has only just begun")
                request = {"op": "stop", "reason": "the debug session was stopped"}
                await asyncio.to_thread(channel.ask, launcher.socket, request)
            except ControlError:
                _signal(self._process, signal.SIGTERM)

    def open(self, rank: Any) -> None:
        """Open a session for a rank that has none; raises DapError."""
        if not isinstance(rank, int) or not self._openings.is_alone(rank):
            raise DapError(f"rank {rank} is not there, or is being debugged already")
        self._open(rank)

    async def evaluate(self, expression: str) -> str:
        """The value of `expression` on all ranks, as `print` shows it; raises DapError with what it complains about."""
        if self._paths is None:
            raise DapError("the job is not there yet")
        command = [sys.executable, "-m", "raytrain_debug", "print", "--run", str(self._paths.directory)]
        command += ["--", expression]
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        output, complaint = await process.communicate()
        if not output:
            raise DapError(complaint.decode("utf-8", "replace").strip().removeprefix("raytrain_debug: "))
        return output.decode("utf-8", "replace").strip()

    # The job's process.

    async def _pass_on(self, pipe: asyncio.StreamReader, category: str, look: Callable[[str], None]) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        while True:
            data = await pipe.read(CHUNK)
            text = decoder.decode(data, final=not data)
            if text:
                look(text)
                self._stream.event("output", {"category": category, "output": text})
                await self._stream.flush()
            if not data:
                return

    def _look_for_run(self, text: str) -> None:
        """Find the line by which `launch` says that its ports are open, in stderr that comes in pieces."""
        rest = self._stderr.pop() if self._stderr else ""
        self._stderr = [*self._stderr, *(rest + text).split("\n")][-_LINES_KEPT:]
        if not self._run.done() and (ready := _READY.search("\n".join(self._stderr))):
            self._run.set_result(ready[1])

    async def _await_exit(self, process: asyncio.subprocess.Process, output: list[asyncio.Future[None]]) -> None:
        code = await process.wait()
        await asyncio.wait(output, timeout=LAST_OUTPUT)
        if self._run.done():
            self._over(code if code >= 0 else 128 - code)

    def _why_not(self) -> str:
        """Why the job did not even start, in the words it has said."""
        lines = [line for line in self._stderr if line.strip()]
        own = [line for line in lines if line.startswith("raytrain_debug: ") and line != "raytrain_debug: starting"]
        said = lines[lines.index(own[-1]) :] if own else lines[-1:]
        return "\n".join(said).removeprefix("raytrain_debug: ") or "the job ended before it began"

    def _over(self, code: int | None) -> None:
        """Tell the editor how the job ended: `code` None when it lives on, or nobody knows."""
        if self._told_end:
            return
        self._told_end = True
        if self._paths is not None:
            body = {"run": self._paths.id, "directory": str(self._paths.directory), "exitCode": code}
            self._stream.event("raytrainEnded", {**body, "stopped": self._stopping})
        if code is not None:
            self._stream.event("exited", {"exitCode": code})
        self._stream.event("terminated")

    # The job's ranks.

    def _follow(self, run: RunPaths) -> None:
        self._paths = run
        launcher = self._launcher
        if launcher is None:
            raise RunNotFound(f"run {run.id} left no run.json that can be read")
        self._stream.event("raytrainRun", {"run": run.id, "directory": str(run.directory)})
        self._do(self._follow_ranks(run, launcher))

    async def _follow_ranks(self, run: RunPaths, launcher: LauncherRecord) -> None:
        try:
            async for ranks in _statuses(launcher):
                for rank, delay in self._openings.update(ranks).items():
                    self._do(self._open_later(rank, delay))
        except OSError as error:
            self._say(f"the launcher of run {run.id} does not answer: {error}")
        if self._process is None:
            record = read_record(run.record, RunRecord)
            self._over(record.exit_code if record is not None else None)

    async def _open_later(self, rank: int, delay: float) -> None:
        if delay:
            await asyncio.sleep(delay)
        if self._openings.is_alone(rank):
            self._open(rank)

    def _open(self, rank: int) -> None:
        launcher = self._launcher
        assert launcher is not None
        host = launcher.hosts.get(str(rank)) or _ANY.get(launcher.bind, launcher.bind)
        on_entry = bool(self._arguments.get("stopOnEntry"))
        port = self._openings.port(rank)
        self._open_rank(launching.rank_configuration(self._arguments, rank, host, port, on_entry))

    @property
    def _launcher(self) -> LauncherRecord | None:
        """The launcher as run.json tells of it now: the ranks of other nodes join in time."""
        record = read_record(self._paths.record, RunRecord) if self._paths is not None else None
        return record.launcher if record is not None else None

    def _say(self, text: str) -> None:
        self._stream.event("output", {"category": "important", "output": text + "\n"})

    def _do(self, work: Awaitable[Any]) -> asyncio.Future[Any]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _statuses(launcher: LauncherRecord) -> AsyncIterator[dict[int, RankStatus]]:
    """What the launcher says of its ranks, now and after every change, until it ends."""
    reader, writer = await asyncio.open_unix_connection(launcher.socket, limit=16 * 1024 * 1024)
    try:
        writer.write(codec.dumps({"op": "follow"}).encode() + b"\n")
        while line := await reader.readline():
            yield {int(rank): state for rank, state in codec.loads(line)["ranks"].items()}
    finally:
        writer.close()


def _signal(process: asyncio.subprocess.Process, number: int) -> None:
    try:
        os.kill(process.pid, number)
    except ProcessLookupError:
        pass
