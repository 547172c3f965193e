// Orders to the server. Each asks once, in a dialog.
import { $, el, text } from "./nodes.js";

const TOKEN = document.querySelector("meta[name=token]").content;

let asked = {};

export function setChoices(select, choices) {
  select.replaceChildren(...choices.map(([value, label]) => el("option", { value, textContent: label })));
}

function fieldOf({ label, choices, ...properties }) {
  const field = el(choices ? "select" : "input", { autocomplete: "off", ...properties });
  if (choices) setChoices(field, choices);
  return el("label", {}, label, field);
}

export function ask(what) {
  asked = what;
  text($("ask-title"), what.title);
  text($("ask-text"), what.text);
  text($("ask-error"), "");
  text($("ask-no"), what.yes ? "Cancel" : "Back");
  Object.assign($("ask-yes"), {
    hidden: !what.yes,
    disabled: false,
    className: what.danger ? "danger" : "act",
    textContent: what.yes ?? "",
  });
  $("ask-fields").replaceChildren(...(what.fields ?? []).map(fieldOf));
  $("ask").showModal();
}

async function carryOut(event) {
  event.preventDefault();
  const { path, order, fields = [], fit = (given) => given } = asked;
  const given = { ...order };
  for (const { name, type } of fields) {
    const value = event.target.elements[name].value.trim();
    if (value) given[name] = type === "number" ? Number(value) : value;
  }
  $("ask-yes").disabled = true;
  text($("ask-error"), "");
  try {
    const { said } = await request(path, fit(given));
    $("ask").close();
    say(said);
  } catch (error) {
    text($("ask-error"), error.message);
    $("ask-yes").disabled = false;
  }
}

export async function request(path, order) {
  const headers = { "Content-Type": "application/json", "X-Resilience-Token": TOKEN };
  const answer = await fetch(path, order && { method: "POST", headers, body: JSON.stringify(order) }).catch(
    () => {
      throw new Error("The dashboard does not answer: is it still running?");
    },
  );
  const told = await answer.json();
  if (!answer.ok) throw new Error(told.error);
  return told;
}

let quiet = 0;

export function say(sentence) {
  clearTimeout(quiet);
  text($("said"), sentence);
  quiet = setTimeout(() => text($("said"), ""), 12000);
}

export const complain = (error) => say(error.message);

$("ask").querySelector("form").onsubmit = carryOut;
$("ask-no").onclick = () => $("ask").close();
