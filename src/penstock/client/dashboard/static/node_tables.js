// The smaller parts: totals, memory and disk, latencies, nodes, collections, users, all statistics.
import { UNKNOWN, formatBytes, formatNumber, formatRate, formatSeconds, isKnown, make, makeTable, reconcile, setText, showEmpty, withUnit } from "./dom.js";

/** Show the totals. rates: of the charts. */
export function showTotals(place, document, rates) {
  const { totals, endpoints } = document;
  const known = (endpoints ?? []).filter((one) => isKnown(one.lag_seqnos));
  const lag = known.reduce((most, one) => (one.lag_seqnos > (most?.lag_seqnos ?? 0) ? one : most), null);
  const tiles = [
    ["Documents", formatNumber(totals.documents), `${formatNumber(totals.active)} active vbuckets`, "curr_items"],
    ["Changes", withUnit(formatRate(rates.changes), "/s"), `${withUnit(formatRate(rates.items), "/s")} sent`, "changes"],
    ["Sent", withUnit(formatBytes(rates.bytes), "/s"), endpoints === null ? "connections unknown" : endpoints.length === 1 ? "1 connection" : `${formatNumber(endpoints.length)} connections`, "bytes_sent"],
    ["Largest lag", lag ? formatNumber(lag.lag_seqnos) : endpoints !== null && known.length === endpoints.length ? "0" : UNKNOWN, lag ? `${lag.label}, ${formatSeconds(lag.lag_seconds)}` : endpoints === null ? "streams unknown" : known.length === endpoints.length ? "all consumers in step" : "that of some consumers is unknown", "lag"],
    ["Memory", formatBytes(totals.memory), totals.quota ? `of ${formatBytes(totals.quota)}` : isKnown(totals.quota) ? "no quota" : "quota unknown", "mem_used"],
    ["Disk", document.on_disk === false ? "–" : formatBytes(totals.disk), document.on_disk === false ? "bucket in memory" : `${formatNumber(totals.unpersisted)} changes to write`, "disk"],
  ];
  reconcile(place, tiles, ([title]) => title, ([title, , , stat]) =>
    make("div", {}, make("dt", {}, title), make("dd", { class: "value", "data-total": stat }), make("dd", { class: "note" })),
  (child, [, value, note]) => { setText(child.children[1], value); setText(child.children[2], note); });
}

export function showStorage(place, document) {
  const { totals } = document;
  const log = isKnown(totals.log_live) && isKnown(totals.log_dead) ? totals.log_live + totals.log_dead : null;
  const part = log === null ? "" : ` (${log ? Math.round((100 * totals.log_dead) / log) : 0} %)`;
  const rows = [
    ["Memory", totals.quota ? `${formatBytes(totals.memory)} of ${formatBytes(totals.quota)}` : formatBytes(totals.memory), totals.quota && isKnown(totals.memory) ? totals.memory / totals.quota : null],
    ["Index in memory", formatBytes(totals.index)],
    ["Log, live", formatBytes(totals.log_live)],
    ["Log, superseded", `${formatBytes(totals.log_dead)}${part}`],
    ["Segments", formatNumber(totals.segments)],
    ...(document.on_disk === false ? [] : [
      ["Files", formatBytes(totals.disk)],
      ["Changes to write", formatNumber(totals.unpersisted)],
      ["Commits", isKnown(totals.commit_seconds) ? `${formatNumber(totals.commits)}, last ${formatSeconds(totals.commit_seconds)}` : formatNumber(totals.commits)],
      ["Compactions", formatNumber(totals.compactions)],
    ]),
    ["Refused changes", formatNumber(totals.refused)],
    ...(totals.fault ? [["Fault", totals.fault]] : []),
  ];
  place.className = "storage";
  place.list ??= make("dl", { class: "facts" });
  if (place.firstChild !== place.list) place.replaceChildren(place.list);
  reconcile(place.list, rows, ([name]) => name, ([name]) => make("div", {}, make("dt", {}, name), make("dd")), (child, [name, text, used]) => {
    const value = child.children[1];
    if (!isKnown(used)) { setText(value, text); return; }
    value.text ??= value.appendChild(make("span"));
    value.meter ??= value.appendChild(make("meter", { min: 0, max: 1, low: 0.75, high: 0.85, optimum: 0, "aria-label": `${name} in use` }));
    setText(value.text, text);
    value.meter.value = Math.min(1, used);
  });
}

