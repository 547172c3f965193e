// What draws a row of each kind into its node.
import { ask, complain, request, say, setChoices } from "./ask.js";
import { $, atLeast, count, el, listed, number, part, percent, rough, text, when } from "./nodes.js";

const meta = (name) => document.querySelector(`meta[name=${name}]`).content;
export const UI = meta("prefect-ui");
export const READ_ONLY = meta("read-only") !== "";

export const PARTS = ["circuits", "letters", "batches", "budgets", "limits", "parked", "summary", "trouble"];
export const parts = Object.fromEntries(PARTS.map((name) => [name, new Map()]));
const STATES = {
  open: "open",
  forced_open: "forced open",
  half_open: "half-open",
  disabled: "disabled",
  closed: "closed",
};
const LETTERS = { waiting: "waiting", in_doubt: "in doubt", replaying: "replaying" };
const ANSWERS = {
  done: "It took place",
  not_done: "It did not take place, so the next run may do it",
  undone: "It has been compensated",
  kept: "It stays done, and no rollback compensates it",
};
const REASON = { name: "reason", label: "Reason, for the next person who looks at it" };
const AUDIT = { name: "reason", label: "Reason, for the audit log" };

export const outside = (href) => ({ href, target: "_blank", rel: "noreferrer" });
const runLink = (name, run, otherwise = name) =>
  UI && run
    ? el("a", { ...outside(`${UI}/runs/flow-run/${encodeURIComponent(run)}`), textContent: name })
    : otherwise;

function button(label, about, onclick) {
  const made = el("button", { type: "button", textContent: label, onclick });
  made.setAttribute("aria-label", `${label} ${about}`);
  return made;
}

// New buttons only where others are needed: a button that is replaced loses the focus.
function buttons(node, kind, make) {
  if (READ_ONLY || node.dataset.buttons === kind) return;
  node.dataset.buttons = kind;
  part(node, "buttons").replaceChildren(...make());
}

// -- circuits

export function fillCircuit(
  node,
  id,
  { state, level, window_calls: calls = 0, share, opened_at, retry_at, consecutive_failures: in_row = 0, why },
) {
  node.dataset.level = level;
  text(part(node, "name"), id);
  text(part(node, "badge"), level === "failing" ? "closed, failing" : STATES[state]);
  text(part(node, "figures"), calls ? `${percent(share)} of ${number(calls)} failed` : "no calls counted");
  part(node, "figures").title = "The calls in the circuit's window";
  const since = state !== "closed" && opened_at ? ["Opened ", when(opened_at)] : [];
  const probe = retry_at ? [", probe ", when(retry_at)] : [];
  if (since.length && why) probe.push(": ");
  const row = level === "failing" && in_row > 1 ? [`${count(in_row, "failure")} in a row`] : [];
  part(node, "why").replaceChildren(...since, ...probe, ...row, why);
  part(node, "why").title = why;
  part(node, "volume").setAttribute("r", radius(calls));
  part(node, "share").style.strokeDasharray = `${100 * share} 100`;
  buttons(node, state, () => (state === "closed" ? [openButton(id)] : [closeButton(id), resetButton(id)]));
}

// By tenfold steps: a circuit of 6,000 calls is not a hundred times larger than one of 60.
const radius = (calls) => Math.min(17, 4 + 4.5 * Math.log10(1 + calls / 7)).toFixed(1);

const openButton = (name) =>
  button("Open", name, () =>
    ask({
      title: `Open ${name}?`,
      text: "Every call of the whole fleet is rejected from now on.",
      fields: [
        { ...REASON, required: true },
        {
          name: "minutes",
          label: "Minutes until a probe; empty: open until a person closes it",
          type: "number",
          min: 0.1,
          step: "any",
        },
      ],
      yes: "Open circuit",
      danger: true,
      path: "circuits",
      order: { name, action: "open" },
    }),
  );

const closeButton = (name) =>
  button("Close", name, () =>
    ask({
      title: `Close ${name}?`,
      text: "The calls of the whole fleet go through again, at once. The circuit can open again as usual.",
      fields: [REASON],
      yes: "Close circuit",
      path: "circuits",
      order: { name, action: "close" },
    }),
  );

const resetButton = (name) =>
  button("Reset", name, () =>
    ask({
      title: `Reset ${name}?`,
      text: "It starts over: closed, with an empty window and no re-openings.",
      fields: [REASON],
      yes: "Reset circuit",
      path: "circuits",
      order: { name, action: "reset" },
    }),
  );

// -- batches

export function fillBatch(node, id, row) {
  const name = row.flow_run || id;
  const ended = row.ended?.toLowerCase() ?? "failed";
  const word = row.unknown ? "in doubt" : row.intended ? "in progress" : ended;
  node.dataset.level = row.unknown ? "open" : row.intended ? "good" : "probing";
  part(node, "name").replaceChildren(runLink(name, /^[0-9a-f]{8}-[0-9a-f-]{27}$/.test(id) && id));
  text(part(node, "badge"), word);
  const states = { unknown: "in doubt", failed: "failed", intended: "in progress", done: "done" };
  const effects = listed(row, states, row.uncounted ? ["done"] : []);
  const last = row.uncounted ? [] : ["; last ", when(row.last_at)];
  part(node, "figures").replaceChildren(`Effects: ${effects}`, ...last);
  const settling = () => (row.unknown ? [button("Settle", name, () => settle(id, name))] : []);
  buttons(node, `${!!row.unknown} ${name}`, () => [
    ...settling(),
    button("Recover", name, () => recover(id, name)),
  ]);
}

