// The change-stream connections of the bucket, and how an administrator ends one.
import { UNKNOWN, formatBytes, formatNumber, formatSeconds, isKnown, make, makeTable, reconcile, setText, showEmpty } from "./dom.js";
import { bucketPath, postJson } from "./node_api.js";

const COLUMNS = [["Connection", false], ["Dialect", false], ["Phase", false], ["Vbuckets", true], ["Lag", true], ["Sent", true], ["Unacknowledged", false], ["NOOP", true], ["Age", true], ["Action", true]];
const PHASES = { "in step": "ok", receiving: "ok", backfill: "busy", "catching up": "busy", takeover: "busy" };

export class StreamTable {
  constructor(place, count, dialog) {
    this.place = place;
    this.count = count;
    this.dialog = dialog;
    this.table = makeTable("Change-stream connections", COLUMNS);
    this.bucket = "";
    this.mayEnd = false;
  }

  update(document) {
    const { endpoints, at } = document;
    this.bucket = document.bucket;
    this.mayEnd = document.user.may_end_streams;
    this.table.region.querySelector("th:last-child").hidden = !this.mayEnd;
    if (endpoints === null) {
      setText(this.count, "");
      showEmpty(this.place, "The server does not report its change streams.");
      return;
    }
    const streams = endpoints.reduce((sum, one) => sum + one.streams, 0);
    setText(this.count, endpoints.length ? `${formatNumber(endpoints.length)} connections, ${formatNumber(streams)} streams` : "");
    if (!endpoints.length) {
      showEmpty(this.place, "No consumer is connected. `penstock tail`, a connector or a replica appears here as soon as it opens a stream.");
      return;
    }
    if (this.place.firstChild !== this.table.region) this.place.replaceChildren(this.table.region);
    reconcile(this.table.body, endpoints, (one) => `${one.dialect} ${one.name} ${one.created}`, () => this.#makeRow(), (row, one) => this.#updateRow(row, one, at));
  }

  #makeRow() {
    const cells = COLUMNS.map(([, isNumber]) => make("td", { class: isNumber ? "number" : null }));
    const row = make("tr", {}, cells);
    const part = (cell, style) => { const element = make("span", { class: style }); cell.append(element); return element; };
    row.parts = {
      label: part(cells[0], null), who: part(cells[0], "sub"), more: part(cells[0], "sub"),
      dialect: cells[1], phase: part(cells[2], "tag"), vbuckets: cells[3],
      lag: part(cells[4], null), lagTime: part(cells[4], "sub"),
      sent: part(cells[5], null), items: part(cells[5], "sub"),
      window: part(cells[6], null), meter: make("meter", { min: 0, max: 1, low: 0.7, high: 0.95, optimum: 0, "aria-label": "used part of the window" }),
      acked: make("span", { class: "sub" }), noop: cells[7], age: cells[8], end: make("button", { type: "button", class: "danger" }, "End"),
    };
    cells[6].append(row.parts.meter, row.parts.acked);
    cells[6].className = "apart";
    cells[9].append(row.parts.end);
    return row;
  }

  #updateRow(row, one, at) {
    const { parts } = row;
    setText(parts.label, one.label);
    setText(parts.who, [one.node && `at ${one.node}`, one.user, one.peer, one.agent].filter(Boolean).join(" · "));
    setText(parts.more, [...one.flags, ...one.filters.map((name) => `filter: ${name}`)].join(", "));
    setText(parts.dialect, one.dialect);
    setText(parts.phase, one.phase);
    parts.phase.className = `tag ${PHASES[one.phase] ?? ""}`;
    setText(parts.vbuckets, formatNumber(one.vbuckets));
    setText(parts.lag, formatNumber(one.lag_seqnos));
    setText(parts.lagTime, one.lag_seqnos && isKnown(one.lag_seconds) ? formatSeconds(one.lag_seconds) : "");
    setText(parts.sent, formatBytes(one.bytes_sent));
    setText(parts.items, isKnown(one.items_sent) ? `${formatNumber(one.items_sent)} changes` : "");
    setText(parts.acked, one.window && isKnown(one.bytes_acked) ? `${formatBytes(one.bytes_acked)} acknowledged` : "");
    parts.meter.hidden = !one.window || !isKnown(one.unacked);
    if (!parts.meter.hidden) parts.meter.value = Math.min(1, one.unacked / one.window);
    setText(parts.window, one.window ? `${formatBytes(one.unacked)} of ${formatBytes(one.window)}` : isKnown(one.window) ? "no window" : UNKNOWN);
    setText(parts.noop, one.noop_answered ? `${formatSeconds(Math.max(0, Math.round(at - one.noop_answered)))} ago` : one.noop_interval ? "none yet" : isKnown(one.noop_interval) ? "off" : UNKNOWN);
    setText(parts.age, !isKnown(one.created) ? UNKNOWN : formatSeconds(Math.max(0, Math.round(at - one.created))));
    parts.end.parentElement.hidden = !this.mayEnd;
    parts.end.setAttribute("aria-label", `End ${one.label}`);
    parts.end.onclick = () => this.#confirm(one);
  }

  #confirm(one) {
    const [text, yes, no] = ["text", "yes", "no"].map((name) => document.getElementById(`confirm-${name}`));
    text.textContent = `End the connection “${one.label}” (${one.dialect}, ${formatNumber(one.streams)} streams)? Its consumer may connect again.`;
    no.onclick = () => this.dialog.close();
    yes.onclick = async () => {
      try {
        await postJson(`${bucketPath(this.bucket)}/streams/end`, { name: one.name });
        this.dialog.close();
      } catch (error) {
        text.textContent = `The connection was not ended: ${error.message}.`;
      }
    };
    this.dialog.showModal();
    no.focus();
  }
}
