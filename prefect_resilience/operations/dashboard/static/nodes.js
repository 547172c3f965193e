// Words, nodes, and lists of nodes.

export const clock = { offset: 0 }; // the store's clock less this one's, in seconds

export const $ = (id) => document.getElementById(id);
export const part = (node, name) => node.getElementsByClassName(name)[0];

export function el(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

export function text(node, value) {
  if (node.textContent !== value) node.textContent = value;
}

const digits = new Intl.NumberFormat("en");
export const number = (n) => digits.format(n);
export const count = (n, thing) => `${number(n)} ${thing}${n === 1 ? "" : "s"}`;
export const atLeast = (n, more) => `${number(n)}${more ? "+" : ""}`;
export const percent = (share) => `${share > 0 && share < 0.01 ? "under 1" : Math.round(share * 100)} %`;
// `least`: the keys of numbers that are only known to be at least so large.
export const listed = (row, words, least = []) =>
  Object.entries(words)
    .filter(([key]) => row[key])
    .map(([key, word]) => `${atLeast(row[key], least.includes(key))} ${word}`)
    .join(", ");

export function rough(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  for (const [unit, size] of [
    ["d", 86400],
    ["h", 3600],
    ["min", 60],
  ]) {
    if (whole >= 2 * size) return `${Math.floor(whole / size)} ${unit}`;
  }
  return `${whole} s`;
}

export function away(at) {
  const seconds = at - clock.offset - Date.now() / 1000;
  return Math.abs(seconds) < 1 ? "now" : seconds > 0 ? `in ${rough(seconds)}` : `${rough(-seconds)} ago`;
}

export function when(at) {
  const made = el("time", {
    textContent: away(at),
    title: new Date((at - clock.offset) * 1000).toLocaleString(),
  });
  made.dataset.at = at;
  return made;
}

// Without the spaces between its elements, which each copy would have as nodes of their own.
function unspaced(fragment) {
  for (const node of [...fragment.childNodes]) {
    if (node.nodeType === Node.TEXT_NODE && !node.data.trim()) node.remove();
    else unspaced(node);
  }
}

// One node for each row, in order, drawn a few milliseconds at a time.
export class List {
  // rows: a Map of rows by id; key: what a row is ordered by; fill: what draws a row into its node;
  // choose: which of the ordered ids are shown.
  constructor(rows, root, template, key, fill, choose = (ids) => ids) {
    Object.assign(this, { rows, root, template, key, fill, choose });
    unspaced(template.content);
    this.nodes = new Map();
    this.stale = new Set();
    this.wanted = [];
    this.at = 0;
    this.moved = false;
  }

  touch(id, before, after) {
    this.stale.add(id);
    if (!before || !after || this.key(before, id) !== this.key(after, id)) this.moved = true;
  }

  // Draws until that time, and says whether everything is drawn; else the next frame goes on.
  draw(until) {
    if (this.moved) this.sort();
    let here = this.at
      ? this.nodes.get(this.wanted[this.at - 1]).nextElementSibling
      : this.root.firstElementChild;
    for (; this.at < this.wanted.length; this.at++) {
      if (performance.now() > until) return false;
      const id = this.wanted[this.at];
      const node = this.nodes.get(id) ?? this.made(id);
      if (this.stale.delete(id)) this.fill(node, id, this.rows.get(id));
      if (node === here) here = here.nextElementSibling;
      else this.place(node, here);
    }
    for (const id of this.stale) {
      if (performance.now() > until) return false;
      this.stale.delete(id);
      if (this.nodes.has(id)) this.fill(this.nodes.get(id), id, this.rows.get(id));
    }
    return true;
  }

  made(id) {
    const node = this.template.content.firstElementChild.cloneNode(true);
    this.nodes.set(id, node);
    this.stale.add(id);
    return node;
  }

  sort() {
    const keyed = [...this.rows].map(([id, row]) => [this.key(row, id), id]);
    keyed.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0));
    this.wanted = this.choose(keyed.map(([, id]) => id));
    this.at = 0;
    this.moved = false;
    const kept = new Set(this.wanted);
    for (const [id, node] of this.nodes) {
      if (kept.has(id)) continue;
      if (node.contains(document.activeElement)) this.root.closest("section").querySelector("h2").focus();
      node.remove();
      this.nodes.delete(id);
    }
  }

  // A node that moves loses the focus, which must stay where the person is.
  place(node, before) {
    const focused = node.contains(document.activeElement) ? document.activeElement : null;
    this.root.insertBefore(node, before);
    if (focused) focused.focus({ preventScroll: true });
  }
}

// A text that orders as its parts do: numbers by their size, texts by their letters.
export function order(...keys) {
  return keys
    .map((key) => (typeof key === "number" ? String(Math.round(key * 1000) + 5e15).padStart(16, "0") : key))
    .join(" ");
}
