// Elements and texts. All text of the node goes in as text, never as HTML.

/** Return a new element: its attributes, and its children as elements or texts. */
export function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) set(element, key, value);
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** Return a new SVG element. */
export function makeSvg(name, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function set(element, key, value) {
  if (value === null || value === undefined || value === false) return;
  if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
  else element.setAttribute(key, value === true ? "" : value);
}

/** Set the text of an element, if it differs: the browser then has nothing to lay out again. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Keep one child element for each item, by key: make new ones, update all, remove the others. */
export function reconcile(parent, items, keyOf, makeChild, update) {
  parent.children_by_key ??= new Map();
  const known = parent.children_by_key;
  const kept = new Map();
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    if (kept.has(key)) continue;
    const child = known.get(key) ?? makeChild(item);
    kept.set(key, child);
    update(child, item);
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
  }
  for (const [key, child] of known) if (!kept.has(key)) child.remove();
  parent.children_by_key = kept;
}

/** Show children in a place, or a sentence where there are none. */
export function showEmpty(place, sentence) {
  if (place.firstElementChild?.className === "empty") setText(place.firstElementChild, sentence);
  else place.replaceChildren(make("p", { class: "empty" }, sentence));
}

/** Return a table in a scrolling region, with its body. columns: [title, is a number]. */
export function makeTable(label, columns) {
  const head = columns.map(([title, isNumber]) => make("th", { scope: "col", class: isNumber ? "number" : null }, title));
  const body = make("tbody");
  const table = make("table", {}, make("thead", {}, make("tr", {}, head)), body);
  return { region: make("div", { class: "scroll", role: "region", "aria-label": `Table: ${label}`, tabindex: "0" }, table), body };
}

/** What the page shows for a value that the server does not tell. */
export const UNKNOWN = "unknown";

export const isKnown = (value) => value !== null && value !== undefined;

const WHOLE = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

export const formatNumber = (number) => (isKnown(number) ? WHOLE.format(number) : UNKNOWN);

/** Return a rate: small ones with a decimal. */
export const formatRate = (number) => (!isKnown(number) ? UNKNOWN : number > 0 && number < 9.95 ? number.toFixed(1) : WHOLE.format(number));

export function formatBytes(number) {
  if (!isKnown(number)) return UNKNOWN;
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (number >= 999.5 && unit < units.length - 1) { number /= 1000; unit += 1; }
  return `${unit && number < 99.95 ? number.toFixed(1) : WHOLE.format(number)} ${units[unit]}`;
}

export function formatSeconds(seconds) {
  if (!isKnown(seconds)) return UNKNOWN;
  if (seconds < 1e-3) return `${WHOLE.format(seconds * 1e6)} µs`;
  if (seconds < 1) return `${(seconds * 1e3).toPrecision(seconds < 0.1 ? 2 : 3)} ms`;
  if (seconds < 100) return `${seconds < 10 ? seconds.toFixed(1) : WHOLE.format(seconds)} s`;
  if (seconds < 6000) return `${WHOLE.format(seconds / 60)} min`;
  return seconds < 360000 ? `${WHOLE.format(seconds / 3600)} h` : `${WHOLE.format(seconds / 86400)} d`;
}

/** Return a number with a unit behind it, or that it is unknown. */
export const withUnit = (text, unit) => (text === UNKNOWN ? text : `${text}${unit}`);

export const formatTime = (at) => new Date(at * 1000).toLocaleTimeString("en-GB");

/** Return a vbuuid as kv_engine's logs have it. */
export const formatVbuuid = (text) => `0x${BigInt(text).toString(16).padStart(12, "0")}`;
