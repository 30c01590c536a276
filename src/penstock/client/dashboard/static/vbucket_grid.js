// The grid: one cell a vbucket. Colour and shape show the state, brightness the growth or the lag.
import { isKnown, make } from "./dom.js";

export const STATES = ["absent", "active", "replica", "pending", "dead"];
const LEVELS = ["0", "1", "10", "100", "1k", "10k"];

/** Return the brightness of a number, 0 to 5: its power of ten; "none" if the number is not known. */
export const findHeat = (number) => (!isKnown(number) ? "none" : number < 1 ? 0 : Math.min(5, 1 + Math.floor(Math.log10(number))));

/** Return a small cell as a key of a state or of a brightness. */
export const makeSample = (state, heat = 2) => make("span", { class: "cell", "data-state": state, "data-heat": heat, "aria-hidden": "true" });

export class VbucketGrid {
  /** on: {show(vbucket or null), choose(vbucket or null)}: the vbucket under pointer or focus, and the clicked one. */
  constructor(place, legend, on) {
    this.place = place;
    this.legend = legend;
    this.on = on;
    this.cells = [];
    this.rows = [];
    this.growth = [];
    this.hot = new Set();
    this.mode = "growth";
    this.chosen = null;
    this.focused = 0;
    this.columns = 32;
    place.addEventListener("pointerover", (event) => { const at = findCell(event); if (at !== null) on.show(at); });
    place.addEventListener("pointerleave", () => on.show(null));
    place.addEventListener("focusin", (event) => { const at = findCell(event); if (at !== null) { this.#moveTo(at); on.show(at); } });
    place.addEventListener("click", (event) => { const at = findCell(event); if (at !== null) this.choose(at === this.chosen ? null : at); });
    place.addEventListener("keydown", (event) => this.#handleKey(event));
    this.#drawLegend();
  }

  /** Show the rows of a document: all vbuckets, or the changed ones. seconds: since the last document. */
  update(rows, isComplete, seconds) {
    if (isComplete) {
      this.rows = [];
      this.growth = new Array(rows.length).fill(0);
      this.hot.clear();
      if (rows.length !== this.cells.length) this.#makeCells(rows.length);
    }
    const before = this.hot;
    this.hot = new Set();
    for (const row of rows) {
      const [id, , high] = row;
      const old = this.rows[id];
      const grown = !isKnown(high) ? null : old && !isComplete && isKnown(old[2]) ? Math.max(0, high - old[2]) / seconds : 0;
      this.rows[id] = row;
      this.growth[id] = grown;
      if (grown) this.hot.add(id);
      this.#paint(id);
    }
    if (isComplete) this.#drawLegend();
    for (const id of before) if (!this.hot.has(id) && isKnown(this.rows[id]?.[2])) { this.growth[id] = 0; this.#paint(id); }
  }

  setMode(mode) {
    this.mode = mode;
    this.cells.forEach((_, id) => this.#paint(id));
    this.#drawLegend();
  }

  choose(id) {
    this.cells[this.chosen]?.setAttribute("aria-selected", "false");
    this.chosen = id;
    this.cells[id]?.setAttribute("aria-selected", "true");
    this.on.choose(id);
  }

  #makeCells(count) {
    this.columns = count > 256 ? 32 : count > 16 ? 16 : Math.max(count, 1);
    this.place.style.setProperty("--columns", String(Math.max(this.columns, 8)));
    this.cells = Array.from({ length: count }, (_, id) =>
      make("div", { class: "cell", role: "gridcell", tabindex: id ? "-1" : "0", "data-vbucket": id, "aria-selected": "false", "aria-label": `vbucket ${id}` }));
    const rows = [];
    for (let at = 0; at < count; at += this.columns) rows.push(make("div", { role: "row" }, this.cells.slice(at, at + this.columns)));
    this.place.replaceChildren(...rows);
    this.focused = 0;
    this.chosen = null;
  }

  #paint(id) {
    const cell = this.cells[id], row = this.rows[id];
    if (!cell || !row) return;
    const heat = String(findHeat(this.mode === "growth" ? this.growth[id] : row[5])), state = String(row[1]);
    if (cell.dataset.state !== state) {
      cell.dataset.state = state;
      cell.setAttribute("aria-label", `vbucket ${id}, ${STATES[row[1]]}`);
    }
    if (cell.dataset.heat !== heat) cell.dataset.heat = heat;
  }

  #moveTo(id) {
    this.cells[this.focused]?.setAttribute("tabindex", "-1");
    this.focused = id;
    this.cells[id].setAttribute("tabindex", "0");
  }

  #handleKey(event) {
    const last = this.cells.length - 1, row = this.focused - (this.focused % this.columns);
    const steps = {
      ArrowRight: () => this.focused + 1,
      ArrowLeft: () => this.focused - 1,
      ArrowDown: () => this.focused + this.columns,
      ArrowUp: () => this.focused - this.columns,
      Home: () => (event.ctrlKey ? 0 : row),
      End: () => (event.ctrlKey ? last : Math.min(last, row + this.columns - 1)),
      PageDown: () => Math.min(last, this.focused + 4 * this.columns),
      PageUp: () => Math.max(0, this.focused - 4 * this.columns),
    };
    if (event.key === "Enter" || event.key === " ") this.choose(this.focused === this.chosen ? null : this.focused);
    else if (event.key === "Escape") this.choose(null);
    else if (steps[event.key]) {
      const next = steps[event.key]();
      if (next >= 0 && next <= last) this.cells[next].focus();
    } else return;
    event.preventDefault();
  }

  #drawLegend() {
    const unit = this.mode === "growth" ? "changes/s" : "changes to send";
    const states = [1, 2, 3, 4].map((state) => make("span", {}, makeSample(state), STATES[state]));
    const scale = make("span", { class: "scale" }, make("i", {}, `0 ${unit}`), LEVELS.map((_, heat) => makeSample(1, heat)), make("i", {}, "10k+"));
    const column = this.mode === "growth" ? 2 : 5;
    const hasUnknown = this.rows.some((row) => row && !isKnown(row[column]));
    this.legend.replaceChildren(...states, scale, ...(hasUnknown ? [make("span", {}, makeSample(1, "none"), `${unit} unknown`)] : []));

  }
}

function findCell(event) {
  const cell = event.target.closest?.("[data-vbucket]");
  return cell ? Number(cell.dataset.vbucket) : null;
}