async function settle(batch, name) {
  const found = await request("batches/doubts", { batch }).catch(complain);
  if (!found) return;
  if (!found.effects.length) return say("No effect of this batch is in doubt any more");
  const answers = Object.fromEntries(
    found.effects.map((one) => [
      one.key,
      ["", ...one.answers].map((word) => [word, ANSWERS[word] ?? "Choose"]),
    ]),
  );
  ask({
    title: `Settle ${name}`,
    text: `Check with the receiver first: the next run relies on your answer.${found.more ? ` ${number(found.more)} more are in doubt.` : ""}`,
    fields: [
      {
        name: "key",
        label: "Effect",
        choices: found.effects.map(({ key, error }) => [key, error ? `${key} (${error.slice(0, 80)})` : key]),
        onchange: ({ target }) => setChoices(target.form.elements.answer, answers[target.value]),
      },
      { name: "answer", label: "Outcome", choices: answers[found.effects[0].key], required: true },
      { name: "external_id", label: "Its id at the receiver, if it took place" },
      { ...AUDIT, label: "How you know, for the audit log" },
    ],
    fit: (order) => (order.answer === "done" ? order : { ...order, external_id: null }),
    yes: "Settle effect",
    danger: true,
    path: "batches/settle",
    order: { batch },
  });
}

async function recover(batch, name) {
  say("Reading the state of the batch");
  const plan = await request("batches/recover", { batch, dry_run: true }).catch(complain);
  if (!plan) return;
  say("");
  if (["told", "refused", "nothing"].includes(plan.action))
    return ask({ title: `${name} cannot be recovered now`, text: plan.said });
  ask({
    title: `Recover ${name}?`,
    text: plan.said,
    fields: [AUDIT],
    yes: "Recover batch",
    danger: plan.action !== "rescheduled",
    path: "batches/recover",
    order: { batch },
  });
}

// -- dead letters and error budgets

const replayButton = (label, about, number, order) =>
  button(label, about, () =>
    ask({
      title: `Replay ${number()} of ${about}?`,
      text: "The calls are made again, from this machine, the oldest first. Effects that are done are not repeated.",
      yes: "Replay",
      path: "letters/replay",
      order,
    }),
  );

// The letters of one task with one kind of error: the error once, then the latest calls.
export function fillLetters(node, id, row) {
  node.dataset.level = row.in_doubt ? "open" : "probing";
  text(part(node, "name"), row.name);
  const states = listed(row, LETTERS, row.more ? Object.keys(LETTERS) : []);
  text(part(node, "badge"), states);
  part(node, "figures").replaceChildren("the newest ", when(row.newest));
  text(part(node, "why"), row.error);
  const letters = () => {
    const { waiting = 0, more } = parts.letters.get(id) ?? {};
    return more ? `${atLeast(waiting, more)} letters` : count(waiting, "letter");
  };
  buttons(node, "replay", () => [replayButton("Replay all", row.name, letters, { task: row.name, error: row.kind })]);
  const drawn = row.calls.map((call) => call.id + call.status).join();
  if (node.dataset.calls === drawn) return;
  node.dataset.calls = drawn;
  const all = row.waiting + row.in_doubt + row.replaying;
  const rest = all > row.calls.length ? [el("li", { className: "note" }, `and ${number(all - row.calls.length)} more`)] : [];
  part(node, "calls").replaceChildren(...row.calls.map((call) => callOf(row, call)), ...rest);
}

function callOf({ name }, { id, status, at, attempts, run, call }) {
  const state = status === "waiting" ? "" : `, ${LETTERS[status]}`;
  const figures = el("span", { className: "figures" }, when(at), `, ${attempts ? count(attempts, "attempt") : "not called"}${state} `, runLink("run", run, ""));
  const replay = READ_ONLY ? [] : [replayButton("Replay", `${name}(${call})`, () => "1 letter", { letter: id })];
  return el("li", {}, el("code", {}, call || "no arguments"), figures, ...replay);
}

export function fillBudget(node, id, row) {
  node.dataset.level = row.burned ? "open" : "good";
  text(part(node, "name"), id);
  text(part(node, "badge"), row.burned ? "burning" : "");
  const left = row.remaining < 0 ? "overspent" : `${percent(row.remaining)} left`;
  const goal = `${+(100 * row.objective).toFixed(3)} % must succeed`;
  text(
    part(node, "figures"),
    `${left}: ${number(row.bad)} of ${count(row.runs, "run")} failed in ${rough(row.window)}; ${goal}`,
  );
  text(part(node, "why"), row.why);
}

export function fillLimit(node, id, row) {
  const hasRoom = row.room === "now", isMoney = row.kind === "USD";
  node.dataset.level = hasRoom ? "good" : isMoney ? "open" : "probing";
  text(part(node, "name"), row.name);
  text(part(node, "badge"), hasRoom ? "" : isMoney ? "reached" : `room ${row.room}`);
  const reserved = row.reserved ? `, ${row.reserved} reserved` : "";
  const [used, allowed] = [number(row.used), number(row.allowed)];
  const ofMoney = `${used} of ${allowed} USD used${reserved}; ${row.per}`;
  text(part(node, "figures"), isMoney ? ofMoney : `${used} tokens used; ${allowed} a ${row.per}`);
  text(part(node, "why"), "");
}

export function fillParked(node, id, row) {
  node.dataset.level = "good";
  part(node, "name").replaceChildren(runLink(row.name, id));
  text(part(node, "badge"), row.circuit ? `circuit ${row.circuit}` : "");
  part(node, "figures").replaceChildren("goes on ", when(row.until), "; parked ", when(row.since));
  text(part(node, "why"), row.why);
}
