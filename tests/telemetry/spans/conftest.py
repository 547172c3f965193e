"""Spans of the real SDK, read back from memory as a tree."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

OURS = "prefect_resilience."


class Recorded:
    """The spans that ended since the last look."""

    def __init__(self) -> None:
        self.provider = TracerProvider()
        self._exporter = InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    @contextmanager
    def own(self, name: str) -> Iterator[None]:
        """A span of the user's code."""
        with self.provider.get_tracer("user").start_as_current_span(name):
            yield

    def take(self) -> list[ReadableSpan]:
        """The spans in the order of their starts."""
        spans = sorted(self._exporter.get_finished_spans(), key=lambda span: span.start_time or 0)
        self._exporter.clear()
        return spans

    def tree(self, spans: list[ReadableSpan] | None = None) -> list[str]:
        """A line for each span, below its parent: its name, the class and the category of its error, and its
        events in brackets. Of Prefect's spans of runs, the random end of the name and the events are left
        out."""
        spans = self.take() if spans is None else spans
        ids = {span.context.span_id for span in spans}
        lines: list[str] = []

        def add(parent: int | None, depth: int) -> None:
            for span in spans:
                above = span.parent.span_id if span.parent and span.parent.span_id in ids else None
                if above == parent:
                    lines.append("  " * depth + line_of(span))
                    add(span.context.span_id, depth + 1)

        add(None, 0)
        return lines


def line_of(span: ReadableSpan) -> str:
    about = span.attributes or {}
    kind = about.get("prefect.run.type")
    name = (
        span.name
        if kind is None
        else f"{kind} {span.name.rpartition('-')[0] if kind == 'task' else ''}".strip()
    )
    words = [name, about.get("error.type"), about.get(f"{OURS}category")]
    words += [
        f"[{event.name}]" for event in span.events if event.name in ("rejected", "fallback", "replayed")
    ]
    return " ".join(str(word) for word in words if word is not None)


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    """The spans of this test. Other tests of this process have no provider."""
    recorded = Recorded()
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", recorded.provider)
    return recorded
