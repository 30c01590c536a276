// The page of a pipeline's run: each source with its tables, misfits, lag, batches, rollbacks and dead letters.
import { formatBytes, formatNumber, formatRate, formatSeconds, formatTime, isKnown, make, reconcile, setText, showEmpty } from "./dom.js";
import { followState } from "./node_api.js";
import { showRows } from "./node_tables.js";
import { RateCharts } from "./rate_charts.js";
import { RollbackTimeline, formatRanges } from "./rollback_timeline.js";

// The columns of a point.
const ROWS = 1, LAG = 2, BATCH = 3, PENDING = 4;
const CHARTS = [
  { title: "Rows written", unit: "/s", series: [{ column: ROWS, isRate: true }], format: formatRate },
  { title: "Lag", unit: " seqnos", series: [{ column: LAG, isRate: false }], format: formatNumber },
  { title: "Micro-batch", unit: "", series: [{ column: BATCH, isRate: false }], format: formatSeconds },
  { title: "Rows not applied", unit: "", series: [{ column: PENDING, isRate: false }], format: formatNumber },
];
// The reason of values that are no misfits: their field has no column.
const UNKNOWN = "unknown field";
const MOST_MISFITS = 50;
const STATES = { running: "ok", stopping: "busy", killed: "bad" };

const find = (id) => document.getElementById(id);
const keyOf = (source) => source.status.source ?? "";

class SourceView {
  constructor(name) {
    const card = (title, ...children) => {
      const id = `${title.toLowerCase().replaceAll(" ", "-")}-${name}`;
      return make("section", { class: "card wide", "aria-labelledby": id }, make("div", { class: "head" }, make("h3", { id, class: "title" }, title), children[0]), ...children.slice(1));
    };
    this.title = make("h2");
    this.state = make("span", { class: "tag" });
    this.error = make("p", { class: "problem inside", hidden: true });
    this.facts = make("dl", { class: "totals" });
    this.tables = make("div");
    this.misfits = make("div");
    this.misfitsNote = make("p", { class: "muted" });
    this.lag = make("div");
    this.lagNote = make("p", { class: "muted" });
    this.span = make("p", { class: "muted" });
    this.rates = make("div", { class: "charts" });
    this.charts = new RateCharts(this.rates, this.span, CHARTS);
    this.timeline = new RollbackTimeline();
    this.letters = make("div");
    this.element = make("div", { class: "source wide", "data-source": name },
      make("div", { class: "head" }, this.title, this.state), this.error, this.facts,
      card("Tables", null, this.tables), card("Values that do not fit", this.misfitsNote, this.misfits), card("Lag by vbuckets", this.lagNote, this.lag),
      card("Progress", this.span, this.rates), card("Rollbacks", this.timeline.note, this.timeline.element), card("Dead letters", null, this.letters));
  }

  update(source) {
    const { status } = source;
    setText(this.title, status.source ?? "Lake");
    setText(this.state, status.state);
    this.state.className = `tag ${STATES[status.state] ?? ""}`;
    this.error.hidden = !status.error;
    setText(this.error, status.error ?? "");
    this.#showFacts(status);
    this.#showTables(status);
    this.#showMisfits(status);
    this.#showLag(status);
    this.charts.update(source.points, true);
    this.timeline.update(source);
    this.#showLetters(source);
  }

