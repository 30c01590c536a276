// Changes as a list: a line each, which opens to the decoded document.
import { formatBytes, formatNumber, make } from "./dom.js";

/** Return the line of a change. shows.vbucket: whether the line has the vbucket. */
export function makeChange(change, shows = {}) {
  const key = change.key ?? (change.key_base64 ? `0x${toHex(change.key_base64).replaceAll(" ", "").slice(0, 60)}` : "");
  const name = change.collection && change.collection !== "_default" ? `${change.scope}.${change.collection}/${key}` : key;
  const line = make(
    "summary", {},
    shows.vbucket ? make("span", { class: "muted" }, `vb ${change.vbucket}`) : null,
    make("span", { class: "number" }, formatNumber(change.seqno)),
    make("span", { class: `event ${change.event}` }, change.event),
    make("span", { class: "mono" }, name),
    make("span", { class: "mono muted preview" }, (change.value ?? "").slice(0, 160)),
    make("span", { class: "muted number" }, change.size === undefined ? "" : formatBytes(change.size)),
  );
  const box = make("details", {}, line);
  box.addEventListener("toggle", () => { if (box.open && box.childElementCount === 1) box.append(...makeBody(change)); });
  return make("li", { class: change.superseded ? "old" : null }, box);
}

function makeBody(change) {
  const facts = [`cas ${change.cas}`, `revision ${change.rev_seqno}`];
  if (change.expiry) facts.push(`expires ${new Date(change.expiry * 1000).toISOString()}`);
  if (change.flags) facts.push(`flags 0x${change.flags.toString(16)}`);
  if (change.superseded) facts.push(`superseded by ${formatNumber(change.superseded)}`);
  const parts = [make("p", { class: "meta" }, facts.join(" · "))];
  if (change.value !== undefined || change.value_base64 !== undefined) parts.unshift(make("pre", { tabindex: "0" }, formatValue(change)));
  if (change.xattrs) parts.push(make("pre", { tabindex: "0" }, `xattrs\n${JSON.stringify(change.xattrs, null, 2)}`));
  return parts;
}

/** Return a value for people: JSON indented, other text as it is, bytes as hexadecimals. */
export function formatValue(change) {
  if (change.value_base64 !== undefined) return dumpHex(change.value_base64);
  const cut = change.size > new TextEncoder().encode(change.value).length ? `\n… ${formatBytes(change.size)} in all` : "";
  try {
    return JSON.stringify(JSON.parse(change.value), null, 2) + cut;
  } catch {
    return change.value + cut;
  }
}

const toHex = (base64) => Array.from(atob(base64), (one) => one.charCodeAt(0).toString(16).padStart(2, "0")).join(" ");

function dumpHex(base64) {
  const text = atob(base64), lines = [];
  for (let at = 0; at < text.length; at += 16) {
    const part = text.slice(at, at + 16);
    const hex = Array.from(part, (one) => one.charCodeAt(0).toString(16).padStart(2, "0")).join(" ");
    const shown = Array.from(part, (one) => (one >= " " && one <= "~" ? one : ".")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${hex.padEnd(47)}  ${shown}`);
  }
  return lines.join("\n");
}
