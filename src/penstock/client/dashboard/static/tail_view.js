// A live tail: the changes of the bucket as they come, with the filters of `penstock tail`.
import { makeChange } from "./change_list.js";
import { formatNumber, make, setText } from "./dom.js";
import { bucketPath, postJson } from "./node_api.js";

const MOST = 500; // changes on the page, and as many that wait
const POLL = 1000;

export class TailView {
  constructor(place, state) {
    this.state = state;
    this.bucket = "";
    this.positions = [];
    this.waiting = [];
    this.skipped = 0;
    this.isRunning = false;
    this.isRead = false;
    this.run = 0;
    const field = (name, label, hint) => {
      const input = make("input", { type: "text", name, placeholder: hint, autocomplete: "off", spellcheck: "false" });
      this[name] = input;
      return make("label", {}, label, input);
    };
    this.button = make("button", { type: "submit", class: "main" }, "Start");
    this.form = make("form", { class: "tail-form" },
      field("filter_key", "Key, a regular expression", "^beer-"), field("filter_value", "Value, an expression", "abv > 5"),
      field("collections", "Collections", "scope.collection"), field("vbuckets", "Vbuckets", "0, 7, 512"),
      make("div", { class: "buttons" }, this.button, make("button", { type: "button", onclick: () => this.clear() }, "Clear")));
    this.list = make("ol", { class: "changes", tabindex: "0", "aria-label": "Changes" });
    this.empty = make("p", { class: "empty" }, "Start shows the changes from then on, the newest first. The list rests while you point at it or read it.");
    place.replaceChildren(this.form, this.empty, this.list);
    this.form.addEventListener("submit", (event) => { event.preventDefault(); this.isRunning ? this.stop() : this.start(); });
    const rest = (isRead) => { this.isRead = isRead; if (!isRead) this.#flush(); this.#tell(); };
    this.list.addEventListener("pointerenter", () => rest(true));
    this.list.addEventListener("pointerleave", () => rest(this.list.contains(document.activeElement)));
    this.list.addEventListener("focusin", () => rest(true));
    this.list.addEventListener("focusout", (event) => rest(this.list.contains(event.relatedTarget)));
  }

  reset(bucket, mayRead) {
    this.stop();
    this.clear();
    this.bucket = bucket;
    this.form.hidden = !mayRead;
    setText(this.empty, mayRead ? "Start shows the changes from then on, the newest first. The list rests while you point at it or read it." : "Your user may not read the changes of this bucket.");
  }

  start() {
    this.isRunning = true;
    this.positions = [];
    this.skipped = 0;
    setText(this.button, "Stop");
    this.#tell();
    this.#poll(++this.run);
  }

  stop(problem = "") {
    this.isRunning = false;
    this.run += 1;
    setText(this.button, "Start");
    setText(this.state, problem);
  }

  clear() {
    this.waiting = [];
    this.list.replaceChildren();
    this.empty.hidden = false;
  }

  async #poll(run) {
    if (run !== this.run) return;
    try {
      const wanted = { positions: this.positions, filter_key: this.filter_key.value, filter_value: this.filter_value.value, collections: split(this.collections.value), vbuckets: split(this.vbuckets.value).map(Number) };
      const found = await postJson(`${bucketPath(this.bucket)}/changes`, wanted);
      if (run !== this.run) return;
      this.positions = found.positions;
      this.skipped += found.skipped;
      this.waiting.push(...found.changes);
      if (this.waiting.length > MOST) this.skipped += this.waiting.splice(0, this.waiting.length - MOST).length;
      if (!this.isRead) this.#flush();
      this.#tell();
    } catch (error) {
      if (run !== this.run) return;
      if (error.status && error.status < 500) { this.stop(`The filter is not accepted: ${error.message}`); return; }
      setText(this.state, "The server does not answer. Trying again.");
    }
    setTimeout(() => this.#poll(run), POLL);
  }

  #flush() {
    const lines = this.waiting.splice(0).reverse().map((change) => makeChange(change, { vbucket: true }));
    if (!lines.length) return;
    this.empty.hidden = true;
    this.list.prepend(...lines);
    while (this.list.childElementCount > MOST) this.list.lastElementChild.remove();
  }

  #tell() {
    if (!this.isRunning) return;
    const parts = [this.isRead && this.waiting.length ? `resting, ${formatNumber(this.waiting.length)} new` : this.isRead ? "resting" : "running"];
    if (this.skipped) parts.push(`${formatNumber(this.skipped)} left out`);
    setText(this.state, parts.join(", "));
  }
}

const split = (text) => text.split(",").map((part) => part.trim()).filter(Boolean);
