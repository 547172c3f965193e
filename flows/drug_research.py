"""Two plans about aspirin, run as they stand on a knowledge graph that has good days and bad ones.

`python -m flows.drug_research` runs both files of flows/plans/ four times, on the Prefect API that is
configured or on an ephemeral one. The graph is real HTTP in front of SQLite, and is told how to behave.

Watch for:
- drug_research_fallback: while the graph answers, `text_search` is skipped; two 503s cost `kg_query` two more
  attempts. When it stays down, `kg_query` is *handled* after four: `text_search` reads the abstracts, and
  `analysis` goes on with what was found.
- confidence_branch: an answer that is 0.9 sure becomes a report. One that rests on an unreviewed claim
  goes to a person, and so does the question when there was no answer.
- The table says why a node was skipped or handled, the pictures show which way each run went. With a Prefect
  server (PREFECT_API_URL) every node is a task run in its UI, with its attempts.

Any plan can use these actions: `prefect-resilience plan run FILE --actions flows.drug_research`. Where no
graph runs at DRUG_GRAPH_URL (`python -m flows.drug_graph` starts one), that is a bad day too.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import httpx
from rich.console import Console

from flows.drug_graph import ALWAYS, PORT, GraphService
from flows.drug_library import search, summarise
from flows.drug_reviews import ask_a_person
from flows.drug_tables import table_of, table_of_reviews
from flows.own_process import run_apart
from flows.serving import running
from prefect_resilience import ErrorContext, Plan, action, run_plan

HERE = Path(__file__).parent
PLANS = [HERE / "plans" / "drug_research_fallback.json", HERE / "plans" / "confidence_branch.json"]

SITUATIONS: dict[str, dict[str, Any]] = {
    "all is well": {},
    "the graph stumbles twice": {"failing": 2},
    "the graph is down": {"failing": ALWAYS},
    "a claim is unreviewed": {"unreviewed": True},
}

# --- the actions -----------------------------------------------------------------------------------------


@action("kg_query")
def kg_query(query: str) -> dict[str, Any]:
    """Ask the knowledge graph about a drug and what it interacts with.

    Args:
        query: A question that names a drug, as in "aspirin interactions".
    """
    address = os.environ.get("DRUG_GRAPH_URL", f"http://127.0.0.1:{PORT}")
    response = httpx.get(f"{address}/graph", params={"query": query}, timeout=5, trust_env=False)
    return response.raise_for_status().json()


@action("reasoning")
def reasoning(prompt: str) -> dict[str, Any]:
    """Quote the abstracts that fit the prompt best. This is a full-text search and no language model.

    Args:
        prompt: What to write about; its words are what is searched for.
    """
    found = search(prompt)
    return {"text": summarise(prompt, found), "sources": [abstract.title for abstract in found]}


@action("error_handler")
def error_handler(error: ErrorContext | None, text: str = "") -> dict[str, Any]:
    """Put what came up into the review queue, for a person.

    Args:
        text: What to tell the person; if nothing, what failed or that an answer was not good enough.
    """
    failed = f"{error.node_id} failed: {error.code} {error.category.value}" if error else ""
    why = text or failed or "the answer was not good enough"
    return {"review": ask_a_person(why), "why": why}


# --- running it ------------------------------------------------------------------------------------------


def run_all(pictures: Path) -> None:
    console = Console(width=None if sys.stdout.isatty() else 110, highlight=False)
    for situation, mood in SITUATIONS.items():
        console.rule(f"[bold]{situation}", align="left")
        for path in PLANS:
            with running(GraphService(**mood)) as os.environ["DRUG_GRAPH_URL"]:
                result = run_plan(path)
            console.print(table_of(result, path.stem))
            picture = pictures / f"{path.stem}, {situation}.svg".replace(", ", "-").replace(" ", "_")
            picture.write_text(Plan.from_file(path).to_svg(result), encoding="utf-8")
    console.rule("[bold]what waits for a person", align="left")
    console.print(table_of_reviews())
    console.print(f"The pictures of the runs are in {pictures}", soft_wrap=True)


def main() -> int:
    """Run it all in a process whose settings leave nothing behind on this machine but the pictures."""
    words = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    words.add_argument("--pictures", metavar="DIR", help="where the pictures go, else a temporary folder")
    pictures = Path(words.parse_args().pictures or mkdtemp(prefix="drug-research-")).resolve()
    pictures.mkdir(parents=True, exist_ok=True)
    return run_apart("flows.drug_research", str(pictures))


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"]:
        os.environ["DRUG_REVIEWS"] = f"{os.environ['EXAMPLE_FOLDER']}/reviews.db"
        run_all(Path(sys.argv[2]))
    else:
        sys.exit(main())