  #showFacts(status) {
    const batch = status.last_batch;
    const tiles = [
      ["Lag", formatNumber(status.lag), "seqnos that the changelog does not have", "lag"],
      ["Rows", `${formatRate(status.rows_per_second)}/s`, `${formatBytes(status.bytes_per_second)}/s`, "rows_per_second"],
      ["Changelog", formatNumber(status.changelog?.rows), status.changelog ? `rows, ${formatBytes(status.changelog.bytes)}` : "not there yet", "changelog_rows"],
      ["Last micro-batch", formatSeconds(batch?.seconds), batch ? `number ${formatNumber(batch.batch)}, ${formatNumber(batch.rows)} rows` : "none yet", "last_batch"],
      ["Vbuckets without a node", formatNumber(status.missing_vbuckets.length), status.missing_vbuckets.length ? formatRanges(status.missing_vbuckets) : "all are served", "missing"],
      ["Run", status.state, status.until ? `reported ${formatTime(Date.parse(status.until) / 1000)}` : "never", "state"],
    ];
    reconcile(this.facts, tiles, ([title]) => title, ([title, , , name]) =>
      make("div", {}, make("dt", {}, title), make("dd", { class: "value", "data-fact": name }), make("dd", { class: "note" })),
    (child, [, value, note]) => { setText(child.children[1], value); setText(child.children[2], note); });
  }

  #showTables(status) {
    const changelog = { name: "changelog", kind: "changelog", version: status.version, pending: 0, size: status.changelog };
    const waits = (row) => (row.error ? row.error : row.pending ? `applies ${formatNumber(row.pending)} rows` : row.version < 0 ? "waits for the first batch" : row.kind === "changelog" ? "waits for changes" : "waits for the changelog");
    showRows(this.tables, `Tables of ${status.source ?? "the lake"}`, [changelog, ...status.dependents], [
      ["Table", false, (row) => row.name], ["Kind", false, (row) => row.kind],
      ["Position", true, (row) => (row.version < 0 ? "none" : `version ${formatNumber(row.version)}`)],
      ["Pending rows", true, (row) => formatNumber(row.pending)],
      ["Rows", true, (row) => (row.size ? formatNumber(row.size.rows) : "–")],
      ["Rows with a _rest", true, (row) => (row.rest ? formatNumber(row.rest.rows) : "–")],
      ["Bytes", true, (row) => (row.size ? formatBytes(row.size.bytes) : "–")],
      ["Files", true, (row) => (row.size ? formatNumber(row.size.files) : "–")],
      ["State", false, waits],
    ], { keyOf: (row) => row.name, empty: "There are no tables yet.", classOf: (row) => (row.error ? "lost-node" : null) });
  }

  #showMisfits(status) {
    const typed = status.dependents.filter((row) => row.rest);
    const all = typed.flatMap((row) => row.rest.misfits.filter((one) => one.reason !== UNKNOWN).map((one) => ({ table: row.name, ...one })));
    const shown = all.sort((a, b) => b.values - a.values).slice(0, MOST_MISFITS);
    const examined = typed.reduce((sum, row) => sum + row.rest.examined, 0), rows = typed.reduce((sum, row) => sum + row.rest.rows, 0);
    setText(this.misfitsNote, [all.length > shown.length ? `${shown.length} of ${formatNumber(all.length)} fields` : "", examined < rows ? `${formatNumber(examined)} of ${formatNumber(rows)} rows with a _rest examined` : ""].filter(Boolean).join(", "));
    showRows(this.misfits, `Values of ${status.source ?? "the lake"} that do not fit`, shown, [
      ["Table", false, (row) => row.table], ["Field", false, (row) => row.field || "whole document"], ["Reason", false, (row) => row.reason],
      ["Found", false, (row) => row.found], ["Expected", false, (row) => row.expected ?? "–"],
      ["Values", true, (row) => formatNumber(row.values)], ["Documents", false, (row) => row.keys.join(", ")],
    ], { keyOf: (row) => JSON.stringify([row.table, row.field, row.reason]), empty: typed.length ? "All values fit their columns." : "There are no typed tables." });
  }

  #showLag(status) {
    const ranges = status.lag_ranges;
    const most = Math.max(1, ...ranges.map((one) => one.seqnos));
    setText(this.lagNote, isKnown(status.lag) ? `${formatNumber(status.lag)} seqnos in all` : "");
    if (!ranges.length) { showEmpty(this.lag, isKnown(status.lag) ? "The run has not read a batch yet." : "The lag is unknown: the node has not answered yet."); return; }
    this.lag.list ??= make("dl", { class: "ranges" });
    if (this.lag.firstChild !== this.lag.list) this.lag.replaceChildren(this.lag.list);
    reconcile(this.lag.list, ranges, (one) => one.first, () => make("div", {}, make("dt"), make("dd", {}, make("span", { class: "number" }), make("meter", { min: 0, "aria-label": "lag" }))), (child, one) => {
      const [text, meter] = child.children[1].children, name = one.first === one.last ? `${one.first}` : `${one.first}-${one.last}`;
      setText(child.children[0], name);
      setText(text, formatNumber(one.seqnos));
      meter.max = most;
      meter.value = one.seqnos;
      meter.setAttribute("aria-label", `lag of vbuckets ${name}`);
    });
  }

  #showLetters({ dead_letters: letters, status }) {
    showRows(this.letters, `Dead letters of ${status.source ?? "the lake"}`, letters, [
      ["Sink", false, (row) => row.name], ["Rows", true, (row) => formatNumber(row.rows)], ["Directory", false, (row) => row.path],
    ], { keyOf: (row) => row.name, empty: "No sink keeps dead letters.", classOf: (row) => (row.rows ? "lost-node" : null) });
  }
}

const views = new Map();

function show(found) {
  setText(find("link"), "Live");
  find("link").className = "link live";
  find("problem").hidden = true;
  const first = found.sources[0]?.status;
  setText(find("since"), first?.since ? `process ${first.pid}, since ${first.since.replace("T", " ").replace("Z", " UTC")}` : "starting");
  for (const source of found.sources) {
    const key = keyOf(source);
    if (!views.has(key)) {
      views.set(key, new SourceView(key));
      find("sources").append(views.get(key).element);
    }
    views.get(key).update(source);
  }
  document.body.dataset.at = found.at;
}

function showLost(sentence) {
  setText(find("link"), "Lost");
  find("link").className = "link lost";
  setText(find("problem"), sentence);
  find("problem").hidden = false;
}

followState(null, show, showLost);
