// The panel beside the grid: all about one vbucket, and after a click its newest changes.
import { drawBranches } from "./branch_graph.js";
import { makeChange } from "./change_list.js";
import { UNKNOWN, formatNumber, formatRate, formatVbuuid, isKnown, make, makeTable, setText, withUnit } from "./dom.js";
import { bucketPath, getJson } from "./node_api.js";
import { STATES, makeSample } from "./vbucket_grid.js";

const WAIT = 120; // milliseconds that the pointer rests on a cell before its details are asked for

export class VbucketDetail {
  constructor(place, grid) {
    this.place = place;
    this.grid = grid;
    this.bucket = "";
    this.mayRead = false;
    this.hovered = null;
    this.chosen = null;
    this.shown = null;
    this.timer = 0;
    this.#build();
  }

  hover(id) { this.hovered = id; this.refresh(true); }

  choose(id) {
    this.chosen = id;
    this.changes.replaceChildren();
    setText(this.changesNote, "");
    this.refresh(true);
    if (id !== null) this.#loadChanges();
  }

  /** Start with another bucket. */
  reset(bucket, mayRead) {
    Object.assign(this, { bucket, mayRead, hovered: null, chosen: null, shown: null });
    this.refresh(true);
  }

  /** Show the newest row, and ask for the details: at once, or when the row has changed. */
  refresh(isMove = false, changed = true) {
    const id = this.hovered ?? this.chosen ?? this.shown;
    const row = id === null ? null : this.grid.rows[id];
    this.empty.hidden = Boolean(row);
    this.full.hidden = !row;
    this.changesBox.hidden = this.mayRead === null || id === null || id !== this.chosen;
    if (!row) return;
    const isOther = id !== this.shown;
    this.shown = id;
    setText(this.title, `Vbucket ${id}`);
    this.state.replaceChildren(makeSample(row[1]), STATES[row[1]]);
    setText(this.facts.get("High seqno"), formatNumber(row[2]));
    setText(this.facts.get("Persisted up to"), formatNumber(row[3]));
    setText(this.facts.get("Documents"), formatNumber(row[4]));
    setText(this.facts.get("Changes to send"), formatNumber(row[5]));
    setText(this.facts.get("Growth"), withUnit(formatRate(this.grid.growth[id]), " changes/s"));
    if (isOther) this.#clearDetails();
    if (isMove || changed) {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.#load(id), isMove ? WAIT : 0);
    }
  }

  #build() {
    this.empty = make("p", { class: "empty" }, "Point at a cell, or move to it with the keyboard: its seqnos, branches and streams are shown here.");
    this.title = make("strong");
    this.state = make("span", { class: "state" });
    this.facts = new Map();
    const names = ["High seqno", "Persisted up to", "Documents", "Changes to send", "Growth", "Vbuuid", "Snapshot", "Purged up to"];
    const list = make("dl", { class: "facts" }, names.map((name) => {
      const value = make("dd", {}, "–");
      this.facts.set(name, value);
      return make("div", {}, make("dt", {}, name), value);
    }));
    this.graph = make("div");
    this.logBody = make("tbody");
    const head = make("tr", {}, ["Branch", "began after"].map((title, number) => make("th", { scope: "col", class: number ? "number" : null }, title)));
    this.log = make("details", {}, make("summary", { class: "small" }, "Failover log"), make("table", {}, make("thead", {}, head), this.logBody));
    this.streamsTable = makeTable("Streams of the vbucket", [["Stream", false], ["State", false], ["At", true], ["Left", true]]);
    this.noStreams = make("p", { class: "muted small" }, "No consumer streams this vbucket.");
    this.changes = make("ol", { class: "changes", tabindex: "0", "aria-label": "Newest changes of the vbucket" });
    this.changesNote = make("p", { class: "muted small", role: "status" });
    this.changesBox = make("div", { hidden: true }, make("h3", {}, "Newest changes"), this.changesNote, this.changes);
    this.full = make("div", { hidden: true }, make("div", { class: "title" }, this.title, this.state), list,
      make("h3", {}, "Branches"), this.graph, this.log, make("h3", {}, "Streams"), this.streamsTable.region, this.noStreams, this.changesBox);
    this.place.replaceChildren(this.empty, this.full);
  }

  #clearDetails() {
    for (const name of ["Vbuuid", "Snapshot", "Purged up to"]) setText(this.facts.get(name), "–");
    this.graph.replaceChildren();
    this.logBody.replaceChildren();
    this.streamsTable.body.replaceChildren();
  }

  async #load(id) {
    let found;
    try {
      found = await getJson(`${bucketPath(this.bucket)}/vbuckets/${id}`);
    } catch {
      return; // the line above the page says so
    }
    if (this.shown !== id) return;
    const { stats, failover_log: log, streams } = found;
    this.place.dataset.vbucket = id;
    setText(this.facts.get("Vbuuid"), stats.uuid ? formatVbuuid(stats.uuid) : UNKNOWN);
    setText(this.facts.get("Snapshot"), isKnown(stats.last_persisted_snap_end) ? `${formatNumber(+stats.last_persisted_snap_start)} to ${formatNumber(+stats.last_persisted_snap_end)}` : UNKNOWN);
    setText(this.facts.get("Purged up to"), isKnown(stats.purge_seqno) ? formatNumber(+stats.purge_seqno) : UNKNOWN);
    const readers = streams.filter((one) => one.seqno !== null && one.seqno !== undefined).map((one) => ({ label: one.label, seqno: one.seqno }));
    this.graph.replaceChildren(...(log.length && isKnown(stats.high_seqno) ? [drawBranches({ log, high: Number(stats.high_seqno), readers, width: this.place.clientWidth })] : []));
    this.logBody.replaceChildren(...log.map(([vbuuid, seqno]) => make("tr", {}, make("td", { class: "mono" }, formatVbuuid(vbuuid)), make("td", { class: "number" }, formatNumber(seqno)))));
    this.streamsTable.body.replaceChildren(...streams.map((one) => make("tr", {},
      make("td", {}, one.label, make("span", { class: "sub" }, `${one.dialect}, ${one.role}`)),
      make("td", {}, one.state),
      make("td", { class: "number" }, formatNumber(one.seqno)),
      make("td", { class: "number" }, formatNumber(one.items_remaining)))));
    this.streamsTable.region.hidden = !streams.length;
    this.noStreams.hidden = streams.length > 0;
    if (this.chosen === id && !this.#isRead()) this.#loadChanges();
  }

  /** Return whether someone reads the changes: the list then stays as it is. */
  #isRead() {
    return this.changes.matches(":hover") || this.changes.contains(document.activeElement) || this.changes.querySelector("details[open]") !== null;
  }

  async #loadChanges() {
    const id = this.chosen;
    if (this.mayRead === null) return;
    if (!this.mayRead) {
      setText(this.changesNote, "Your user may not read the changes of this bucket.");
      return;
    }
    try {
      const { changes, skipped } = await getJson(`${bucketPath(this.bucket)}/vbuckets/${id}/changes`);
      if (this.chosen !== id) return;
      setText(this.changesNote, changes.length ? (skipped ? `The newest ${changes.length}; ${formatNumber(skipped)} are older.` : "") : "The vbucket has no changes.");
      this.changes.replaceChildren(...changes.reverse().map((change) => makeChange(change)));
    } catch (error) {
      setText(this.changesNote, `The changes cannot be read: ${error.message}.`);
    }
  }
}