/** Show rows of texts in a table. columns: [title, is a number, text of a row]. */
export function showRows(place, label, rows, columns, { keyOf, empty, classOf = () => null }) {
  if (!isKnown(rows)) { showEmpty(place, "The server does not report them."); return; }
  if (!rows.length) { showEmpty(place, empty); return; }
  place.table ??= makeTable(label, columns);
  if (place.firstChild !== place.table.region) place.replaceChildren(place.table.region);
  reconcile(place.table.body, rows, keyOf, () => make("tr", {}, columns.map(([, isNumber]) => make("td", { class: isNumber ? "number" : null }))), (child, row) => {
    columns.forEach(([, , format], at) => setText(child.children[at], format(row)));
    child.className = classOf(row) ?? "";
  });
}

const TASKS = { flusher: "Commit to disk", compactor: "Compaction", expiry_pager: "Expiry pager", key_loader: "Loading keys", stat: "Statistics" };

const quantile = (number) => (row) => (row.count ? `≤ ${formatSeconds(row.quantiles[number])}` : "–");

export function showCommands(place, document) {
  showRows(place, "Commands", document.commands, [
    ["Commands, 10 minutes", false, (row) => row.name], ["Count", true, (row) => formatNumber(row.count)],
    ["50 %", true, quantile(0)], ["95 %", true, quantile(1)], ["99 %", true, quantile(2)],
  ], { keyOf: (row) => row.name, empty: "No command in the last ten minutes." });
}

export function showTimings(place, document) {
  showRows(place, "Latencies", document.timings, [
    ["Work", false, (row) => TASKS[row.name] ?? row.name], ["Runs", true, (row) => formatNumber(row.count)],
    ["50 %", true, quantile(0)], ["95 %", true, quantile(1)], ["99 %", true, quantile(2)],
    ["Last", true, (row) => (row.count ? formatSeconds(row.last) : "–")],
  ], { keyOf: (row) => row.name, empty: "Nothing was timed yet." });
}

export function showNodes(place, document) {
  const status = (row) => (row.membership === "inactiveFailed" ? "failed over" : row.status === "healthy" ? "healthy" : "lost");
  showRows(place, "Nodes of the cluster", document.nodes, [
    ["Node", false, (row) => (row.is_this ? `${row.address} (this one)` : row.address)],
    ["Status", false, (row) => `${status(row) === "healthy" ? "●" : "▲"} ${status(row)}`],
    ["Active", true, (row) => formatNumber(row.active)], ["Replicas", true, (row) => formatNumber(row.replicas)],
  ], { keyOf: (row) => row.name, empty: "The node is alone.", classOf: (row) => (status(row) === "healthy" ? null : "lost-node") });
}

export function showCollections(place, document) {
  showRows(place, "Collections", document.collections, [
    ["Scope", false, (row) => row.scope], ["Collection", false, (row) => row.name], ["Documents", true, (row) => formatNumber(row.items)],
  ], { keyOf: (row) => `${row.scope}.${row.name}`, empty: "Your user sees no collection." });
}

export function showUsers(card, place, document) {
  card.hidden = document.users === null;
  if (document.users === null) return;
  showRows(place, "Users", document.users, [
    ["User", false, (row) => row.name], ["Roles", false, (row) => row.roles.join(", ")],
    ["Last login", true, (row) => (row.login_seconds === null ? "none since the start" : `${formatSeconds(Math.floor(row.login_seconds))} ago`)],
    ["From", false, (row) => row.login_address ?? ""],
  ], { keyOf: (row) => row.name, empty: "There are no users yet." });
}

/** Show all statistics as they are; only while they can be seen. */
export function showStats(box, place, document) {
  if (!box.open) return;
  place.list ??= make("dl");
  if (place.firstChild !== place.list) place.replaceChildren(place.list);
  reconcile(place.list, Object.entries(document.stats), ([name]) => name, ([name]) =>
    make("div", {}, make("dt", {}, name), make("dd", { "data-stat": name })), (child, [, value]) => setText(child.children[1], value));
}
