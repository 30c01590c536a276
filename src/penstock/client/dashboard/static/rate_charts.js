// Rates of the last ten minutes, made of the counters of the samples.
import { UNKNOWN, formatBytes, formatRate, formatSeconds, isKnown, make, makeSvg, setText, withUnit } from "./dom.js";

const SPAN = 600; // seconds
const SPANS = [60, 120, 300, SPAN];
const WIDTH = 600, HEIGHT = 92;
// The columns of a point.
const AT = 0, CHANGES = 1, GETS = 2, SETS = 3, DELETES = 4, ITEMS_SENT = 5, BYTES_SENT = 6, MEMORY = 7;

const CHARTS = [
  { title: "Changes", unit: "/s", series: [{ column: CHANGES, isRate: true }], format: formatRate },
  { title: "Operations", unit: "/s", series: [{ name: "get", column: GETS, isRate: true }, { name: "set", column: SETS, isRate: true }, { name: "delete", column: DELETES, isRate: true }], format: formatRate },
  { title: "Sent to consumers", unit: "/s", series: [{ column: BYTES_SENT, isRate: true }], format: formatBytes },
  { title: "Memory", unit: "", series: [{ column: MEMORY, isRate: false }], format: formatBytes },
];

export class RateCharts {
  /** charts: [{title, unit, series: [{name, column, isRate}], format}], with columns of the points. */
  constructor(place, span, charts = CHARTS) {
    this.span = span;
    this.points = [];
    this.charts = charts.map((chart) => makeChart(chart));
    place.replaceChildren(...this.charts.map((chart) => chart.element));
  }

  /** Add points, or begin with them. */
  update(points, isComplete) {
    this.points = isComplete ? points : [...this.points, ...points];
    const last = this.points.at(-1);
    if (!last) return;
    this.points = this.points.filter((point) => point[AT] > last[AT] - SPAN - 5);
    setText(this.span, this.points.length > 1 ? `the last ${formatSeconds(last[AT] - this.points[0][AT])}` : "gathering");
    const span = SPANS.find((one) => last[AT] - this.points[0][AT] <= one) ?? SPAN;
    for (const chart of this.charts) chart.draw(this.points, last[AT], span);
  }

  /** Return the newest rate of changes and of bytes that were sent, for the totals. */
  get newest() {
    const [before, last] = this.points.slice(-2);
    if (!last) return { changes: null, bytes: null, items: null };
    return { changes: rate(before, last, CHANGES), bytes: rate(before, last, BYTES_SENT), items: rate(before, last, ITEMS_SENT) };
  }
}

// A counter that was reset, or a vbucket that left, must not show as a negative rate; one that is not told has none.
const rate = (before, after, column) => !isKnown(before[column]) || !isKnown(after[column]) ? null : Math.max(0, after[column] - before[column]) / Math.max(0.001, after[AT] - before[AT]);

function makeChart({ title, unit, series, format }) {
  const now = make("span", {}), begin = make("span", {}), most = make("span", {}), keys = make("span", { class: "buttons" });
  const svg = makeSvg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
  const area = series.length === 1 ? makeSvg("path", { class: "area series-1" }) : null;
  const lines = series.map((_, number) => makeSvg("path", { class: `series-${number + 1}` }));
  svg.append(...(area ? [area] : []), ...lines);
  if (series.length > 1) keys.append(...series.map(({ name }, number) => makeKey(name, number)));
  const element = make("div", { class: "chart" }, make("h3", {}, title, now), svg, make("p", { class: "under" }, begin, keys, most));

  function draw(points, at, span) {
    setText(begin, `${span / 60} min ago`);
    const values = series.map(({ column, isRate }) =>
      points.slice(isRate ? 1 : 0).map((point, number) => [point[AT], isRate ? rate(points[number], point, column) : point[column]]).filter(([, value]) => isKnown(value)));
    const top = Math.max(1, ...values.flat().map(([, value]) => value));
    values.forEach((list, number) => lines[number].setAttribute("d", makePath(list, at, top, span)));
    if (area) area.setAttribute("d", values[0].length ? `${makePath(values[0], at, top, span)}V${HEIGHT}H${findX(values[0][0][0], at, span)}Z` : "");
    const newest = values.map((list) => list.at(-1)?.[1] ?? null);
    const tell = (value) => withUnit(format(value), unit);
    setText(now, newest.some(isKnown) ? newest.map(tell).join(" · ") : UNKNOWN);
    const highest = values.flat().length ? Math.max(0, ...values.flat().map(([, value]) => value)) : null;
    setText(most, `max ${tell(highest)}`);
    svg.setAttribute("aria-label", `${title}: now ${newest.map((value, number) => `${series[number].name ?? ""} ${tell(value)}`.trim()).join(", ")}; highest ${tell(highest)}`);
  }

  return { element, draw };
}

const findX = (time, at, span) => Math.max(0, WIDTH - ((at - time) / span) * WIDTH).toFixed(1);

function makePath(list, at, top, span) {
  return list.map(([time, value], number) => `${number ? "L" : "M"}${findX(time, at, span)} ${(HEIGHT - 2 - (value / top) * (HEIGHT - 8)).toFixed(1)}`).join("");
}

function makeKey(name, number) {
  const line = makeSvg("path", { class: `series-${number + 1}`, d: "M0 3H20" });
  return make("span", { class: "key" }, makeSvg("svg", { viewBox: "0 0 20 6", "aria-hidden": "true" }, line), name);
}

