"""Terminals as a reader has them: bash on a pseudo-terminal, in which commands are typed and read."""

import codecs
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

BASH = "bash --norc --noprofile --noediting -i"
COLUMNS, ROWS = 110, 50
SECONDS = 90.0
PROMPT = re.compile(r"⟦(\d+)⟧")
CONTROL = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|\x1b[=>()][B0]?")


class Screen:
    """The lines that a terminal shows. A line that is drawn again counts as unread again."""

    def __init__(self) -> None:
        self.lines = [""]
        self.row = self.column = self.read_to = 0
        self._cut = ""

    def feed(self, text: str) -> None:
        text, self._cut = self._cut + text, ""
        at = 0
        while at < len(text):
            if text[at] == "\x1b":
                found = CONTROL.match(text, at)
                if found is None:  # its end is still to come
                    self._cut = text[at:]
                    return
                self._control(found[1] or "", found[2] or "")
                at = found.end()
            else:
                self._write(text[at])
                at += 1

    def unread(self) -> str:
        return "\n".join(line.rstrip() for line in self.lines[self.read_to :])

    def _write(self, letter: str) -> None:
        if letter == "\n":
            self.row += 1
            if self.row == len(self.lines):
                self.lines.append("")
        elif letter == "\r":
            self.column = 0
        elif letter.isprintable():
            line = self.lines[self.row].ljust(self.column)
            self.lines[self.row] = line[: self.column] + letter + line[self.column + 1 :]
            self.column += 1
            self.read_to = min(self.read_to, self.row)

    def _control(self, number: str, kind: str) -> None:
        if kind == "A":
            self.row = max(0, self.row - int(number or 1))
        elif kind == "K":
            self.lines[self.row] = "" if number == "2" else self.lines[self.row][: self.column]


class Terminal:
    """One terminal, in which bash waits for commands."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        mode = termios.tcgetattr(theirs)
        mode[3] &= ~termios.ECHO
        termios.tcsetattr(theirs, termios.TCSANOW, mode)
        # The first process of a session gets the terminal that it opens: Ctrl-C is for its foreground job.
        self._shell = subprocess.Popen(
            ["sh", "-c", f"exec {BASH} <$0 >$0 2>&1", os.ttyname(theirs)],
            cwd=folder,
            env={**environment, "PS1": "⟦$?⟧\n", "PS2": "", "TERM": "xterm", "HISTFILE": ""},
            start_new_session=True,
        )
        self._screen = Screen()
        self._news = threading.Condition()
        self._typed = 0
        self._theirs = theirs
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._wait_until(lambda: self._prompts() > self._typed, "bash does not start")
        self.output()

    def type(self, line: str) -> None:
        """Type a command as soon as the one before it has ended."""
        self._wait_until(lambda: self._prompts() > self._typed, f"no prompt for {line!r}")
        self._typed += 1
        os.write(self._ours, f"{line}\n".encode())

    def finish(self) -> int:
        """Wait for the end of the last command. Its exit code."""
        self._wait_until(lambda: self._prompts() > self._typed, "the command does not end")
        with self._news:
            return int(PROMPT.findall("\n".join(self._screen.lines))[-1])

    def interrupt(self) -> None:
        """Press Ctrl-C, and wait for the prompt."""
        os.write(self._ours, b"\x03")
        self.finish()

    def output(self, wanted: Callable[[str], int | None] = len) -> str | None:
        """Take what was printed since the last time, up to where `wanted` says, and wait for that.

        None if it does not come; then `unread` is what was there instead.
        """
        deadline = time.monotonic() + SECONDS
        with self._news:
            while (end := wanted(text := self._unread())) is None:
                left = deadline - time.monotonic()
                if left <= 0 or not self._news.wait(left):
                    return None
            # A line of which a part is taken is taken whole.
            self._screen.read_to = self._line_after(text[:end])
            return text[:end]

    def unread(self) -> str:
        with self._news:
            return self._unread()

    def close(self) -> None:
        """End every process of the terminal."""
        for pid in _members_of(self._shell.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._shell.wait()
        os.close(self._theirs)
        self._reader.join(5)
        os.close(self._ours)

    def _unread(self) -> str:
        return PROMPT.sub("", self._screen.unread())

    def _line_after(self, taken: str) -> int:
        lines = taken.count("\n") + (bool(taken) and not taken.endswith("\n"))
        return min(self._screen.read_to + lines, len(self._screen.lines) - 1)

    def _prompts(self) -> int:
        return len(PROMPT.findall("\n".join(self._screen.lines)))

    def _wait_until(self, holds: Callable[[], bool], trouble: str) -> None:
        with self._news:
            assert self._news.wait_for(holds, SECONDS), f"{trouble}:\n" + "\n".join(self._screen.lines)

    def _read(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        while True:
            try:
                data = os.read(self._ours, 65_536)
            except OSError:  # Linux raises it when the last writer is gone
                return
            with self._news:
                self._screen.feed(decoder.decode(data))
                self._news.notify_all()


def _members_of(session: int) -> list[int]:
    found: list[int] = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            if int(stat.read_text().rpartition(")")[2].split()[3]) == session:
                found.append(int(stat.parent.name))
    return found
