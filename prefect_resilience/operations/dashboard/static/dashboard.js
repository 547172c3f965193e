// The page keeps the rows that the server sends, and draws those that changed.
import { $, List, atLeast, away, clock, count, el, number, order, rough, text, when } from "./nodes.js";
import {
  PARTS,
  UI,
  fillBatch,
  fillBudget,
  fillCircuit,
  fillLetters,
  fillLimit,
  fillParked,
  outside,
  parts,
} from "./rows.js";

const BUDGET = 6; // milliseconds of a frame
const FEW = matchMedia("(max-width: 30rem)").matches ? 8 : 24; // circuits that are shown until all are asked for
const FEW_BESIDE = 3; // so few circuits stand beside the other lists, more of them above
const PAUSE = 300; // milliseconds between an answer and the next question
const SILENCE = 15; // seconds without a message: then the server is gone

let everyCircuit = false;

function chooseCircuits(ids) {
  const wanted = $("filter").value.trim().toLowerCase();
  const fitting = ids.filter((id) => id.toLowerCase().includes(wanted));
  $("all-circuits").hidden = fitting.length <= FEW;
  $("filter").parentElement.hidden = ids.length <= FEW_BESIDE;
  text(
    $("all-circuits"),
    everyCircuit ? "Show fewer circuits" : `Show all ${number(fitting.length)} circuits`,
  );
  text(
    $("circuits-says"),
    wanted ? `${number(fitting.length)} of ${number(ids.length)} match` : ids.length > 1 ? "the worst first" : "",
  );
  return everyCircuit ? fitting : fitting.slice(0, FEW);
}

const byPlace = (row) => order(row.place);
const lists = {
  circuits: new List(
    parts.circuits,
    $("circuits"),
    $("circuit"),
    (row, id) => order(row.rank, -(row.opened_at ?? 0), id),
    fillCircuit,
    chooseCircuits,
  ),
  batches: new List(parts.batches, $("batches"), $("row"), byPlace, fillBatch),
  letters: new List(parts.letters, $("letters"), $("row"), byPlace, fillLetters),
  budgets: new List(parts.budgets, $("budgets"), $("row"), byPlace, fillBudget),
  limits: new List(parts.limits, $("limits"), $("row"), byPlace, fillLimit),
  parked: new List(parts.parked, $("parked"), $("row"), byPlace, fillParked),
};

// -- the headline, the tiles and the line above each list: drawn when the summary or the trouble changed

let summaryIsStale = false;

function drawSummary() {
  const { headline, circuits, letters, batches, budgets } = Object.fromEntries(parts.summary);
  const trouble = [...parts.trouble].map(([name, row]) =>
    el(
      "li",
      {},
      `The ${name} are shown as of `,
      when(row.since),
      ` because they cannot be read: ${row.says}`,
    ),
  );
  $("trouble").replaceChildren(...trouble);
  if (headline) drawHeadline(headline, circuits, parts.trouble.has("circuits"));
  // A list without rows takes no place beside those with rows.
  const home = $(parts.circuits.size <= FEW_BESIDE ? "beside" : "above");
  if ($("circuits-section").parentElement !== home) home.prepend($("circuits-section"));
  for (const name of ["batches", "letters", "budgets", "limits", "parked"]) $(`${name}-section`).dataset.rows = parts[name].size;
  if (letters) drawLetters(letters);
  if (batches) {
    const { more } = batches;
    tile("doubts", atLeast(batches.in_doubt, more), batches.in_doubt && "open");
    const first = batches.open > batches.shown ? `; the first ${batches.shown} are shown` : "";
    const counts = `${atLeast(batches.open, more)} open, effects in doubt: ${atLeast(batches.effects, more)}`;
    text($("batches-says"), batches.open || more ? counts + first : "none open");
  }
  if (budgets) {
    tile("burning", number(budgets.burning), budgets.burning && "open");
    text($("budgets-says"), budgets.total ? count(budgets.total, "budget") : "none");
  }
}

function tile(id, value, level) {
  text($(id).querySelector("b"), value);
  $(id).dataset.level = level || "plain";
}

function drawHeadline(headline, circuits, lost) {
  text($("headline"), lost ? "The circuits are unknown: their store is unavailable" : headline.text);
  $("top").dataset.level = lost ? "unknown" : headline.level;
  const { open, headline: says = "", worst = [] } = circuits ?? {};
  const more = open > worst.length ? ` and ${number(open - worst.length)} more` : "";
  text($("worst"), lost ? says && `Last known: ${says}` : open ? worst.join(", ") + more : says);
  document.title = `${lost ? "?" : headline.text} · prefect-resilience`;
}

function drawLetters(letters) {
  const waiting = atLeast(letters.waiting, letters.more);
  tile("waiting", waiting, letters.in_doubt ? "open" : letters.waiting && "probing");
  const doubts = atLeast(letters.in_doubt, letters.more);
  const counts = `${waiting} waiting, ${doubts} in doubt`;
  const shown = letters.groups > letters.shown ? `; the first ${letters.shown} of ${number(letters.groups)} groups` : "";
  text($("letters-says"), counts + shown);
}

// -- what comes from the server

let version = 0; // of the rows that are known: the server sends what changed since
let heard = 0;
let scheduled = false;

function take({ now, version: latest, all, set }) {
  version = latest;
  clock.offset = now - Date.now() / 1000;
  heard = performance.now();
  live("live", "live");
  for (const name of PARTS) {
    const fresh = set[name] ?? {};
    if (all) for (const id of [...parts[name].keys()]) if (!fresh[id]) keep(name, id);
    for (const [id, row] of Object.entries(fresh)) keep(name, id, row ?? undefined);
  }
  schedule();
}

function keep(name, id, after) {
  const before = parts[name].get(id);
  if (after === undefined) parts[name].delete(id);
  else parts[name].set(id, after);
  lists[name]?.touch(id, before, after);
  if (name === "summary" || name === "trouble") summaryIsStale = true;
}

function schedule() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => {
    const until = performance.now() + BUDGET;
    scheduled = false;
    if (summaryIsStale) drawSummary();
    summaryIsStale = false;
    if (!Object.values(lists).every((list) => list.draw(until))) schedule();
  });
}

function live(state, words) {
  $("live").dataset.state = state;
  text($("live"), words);
}

// Asks for the rows again and again, one request at a time.
async function poll() {
  try {
    const answer = await fetch(`state?since=${version}`);
    if (!answer.ok) throw new Error(answer.statusText);
    take(await answer.json());
  } catch {
    live("lost", "connection lost, reconnecting");
  }
  setTimeout(poll, document.hidden ? 5 * PAUSE : PAUSE);
}

function tick() {
  for (const node of document.querySelectorAll("time[data-at]")) text(node, away(Number(node.dataset.at)));
  const silence = (performance.now() - heard) / 1000;
  if (heard && silence > SILENCE) live("lost", `no data for ${rough(silence)}`);
}

function chooseAgain() {
  lists.circuits.moved = true;
  schedule();
}

if (UI) Object.assign($("prefect-ui"), outside(UI), { hidden: false });
$("filter").oninput = chooseAgain;
$("all-circuits").onclick = () => {
  everyCircuit = !everyCircuit;
  chooseAgain();
};
setInterval(tick, 1000);
poll();
